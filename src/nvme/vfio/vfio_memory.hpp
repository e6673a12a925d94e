// Memory of this process that devices of a VFIO container reach: locked, at bus addresses that the IOMMU translates.
#pragma once

#include <mutex>
#include <span>

#include "nvme/dma_memory.hpp"

namespace gpu4fs::nvme {

// Bus addresses that the IOMMU can translate, both ends included.
struct TranslatedRange {
  u64 first;
  u64 last;
};

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

class VfioMemory : public DmaMemory {
 public:
  // `container` is the file of a container that has an IOMMU, and outlives this. The memory is taken and locked here.
  // Throws std::runtime_error.
  VfioMemory(int container, u64 bytes);
  ~VfioMemory() override;
  VfioMemory(const VfioMemory&) = delete;
  VfioMemory& operator=(const VfioMemory&) = delete;

  DmaBlock allocate(u64 bytes) override;

 private:
  const int container_;
  const u64 bytes_;
  u8* memory_ = nullptr;
  u64 bus_address_ = 0;
  std::mutex mutex_;
  u64 used_ = 0;
};

}  // namespace gpu4fs::nvme
