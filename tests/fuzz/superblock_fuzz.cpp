// Two superblock slots with any content: a slot that is accepted as valid keeps the promises of pool_superblock.hpp,
// and a pool that opens has the chunks that its superblock counts.
#include "base/bits.hpp"
#include "format/format_text.hpp"
#include "fuzz/damage.hpp"
#include "fuzz/fuzz_target.hpp"
#include "fuzz/pool_file.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::fuzz {

const char target_name[] = "superblock";

namespace {

using format::DevicePart;
using format::Superblock;

// [offset, offset + units * unit) lies in the device's used bytes.
bool lies_inside(u64 offset, u64 units, u64 unit, u64 size_bytes) {
  return offset <= size_bytes && units <= (size_bytes - offset) / unit;
}

void check_promises(const Superblock& superblock) {
  const DevicePart& part = superblock.device;
  require(part.size_bytes <= pool_file_bytes, "a device smaller than its pool is valid");
  require(lies_inside(part.tree_offset, part.tree_pages, page_size, part.size_bytes), "tree area");
  require(lies_inside(part.chunk_map_offset, 2 * (1 + part.chunk_map_pages), page_size, part.size_bytes), "chunk map");
  require(lies_inside(part.log_offset, part.log_bytes, 1, part.size_bytes), "log area");
  require(
      lies_inside(part.chunk_area_offset, part.chunk_area_granules, format::physical_granule_bytes, part.size_bytes),
      "chunk area");
  require(part.chunk_area_granules <= part.chunk_map_pages * format::bits_per_page, "bits of the chunk map");
  require(superblock.device_count >= 1 && superblock.device_count <= device_count_max, "device count");
  require(part.device_index < superblock.device_count, "device index");
  require(superblock.tree_height >= 1 && superblock.tree_height <= 8, "tree height");
  require(superblock.tree_replica_count >= 1 && superblock.tree_replica_count <= superblock.device_count, "replicas");
  require(is_power_of_two(superblock.chunk_size_bytes) && superblock.chunk_size_bytes >= format::chunk_size_min &&
              superblock.chunk_size_bytes <= format::chunk_size_max,
          "chunk size");
  require(superblock.page_used <= superblock.page_total, "pages");
  require(superblock.inode_file.height == format::inode_file_height, "height of the inode file");
}

void damage_slots(Input& input, Superblock (&slots)[2]) {
  const u32 flags = input.byte();
  for (u32 count = 0; count < 32 && !input.empty(); ++count) {
    u8 page[page_size];
    Superblock& slot = slots[input.byte() % 2];
    std::memcpy(page, &slot, page_size);
    change_bytes(input, page, input.byte() % 4 == 0 ? page_size : 1024);
    std::memcpy(&slot, page, page_size);
  }
  for (u32 i = 0; i < 2; ++i) {
    if ((flags >> i & 1) == 0) pool::seal(slots[i], pool::superblock_offset(i));
  }
}

void open_it(const std::string& path) {
  try {
    pool::OpenPoolOptions options{{path}, true, false};
    const pool::OpenedPool pool = pool::open_pool(options);
    require(pool.chunks.size() == pool.superblock.chunk_count, "chunks were lost");
    require(pool.devices.size() == pool.superblock.device_count, "devices were lost");
  } catch (const pool::PoolError&) {
  }
}

}  // namespace

void run_input(const u8* data, std::size_t length) {
  static PoolFile file;
  static const auto base = file.read_as<Superblock>(pool::superblock_offset(1));
  Input input(data, length);
  Superblock slots[2] = {base, base};
  slots[0].slot = 0;
  slots[0].epoch = 2;
  damage_slots(input, slots);
  for (u32 i = 0; i < 2; ++i) file.write(pool::superblock_offset(i), &slots[i], page_size);
  const pool::SuperblockProbe probe = pool::probe_superblocks(file.path());
  for (const pool::SuperblockSlot& slot : probe.slots) {
    require(!format::to_text(slot.superblock).empty(), "no text");
    const bool valid = slot.state == pool::SlotState::valid;
    if (valid && pool::find_feature_problem(slot.superblock, true).empty()) check_promises(slot.superblock);
  }
  open_it(file.path());
}

}  // namespace gpu4fs::fuzz
