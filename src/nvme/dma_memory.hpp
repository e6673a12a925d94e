// Memory that a controller reads and writes.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::nvme {

// Consecutive for this process and on the controller's bus.
struct DmaBlock {
  u8* memory = nullptr;
  u64 bus_address = 0;
  u64 bytes = 0;
};

class DmaMemory {
 public:
  virtual ~DmaMemory() = default;

  // Zeroed, aligned to 4 KiB, until the end of this object. Throws std::runtime_error if there is not enough.
  virtual DmaBlock allocate(u64 bytes) = 0;
};

}  // namespace gpu4fs::nvme
