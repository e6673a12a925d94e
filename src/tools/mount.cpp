// gpu4fs mount, mount.gpu4fs: serves a pool as a directory.
//
// The program goes into the background when the directory is usable. Its exit status says whether the mount succeeded:
// the child reports through a pipe, and the parent waits for the report.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/host/log.hpp"
#include "daemon/mount_options.hpp"
#include "daemon/mount_restart.hpp"
#include "daemon/mount_service.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_error.hpp"
#include "session/control_socket.hpp"
#include "tools/remount.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

// Exit statuses of mount(8).
constexpr int status_usage = 1;
constexpr int status_failure = 32;

struct Arguments {
  std::vector<std::string> words;  // devices, the mount point last
  std::vector<std::string> option_lists;
  std::string type;
  std::string name_space;
  bool foreground = false;
  bool verbose = false;
  bool fake = false;
  bool sloppy = false;
  bool no_mtab = false;
  bool read_only = false;
  bool read_write = false;
  int resume_from = -1;
};
Arguments line;

void add_options(cli::CommandLine app) {
  line = {};
  app.option("words", line.words,
             "Devices of the pool (several, or one list with colons; one is enough when the others "
             "lie in the same folder), then the directory")
      .required();
  app.option("-o,--options", line.option_lists,
             "ro, noatime, nodiratime, relatime, strictatime, allow_other, engine=auto|cpu|cuda, "
             "workers=N, threads=N, commit=SECONDS, cache=SIZE, page_cache=SIZE, host_cache=SIZE, "
             "page_readahead=SIZE, "
             "access=mapped|direct|emulated, drive=PROFILE, discard, nodiscard, sessions, readahead=KIB, direct_io, "
             "idmap, writeback, fast_close, sync, dirsync, "
             "errors=remount-ro|continue, norecovery, damaged_log=refuse|drop, degraded, spare=PATH, nosuid, nodev, "
             "noexec")
      .one_value_each();
  app.flag("-F,--foreground", line.foreground, "Stay in the foreground and log to stderr");
  app.flag("-v,--verbose", line.verbose, "Say more");
  app.flag("-r,--read-only", line.read_only, "Same as -o ro");
  app.flag("-w,--rw", line.read_write, "Same as -o rw");
  app.flag("-f,--fake", line.fake, "Check the options, do not mount");
  app.flag("-s,--sloppy", line.sloppy, "For mount(8); nothing is passed over in silence");
  app.flag("-n,--no-mtab", line.no_mtab, "For mount(8); there is no mtab to write");
  app.option("-t,--types", line.type, "For mount(8); gpu4fs");
  // For this program itself, see mount_restart.hpp; not shown.
  app.option("--resume", line.resume_from).hidden();
  app.option("-N,--namespace", line.name_space, "For mount(8); not supported");
}

std::string absolute_path(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) {
    throw pool::PoolError(Status::not_found, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  std::string result = resolved;
  std::free(resolved);
  return result;
}

// The mount would hide them, also from the server when it opens them again.
void refuse_covered(const daemon::MountOptions& options) {
  std::vector<std::string> devices = options.server.device_paths;
  devices.insert(devices.end(), options.server.spare_paths.begin(), options.server.spare_paths.end());
  const std::string folder = options.fuse.mountpoint == "/" ? "/" : options.fuse.mountpoint + "/";
  for (const std::string& device : devices) {
    if (!pool::parse_device(device).path.starts_with(folder)) continue;
    throw pool::PoolError(Status::invalid_argument, fmt::format("{}: lies below {}, which the mount would cover",
                                                                device, options.fuse.mountpoint));
  }
}

daemon::MountOptions read_command_line() {
  daemon::MountOptions options;
  options.server.control_folder = session::default_control_folder();
  if (line.words.size() < 2) throw daemon::MountUsageError("a device and a directory are needed");
  if (!line.name_space.empty()) throw daemon::MountUsageError("option '-N' is not supported");
  for (const std::string& list : line.option_lists) daemon::add_mount_options(options, list);
  if (line.read_only) daemon::add_mount_options(options, "ro");
  if (line.read_write) daemon::add_mount_options(options, "rw");
  daemon::check_mount_options(options);
  // As root, a pool is as trusted as any other file system that root mounts. Later words take precedence.
  std::vector<std::string>& flags = options.fuse.kernel_flags;
  if (::geteuid() == 0 && !options.is_remount) flags.insert(flags.begin(), {"suid", "dev"});
  const bool is_resumed = line.resume_from >= 0;
  // This process serves the directory: a request for it would wait for the process itself.
  options.fuse.mountpoint = is_resumed ? line.words.back() : absolute_path(line.words.back());
  std::string joined;
  for (std::size_t i = 0; i + 1 < line.words.size(); ++i) {
    for (const std::string& path : pool::split_device_list(line.words[i])) {
      options.server.device_paths.push_back(is_resumed ? path : pool::absolute_device_path(path));
      joined += (joined.empty() ? "" : ":") + options.server.device_paths.back();
    }
  }
  if (options.server.device_paths.empty()) throw daemon::MountUsageError("a device is needed");
  if (options.server.ignore_log && !options.server.read_only) {
    throw daemon::MountUsageError(
        "option 'norecovery' needs 'ro': without the log's operations the pool must not be written");
  }
  if (options.fuse.source.empty()) options.fuse.source = joined;
  struct stat attributes {};
  if (is_resumed || options.is_remount) return options;
  if (::stat(options.fuse.mountpoint.c_str(), &attributes) != 0 || !S_ISDIR(attributes.st_mode)) {
    throw pool::PoolError(Status::not_directory, fmt::format("{}: not a directory", options.fuse.mountpoint));
  }
  refuse_covered(options);
  return options;
}

// The child's report to its parent: the first byte is the exit status, followed by text for stderr.
class Report {
 public:
  explicit Report(int pipe_end) : pipe_(pipe_end) {}
  void send(int status, const std::string& text) {
    if (pipe_ < 0) {
      if (!text.empty()) fmt::print(stderr, "mount.gpu4fs: {}\n", text);
      return;
    }
    const std::string message = static_cast<char>(status) + text;
    if (::write(pipe_, message.data(), message.size()) < 0) return;
    ::close(pipe_);
    pipe_ = -1;
  }
  bool is_background() const { return pipe_ >= 0; }

 private:
  int pipe_;
};

int await_report(int pipe_end, pid_t child) {
  std::string message;
  char buffer[512];
  ssize_t count = 0;
  while ((count = ::read(pipe_end, buffer, sizeof(buffer))) > 0) {
    message.append(buffer, static_cast<std::size_t>(count));
  }
  if (message.empty()) {
    int status = 0;
    ::waitpid(child, &status, 0);
    fmt::print(stderr, "mount.gpu4fs: the server ended before it was ready (wait status {})\n", status);
    return status_failure;
  }
  if (message.size() > 1) fmt::print(stderr, "mount.gpu4fs: {}\n", message.substr(1));
  return static_cast<unsigned char>(message[0]);
}

void detach_from_terminal() {
  ::setsid();
  if (::chdir("/") != 0) return;
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) return;
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::close(null);
}

// The words for executing the program again, from any working directory.
std::vector<std::string> words_of(const daemon::MountOptions& options) {
  std::vector<std::string> words = {"gpu4fs", "mount"};
  for (const std::string& list : line.option_lists) {
    words.emplace_back("-o");
    words.push_back(list);
  }
  if (line.read_only) words.emplace_back("--read-only");
  if (line.read_write) words.emplace_back("--rw");
  if (line.verbose) words.emplace_back("--verbose");
  words.insert(words.end(), options.server.device_paths.begin(), options.server.device_paths.end());
  words.push_back(options.fuse.mountpoint);
  return words;
}

int resume(const daemon::MountOptions& options) {
  daemon::MountService service;
  service.options = options;
  service.words = words_of(options);
  service.resumed = daemon::read_restart_state(line.resume_from);
  service.is_background = service.resumed->is_background;
  service.is_verbose = true;
  service.announce = [](const std::string& text) { log(LogLevel::info, text); };
  if (service.is_background) log_to_system(true);
  return daemon::serve(std::move(service)) ? 0 : status_failure;
}

int serve_first(const daemon::MountOptions& options, Report& report) {
  daemon::MountService service;
  service.options = options;
  service.words = words_of(options);
  service.is_background = report.is_background();
  service.is_verbose = line.verbose;
  service.announce = [&report](const std::string& text) {
    const bool background = report.is_background();
    report.send(0, text);
    if (!background) return;
    log_to_system(true);
    detach_from_terminal();
  };
  return daemon::serve(std::move(service)) ? 0 : status_failure;
}

int serve_and_report(const daemon::MountOptions& options, Report& report) {
  try {
    return serve_first(options, report);
  } catch (const std::exception& error) {
    report.send(status_failure, error.what());
    return status_failure;
  }
}

int run() {
  daemon::MountOptions options;
  try {
    options = read_command_line();
  } catch (const daemon::MountUsageError& error) {
    fmt::print(stderr, "mount.gpu4fs: {}\n", error.what());
    return status_usage;
  }
  if (line.fake) return 0;
  if (line.resume_from >= 0) return resume(options);
  if (options.is_remount) return remount(options, options.fuse.mountpoint);
  if (line.foreground) {
    Report report(-1);
    return serve_and_report(options, report);
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::strerror(errno));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error(fmt::format("fork: {}", std::strerror(errno)));
  if (child != 0) {
    ::close(ends[1]);
    return await_report(ends[0], child);
  }
  ::close(ends[0]);
  Report report(ends[1]);
  const int status = serve_and_report(options, report);
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

const cli::Verb mount_verb = {
    "mount", "serve a pool as a directory", "mount.gpu4fs", add_options, run, status_usage, status_failure};

}  // namespace gpu4fs::tools
