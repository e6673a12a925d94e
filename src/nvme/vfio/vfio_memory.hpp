// Memory of this process that devices of a VFIO container reach: locked, at bus addresses that the IOMMU translates.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "nvme/dma_memory.hpp"
#include "nvme/drive_access.hpp"

namespace gpu4fs::nvme {

// Where `bytes` fit, aligned to 2 MiB, and not at address 0. 0: nowhere.
u64 choose_bus_address(std::span<const TranslatedRange> ranges, u64 bytes);

// Locked memory of this process, in bytes.
struct LockedMemory {
  bool is_limited;  // not for a process that has CAP_IPC_LOCK
  u64 limit;
  u64 used;
};
LockedMemory read_locked_memory();

// Throws std::runtime_error, which names the limit, if so much more memory may not be locked.
void check_locked_memory(const LockedMemory& state, u64 bytes);

// Ranges that the IOMMU of a container says it can translate. Throws std::runtime_error.
std::vector<TranslatedRange> read_bus_ranges(int container);

// Locks pages of this process and lets the devices of a container reach them. Throws std::runtime_error, which names
// the limit of locked memory if that is the reason.
void map_for_container(int container, void* pages, u64 bytes, u64 bus_address);
// Devices do not reach the range when this returns.
void unmap_for_container(int container, u64 bus_address, u64 bytes);

class VfioMemory : public DmaMemory {
 public:
  // `container` is the file of a container that has an IOMMU, and outlives this. The memory is taken and locked here.
  // Throws std::runtime_error.
  VfioMemory(int container, u64 bytes);
  ~VfioMemory() override;
  VfioMemory(const VfioMemory&) = delete;
  VfioMemory& operator=(const VfioMemory&) = delete;

  DmaBlock allocate(u64 bytes) override;

  // The container ends, and with it all that its devices reach. The memory stays.
  void forget_container() { container_ = -1; }
  // The first bus address behind this memory.
  u64 bus_end() const { return bus_address_ + bytes_; }

 private:
  int container_;
  const u64 bytes_;
  u8* memory_ = nullptr;
  u64 bus_address_ = 0;
  std::mutex mutex_;
  u64 used_ = 0;
};

}  // namespace gpu4fs::nvme
