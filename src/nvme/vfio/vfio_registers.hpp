// The registers of a controller behind VFIO: BAR 0 mapped into this process, and the command register of its PCI
// configuration.
#pragma once

#include <mutex>

#include "nvme/register_access.hpp"

namespace gpu4fs::nvme {

class VfioRegisters : public RegisterAccess {
 public:
  // `device` is the file of the device, and outlives this. Throws std::runtime_error. DMA is not allowed at first.
  explicit VfioRegisters(int device);
  // Ends DMA.
  ~VfioRegisters() override;
  VfioRegisters(const VfioRegisters&) = delete;
  VfioRegisters& operator=(const VfioRegisters&) = delete;

  u32 read_32(u32 offset) override;
  void write_32(u32 offset, u32 value) override;
  u32* doorbell(u32 offset) override;
  void stop_dma() override;
  void allow_dma() override;

  bool is_dma_allowed();

  // Ends DMA and the use of the device's file. Registers read as those of a controller that is gone, and stores to them
  // do nothing. Any thread, while others use the registers.
  void release();

 private:
  void set_command(u16 bits);
  u32* place(u32 offset);

  std::mutex mutex_;       // of the configuration
  int device_;             // -1: released
  u64 config_offset_ = 0;  // in the device's file
  u8* registers_ = nullptr;
  u64 bytes_ = 0;
};

}  // namespace gpu4fs::nvme
