// Engine memory that drives on the bus reach: one range of this process, taken at once. Host only.
#pragma once

#include <string>
#include <vector>

#include "base/host/engine_allocator.hpp"
#include "base/types.hpp"
#include "device/memory/mapped_file.hpp"
#include "nvme/held_drive.hpp"

namespace gpu4fs::session {

// Of a file that stands for a drive on the bus, else null.
nvme::HeldNamespace* drive_of(const device::MappedFile& file);

class DriveReach final : public EngineAllocator {
 public:
  // Finds bus addresses for so much memory that all drives of the files can use. DeviceError: there are none, or there
  // is not enough memory. No drive reaches the memory yet (nvme::HeldDrive::attach()).
  DriveReach(const std::vector<device::MappedFile>& files, u64 bytes);
  ~DriveReach() override;
  DriveReach(const DriveReach&) = delete;
  DriveReach& operator=(const DriveReach&) = delete;

  const nvme::EngineMemory& memory() const { return memory_; }

  // Whole pages; zeroed. Throws std::bad_alloc if more is wanted than was taken.
  void* allocate(u64 bytes, u64 alignment) override;
  void copy_in(void* destination, const void* source, u64 bytes) override;
  void zero(void* destination, u64 bytes) override;

 private:
  nvme::EngineMemory memory_{};
  u64 used_ = 0;
};

}  // namespace gpu4fs::session
