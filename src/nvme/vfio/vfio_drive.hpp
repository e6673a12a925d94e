// An NVMe drive that this process reaches by VFIO: the kernel keeps the drive from all memory but that of `memory()`.
//
// The drive is bound to vfio-pci (nvme/pci/handover.hpp). The driver polls, so no interrupts are used. If the process
// ends without an end of this object, the kernel ends the drive's DMA and resets it.
#pragma once

#include <memory>
#include <string>

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

 private:
  const int number_;
};

class VfioDrive {
 public:
  // `address` as 0000:01:00.0. Locks `memory_bytes`, which is all that the drive can reach. Needs access to the file of
  // the drive's IOMMU group in /dev/vfio, which one process has open at a time. Throws std::runtime_error.
  VfioDrive(const std::string& address, u64 memory_bytes);

  // Both are valid as long as this.
  VfioRegisters& registers() { return registers_; }
  DmaMemory& memory() { return memory_; }

 private:
  VfioFile container_;
  VfioFile group_;
  VfioFile device_;
  VfioMemory memory_;
  VfioRegisters registers_;  // ends first: no DMA to memory that is given back
};

}  // namespace gpu4fs::nvme
