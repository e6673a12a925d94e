// A pool on one memory file that is restored to the same content for each input.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "fuzz/fuzz_target.hpp"
#include "pool/pool_checksum.hpp"
#include "pool/pool_make.hpp"
#include "pool/pool_superblock.hpp"
#include "support/memory_folder.hpp"

namespace gpu4fs::fuzz {

inline constexpr u64 pool_file_bytes = u64{24} << 20;

class PoolFile {
 public:
  // A new, empty pool with two chunks of 8 MiB.
  PoolFile() {
    folder_ = test::memory_folder() + "/gpu4fs_fuzz_XXXXXX";
    if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("no folder for a device file");
    path_ = folder_ + "/device";
    pool::MakePoolOptions make;
    make.device_paths = {path_};
    make.size_bytes = pool_file_bytes;
    make.chunk_size_bytes = format::chunk_size_min;
    make.root_uid = 0;
    make.root_gid = 0;
    pool::make_pool(make);
    open();
  }
  // A file of the caller, of pool_file_bytes bytes.
  explicit PoolFile(const std::string& path) : path_(path) { open(); }
  PoolFile(const PoolFile&) = delete;
  PoolFile& operator=(const PoolFile&) = delete;
  ~PoolFile() {
    ::close(file_);
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  const std::string& path() const { return path_; }

  void read(u64 offset, void* bytes, u64 length) const {
    if (::pread(file_, bytes, length, static_cast<off_t>(offset)) != static_cast<ssize_t>(length)) {
      throw std::runtime_error("a pool file cannot be read");
    }
  }
  void write(u64 offset, const void* bytes, u64 length) {
    if (::pwrite(file_, bytes, length, static_cast<off_t>(offset)) != static_cast<ssize_t>(length)) {
      throw std::runtime_error("a pool file cannot be written");
    }
  }
  template <class T>
  T read_as(u64 offset) const {
    T value;
    read(offset, &value, sizeof(value));
    return value;
  }

  // The current content is what restore() restores.
  void keep() {
    std::vector<u8> page(page_size);
    const std::vector<u8> zeros(page_size);
    kept_.clear();
    for (u64 offset = 0; offset < pool_file_bytes; offset += page_size) {
      read(offset, page.data(), page_size);
      if (page != zeros) kept_[offset] = page;
    }
  }
  void restore() {
    const bool emptied = ::ftruncate(file_, 0) == 0 && ::ftruncate(file_, pool_file_bytes) == 0;
    if (!emptied) throw std::runtime_error("a pool file cannot be emptied");
    for (const auto& [offset, page] : kept_) write(offset, page.data(), page_size);
  }

 private:
  void open() {
    file_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    if (file_ < 0) throw std::runtime_error("a pool file does not open");
    // mkfs chooses a random seed of name hashes; inputs must have the same effect in every run.
    for (u32 slot = 0; slot < 2; ++slot) {
      const u64 offset = pool::superblock_offset(slot);
      auto superblock = read_as<format::Superblock>(offset);
      if (superblock.magic != format::superblock_magic) continue;
      superblock.name_hash_seed = 0x5eed;
      pool::seal(superblock, offset);
      write(offset, &superblock, sizeof(superblock));
    }
  }

  std::string folder_;
  std::string path_;
  int file_ = -1;
  std::map<u64, std::vector<u8>> kept_;
};

}  // namespace gpu4fs::fuzz
