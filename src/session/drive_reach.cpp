#include "session/drive_reach.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"
#include "nvme/vfio/vfio_memory.hpp"

namespace gpu4fs::session {
namespace {

using Ranges = std::vector<nvme::TranslatedRange>;

// What lies in both.
Ranges intersect(const Ranges& a, const Ranges& b) {
  Ranges both;
  for (const nvme::TranslatedRange& one : a) {
    for (const nvme::TranslatedRange& other : b) {
      const nvme::TranslatedRange part{std::max(one.first, other.first), std::min(one.last, other.last)};
      if (part.first <= part.last) both.push_back(part);
    }
  }
  return both;
}

}  // namespace

nvme::HeldNamespace* drive_of(const device::MappedFile& file) {
  return dynamic_cast<nvme::HeldNamespace*>(file.drive().get());
}

DriveReach::DriveReach(const std::vector<device::MappedFile>& files, u64 bytes) {
  Ranges ranges{{0, ~u64{0}}};
  std::string path;
  for (const device::MappedFile& file : files) {
    const nvme::HeldNamespace* const space = drive_of(file);
    if (space == nullptr) continue;
    path = file.path();
    try {
      ranges = intersect(ranges, space->drive()->access().free_bus_ranges());
    } catch (const std::runtime_error& error) {
      device::fail_medium(path, error.what(), 0);
    }
  }
  memory_.bytes = align_up(bytes, page_size);
  memory_.bus_address = nvme::choose_bus_address(ranges, memory_.bytes);
  if (memory_.bus_address == 0) {
    device::fail_medium(path, fmt::format("its IOMMU has no room for {} of memory", size_text(memory_.bytes)), 0);
  }
  void* const pages = ::mmap(nullptr, memory_.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) device::fail_medium(path, fmt::format("no {} for it", size_text(memory_.bytes)), errno);
  // A child's copy would let the kernel give this process other pages than those that drives write to.
  ::madvise(pages, memory_.bytes, MADV_DONTFORK);
  memory_.pages = static_cast<u8*>(pages);
}

DriveReach::~DriveReach() {
  ::munmap(memory_.pages, memory_.bytes);
}

void* DriveReach::allocate(u64 bytes, u64 alignment) {
  GPU4FS_CHECK_LE(alignment, page_size);
  const u64 length = align_up(bytes, page_size);
  if (length > memory_.bytes - used_) throw std::bad_alloc();
  u8* const place = memory_.pages + used_;
  used_ += length;
  return place;
}

void DriveReach::copy_in(void* destination, const void* source, u64 bytes) {
  std::memcpy(destination, source, bytes);
}

void DriveReach::zero(void* destination, u64 bytes) {
  std::memset(destination, 0, bytes);
}

}  // namespace gpu4fs::session
