// The devices of a pool in memory, which can be changed and restored by pages.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"
#include "base/xxh3.hpp"
#include "crash/device_bytes.hpp"

namespace gpu4fs::test {

// Files without names that hold the devices; `pristine` is the state that is restored.
class CrashImage {
 public:
  explicit CrashImage(const DeviceBytes& bytes) : pristine_(bytes), dirty_(bytes.size()) {
    for (const DeviceContent& device : bytes) {
      const int descriptor = ::memfd_create("crash image", MFD_CLOEXEC);
      if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(device.size())) != 0) throw std::bad_alloc();
      void* memory = ::mmap(nullptr, device.size(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
      descriptors_.push_back(descriptor);
      memory_.push_back(static_cast<u8*>(memory));
      DeviceContent::copy_to(device, memory_.back());
    }
  }
  CrashImage(const CrashImage&) = delete;
  CrashImage& operator=(const CrashImage&) = delete;
  ~CrashImage() {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      ::munmap(memory_[i], pristine_[i].size());
      ::close(descriptors_[i]);
    }
  }

  u32 device_count() const { return static_cast<u32>(memory_.size()); }
  std::vector<std::string> paths() const {
    std::vector<std::string> paths;
    for (const int descriptor : descriptors_) paths.push_back("/proc/self/fd/" + std::to_string(descriptor));
    return paths;
  }
  u64 size(u32 device) const { return pristine_[device].size(); }

  // Changes the image and the state that reset() restores.
  void write_pristine(u32 device, u64 offset, const u8* bytes, u64 length) {
    const u8* const memory = pristine_[device].data();
    const u64 end = offset + length;
    for (u64 page = offset / page_size; page * page_size < end; ++page)
      pristine_hash_ -= page_hash(memory, device, page);
    pristine_[device].write(offset, bytes, length);
    for (u64 page = offset / page_size; page * page_size < end; ++page)
      pristine_hash_ += page_hash(memory, device, page);
    touch(device, offset, length);
  }
  // Changes the image until the next reset().
  void write(u32 device, u64 offset, const u8* bytes, u64 length) {
    std::memcpy(memory_[device] + offset, bytes, length);
    touch(device, offset, length);
  }
  // The image was changed there by other code.
  void touch(u32 device, u64 offset, u64 length) {
    for (u64 page = offset / page_size; page * page_size < offset + length; ++page) dirty_[device].insert(page);
  }
  // Other code has changed the image in unknown places.
  void find_changes() {
    for (u32 i = 0; i < device_count(); ++i) {
      for (const u64 page : possible_pages(i)) {
        if (differs(i, page)) dirty_[i].insert(page);
      }
    }
  }
  void reset() {
    for (u32 i = 0; i < device_count(); ++i) {
      for (const u64 page : dirty_[i]) {
        std::memcpy(memory_[i] + page * page_size, pristine_[i].data() + page * page_size, page_size);
      }
      dirty_[i].clear();
    }
  }
  // The current content of the image, to return to it.
  struct Saved {
    std::vector<std::set<u64>> pages;    // by device, those that reset() would restore
    std::vector<std::vector<u8>> bytes;  // of them
  };
  Saved save() const {
    Saved saved{dirty_, {}};
    for (u32 i = 0; i < device_count(); ++i) {
      std::vector<u8>& bytes = saved.bytes.emplace_back(dirty_[i].size() * page_size);
      u8* to = bytes.data();
      for (const u64 page : dirty_[i]) {
        std::memcpy(to, memory_[i] + page * page_size, page_size);
        to += page_size;
      }
    }
    return saved;
  }
  void restore(const Saved& saved) {
    reset();
    for (u32 i = 0; i < device_count(); ++i) {
      const u8* from = saved.bytes[i].data();
      for (const u64 page : saved.pages[i]) {
        write(i, page * page_size, from, page_size);
        from += page_size;
      }
    }
  }
  // A hash of all changes since the beginning; equal images have equal hashes.
  u64 hash() {
    u64 hash = 0;
    for (u32 i = 0; i < device_count(); ++i) {
      for (const u64 page : dirty_[i]) {
        hash += page_hash(memory_[i], i, page);
        hash -= page_hash(pristine_[i].data(), i, page);
      }
    }
    return hash + pristine_hash_;
  }
  // After reset(): whether all changes were known.
  bool is_pristine() const {
    for (u32 i = 0; i < device_count(); ++i) {
      for (const u64 page : possible_pages(i)) {
        if (differs(i, page)) return false;
      }
    }
    return true;
  }
  const u8* bytes_at(u32 device, u64 offset) const { return memory_[device] + offset; }
  DeviceBytes bytes() const {
    DeviceBytes copy;
    for (u32 i = 0; i < device_count(); ++i) copy.emplace_back(memory_[i], pristine_[i].size(), descriptors_[i]);
    return copy;
  }

 private:
  static u64 page_hash(const u8* memory, u32 device, u64 page) {
    return xxh3_64(memory + page * page_size, page_size, page * 64 + device);
  }

  // Pages that may not be zero, here or in the state that reset() restores.
  std::set<u64> possible_pages(u32 device) const {
    std::set<u64> pages = pages_with_content(descriptors_[device]);
    pages.insert(pristine_[device].pages().begin(), pristine_[device].pages().end());
    return pages;
  }
  bool differs(u32 device, u64 page) const {
    const u64 offset = page * page_size;
    return std::memcmp(memory_[device] + offset, pristine_[device].data() + offset, page_size) != 0;
  }

  DeviceBytes pristine_;
  u64 pristine_hash_ = 0;  // of its pages, minus that of their original content
  std::vector<int> descriptors_;
  std::vector<u8*> memory_;
  std::vector<std::set<u64>> dirty_;
};

}  // namespace gpu4fs::test
