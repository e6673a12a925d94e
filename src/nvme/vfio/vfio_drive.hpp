// An NVMe drive that this process reaches by VFIO: the kernel keeps the drive from all memory but that of `memory()`.
//
// The drive is bound to vfio-pci (nvme/pci/handover.hpp). The driver polls, so no interrupts are used. If the process
// ends without an end of this object, the kernel ends the drive's DMA and resets it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nvme/drive_access.hpp"
#include "nvme/vfio/vfio_memory.hpp"
#include "nvme/vfio/vfio_registers.hpp"

namespace gpu4fs::nvme {

// Ends with its file.
class VfioFile {
 public:
  explicit VfioFile(int number = -1) : number_(number) {}
  ~VfioFile();
  VfioFile(const VfioFile&) = delete;
  VfioFile& operator=(const VfioFile&) = delete;

  int number() const { return number_; }
  void close();

 private:
  int number_;
};

class VfioDrive : public DriveAccess {
 public:
  // `address` as 0000:01:00.0. Locks `memory_bytes`, which is all that the drive can reach besides what map() names.
  // Needs access to the file of the drive's IOMMU group in /dev/vfio, which one process has open at a time. Throws
  // DriveOpenError.
  VfioDrive(const std::string& address, u64 memory_bytes);

  VfioRegisters& registers() override { return *registers_; }
  DmaMemory& memory() override { return *memory_; }
  std::vector<TranslatedRange> free_bus_ranges() override;
  void map(void* pages, u64 bytes, u64 bus_address) override;
  void unmap(u64 bus_address, u64 bytes) override;
  int removal_descriptor() const override { return removal_.number(); }
  void release() override;

 private:
  std::mutex mutex_;
  VfioFile container_;
  VfioFile group_;
  VfioFile removal_;
  VfioFile device_;
  std::unique_ptr<VfioMemory> memory_;
  std::unique_ptr<VfioRegisters> registers_;  // ends first: no DMA to memory that is given back
};

}  // namespace gpu4fs::nvme
