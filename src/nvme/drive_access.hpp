// What a process has of a drive on the bus: registers, memory of its own, and other memory that it lets the drive
// reach.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "base/types.hpp"
#include "nvme/dma_memory.hpp"
#include "nvme/register_access.hpp"

namespace gpu4fs::nvme {

// Bus addresses that the IOMMU can translate, both ends included.
struct TranslatedRange {
  u64 first;
  u64 last;
};

// A drive that cannot be opened. The text names it and says what helps. The statuses: no_device: there is none;
// invalid_argument: not given to gpu4fs; busy: of its IOMMU group; access: no permission; already_mounted: another
// process has it; no_memory: memory cannot be locked; io_error: all else.
class DriveOpenError : public std::runtime_error {
 public:
  DriveOpenError(Status status, const std::string& text, bool is_being_released = false)
      : std::runtime_error(text), status_(status), is_being_released_(is_being_released) {}
  Status status() const { return status_; }
  // With already_mounted: no process that runs is known to have it.
  bool is_being_released() const { return is_being_released_; }

 private:
  Status status_;
  bool is_being_released_;
};

class DriveAccess {
 public:
  virtual ~DriveAccess() = default;

  // Valid as long as this object. After release() the registers read as those of a controller that is gone.
  virtual RegisterAccess& registers() = 0;
  virtual DmaMemory& memory() = 0;

  // Where map() may put memory.
  virtual std::vector<TranslatedRange> free_bus_ranges() = 0;
  // The drive reaches these pages under this bus address until unmap() or release(). Throws std::runtime_error.
  virtual void map(void* pages, u64 bytes, u64 bus_address) = 0;
  virtual void unmap(u64 bus_address, u64 bytes) = 0;

  // A descriptor that can be read when the system wants the drive back; -1: it never does.
  virtual int removal_descriptor() const = 0;

  // Nobody reaches the drive any more, and the drive reaches no memory. Its memory stays where it is. Any thread.
  virtual void release() = 0;
};

}  // namespace gpu4fs::nvme
