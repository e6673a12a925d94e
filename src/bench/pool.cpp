#include "bench/pool.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "pool/pool_make.hpp"

namespace gpu4fs::bench {

MemoryPool::MemoryPool(const MemoryPoolOptions& options) {
  std::string pattern = "/dev/shm/gpu4fs-bench-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a folder in /dev/shm");
  folder_ = pattern;
  pool::MakePoolOptions make;
  make.size_bytes = options.device_bytes;
  make.label = "bench";
  make.data_checksums = options.data_checksums;
  make.data_profile = make.metadata_profile = options.profile;
  for (u32 i = 0; i < options.device_count; ++i) make.device_paths.push_back(fmt::format("{}/device{}", folder_, i));
  pool::make_pool(make);
  paths_ = make.device_paths;
  if (options.is_sparse) return;
  // Memory is allocated here and not during a measurement.
  for (const std::string& path : make.device_paths) {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    const int error = file < 0 ? errno : ::posix_fallocate(file, 0, static_cast<off_t>(options.device_bytes));
    if (file >= 0) ::close(file);
    if (error != 0) throw std::runtime_error(fmt::format("{}: {}", path, std::strerror(error)));
  }
}

MemoryPool::~MemoryPool() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace gpu4fs::bench
