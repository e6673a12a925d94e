#include "pool/growth/chunk_maps.hpp"

#include "base/limits.hpp"
#include "pool/chunk_area.hpp"
#include "pool/pool_checksum.hpp"

namespace gpu4fs::pool {

u64 map_slot_epoch(const DeviceFile& file, const format::DevicePart& part, u32 slot) {
  format::BitmapSlotHeader header{};
  file.read_at(part.chunk_map_offset + slot * (1 + part.chunk_map_pages) * page_size, &header, sizeof(header));
  const bool is_valid = header.magic == format::bitmap_slot_magic && header.version == 2 && header.slot == slot &&
                        header.base_address == part.device_index &&
                        header.checksum == structure_checksum(header, u64{part.device_index} ^ slot);
  return is_valid ? header.epoch : 0;
}

u32 newest_map_slot(const DeviceFile& file, const format::DevicePart& part) {
  return map_slot_epoch(file, part, 0) > map_slot_epoch(file, part, 1) ? 0 : 1;
}

void clear_lost_chunk_maps(OpenedPool& pool) {
  for (OpenedDevice& device : pool.devices) {
    if (!device.is_here()) continue;
    bool any = false;
    for (u32 slot = 0; slot < 2; ++slot) {
      if (map_slot_epoch(device.file, device.part, slot) <= pool.superblock.epoch) continue;
      clear_bitmap_slot(device.file, chunk_map_place(device.part), slot);
      any = true;
    }
    if (any) device.file.flush();
  }
}

}  // namespace gpu4fs::pool
