#include "route/calibration.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "base/limits.hpp"
#include "route/route_error.hpp"

namespace gpu4fs::route {

namespace {

[[noreturn]] void fail_measuring(const std::string& path, const std::string& what) {
  throw RouteError(path + ": " + what);
}

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};

class MeasuredFile {
 public:
  MeasuredFile(const std::string& path, Route route, u64 bytes_max) : path_(path), route_(route) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (route == Route::direct ? O_DIRECT : 0));
    if (fd_ < 0 && errno == EINVAL) fail_measuring(path, "its file system has no direct I/O");
    if (fd_ < 0) fail_measuring(path, std::string("cannot be opened: ") + std::strerror(errno));
    struct stat attributes = {};
    const bool is_file = ::fstat(fd_, &attributes) == 0 && S_ISREG(attributes.st_mode);
    file_bytes_ = is_file ? static_cast<u64>(attributes.st_size) : 0;
    buffer_.reset(static_cast<char*>(std::aligned_alloc(page_size, bytes_max)));
    if (!is_file || file_bytes_ < bytes_max || buffer_ == nullptr) {
      ::close(fd_);
      fail_measuring(path, fmt::format("is no file of at least {} bytes", bytes_max));
    }
    std::memset(buffer_.get(), 1, bytes_max);  // so that no read has to get the memory
  }
  MeasuredFile(const MeasuredFile&) = delete;
  MeasuredFile& operator=(const MeasuredFile&) = delete;
  ~MeasuredFile() { ::close(fd_); }

  // A read at a place by chance, in nanoseconds.
  double read_ns(u64 bytes) {
    const u64 offset = random_() % ((file_bytes_ - bytes) / page_size + 1) * page_size;
    if (route_ == Route::cached) {
      read(offset, bytes);  // now it is in the page cache
    } else {
      ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
    }
    const auto begin = std::chrono::steady_clock::now();
    read(offset, bytes);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    return time.count();
  }

 private:
  void read(u64 offset, u64 bytes) {
    for (u64 done = 0; done < bytes;) {
      const ssize_t count = ::pread(fd_, buffer_.get() + done, bytes - done, static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail_measuring(path_, std::string("cannot be read: ") + std::strerror(count < 0 ? errno : EIO));
      done += static_cast<u64>(count);
    }
  }

  std::string path_;
  Route route_;
  int fd_ = -1;
  u64 file_bytes_ = 0;
  std::unique_ptr<char, FreeMemory> buffer_;
  std::mt19937_64 random_{1};
};

std::string first_line_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return text;
}

}  // namespace

std::vector<CostSample> measure_route(const std::string& path, Route route, const CalibrationSizes& sizes) {
  if (route == Route::engine) fail_measuring(path, "the route of the engine is not measured with files");
  if (!std::has_single_bit(sizes.bytes_min) || !std::has_single_bit(sizes.bytes_max) || sizes.bytes_min < page_size ||
      sizes.bytes_max < sizes.bytes_min || sizes.repeat_count == 0) {
    fail_measuring(
        path, fmt::format("sizes from {} to {} bytes, {} times", sizes.bytes_min, sizes.bytes_max, sizes.repeat_count));
  }
  MeasuredFile file(path, route, sizes.bytes_max);
  std::vector<CostSample> samples;
  for (u64 bytes = sizes.bytes_min; bytes <= sizes.bytes_max; bytes *= 2) {
    std::vector<double> times;
    for (u32 i = 0; i < sizes.repeat_count; ++i) times.push_back(file.read_ns(bytes));
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    samples.push_back({bytes, *middle});
  }
  return samples;
}

std::string device_name_of(const std::string& path) {
  struct stat attributes = {};
  if (::stat(path.c_str(), &attributes) != 0) {
    fail_measuring(path, std::string("has no attributes: ") + std::strerror(errno));
  }
  const std::string link = fmt::format("/sys/dev/block/{}:{}", major(attributes.st_dev), minor(attributes.st_dev));
  std::error_code none;
  const std::filesystem::path device = std::filesystem::canonical(link, none);
  if (!none) {
    // A partition is a folder in that of its disk, and has the name of the disk in its own.
    for (const std::filesystem::path& folder : {device, device.parent_path()}) {
      for (const char* name : {"wwid", "device/wwid", "serial"}) {
        if (const std::string id = first_line_of(folder / name); !id.empty()) return id;
      }
    }
    return device.filename().string();
  }
  struct statfs system = {};
  if (::statfs(path.c_str(), &system) != 0) {
    fail_measuring(path, std::string("has no file system: ") + std::strerror(errno));
  }
  return fmt::format("fs-{:x}-{:08x}{:08x}", static_cast<u64>(system.f_type), static_cast<u32>(system.f_fsid.__val[0]),
                     static_cast<u32>(system.f_fsid.__val[1]));
}

}  // namespace gpu4fs::route
