#include "base/host/cuda_driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace gpu4fs {

namespace {

// The entry points of the driver interface that are used, with its numbers for attributes.
constexpr int attribute_processor_count = 16;
constexpr int attribute_capability_major = 75;
constexpr int attribute_capability_minor = 76;
constexpr unsigned register_device_map = 2;

class Driver {
 public:
  Driver() : library_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) problem_ = ::dlerror();
  }
  ~Driver() {
    if (library_ != nullptr) ::dlclose(library_);
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  bool is_loaded() const { return library_ != nullptr; }
  const std::string& problem() const { return problem_; }

  void* find(const char* name) const { return ::dlsym(library_, name); }

  // Calls `name`. Returns false and sets a problem text if the call fails or does not exist.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) {
    auto* function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library_, name));
    const int error = function == nullptr ? -1 : function(arguments...);
    if (error == 0) return true;
    const char* text = nullptr;
    auto* describe = reinterpret_cast<int (*)(int, const char**)>(::dlsym(library_, "cuGetErrorString"));
    if (describe != nullptr && error > 0) describe(error, &text);
    problem_ = fmt::format("{}: {}", name, text != nullptr ? text : "not in this driver");
    return false;
  }

 private:
  void* library_;
  std::string problem_;
};

bool try_registration(Driver& driver) {
  constexpr std::size_t length = 1 << 20;
  void* context = nullptr;
  if (!driver.call("cuDevicePrimaryCtxRetain", &context, 0)) return false;
  bool registered = false;
  if (driver.call("cuCtxSetCurrent", context)) {
    const int file = ::memfd_create("gpu4fs-doctor", MFD_CLOEXEC);
    if (file >= 0 && ::ftruncate(file, length) == 0) {
      void* memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (memory != MAP_FAILED) {
        registered = driver.call("cuMemHostRegister_v2", memory, length, register_device_map);
        if (registered) (void)driver.call("cuMemHostUnregister", memory);
        ::munmap(memory, length);
      }
    }
    if (file >= 0) ::close(file);
  }
  // A failed release must not hide why the registration failed.
  auto release = reinterpret_cast<int (*)(int)>(driver.find("cuDevicePrimaryCtxRelease_v2"));
  if (release != nullptr) release(0);
  return registered;
}

}  // namespace

CudaDriverReport ask_cuda_driver(bool touch_device) {
  CudaDriverReport report;
  Driver driver;
  report.library_found = driver.is_loaded();
  int version = 0;
  int count = 0;
  if (!driver.is_loaded() || !driver.call("cuInit", 0u) || !driver.call("cuDriverGetVersion", &version) ||
      !driver.call("cuDeviceGetCount", &count)) {
    report.problem = driver.problem();
    return report;
  }
  report.driver_version = static_cast<u32>(version);
  report.device_count = static_cast<u32>(count);
  if (count == 0) {
    report.problem = "the driver knows no GPU";
    return report;
  }
  char name[256] = {};
  int major = 0;
  int minor = 0;
  int processors = 0;
  std::size_t memory = 0;
  if (driver.call("cuDeviceGetName", name, static_cast<int>(sizeof(name)), 0)) report.device_name = name;
  if (driver.call("cuDeviceGetAttribute", &major, attribute_capability_major, 0) &&
      driver.call("cuDeviceGetAttribute", &minor, attribute_capability_minor, 0)) {
    report.compute_capability = static_cast<u32>(10 * major + minor);
  }
  if (driver.call("cuDeviceGetAttribute", &processors, attribute_processor_count, 0)) {
    report.processor_count = static_cast<u32>(processors);
  }
  if (driver.call("cuDeviceTotalMem_v2", &memory, 0)) report.memory_bytes = memory;
  if (touch_device) {
    report.can_register_host_memory = try_registration(driver);
    if (!report.can_register_host_memory) report.registration_problem = driver.problem();
  }
  return report;
}

}  // namespace gpu4fs
