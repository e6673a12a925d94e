// Structures outside the logical space: bitmaps, chunk headers, chunk maps, chunk tree, superblocks.
#include <fmt/format.h>
#include <time.h>

#include <bit>
#include <cstring>

#include "base/check.hpp"
#include "base/random.hpp"
#include "fsck/repair/repair_context.hpp"
#include "pool/chunk_area.hpp"
#include "pool/pool_checksum.hpp"

namespace gpu4fs::fsck::repair {

namespace {

// Writes the unused slot, so the current one stays valid until the superblocks are written.
u64 write_other_slot(pool::DeviceFile& file, const pool::BitmapPlace& place, u32 counting_slot, const BitWords& words,
                     const std::vector<u64>& table, u64 epoch) {
  GPU4FS_CHECK_EQ(words.size() * sizeof(u64), place.bitmap_pages * page_size);
  GPU4FS_CHECK_EQ(table.size() * sizeof(u64), place.table_pages * page_size);
  return pool::write_bitmap_slot(file, place, counting_slot == 0 ? 1 : 0, words.data(), table.data(), epoch);
}

class MediumRepair {
 public:
  MediumRepair(RepairContext& context, u64 epoch) : context_(context), epoch_(epoch) {}

  void run(const format::Inode& inode_file, u64 inode_used) {
    write_bitmaps();
    if (found(FindingId::chunk_header_damaged)) write_chunk_headers();
    if (found(FindingId::chunk_map_damaged)) write_chunk_maps();
    if (found(FindingId::tree_node_damaged)) write_tree_nodes();
    if (found(FindingId::superblock_count)) context_.note("superblocks", "counts are put right");
    if (found(FindingId::superblock_damaged) || found(FindingId::superblock_torn))
      context_.note("superblocks", "damaged ones are replaced");
    if (context_.options.dry_run) return;
    pool::complete_superblocks(context_.pool);
    for (pool::OpenedDevice& device : context_.pool.devices) {
      if (device.is_here()) device.file.flush();
    }
    write_superblocks(inode_file, inode_used);
  }

 private:
  bool found(FindingId id) const { return context_.old_state.result.findings.count(id) > 0; }
  pool::DeviceFile& file_of(u32 chunk, u32 column) {
    return context_.pool.devices[context_.pool.chunks[chunk].columns[column].device_index()].file;
  }

  void write_bitmaps() {
    const bool has_wrong_counts =
        found(FindingId::bitmap_count) || found(FindingId::bitmap_damaged) || found(FindingId::superblock_count);
    u64 freed = 0;
    u64 added = 0;
    const u64 lost = context_.old_state.result.findings.count(FindingId::descriptors_damaged);
    for (u32 chunk = 0; chunk < context_.old_state.chunks.size(); ++chunk) {
      const check::ChunkUse& use = context_.old_state.chunks[chunk];
      const BitWords& claimed = context_.pages.claimed(chunk);
      for (std::size_t i = 0; i < claimed.size(); ++i) {
        // Replaced pages were reached; only the others are reported.
        freed += static_cast<u64>(std::popcount(use.allocated[i] & ~claimed[i] & ~use.reached[i]));
        added += static_cast<u64>(std::popcount(claimed[i] & ~use.allocated[i] & use.reached[i]));
      }
      const std::map<u64, PageBuffer> descriptors = changed_descriptors(chunk);
      const HeaderArea& area = headers().area(chunk);
      const bool stays = claimed == use.allocated && use.has_bitmap && !has_wrong_counts && descriptors.empty() &&
                         area.table_is_known && !area.is_suspect;
      if (stays || context_.options.dry_run) {
        slot_sum_ += area.header.checksum;
      } else {
        slot_sum_ += write_slots(chunk, descriptors);
      }
    }
    if (lost > 0)
      context_.note("page descriptors", fmt::format("{} pages of them are damaged and say so from now on", lost));
    if (freed > 0) context_.note("bitmaps", fmt::format("{} pages that belonged to nothing are freed", freed));
    if (added > 0) context_.note("bitmaps", fmt::format("{} pages in use are marked so", added));
    if (has_wrong_counts) context_.note("bitmaps", "all are written anew");
  }

  HeaderReader& headers() { return *context_.old_state.reader.headers(); }

  // Those of new pages, and those that no column has intact.
  std::map<u64, PageBuffer> changed_descriptors(u32 chunk) {
    std::map<u64, PageBuffer> changed = context_.pages.descriptor_pages(chunk);
    const u64 count = format::chunk_layout(context_.old_state.reader.chunk_page_count(chunk)).descriptor_pages;
    PageBuffer page;
    for (u64 index = 0; index < count; ++index) {
      if (!headers().find_descriptors(chunk, index, &page).is_known) changed.try_emplace(index, page);
    }
    return changed;
  }

  // Writes bitmap, table and the changed pages of descriptors. Returns the checksum of the slot.
  u64 write_slots(u32 chunk, const std::map<u64, PageBuffer>& changed) {
    const format::ChunkDescriptor& descriptor = context_.pool.chunks[chunk].descriptor;
    const format::ChunkLayout layout = format::chunk_layout(descriptor.size_bytes / page_size);
    std::vector<u64> table(layout.table_pages * format::descriptor_entries_per_page);
    PageBuffer page;
    for (u64 index = 0; index < layout.descriptor_pages; ++index) {
      const DescriptorPage old = headers().find_descriptors(chunk, index, &page);
      table[index] = old.entry;
      const auto found = changed.find(index);
      if (found == changed.end()) continue;
      const u64 place = format::descriptor_place(old.entry) ^ 1;
      const u64 hash = xxh3_64(&found->second, page_size, format::descriptor_page_seed(descriptor.base_address, index));
      table[index] = format::descriptor_entry(hash, place);
      for (u32 column = 0; column <= descriptor.redundancy; ++column) {
        const u64 at = layout.descriptor_page(index, place);
        file_of(chunk, column)
            .write_at(context_.old_state.reader.header_area_offset(chunk, at, column), &found->second, page_size);
      }
    }
    const check::ChunkUse& use = context_.old_state.chunks[chunk];
    u64 checksum = 0;
    for (u32 column = 0; column <= descriptor.redundancy; ++column) {
      checksum = write_other_slot(file_of(chunk, column), headers().place(chunk, column), use.slot,
                                  context_.pages.claimed(chunk), table, epoch_);
    }
    return checksum;
  }

  void write_chunk_headers() {
    context_.note("chunk headers", "damaged ones are written anew");
    if (context_.options.dry_run) return;
    for (u32 chunk = 0; chunk < context_.pool.chunks.size(); ++chunk) {
      const format::ChunkDescriptor& descriptor = context_.pool.chunks[chunk].descriptor;
      for (u32 column = 0; column <= descriptor.redundancy; ++column) {
        const format::ChunkHeader header =
            pool::make_chunk_header(descriptor, column, context_.pool.superblock.pool_uuid);
        replace(file_of(chunk, column), context_.old_state.reader.header_area_offset(chunk, 0, column), &header);
      }
    }
  }

  // Writes one page, unless it already has this content.
  static void replace(pool::DeviceFile& file, u64 offset, const void* page) {
    PageBuffer before;
    try {
      file.read_at(offset, &before, sizeof(before));
      if (std::memcmp(&before, page, page_size) == 0) return;
    } catch (const pool::PoolError&) {
      // Writing may restore it.
    }
    file.write_at(offset, page, page_size);
  }

  void write_chunk_maps() {
    context_.note("chunk maps", "are written anew");
    if (context_.options.dry_run) return;
    for (u32 index = 0; index < context_.pool.devices.size(); ++index) {
      pool::OpenedDevice& device = context_.pool.devices[index];
      if (!device.is_here()) continue;  // removed
      write_other_slot(device.file, pool::chunk_map_place(device.part), context_.old_state.chunk_map_slots[index],
                       check::expected_chunk_map(context_.old_state, index), {}, epoch_);
    }
  }

  void write_tree_nodes() {
    context_.note("chunk tree", "damaged and old nodes are copied from the replica with the newest");
    if (context_.options.dry_run) return;
    const format::Superblock& superblock = context_.pool.superblock;
    u64 page_count = ~u64{0};
    for (u32 i = 0; i < superblock.tree_replica_count; ++i) {
      page_count = std::min(page_count, context_.pool.devices[i].part.tree_pages);
    }
    for (u64 number = 0; number < page_count; ++number) {
      format::ChunkTreeNode good{};
      for (u32 i = 0; i < superblock.tree_replica_count; ++i) {
        const pool::OpenedDevice& device = context_.pool.devices[i];
        format::ChunkTreeNode node{};
        try {
          device.file.read_at(device.part.tree_offset + number * page_size, &node, sizeof(node));
        } catch (const pool::PoolError&) {
          continue;
        }
        const bool is_valid = node.magic == format::chunk_tree_magic && node.epoch <= superblock.epoch &&
                              node.checksum == pool::structure_checksum(node, number);
        if (is_valid && node.epoch > good.epoch) good = node;
      }
      if (good.magic == 0) continue;
      for (u32 i = 0; i < superblock.tree_replica_count; ++i) {
        pool::OpenedDevice& device = context_.pool.devices[i];
        replace(device.file, device.part.tree_offset + number * page_size, &good);
      }
    }
  }

  void write_superblocks(const format::Inode& inode_file, u64 inode_used) {
    format::Superblock superblock = context_.pool.superblock;
    superblock.epoch = epoch_;
    superblock.slot = static_cast<u32>(epoch_ & 1);
    superblock.clean = 1;
    superblock.inode_file = inode_file;
    superblock.inode_used = inode_used;
    superblock.page_used = context_.pages.page_used();
    superblock.slot_sum = slot_sum_;
    superblock.page_total = context_.old_state.result.pages_total;
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    superblock.checkpoint_time = format::encode_time(now.tv_sec, static_cast<u32>(now.tv_nsec));
    // After this, nothing in the log is a valid record.
    superblock.log_seed = random_number<u64>();
    for (pool::OpenedDevice& device : context_.pool.devices) {
      if (!device.is_here()) continue;
      superblock.device = device.part;
      pool::seal(superblock, pool::superblock_offset(superblock.slot));
      device.file.write_at(pool::superblock_offset(superblock.slot), &superblock, sizeof(superblock));
      device.file.flush();
    }
  }

  RepairContext& context_;
  u64 epoch_;
  u64 slot_sum_ = 0;
};

// Writes the content of a column's current slot from the good one, whose header is that of the area.
class HeaderCopies {
 public:
  HeaderCopies(RepairContext& context, u32 chunk)
      : context_(context),
        headers_(*context.old_state.reader.headers()),
        area_(headers_.area(chunk)),
        chunk_(chunk),
        layout_(format::chunk_layout(context.old_state.reader.chunk_page_count(chunk))) {}

  void restore() {
    if (area_.slot == 2 || area_.is_suspect || area_.columns.size() < 2) return;
    if (area_.table_is_known && context_.old_state.chunks[chunk_].has_bitmap) restore_slots();
    restore_descriptors();
  }

 private:
  void write(u32 column, u64 page, const void* content, u64 bytes) {
    headers_.file(chunk_, column)
        .write_at(context_.old_state.reader.header_area_offset(chunk_, page, column), content, bytes);
  }

  void restore_slots() {
    const u64 first = area_.slot == 0 ? layout_.bitmap_a_page : layout_.bitmap_b_page;
    for (u32 column = 0; column < area_.columns.size(); ++column) {
      if (!area_.columns[column].is_here || area_.columns[column].is_sound) continue;
      const BitWords& bitmap = context_.old_state.chunks[chunk_].allocated;
      write(column, first + 1, bitmap.data(), bitmap.size() * sizeof(u64));
      const std::vector<u64>& table = area_.tables.back();
      write(column, first + 1 + layout_.bitmap_pages, table.data(), table.size() * sizeof(u64));
      write(column, first, &area_.header, page_size);
    }
  }

  void restore_descriptors() {
    if (area_.describes_nothing()) return;
    PageBuffer page;
    PageBuffer other;
    for (u64 index = 0; index < layout_.descriptor_pages; ++index) {
      const DescriptorPage found = headers_.find_descriptors(chunk_, index, &page);
      if (!found.is_known || found.entry == format::descriptor_page_unwritten) continue;
      for (u32 column = 0; column < area_.columns.size(); ++column) {
        if (!area_.columns[column].is_here || headers_.has_descriptors(chunk_, column, index, found.entry, &other))
          continue;
        write(column, layout_.descriptor_page(index, format::descriptor_place(found.entry)), &page, page_size);
      }
    }
  }

  RepairContext& context_;
  HeaderReader& headers_;
  const HeaderArea& area_;
  u32 chunk_;
  format::ChunkLayout layout_;
};

}  // namespace

void restore_header_copies(RepairContext& context) {
  if (context.old_state.result.findings.count(FindingId::header_copy_damaged) == 0) return;
  context.note("header areas", "damaged and old copies are written from good ones");
  if (context.options.dry_run) return;
  for (u32 chunk = 0; chunk < context.pool.chunks.size(); ++chunk) HeaderCopies(context, chunk).restore();
}

void write_medium(RepairContext& context, const format::Inode& inode_file, u64 inode_used) {
  MediumRepair(context, context.pool.superblock.epoch + 1).run(inode_file, inode_used);
}

}  // namespace gpu4fs::fsck::repair
