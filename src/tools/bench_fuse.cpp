// gpu4fs bench fuse: the CPU engine through FUSE on two CPUs against libfuse's passthrough file
// systems over tmpfs, which do nothing but hand requests on. The same steps on both, the mounts
// taken down and set up again before anything is read, so that nothing comes from the kernel's
// caches.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "tools/bench_client.hpp"
#include "tools/bench_result.hpp"
#include "tools/bench_verbs.hpp"

extern char** environ;

namespace gpu4fs::tools {

namespace {

namespace filesystem = std::filesystem;

constexpr u32 cpu_count = 2;
constexpr double ratio_min = 0.7;
constexpr u64 call_bytes = 1 << 20;
constexpr const char* example_folder = "/usr/share/doc/libfuse3-dev/examples";

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

// `quiet`: what it prints is thrown away.
pid_t start_program(const std::vector<std::string>& words, bool quiet = false) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (quiet) {
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error(fmt::format("{}: {}", words[0], std::strerror(error)));
  return child;
}

void run_program(const std::vector<std::string>& words) {
  int status = 0;
  if (::waitpid(start_program(words), &status, 0) < 0 || status != 0) {
    throw std::runtime_error(
        fmt::format("{} {} failed", words[0], words.size() > 1 ? words[1] : ""));
  }
}

// A served directory; mounting and unmounting by programs, as users do.
class Mount {
 public:
  virtual ~Mount() = default;
  virtual void up() = 0;
  virtual void down() = 0;
  const std::string& folder() const { return folder_; }

 protected:
  explicit Mount(std::string folder) : folder_(std::move(folder)) {
    filesystem::create_directories(folder_);
  }

  dev_t device() const {
    struct stat state {};
    return ::stat(folder_.c_str(), &state) == 0 ? state.st_dev : 0;
  }

  std::string folder_;
};

class PoolMount final : public Mount {
 public:
  PoolMount(const std::string& data_folder, std::string folder, u64 pool_bytes)
      : Mount(std::move(folder)), program_(filesystem::read_symlink("/proc/self/exe").string()) {
    filesystem::create_directories(data_folder);
    for (int i = 0; i < 4; ++i)
      devices_ += fmt::format("{}{}/device{}", i == 0 ? "" : ":", data_folder, i);
    run_program({program_, "mkfs", "-q", "--size", std::to_string(pool_bytes / 4), devices_});
  }
  ~PoolMount() override {
    if (is_up_) (void)::waitpid(start_program({"fusermount3", "-uz", folder_}), nullptr, 0);
  }
  void up() override {
    run_program({program_, "mount", "-o", "engine=cpu", devices_, folder_});
    is_up_ = true;
  }
  void down() override {
    run_program({program_, "umount", folder_});
    is_up_ = false;
  }

 private:
  std::string program_;
  std::string devices_;
  bool is_up_ = false;
};

// passthrough has the whole tree below its mount point, passthrough_ll takes -o source.
class PeerMount final : public Mount {
 public:
  PeerMount(std::string program, std::string data_folder, std::string folder)
      : Mount(std::move(folder)),
        program_(std::move(program)),
        data_folder_(std::move(data_folder)) {
    filesystem::create_directories(data_folder_);
    is_low_level_ = filesystem::path(program_).filename().string().find("_ll") != std::string::npos;
    mount_point_ = folder_;
    if (!is_low_level_) folder_ += data_folder_;
  }
  ~PeerMount() override {
    if (child_ > 0) down_quietly();
  }
  void up() override {
    struct stat before {};
    ::stat(mount_point_.c_str(), &before);
    std::vector<std::string> words{program_, "-f", mount_point_};
    if (is_low_level_) words.insert(words.end(), {"-o", "source=" + data_folder_});
    child_ = start_program(words, true);
    for (int attempt = 0; attempt < 500; ++attempt) {
      struct stat now {};
      if (::stat(mount_point_.c_str(), &now) == 0 && now.st_dev != before.st_dev) return;
      if (::waitpid(child_, nullptr, WNOHANG) != 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw std::runtime_error(program_ + " did not mount");
  }
  void down() override {
    run_program({"fusermount3", "-u", mount_point_});
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  void down_quietly() {
    (void)::waitpid(start_program({"fusermount3", "-uz", mount_point_}), nullptr, 0);
    (void)::waitpid(child_, nullptr, 0);
  }

  std::string program_;
  std::string data_folder_;
  std::string mount_point_;
  bool is_low_level_ = false;
  pid_t child_ = 0;
};

struct FuseScale {
  u64 file_bytes;
  u32 file_count;
  u32 rounds;
};

// Samples by quantity: "write", "read" in GB/s; "create", "stat", "unlink" in 1/s.
using Samples = std::map<std::string, std::vector<double>>;

class File {
 public:
  File(const std::string& path, int flags)
      : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail(path);
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

void write_file(const std::string& path, const FuseScale& scale, Samples& samples) {
  std::vector<u64> content(scale.file_bytes / 8);
  fill_pattern(content.data(), 0, 0, scale.file_bytes / page_size);
  const auto* bytes = reinterpret_cast<const u8*>(content.data());
  const double began = now_seconds();
  const File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  for (u64 offset = 0; offset < scale.file_bytes; offset += call_bytes) {
    if (::pwrite(file.get(), bytes + offset, call_bytes, static_cast<off_t>(offset)) !=
        ssize_t{call_bytes})
      fail(path);
  }
  samples["write"].push_back(static_cast<double>(scale.file_bytes) / 1e9 / (now_seconds() - began));
}

void read_file(const std::string& path, const FuseScale& scale, Samples& samples) {
  std::vector<u64> content(scale.file_bytes / 8);
  auto* bytes = reinterpret_cast<u8*>(content.data());
  const double began = now_seconds();
  const File file(path, O_RDONLY);
  for (u64 offset = 0; offset < scale.file_bytes; offset += call_bytes) {
    if (::pread(file.get(), bytes + offset, call_bytes, static_cast<off_t>(offset)) !=
        ssize_t{call_bytes})
      fail(path);
  }
  samples["read"].push_back(static_cast<double>(scale.file_bytes) / 1e9 / (now_seconds() - began));
  check_pattern(content.data(), 0, 0, scale.file_bytes / page_size);
}

template <class Step>
void time_files(const char* name, const std::string& folder, u32 count, Samples& samples,
                Step step) {
  const double began = now_seconds();
  for (u32 i = 0; i < count; ++i) step(fmt::format("{}/file{}", folder, i));
  samples[name].push_back(count / (now_seconds() - began));
}

void run_round(Mount& mount, const FuseScale& scale, Samples& samples) {
  mount.up();
  const std::string folder = mount.folder() + "/many";
  const std::string big = mount.folder() + "/big";
  if (::mkdir(folder.c_str(), 0755) != 0) fail(folder);
  write_file(big, scale, samples);
  time_files("create", folder, scale.file_count, samples,
             [](const std::string& path) { File(path, O_WRONLY | O_CREAT | O_EXCL); });
  mount.down();
  mount.up();
  read_file(big, scale, samples);
  time_files("stat", folder, scale.file_count, samples, [](const std::string& path) {
    struct stat state {};
    if (::stat(path.c_str(), &state) != 0 || state.st_size != 0) fail(path);
  });
  time_files("unlink", folder, scale.file_count, samples, [](const std::string& path) {
    if (::unlink(path.c_str()) != 0) fail(path);
  });
  if (::unlink(big.c_str()) != 0 || ::rmdir(folder.c_str()) != 0) fail(folder);
  mount.down();
}

// Round by round in turn, so that a machine that changes its pace does so for all.
std::vector<Samples> measure(const std::vector<std::unique_ptr<Mount>>& mounts,
                             const FuseScale& scale) {
  std::vector<Samples> samples(mounts.size());
  for (u32 round = 0; round <= scale.rounds; ++round) {
    for (std::size_t i = 0; i < mounts.size(); ++i) {
      Samples warm_up;
      run_round(*mounts[i], scale, round == 0 ? warm_up : samples[i]);
    }
  }
  return samples;
}

// Compiles one of the examples that Debian's libfuse3-dev brings.
std::string build_example(const std::string& name, const std::string& folder) {
  const std::string source = fmt::format("{}/{}.c", example_folder, name);
  if (!filesystem::exists(source)) {
    throw std::runtime_error(
        fmt::format("{} is missing: install libfuse3-dev or name a program with --peer", source));
  }
  const std::string program = folder + "/" + name;
  run_program(
      {"sh", "-c",
       fmt::format("cc -O2 -w -o '{}' '{}' $(pkg-config fuse3 --cflags --libs)", program, source)});
  return program;
}

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& parent) {
    path_ = parent + "/gpu4fs-bench-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) fail(parent);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void bind_to_cpus() {
  cpu_set_t allowed;
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) fail("sched_getaffinity");
  u32 count = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && count < cpu_count; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    CPU_SET(cpu, &chosen);
    ++count;
  }
  if (::sched_setaffinity(0, sizeof(chosen), &chosen) != 0) fail("sched_setaffinity");
}

void add_rows(BenchResult& result, const Samples& own, const Samples& peer,
              const std::string& peer_name, bool is_required) {
  for (const char* quantity : {"write", "read", "create", "stat", "unlink"}) {
    const bool is_stream =
        std::strcmp(quantity, "write") == 0 || std::strcmp(quantity, "read") == 0;
    BenchRow row;
    row.name = fmt::format("fuse-{}-{}", quantity, peer_name);
    row.what = fmt::format("{} through FUSE, {}",
                           is_stream ? fmt::format("sequential {} of 1 MiB", quantity) : quantity,
                           "CPU engine");
    row.unit = is_stream ? "GB/s" : "1/s";
    BenchRow limit;
    set_samples(row, own.at(quantity));
    set_samples(limit, peer.at(quantity));
    row.limit = limit.value;
    row.limit_what = peer_name;
    if (is_required) {
      row.requirement = Requirement::at_least;
      row.required = ratio_min;
    }
    result.rows.push_back(std::move(row));
  }
}

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

int bench_fuse(const BenchFuseOptions& options) {
  const FuseScale scale =
      options.quick ? FuseScale{64ull << 20, 1000, 2} : FuseScale{256ull << 20, 5000, 5};
  const TemporaryFolder folder(options.folder.empty() ? "/dev/shm" : options.folder);
  BenchResult result;
  result.benchmark = "fuse";
  result.engine = "cpu";
  result.date = date_text();
  const char* commit = std::getenv("GPU4FS_COMMIT");
  result.commit = commit != nullptr ? commit : "";
  result.version = GPU4FS_VERSION;
  result.quick = options.quick;
  result.machine = describe_machine();
  std::vector<std::string> peers = options.peers;
  if (peers.empty()) {
    for (const char* name : {"passthrough", "passthrough_ll"})
      peers.push_back(build_example(name, folder.path()));
  }
  bind_to_cpus();
  std::vector<Samples> samples;
  {
    std::vector<std::unique_ptr<Mount>> mounts;
    mounts.push_back(std::make_unique<PoolMount>(folder.path() + "/pool", folder.path() + "/mount",
                                                 4 * scale.file_bytes));
    for (std::size_t i = 0; i < peers.size(); ++i) {
      mounts.push_back(
          std::make_unique<PeerMount>(peers[i], fmt::format("{}/peer{}", folder.path(), i),
                                      fmt::format("{}/peer-mount{}", folder.path(), i)));
    }
    samples = measure(mounts, scale);
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    // The first is what the goal names; the others are for comparison.
    add_rows(result, samples[0], samples[i + 1], filesystem::path(peers[i]).filename().string(),
             i == 0);
  }
  print_rows(result);
  if (!options.output.empty()) write_result(result, options.output);
  return 0;
}

}  // namespace gpu4fs::tools
