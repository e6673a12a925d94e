#include "nvme/vfio/vfio_memory.hpp"

#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bits.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"

namespace gpu4fs::nvme {
namespace {

constexpr u64 bus_alignment = u64{2} << 20;
// Of kernels before 5.4, which do not say: below the addresses of interrupts, which every IOMMU can translate.
constexpr TranslatedRange assumed_range{u64{256} << 20, 0xfedfffff};

// The value of a line "Name: value" in /proc/self/status, "" if there is none.
std::string status_value(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  }
  return "";
}

}  // namespace

std::vector<TranslatedRange> read_bus_ranges(int container) {
  vfio_iommu_type1_info head{};
  head.argsz = sizeof(head);
  if (::ioctl(container, VFIO_IOMMU_GET_INFO, &head) != 0) {
    throw std::runtime_error(fmt::format("VFIO: VFIO_IOMMU_GET_INFO: {}", std::strerror(errno)));
  }
  if ((head.flags & VFIO_IOMMU_INFO_PGSIZES) != 0 && (head.iova_pgsizes & page_size) == 0) {
    throw std::runtime_error("VFIO: the IOMMU has no pages of 4 KiB");
  }
  std::vector<u8> bytes(std::max<u64>(head.argsz, sizeof(head)));
  vfio_iommu_type1_info info{};
  info.argsz = static_cast<u32>(bytes.size());
  std::memcpy(bytes.data(), &info, sizeof(info));
  if (::ioctl(container, VFIO_IOMMU_GET_INFO, bytes.data()) != 0) return {assumed_range};
  std::memcpy(&info, bytes.data(), sizeof(info));
  std::vector<TranslatedRange> ranges;
  u64 offset = (info.flags & VFIO_IOMMU_INFO_CAPS) != 0 ? info.cap_offset : 0;
  // Each capability names the place of the next one.
  while (offset != 0 && offset + sizeof(vfio_info_cap_header) <= bytes.size()) {
    vfio_info_cap_header header{};
    std::memcpy(&header, bytes.data() + offset, sizeof(header));
    vfio_iommu_type1_info_cap_iova_range list{};
    if (header.id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE && offset + sizeof(list) <= bytes.size()) {
      std::memcpy(&list, bytes.data() + offset, sizeof(list));
      u64 place = offset + sizeof(list);
      for (u32 i = 0; i < list.nr_iovas && place + sizeof(vfio_iova_range) <= bytes.size(); ++i) {
        vfio_iova_range range{};
        std::memcpy(&range, bytes.data() + place, sizeof(range));
        ranges.push_back({range.start, range.end});
        place += sizeof(range);
      }
    }
    if (header.next <= offset) break;
    offset = header.next;
  }
  return ranges.empty() ? std::vector<TranslatedRange>{assumed_range} : ranges;
}

u64 choose_bus_address(std::span<const TranslatedRange> ranges, u64 bytes) {
  for (const TranslatedRange& range : ranges) {
    if (range.first > ~u64{0} - bus_alignment) continue;
    const u64 first = align_up(std::max(range.first, bus_alignment), bus_alignment);
    if (bytes > 0 && first <= range.last && range.last - first >= bytes - 1) return first;
  }
  return 0;
}

LockedMemory read_locked_memory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const u64 capabilities = std::strtoull(status_value("CapEff").c_str(), nullptr, 16);
  const u64 used = std::strtoull(status_value("VmLck").c_str(), nullptr, 10) << 10;
  const bool is_limited = (capabilities >> CAP_IPC_LOCK & 1) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return {is_limited, limit.rlim_cur, used};
}

void check_locked_memory(const LockedMemory& state, u64 bytes) {
  if (!state.is_limited || (state.used <= state.limit && bytes <= state.limit - state.used)) return;
  throw std::runtime_error(
      fmt::format("{} of memory have to be locked, and the limit for this process is {}, of which {} are used: raise "
                  "it with 'ulimit -l', memlock in limits.conf(5) or LimitMEMLOCK= of the unit",
                  size_text(bytes), size_text(state.limit), size_text(state.used)));
}

void map_for_container(int container, void* pages, u64 bytes, u64 bus_address) {
  // A child's copy would let the kernel give this process other pages than those that the drive writes to.
  ::madvise(pages, bytes, MADV_DONTFORK);
  vfio_iommu_type1_dma_map map{};
  map.argsz = sizeof(map);
  map.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
  map.vaddr = reinterpret_cast<u64>(pages);
  map.iova = bus_address;
  map.size = bytes;
  if (::ioctl(container, VFIO_IOMMU_MAP_DMA, &map) == 0) return;
  const int error = errno;
  throw std::runtime_error(fmt::format("VFIO: {} of memory cannot be mapped for the drive: {}{}", size_text(bytes),
                                       std::strerror(error),
                                       error == ENOMEM ? " (the limit of locked memory: ulimit -l)" : ""));
}

void unmap_for_container(int container, u64 bus_address, u64 bytes) {
  vfio_iommu_type1_dma_unmap unmap{};
  unmap.argsz = sizeof(unmap);
  unmap.iova = bus_address;
  unmap.size = bytes;
  ::ioctl(container, VFIO_IOMMU_UNMAP_DMA, &unmap);
}

VfioMemory::VfioMemory(int container, u64 bytes) : container_(container), bytes_(align_up(bytes, page_size)) {
  const std::vector<TranslatedRange> ranges = read_bus_ranges(container);
  bus_address_ = choose_bus_address(ranges, bytes_);
  if (bus_address_ == 0) {
    throw std::runtime_error(fmt::format("VFIO: the IOMMU has no room for {} of memory", size_text(bytes_)));
  }
  void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error(fmt::format("{} of memory are not there", size_text(bytes_)));
  memory_ = static_cast<u8*>(memory);
  try {
    map_for_container(container_, memory_, bytes_, bus_address_);
  } catch (...) {
    ::munmap(memory_, bytes_);
    throw;
  }
}

VfioMemory::~VfioMemory() {
  if (container_ >= 0) unmap_for_container(container_, bus_address_, bytes_);
  ::munmap(memory_, bytes_);
}

DmaBlock VfioMemory::allocate(u64 bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (bytes > bytes_) throw std::runtime_error("the memory for the drive is used up");
  const u64 length = align_up(bytes, page_size);
  if (length > bytes_ - used_) throw std::runtime_error("the memory for the drive is used up");
  const DmaBlock block{memory_ + used_, bus_address_ + used_, length};
  used_ += length;
  return block;
}

}  // namespace gpu4fs::nvme
