// gpu4fs convert: gives the blocks of files another profile. gpu4fs defragment: joins the pieces of files.
//
//   gpu4fs convert PATH PROFILE [-r]
//   gpu4fs convert --pause | --resume | --cancel | --status PATH
//   gpu4fs defragment PATH [-r]
//
// Both run in the server of the mounted pool; the caller may wait, or ask later with --status.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "tools/job_text.hpp"
#include "tools/mounted_pool.hpp"
#include "tools/profile_text.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_damaged = 4;  // pages stayed in place because they cannot be read
constexpr int status_failure = 8;
constexpr int status_usage = 16;
constexpr auto look_interval = std::chrono::milliseconds(200);

struct Arguments {
  const char* name = "";
  std::string path;
  std::string profile;
  std::string rate;
  bool recursive = false;
  bool pauses = false;
  bool resumes = false;
  bool cancels = false;
  bool only_status = false;
  bool in_background = false;
  bool json = false;
  [[nodiscard]] bool starts() const { return !pauses && !resumes && !cancels && !only_status; }
};
Arguments line;

void add_common_options(cli::CommandLine app) {
  app.flag("-r,--recursive", line.recursive, "Everything below a directory");
  app.option("--rate", line.rate, "Bytes a second at most, as 500M; 0: as fast as it goes");
  cli::Option pause = app.flag("--pause", line.pauses, "What runs stops for a while");
  cli::Option resume = app.flag("--resume", line.resumes, "It goes on").excludes(pause);
  cli::Option cancel =
      app.flag("--cancel", line.cancels, "It ends; what was moved stays").excludes(pause).excludes(resume);
  app.flag("--status", line.only_status, "Only say how far it is").excludes(pause).excludes(resume).excludes(cancel);
  app.flag("-b,--background", line.in_background, "Do not wait for the end");
  app.flag("--json", line.json, "Print JSON");
}

void add_convert_options(cli::CommandLine app) {
  line = {};
  line.name = "convert";
  app.option("path", line.path, "A file or a directory of a mounted pool").required();
  app.option("profile", line.profile,
             "single, raid0, raid1, raid1c3, raid1c4, raid5, raid6, raid7, or default: that of the pool");
  add_common_options(app);
}

void add_defragment_options(cli::CommandLine app) {
  line = {};
  line.name = "defragment";
  app.option("path", line.path, "A file or a directory of a mounted pool").required();
  add_common_options(app);
}

// The directory of the path's mount; "" if it is not a gpu4fs mount.
std::string mountpoint_above(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::canonical(path, error);
  while (!error && !at.empty()) {
    const std::string found = find_mountpoint(at.string());
    if (!found.empty()) return found;
    if (at == at.parent_path()) break;
    at = at.parent_path();
  }
  return {};
}

std::string change_request() {
  const char* what = line.pauses ? "pause" : line.resumes ? "resume" : line.cancels ? "cancel" : "status";
  return fmt::format("{{\"request\": \"relocate-{}\"}}", what);
}

std::string start_request(u64 inode) {
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("request", "relocate-start");
  json.add("kind", line.name);
  json.add("inode", inode);
  json.add("recursive", line.recursive);
  if (!line.rate.empty()) json.add("rate", parse_size(line.rate));
  json.end();
  std::string text = json.text();
  text.pop_back();
  return text;
}

// Waits for the end of the current or last job.
std::string wait_for_end(const std::string& mountpoint, std::string text) {
  const bool shows = !line.json && ::isatty(STDOUT_FILENO) != 0;
  for (;;) {
    const JsonValue answer = parse_json(text);
    if (!answer["ok"].boolean || answer["relocation"]["state"].text != "running") break;
    const JsonValue& report = answer["relocation"];
    if (shows) {
      fmt::print("\r{} of {} files, {} moved ", count_of(report["files_done"]), count_of(report["files_total"]),
                 size_text(count_of(report["pages_moved"]) * page_size));
      std::fflush(stdout);
    }
    std::this_thread::sleep_for(look_interval);
    text = ask_server_text(mountpoint, "{\"request\": \"relocate-status\"}");
  }
  if (shows) fmt::print("\r\x1b[K");
  return text;
}

int show(const std::string& mountpoint, const std::string& text) {
  const JsonValue answer = parse_json(text);
  if (!answer["ok"].boolean) throw ControlError(fmt::format("{}: {}", mountpoint, answer["error"].text));
  const JsonValue& report = answer["relocation"];
  const std::string words = relocation_text(report);
  fmt::print("{}", line.json ? text + "\n" : words.empty() ? "relocation  none since the mount\n" : words);
  if (report["state"].text == "failed") return status_failure;
  return count_of(report["pages_unreadable"]) != 0 ? status_damaged : 0;
}

int run() {
  const std::string mountpoint = mountpoint_above(line.path);
  if (mountpoint.empty()) {
    fmt::print(stderr, "gpu4fs {}: {}: not in a mounted gpu4fs pool\n", line.name, line.path);
    return status_failure;
  }
  if (!line.starts()) return show(mountpoint, ask_server_text(mountpoint, change_request()));
  const bool converts = std::strcmp(line.name, "convert") == 0;
  if (converts && line.profile.empty()) {
    fmt::print(stderr, "gpu4fs convert: which profile?\n");
    return status_usage;
  }
  if (converts && !set_profile(line.name, line.profile, line.path, line.recursive)) return status_failure;
  struct stat status {};
  if (::stat(line.path.c_str(), &status) != 0) {
    fmt::print(stderr, "gpu4fs {}: {}: {}\n", line.name, line.path, std::strerror(errno));
    return status_failure;
  }
  std::string text = ask_server_text(mountpoint, start_request(status.st_ino));
  if (!line.in_background) text = wait_for_end(mountpoint, text);
  return show(mountpoint, text);
}

}  // namespace

const cli::Verb convert_verb = {
    "convert",     "give files another profile, their blocks included", nullptr, add_convert_options, run, status_usage,
    status_failure};
const cli::Verb defragment_verb = {
    "defragment",  "put the blocks of files together", nullptr, add_defragment_options, run, status_usage,
    status_failure};

}  // namespace gpu4fs::tools
