// gpu4fs fsck: checks a pool that is not mounted.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "fsck/check/check_pool.hpp"
#include "fsck/repair/repair_pool.hpp"
#include "pool/pool_error.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {

namespace {

// Exit statuses of fsck(8).
constexpr int status_clean = 0;
constexpr int status_corrected = 1;
constexpr int status_errors_left = 4;
constexpr int status_failure = 8;
constexpr int status_usage = 16;

struct FsckOptions {
  std::vector<std::string> devices;
  bool no_change = false;
  bool automatic = false;
  bool assume_yes = false;
  bool force = false;
  bool verbose = false;
  bool repair = false;
  bool dry_run = false;
  bool drop_log = false;
  bool no_data = false;
  bool quiet = false;
  bool json = false;
  std::string engine = "auto";
};
FsckOptions options;

void add_options(cli::CommandLine app) {
  options = {};
  app.option("devices", options.devices, "Members of the pool; those next to them are found").required();
  app.flag("-n", options.no_change, "Change nothing, whatever else is said");
  app.flag("-p,-a", options.automatic, "As fsck(8) calls it at boot; changes nothing");
  app.flag("-y", options.assume_yes, "Accepted; there are no questions");
  app.flag("-f", options.force, "Accepted; the check is always complete");
  app.flag("-v,--verbose", options.verbose, "Print what was counted");
  const cli::Option repair = app.flag("--repair", options.repair, "Repair what is wrong, without questions");
  app.flag("--dry-run", options.dry_run, "With --repair: say what would be repaired");
  app.flag("--drop-log", options.drop_log, "With --repair: give up an operation log that cannot be replayed")
      .needs(repair);
  app.flag("--no-data", options.no_data, "Do not verify checksums of file contents");
  app.option("--engine", options.engine, "Who reads: auto, cpu, cuda, or none (one thread, without the engine)")
      .one_of({"auto", "cpu", "cuda", "none"});
  app.flag("-q,--quiet", options.quiet, "Print findings only");
  app.flag("--json", options.json, "Print the result as JSON");
}

// One line on a terminal, rewritten; it appears if the check takes longer than two seconds.
class ProgressLine {
 public:
  void update(const fsck::CheckProgress& progress) {
    using Seconds = std::chrono::duration<double>;
    const auto now = std::chrono::steady_clock::now();
    const double elapsed_s = Seconds(now - began_).count();
    if (elapsed_s < 2 || Seconds(now - printed_).count() < 0.5) return;
    printed_ = now;
    const double rate = static_cast<double>(progress.pages_done) / elapsed_s;
    const u64 left = progress.pages_total - std::min(progress.pages_done, progress.pages_total);
    const double left_s = rate > 0 ? static_cast<double>(left) / rate : 0;
    fmt::print(stderr, "\r{}: {} of {}, {}/s, {:.0f} s left   ", progress.phase,
               size_text(progress.pages_done * page_size), size_text(progress.pages_total * page_size),
               size_text(static_cast<u64>(rate) * page_size), left_s);
    std::fflush(stderr);
    is_visible_ = true;
  }
  void clear() {
    if (is_visible_) fmt::print(stderr, "\r{:79}\r", "");
    is_visible_ = false;
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point printed_;
  bool is_visible_ = false;
};

fsck::CheckEngine chosen_engine() {
  if (options.engine == "none") return fsck::CheckEngine::none;
  if (options.engine == "cpu") return fsck::CheckEngine::cpu;
  return options.engine == "cuda" ? fsck::CheckEngine::cuda : fsck::CheckEngine::automatic;
}

const char* severity_text(fsck::Severity severity) {
  return severity == fsck::Severity::error ? "error" : "note";
}

struct Repair {
  std::string place;
  std::string text;
};
std::vector<Repair> repairs;  // made, or planned in a dry run

void print_json(const fsck::CheckResult& result, double seconds) {
  JsonWriter json;
  json.begin_object();
  json.add("clean", result.findings.error_count() == 0);
  json.add("errors", result.findings.error_count());
  json.add("epoch", result.epoch);
  json.begin_array("devices");
  for (const std::string& path : result.devices) json.add("", path);
  json.end();
  json.add("pages_total", result.pages_total);
  json.add("pages_used", result.pages_used);
  json.add("pages_verified", result.pages_verified);
  json.add("data_verified", !options.no_data);
  json.add("inodes", result.inodes);
  json.add("directories", result.directories);
  json.add("names", result.names);
  json.add("orphans", result.orphans);
  json.begin_object("log");
  json.add("records", result.log_records);
  json.add("bytes", result.log_bytes);
  json.add("end", result.log_end);
  json.end();
  json.add("engine", result.engine);
  json.add("seconds", seconds);
  json.add("dry_run", options.dry_run || options.no_change);
  json.begin_array("repairs");
  for (const Repair& repair : repairs) {
    json.begin_object();
    json.add("place", repair.place);
    json.add("text", repair.text);
    json.end();
  }
  json.end();
  json.begin_array("findings");
  for (const fsck::Finding& finding : result.findings.kept()) {
    const fsck::FindingKind kind = fsck::finding_kind(finding.id);
    json.begin_object();
    json.add("id", kind.id);
    json.add("severity", severity_text(kind.severity));
    json.add("place", finding.place);
    json.add("text", finding.text);
    json.end();
  }
  json.end();
  json.begin_object("counts");
  for (u32 i = 0; i < fsck::finding_id_count; ++i) {
    const auto id = static_cast<fsck::FindingId>(i);
    if (result.findings.count(id) > 0) json.add(fsck::finding_kind(id).id, result.findings.count(id));
  }
  json.end();
  json.end();
  fmt::print("{}", json.text());
}

void print_summary(const fsck::CheckResult& result, double seconds) {
  for (u32 i = 0; i < fsck::finding_id_count; ++i) {
    const auto id = static_cast<fsck::FindingId>(i);
    const u64 count = result.findings.count(id);
    if (count > fsck::Findings::kept_max) {
      fmt::print("{}: {} more of this kind\n", fsck::finding_kind(id).id, count - fsck::Findings::kept_max);
    }
  }
  if (options.quiet) return;
  if (options.verbose) {
    fmt::print(
        "{} inodes, {} directories, {} names, {} orphans; {} of {} pages used, {} verified in "
        "{:.1f} s, engine: {}\n",
        result.inodes, result.directories, result.names, result.orphans, result.pages_used, result.pages_total,
        result.pages_verified, seconds, result.engine);
  }
  if (result.findings.error_count() == 0) {
    fmt::print("clean: epoch {}, {} files and directories, {} used{}\n", result.epoch, result.inodes,
               size_text(result.pages_used * page_size), options.no_data ? ", file contents not verified" : "");
  } else {
    fmt::print("{} errors\n", result.findings.error_count());
  }
}

// Findings are printed when they are found, unless the result is JSON.
fsck::CheckResult check_once(double* seconds) {
  ProgressLine progress;
  const bool shows_progress = !options.json && !options.quiet && ::isatty(STDERR_FILENO) != 0;
  fsck::CheckOptions check;
  check.device_paths = options.devices;
  check.check_data = !options.no_data;
  check.engine = chosen_engine();
  if (shows_progress) {
    check.on_progress = [&](const fsck::CheckProgress& now) { progress.update(now); };
  }
  if (!options.json) {
    check.on_finding = [&](const fsck::Finding& finding) {
      progress.clear();
      const fsck::FindingKind kind = fsck::finding_kind(finding.id);
      if (options.quiet && kind.severity == fsck::Severity::note) return;
      fmt::print("{}: {}: {}{}{}\n", kind.id, finding.place, kind.sentence, finding.text.empty() ? "" : " ",
                 finding.text);
    };
  }
  const auto began = std::chrono::steady_clock::now();
  fsck::CheckResult result = fsck::check_pool(check);
  *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  progress.clear();
  return result;
}

void print_result(const fsck::CheckResult& result, double seconds) {
  if (options.json) {
    print_json(result, seconds);
  } else {
    print_summary(result, seconds);
  }
}

fsck::RepairResult repair() {
  fsck::RepairOptions repair;
  repair.device_paths = options.devices;
  repair.dry_run = options.dry_run || options.no_change;
  repair.drop_log = options.drop_log;
  const char* word = repair.dry_run ? "would repair" : "repaired";
  repair.on_repair = [word](const std::string& place, const std::string& text) {
    repairs.push_back({place, text});
    if (!options.quiet && !options.json) fmt::print("{}: {}: {}\n", word, place, text);
  };
  return fsck::repair_pool(repair);
}

int run() {
  repairs.clear();
  double seconds = 0;
  fsck::CheckResult result = check_once(&seconds);
  const bool changes = options.repair && !options.dry_run && !options.no_change;
  const bool wants_repair = options.repair && result.findings.error_count() != 0;
  if (!wants_repair || !changes) {
    if (wants_repair && result.findings.count(fsck::FindingId::pool_unusable) == 0) (void)repair();
    print_result(result, seconds);
    return result.findings.error_count() == 0 ? status_clean : status_errors_left;
  }
  if (!options.json) print_summary(result, seconds);
  try {
    (void)repair();
  } catch (const pool::PoolError& error) {
    fmt::print(stderr, "fsck.gpu4fs: not repaired: {}\n", error.what());
    if (options.json) print_result(result, seconds);
    return status_errors_left;
  }
  if (!options.json) fmt::print("checking again\n");
  result = check_once(&seconds);
  print_result(result, seconds);
  return result.findings.error_count() == 0 ? status_corrected : status_errors_left;
}

}  // namespace

const cli::Verb fsck_verb = {
    "fsck", "check a pool that is not mounted", "fsck.gpu4fs", add_options, run, status_usage, status_failure};

}  // namespace gpu4fs::tools
