// The bytes of a pool's devices, independent of the pool. Pools of tests are nearly empty, so only pages with content
// are copied and take memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::test {

// Numbers of the pages of a memory file that are not holes.
inline std::set<u64> pages_with_content(int descriptor) {
  std::set<u64> pages;
  for (off_t end = 0;;) {
    const off_t begin = ::lseek(descriptor, end, SEEK_DATA);
    if (begin < 0) {
      if (errno != ENXIO) throw std::runtime_error("SEEK_DATA");
      return pages;
    }
    end = ::lseek(descriptor, begin, SEEK_HOLE);
    for (off_t at = begin; at < end; at += static_cast<off_t>(page_size)) {
      pages.insert(pages.end(), static_cast<u64>(at) / page_size);
    }
  }
}

class DeviceContent {
 public:
  // Zeros.
  explicit DeviceContent(u64 size) : size_(size) {
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<u8*>(memory);
  }
  // `memory`: the file behind `descriptor`, mapped.
  DeviceContent(const u8* memory, u64 size, int descriptor) : DeviceContent(size) {
    for (const u64 page : pages_with_content(descriptor)) write(page * page_size, memory + page * page_size, page_size);
  }
  DeviceContent(const DeviceContent& other) : DeviceContent(other.size_) {
    copy_to(other, memory_);
    pages_ = other.pages_;
  }
  DeviceContent(DeviceContent&& other) noexcept { swap(other); }
  DeviceContent& operator=(DeviceContent other) {
    swap(other);
    return *this;
  }
  ~DeviceContent() {
    if (memory_ != nullptr) ::munmap(memory_, size_);
  }

  u64 size() const { return size_; }
  const u8* data() const { return memory_; }
  // All others are zero.
  const std::set<u64>& pages() const { return pages_; }

  void write(u64 offset, const u8* bytes, u64 length) {
    std::memcpy(memory_ + offset, bytes, length);
    for (u64 page = offset / page_size; page * page_size < offset + length; ++page) pages_.insert(page);
  }
  // Copies into zeroed memory of the same length.
  static void copy_to(const DeviceContent& from, u8* memory) {
    for (const u64 page : from.pages_)
      std::memcpy(memory + page * page_size, from.memory_ + page * page_size, page_size);
  }

 private:
  void swap(DeviceContent& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(memory_, other.memory_);
    std::swap(pages_, other.pages_);
  }

  u64 size_ = 0;
  u8* memory_ = nullptr;
  std::set<u64> pages_;
};

using DeviceBytes = std::vector<DeviceContent>;  // by device

}  // namespace gpu4fs::test
