// gpu4fs bench fuse: small requests of one process (fuse_engines.hpp), and the CPU engine through FUSE on two CPUs,
// compared with libfuse's passthrough file systems over tmpfs, which only pass requests on. Both execute the same
// steps. They are unmounted and mounted again before anything is read, so nothing comes from the kernel's caches.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/cpu_binding.hpp"
#include "bench/fuse_engines.hpp"
#include "bench/limits.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"
#include "bench/verbs.hpp"

namespace gpu4fs::bench {

namespace {

namespace filesystem = std::filesystem;

constexpr u32 cpu_count = 2;
constexpr double ratio_min = 0.7;
constexpr u64 call_bytes = 1 << 20;
constexpr const char* example_folder = "/usr/share/doc/libfuse3-dev/examples";

// passthrough shows the whole tree below its mount point; passthrough_ll uses -o source.
class PeerMount final : public Mount {
 public:
  PeerMount(std::string program, std::string data_folder, std::string folder)
      : Mount(std::move(folder)), program_(std::move(program)), data_folder_(std::move(data_folder)) {
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

void write_file(const std::string& path, const FuseScale& scale, Samples& samples) {
  std::vector<u64> content(scale.file_bytes / 8);
  fill_pattern(content.data(), 0, 0, scale.file_bytes / page_size);
  const auto* bytes = reinterpret_cast<const u8*>(content.data());
  const double began = now_seconds();
  const OpenFile file(path, O_WRONLY | O_CREAT | O_TRUNC);
  for (u64 offset = 0; offset < scale.file_bytes; offset += call_bytes) {
    if (::pwrite(file.get(), bytes + offset, call_bytes, static_cast<off_t>(offset)) != ssize_t{call_bytes})
      fail_by_errno(path);
  }
  samples["write"].push_back(static_cast<double>(scale.file_bytes) / 1e9 / (now_seconds() - began));
}

void read_file(const std::string& path, const FuseScale& scale, Samples& samples) {
  std::vector<u64> content(scale.file_bytes / 8);
  auto* bytes = reinterpret_cast<u8*>(content.data());
  const double began = now_seconds();
  const OpenFile file(path, O_RDONLY);
  for (u64 offset = 0; offset < scale.file_bytes; offset += call_bytes) {
    if (::pread(file.get(), bytes + offset, call_bytes, static_cast<off_t>(offset)) != ssize_t{call_bytes})
      fail_by_errno(path);
  }
  samples["read"].push_back(static_cast<double>(scale.file_bytes) / 1e9 / (now_seconds() - began));
  check_pattern(content.data(), 0, 0, scale.file_bytes / page_size);
}

template <class Step>
void time_files(const char* name, const std::string& folder, u32 count, Samples& samples, Step step) {
  const double began = now_seconds();
  for (u32 i = 0; i < count; ++i) step(fmt::format("{}/file{}", folder, i));
  samples[name].push_back(count / (now_seconds() - began));
}

void run_round(Mount& mount, const FuseScale& scale, Samples& samples) {
  mount.up();
  const std::string folder = mount.folder() + "/many";
  const std::string big = mount.folder() + "/big";
  if (::mkdir(folder.c_str(), 0755) != 0) fail_by_errno(folder);
  write_file(big, scale, samples);
  time_files("create", folder, scale.file_count, samples,
             [](const std::string& path) { OpenFile(path, O_WRONLY | O_CREAT | O_EXCL); });
  mount.down();
  mount.up();
  read_file(big, scale, samples);
  time_files("stat", folder, scale.file_count, samples, [](const std::string& path) {
    struct stat state {};
    if (::stat(path.c_str(), &state) != 0 || state.st_size != 0) fail_by_errno(path);
  });
  time_files("unlink", folder, scale.file_count, samples, [](const std::string& path) {
    if (::unlink(path.c_str()) != 0) fail_by_errno(path);
  });
  if (::unlink(big.c_str()) != 0 || ::rmdir(folder.c_str()) != 0) fail_by_errno(folder);
  mount.down();
}

// The rounds alternate, so changes of the machine's speed affect all.
std::vector<Samples> measure(const std::vector<std::unique_ptr<Mount>>& mounts, const FuseScale& scale) {
  std::vector<Samples> samples(mounts.size());
  for (u32 round = 0; round <= scale.rounds; ++round) {
    for (std::size_t i = 0; i < mounts.size(); ++i) {
      Samples warm_up;
      run_round(*mounts[i], scale, round == 0 ? warm_up : samples[i]);
    }
  }
  return samples;
}

// Compiles one of the examples in Debian's libfuse3-dev.
std::string build_example(const std::string& name, const std::string& folder) {
  const std::string source = fmt::format("{}/{}.c", example_folder, name);
  if (!filesystem::exists(source)) {
    throw std::runtime_error(fmt::format("{} is missing: install libfuse3-dev or name a program with --peer", source));
  }
  const std::string program = folder + "/" + name;
  run_program({"sh", "-c", fmt::format("cc -O2 -w -o '{}' '{}' $(pkg-config fuse3 --cflags --libs)", program, source)});
  return program;
}

void add_rows(BenchResult& result, const Samples& own, const Samples& peer, const std::string& peer_name,
              bool is_required) {
  for (const char* quantity : {"write", "read", "create", "stat", "unlink"}) {
    const bool is_stream = std::strcmp(quantity, "write") == 0 || std::strcmp(quantity, "read") == 0;
    BenchRow row;
    row.name = fmt::format("fuse-{}-{}", quantity, peer_name);
    row.what = fmt::format("{} through FUSE, {}",
                           is_stream ? fmt::format("sequential {} of 1 MiB", quantity) : quantity, "CPU engine");
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

void bench_passthrough(const BenchFuseOptions& options, const std::string& folder, BenchResult& result) {
  const FuseScale scale = options.quick ? FuseScale{64ull << 20, 1000, 2} : FuseScale{256ull << 20, 5000, 5};
  std::vector<std::string> peers = options.peers;
  if (peers.empty()) {
    for (const char* name : {"passthrough", "passthrough_ll"}) peers.push_back(build_example(name, folder));
  }
  const CpuBinding binding(cpu_count);
  std::vector<Samples> samples;
  {
    std::vector<std::unique_ptr<Mount>> mounts;
    mounts.push_back(std::make_unique<PoolMount>(folder + "/pool", folder + "/mount", 4 * scale.file_bytes));
    for (std::size_t i = 0; i < peers.size(); ++i) {
      mounts.push_back(std::make_unique<PeerMount>(peers[i], fmt::format("{}/peer{}", folder, i),
                                                   fmt::format("{}/peer-mount{}", folder, i)));
    }
    samples = measure(mounts, scale);
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    // The requirement refers to the first one; the others are for comparison.
    add_rows(result, samples[0], samples[i + 1], filesystem::path(peers[i]).filename().string(), i == 0);
  }
}

}  // namespace

int bench_fuse(const BenchFuseOptions& options) {
  std::vector<std::string> engines{"cpu", "cuda"};
  if (options.engine != "both") engines = {options.engine};
  const std::string problem = options.engine == "cpu" ? "" : gpu_problem();
  if (!problem.empty()) throw std::runtime_error("there is no GPU engine: " + problem);
  BenchResult result = new_result("fuse", fmt::format("{}", fmt::join(engines, ", ")), options.quick);
  const TemporaryFolder folder(options.folder.empty() ? "/dev/shm" : options.folder);
  const auto run_part = [&](const char* name, const auto& part) {
    const auto& only = options.only;
    if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) return;
    try {
      part();
    } catch (const std::exception& error) {
      result.left_out.push_back(fmt::format("{}: {}", name, error.what()));
    }
  };
  run_part("small", [&] { bench_fuse_engines({engines, folder.path(), options.quick}, result); });
  if (options.engine != "cuda" || !options.only.empty()) {
    run_part("passthrough", [&] {
      if (options.engine == "cuda") throw std::runtime_error("this part is for the CPU engine");
      bench_passthrough(options, folder.path(), result);
    });
  }
  print_rows(result);
  if (!options.output.empty()) write_result(result, options.output);
  return result.left_out.empty() ? 0 : 8;
}

}  // namespace gpu4fs::bench
