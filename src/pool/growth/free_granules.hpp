// Which physical granules of the devices belong to no chunk. Host only.
#pragma once

#include <optional>
#include <vector>

#include "pool/pool_open.hpp"

namespace gpu4fs::pool {

// Bytes of the device's chunk area that belong to no chunk; 0 if the device is absent.
u64 unallocated_bytes(const OpenedPool& pool, u32 device);

class FreeGranules {
 public:
  explicit FreeGranules(const OpenedPool& pool);

  void add_device(const format::DevicePart& part);

  u64 free_count(u32 device) const { return devices_[device].used.size() - devices_[device].used_count; }
  u64 used_count(u32 device) const { return devices_[device].used_count; }
  // The first of `count` consecutive free granules.
  std::optional<u64> find(u32 device, u64 count) const;
  void take(u32 device, u64 first, u64 count) { mark(device, first, count, true); }
  void give_back(u32 device, u64 first, u64 count) { mark(device, first, count, false); }
  // Marks all columns of a chunk.
  void mark(const OpenedChunk& chunk, bool used);
  // As a bitmap of whole pages.
  std::vector<u8> bitmap(u32 device, u64 page_count) const;

 private:
  struct DeviceGranules {
    format::DevicePart part;
    std::vector<bool> used;
    u64 used_count = 0;
  };
  void mark(u32 device, u64 first, u64 count, bool used);

  std::vector<DeviceGranules> devices_;  // by index; empty for an absent device
};

}  // namespace gpu4fs::pool
