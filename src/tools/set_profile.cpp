// gpu4fs set-profile: sets the profile of new blocks of files, and of new files in directories.
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/profile_text.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

constexpr const char* attribute = "user.gpu4fs.raid";

struct Arguments {
  std::string profile;
  std::vector<std::string> paths;
  bool recursive = false;
};
Arguments line;

void add_options(cli::CommandLine app) {
  line = {};
  app.option("profile", line.profile,
             "single, raid0, raid1, raid1c3, raid1c4, raid5, raid6, raid7, physical:INDEX of a device, or default: "
             "that of the pool")
      .required();
  app.option("path", line.paths, "Files and directories of a mounted pool").required();
  app.flag("-r,--recursive", line.recursive, "Everything below directories as well");
}

const char* reason_of(int error) {
  if (error == EOPNOTSUPP) return "the pool has no chunks of this profile for data, or this is no gpu4fs pool";
  return error == EINVAL ? "there is no profile of this name" : std::strerror(error);
}

// Symbolic links and special files have no blocks of data: they are skipped. False: an error was printed.
bool set_one(const char* verb, const std::string& profile, const std::string& path, bool is_named) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    fmt::print(stderr, "gpu4fs {}: {}: {}\n", verb, path, std::strerror(errno));
    return false;
  }
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    if (is_named) fmt::print(stderr, "gpu4fs {}: {}: neither a file nor a directory\n", verb, path);
    return !is_named;
  }
  const bool removes = profile == "default";
  const int result = removes ? ::lremovexattr(path.c_str(), attribute)
                             : ::lsetxattr(path.c_str(), attribute, profile.data(), profile.size(), 0);
  if (result == 0 || (removes && errno == ENODATA)) return true;
  fmt::print(stderr, "gpu4fs {}: {}: {}\n", verb, path, reason_of(errno));
  return false;
}

bool set_below(const char* verb, const std::string& profile, const std::string& path) {
  bool all = true;
  std::error_code error;
  using Walk = std::filesystem::recursive_directory_iterator;
  for (Walk entry(path, error), end; !error && entry != end; entry.increment(error)) {
    all = set_one(verb, profile, entry->path().string(), false) && all;
  }
  if (!error) return all;
  fmt::print(stderr, "gpu4fs {}: {}: {}\n", verb, path, error.message());
  return false;
}

int run() {
  bool all = true;
  for (const std::string& path : line.paths)
    all = set_profile("set-profile", line.profile, path, line.recursive) && all;
  return all ? 0 : 1;
}

}  // namespace

bool set_profile(const char* verb, const std::string& profile, const std::string& path, bool below) {
  if (!set_one(verb, profile, path, true)) return false;
  struct stat status {};
  const bool is_directory = ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  return !below || !is_directory || set_below(verb, profile, path);
}

const cli::Verb set_profile_verb = {
    "set-profile", "choose the profile of new blocks of files and directories", nullptr, add_options, run, 16, 8};

}  // namespace gpu4fs::tools
