// The registers of a controller, wherever they are: in mapped memory, behind a socket, or emulated.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::nvme {

class RegisterAccess {
 public:
  virtual ~RegisterAccess() = default;

  // At byte offsets of device/nvme/spec/registers.hpp. A controller that is gone reads as register_of_absent.
  virtual u32 read_32(u32 offset) = 0;
  virtual void write_32(u32 offset, u32 value) = 0;

  // Two accesses, the lower half first: allowed for all 64-bit properties (NVM Express Base Specification 2.0, clause
  // 3.1.3).
  u64 read_64(u32 offset) {
    const u64 low = read_32(offset);
    return u64{read_32(offset + 4)} << 32 | low;
  }
  void write_64(u32 offset, u64 value) {
    write_32(offset, static_cast<u32>(value));
    write_32(offset + 4, static_cast<u32>(value >> 32));
  }

  // Where the engine stores to ring the doorbell at this offset. Valid as long as this object.
  virtual u32* doorbell(u32 offset) = 0;

  // When this returns, the controller reads and writes no memory any more, whatever state it is in: for PCIe, bus
  // mastering is off. It does not work until the next allow_dma().
  virtual void stop_dma() = 0;
  virtual void allow_dma() = 0;
};

}  // namespace gpu4fs::nvme
