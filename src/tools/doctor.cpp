// gpu4fs doctor: which conditions of gpu4fs this machine meets, why they matter and how to meet them.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/bits.hpp"
#include "base/host/cuda_driver.hpp"
#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {

namespace {

// The CUDA runtime that is linked in requires a driver of its own major version.
constexpr u32 cuda_version_min = 13000;
constexpr u32 compute_capability_min = 90;
constexpr int status_missing = 1;

struct DoctorOptions {
  bool json = false;
  bool verbose = false;
};
DoctorOptions options;

void add_options(cli::CommandLine app) {
  options = {};
  app.flag("--json", options.json, "Print as JSON");
  app.flag("-v,--verbose", options.verbose, "Explain conditions that hold, too");
}

enum class Need { required, gpu_engine, advice };

struct Condition {
  const char* name;
  Need need;
  bool holds;
  std::string found;
  const char* why;
  std::string fix;  // used if the condition is not met
};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

Condition check_fuse_device() {
  const int file = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  const int error = errno;
  if (file >= 0) ::close(file);
  return {"fuse",
          Need::required,
          file >= 0,
          file >= 0 ? "/dev/fuse opens" : fmt::format("/dev/fuse: {}", std::strerror(error)),
          "a mount is served through the kernel's FUSE",
          error == ENOENT ? "load the module: modprobe fuse; in a container pass --device /dev/fuse"
                          : "give this user read and write access to /dev/fuse"};
}

Condition check_fusermount() {
  const std::string path = find_program("fusermount3");
  const bool is_root = ::geteuid() == 0;
  return {"fusermount3",
          is_root ? Need::advice : Need::required,
          !path.empty(),
          path.empty() ? "not in PATH" : path,
          "users other than root mount and unmount with it",
          "install the package fuse3"};
}

Condition check_allow_other() {
  std::ifstream file("/etc/fuse.conf");
  bool allowed = ::geteuid() == 0;
  for (std::string line; std::getline(file, line);) allowed = allowed || line == "user_allow_other";
  return {"allow_other",
          Need::advice,
          allowed,
          ::geteuid() == 0 ? "root needs no permission" : "from /etc/fuse.conf",
          "without it only the user who mounted sees the files",
          "add the line user_allow_other to /etc/fuse.conf"};
}

Condition check_shared_memory() {
  struct statvfs state {};
  const bool exists = ::statvfs("/dev/shm", &state) == 0;
  const u64 size = exists ? u64{state.f_blocks} * state.f_frsize : 0;
  const u64 free = exists ? u64{state.f_bavail} * state.f_frsize : 0;
  constexpr u64 enough = u64{1} << 30;
  return {"shared memory",
          Need::advice,
          size >= enough,
          exists ? fmt::format("/dev/shm {} of {} free", size_text(free), size_text(size)) : "no /dev/shm",
          "pools of memory devices lie there, and the GPU engine reaches them directly",
          "mount -o remount,size=8G /dev/shm; in a container pass --shm-size"};
}

Condition check_huge_pages() {
  const std::string setting = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const bool on = setting.find("[always]") != std::string::npos || setting.find("[advise]") != std::string::npos ||
                  setting.find("[within_size]") != std::string::npos || setting.find("[force]") != std::string::npos;
  return {"huge pages",
          Need::advice,
          on,
          setting.empty() ? "unknown" : setting,
          "a pool in /dev/shm is registered with the GPU and copied faster from huge pages",
          "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or put the pool on "
          "hugetlbfs"};
}

Condition check_memlock() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY || ::geteuid() == 0;
  return {"locked memory",
          Need::advice,
          unlimited || limit.rlim_cur >= (u64{1} << 30),
          unlimited ? "unlimited" : size_text(limit.rlim_cur),
          "memory registered with the GPU is locked",
          "raise memlock in /etc/security/limits.conf or LimitMEMLOCK= of the unit"};
}

Condition check_build() {
  constexpr bool with_cuda = GPU4FS_WITH_CUDA != 0;
  return {"cuda build",
          Need::gpu_engine,
          with_cuda,
          with_cuda ? "this program has the GPU engine" : "this program has only the CPU engine",
          "engine=cuda needs it; engine=auto takes the CPU engine without it",
          "build with: make cuda"};
}

std::string cuda_version_text(u32 version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Condition check_driver(const CudaDriverReport& cuda) {
  const std::string kernel_module = first_line("/proc/driver/nvidia/version");
  return {"driver",
          Need::gpu_engine,
          cuda.driver_version >= cuda_version_min,
          cuda.driver_version == 0 ? (cuda.library_found ? cuda.problem : "no libcuda.so.1: " + cuda.problem)
                                   : fmt::format("CUDA {}{}{}", cuda_version_text(cuda.driver_version),
                                                 kernel_module.empty() ? "" : ", ", kernel_module),
          "the GPU engine runs through the NVIDIA driver",
          fmt::format("install an NVIDIA driver that serves CUDA {} or newer", cuda_version_text(cuda_version_min))};
}

Condition check_gpu(const CudaDriverReport& cuda) {
  const bool fits = cuda.device_count > 0 && cuda.compute_capability >= compute_capability_min;
  return {"gpu",
          Need::gpu_engine,
          fits,
          cuda.device_count == 0 ? "none"
                                 : fmt::format("{}, compute capability {}.{}, {} processors, {}", cuda.device_name,
                                               cuda.compute_capability / 10, cuda.compute_capability % 10,
                                               cuda.processor_count, size_text(cuda.memory_bytes)),
          "the GPU engine is compiled for compute capability 9.0",
          "use a GPU of the Hopper generation"};
}

Condition check_registration(const CudaDriverReport& cuda) {
  return {"registration",
          Need::gpu_engine,
          cuda.can_register_host_memory,
          cuda.can_register_host_memory ? "a page of shared memory was registered"
          : cuda.device_count == 0      ? "not tried: there is no GPU"
                                        : cuda.registration_problem,
          "the GPU reads and writes the pool and the command rings in the CPU's memory",
          "see the driver's message; a container needs enough locked memory and no seccomp filter "
          "on ioctl"};
}

Condition check_mps(const CudaDriverReport& cuda) {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::filesystem::path pipe = std::filesystem::path(folder != nullptr ? folder : "/tmp/nvidia-mps") / "control";
  std::error_code ignored;
  const bool runs = std::filesystem::exists(pipe, ignored);
  return {"mps",
          Need::advice,
          runs || cuda.device_count == 0,
          cuda.device_count == 0 ? "no GPU to share"
          : runs                 ? "control daemon at " + pipe.string()
                                 : "not running",
          "without it the engine and other programs on the GPU take turns of 2 ms; idle, the "
          "engine leaves the GPU",
          "start it before the mount and the other programs: nvidia-cuda-mps-control -d"};
}

const char* need_text(Need need) {
  switch (need) {
    case Need::required:
      return "required";
    case Need::gpu_engine:
      return "gpu engine";
    case Need::advice:
      return "advice";
  }
  return "";
}

void print_json(const std::vector<Condition>& conditions, bool usable, bool gpu_usable) {
  JsonWriter json;
  json.begin_object();
  json.add("usable", usable);
  json.add("gpu_engine_usable", gpu_usable);
  json.begin_array("conditions");
  for (const Condition& condition : conditions) {
    json.begin_object();
    json.add("name", condition.name);
    json.add("need", need_text(condition.need));
    json.add("holds", condition.holds);
    json.add("found", condition.found);
    json.add("why", condition.why);
    if (!condition.holds) json.add("fix", condition.fix);
    json.end();
  }
  json.end();
  json.end();
  fmt::print("{}", json.text());
}

void print_text(const std::vector<Condition>& conditions, bool usable, bool gpu_usable) {
  for (const Condition& condition : conditions) {
    const char* state = condition.holds                      ? "ok"
                        : condition.need == Need::required   ? "MISSING"
                        : condition.need == Need::gpu_engine ? "no"
                                                             : "advice";
    fmt::print("{:<8} {:<14} {}\n", state, condition.name, condition.found);
    if (!condition.holds || options.verbose) fmt::print("{:8} {:<14}   why: {}\n", "", "", condition.why);
    if (!condition.holds) fmt::print("{:8} {:<14}   fix: {}\n", "", "", condition.fix);
  }
  fmt::print("{}; {}\n", usable ? "mounts work here" : "mounts do not work here",
             gpu_usable ? "engine=auto takes the GPU" : "engine=auto takes the CPU");
}

int run() {
  const CudaDriverReport cuda = ask_cuda_driver(true);
  const std::vector<Condition> conditions = {
      check_fuse_device(), check_fusermount(),       check_allow_other(), check_shared_memory(),
      check_huge_pages(),  check_memlock(),          check_build(),       check_driver(cuda),
      check_gpu(cuda),     check_registration(cuda), check_mps(cuda),
  };
  bool usable = true;
  bool gpu_usable = true;
  for (const Condition& condition : conditions) {
    if (condition.need == Need::required) usable = usable && condition.holds;
    if (condition.need == Need::gpu_engine) gpu_usable = gpu_usable && condition.holds;
  }
  gpu_usable = gpu_usable && usable;
  if (options.json) {
    print_json(conditions, usable, gpu_usable);
  } else {
    print_text(conditions, usable, gpu_usable);
  }
  return usable ? 0 : status_missing;
}

}  // namespace

const cli::Verb doctor_verb = {
    "doctor", "show what this machine has of what gpu4fs needs", nullptr, add_options, run, 16, 8};

}  // namespace gpu4fs::tools
