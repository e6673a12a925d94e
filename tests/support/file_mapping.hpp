// The bytes of a file, mapped, to be put back: only pages that differ are written. Comparing a page takes a fraction of
// what writing it to a file does.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::test {

// std::runtime_error where the file cannot be opened or mapped.
class FileMapping {
 public:
  // A file that is missing is made; it gets that size.
  FileMapping(const std::string& path, u64 size_bytes) : size_bytes_(size_bytes) {
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor_ < 0) throw std::runtime_error("open " + path);
    void* memory = MAP_FAILED;
    if (::ftruncate(descriptor_, static_cast<off_t>(size_bytes)) == 0)
      memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (memory == MAP_FAILED) {
      ::close(descriptor_);
      throw std::runtime_error("mmap " + path);
    }
    memory_ = static_cast<u8*>(memory);
  }
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping() {
    ::munmap(memory_, size_bytes_);
    ::close(descriptor_);
  }

  // Whether the path still names the file, with its size.
  bool is_of(const std::string& path) const {
    struct stat own {};
    struct stat named {};
    return ::fstat(descriptor_, &own) == 0 && ::stat(path.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
           own.st_ino == named.st_ino && static_cast<u64>(named.st_size) == size_bytes_;
  }

  // [offset, offset + length) becomes `bytes`. `offset`: a page's.
  void put(u64 offset, const u8* bytes, u64 length) {
    for (u64 at = 0; at < length; at += page_size) {
      const u64 part = std::min<u64>(page_size, length - at);
      u8* const page = memory_ + offset + at;
      if (std::memcmp(page, bytes + at, part) != 0) std::memcpy(page, bytes + at, part);
    }
  }

  // [begin, end) becomes zero. No holes are made: giving pages back and getting them again takes longer than to clear
  // them.
  void clear(u64 begin, u64 end) {
    static constexpr u8 zeros[page_size] = {};
    while (begin < end) {
      const off_t data = ::lseek(descriptor_, static_cast<off_t>(begin), SEEK_DATA);
      if (data < 0 || static_cast<u64>(data) >= end) return;  // a hole
      const u64 hole = std::min(static_cast<u64>(::lseek(descriptor_, data, SEEK_HOLE)), end);
      for (u64 at = static_cast<u64>(data); at < hole; at += page_size)
        put(at, zeros, std::min<u64>(page_size, hole - at));
      begin = hole;
    }
  }

 private:
  u64 size_bytes_;
  int descriptor_ = -1;
  u8* memory_ = nullptr;
};

}  // namespace gpu4fs::test
