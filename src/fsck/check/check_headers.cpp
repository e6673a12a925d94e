// Checks the header areas of chunks: chunk headers, bitmap slots, descriptor tables and page descriptors, in all
// columns.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "format/format_text.hpp"
#include "fsck/check/check_context.hpp"
#include "pool/pool_checksum.hpp"

namespace gpu4fs::fsck::check {

namespace {

void check_chunk_header(CheckContext& context, u32 chunk, u32 column) {
  const format::ChunkDescriptor& descriptor = context.pool.chunks[chunk].descriptor;
  const pool::DeviceFile& file = context.reader.chunk_device(chunk, column);
  const u64 offset = context.reader.header_area_offset(chunk, 0, column);
  format::ChunkHeader header{};
  std::string problem;
  try {
    file.read_at(offset, &header, sizeof(header));
  } catch (const pool::PoolError& error) {
    problem = error.what();
  }
  if (problem.empty()) {
    const bool reserved_zero =
        std::all_of(std::begin(header.reserved), std::end(header.reserved), [](u8 byte) { return byte == 0; });
    if (header.magic != format::chunk_header_magic) {
      problem = "wrong magic";
    } else if (header.checksum != pool::structure_checksum(header, descriptor.base_address)) {
      problem = "wrong checksum";
    } else if (header.version != 1 || header.column_index != column || !reserved_zero) {
      problem = "impossible fields";
    } else if (std::memcmp(header.pool_uuid, context.pool.superblock.pool_uuid, 16) != 0) {
      problem = fmt::format("belongs to pool {}", format::uuid_text(header.pool_uuid));
    } else if (header.base_address != descriptor.base_address || header.size_bytes != descriptor.size_bytes) {
      problem = fmt::format("describes {:#x} with {} bytes, the chunk tree {:#x} with {}", header.base_address,
                            header.size_bytes, descriptor.base_address, descriptor.size_bytes);
    }
  }
  if (!problem.empty()) {
    context.add(FindingId::chunk_header_damaged, device_place(file, offset),
                fmt::format("chunk {:#x}: {}", descriptor.base_address, problem));
  }
}

u64 area_offset(const CheckContext& context, u32 chunk, u32 column, u64 page) {
  return context.reader.header_area_offset(chunk, page, column);
}

void add_copy_finding(CheckContext& context, FindingId id, u32 chunk, u32 column, u64 page, const std::string& text) {
  context.add(id, device_place(context.reader.chunk_device(chunk, column), area_offset(context, chunk, column, page)),
              fmt::format("chunk {:#x}: {}", context.pool.chunks[chunk].descriptor.base_address, text));
}

// The current slot, in all columns, and the remains of the other one.
void check_slots(CheckContext& context, u32 chunk) {
  const HeaderArea& area = context.reader.headers()->area(chunk);
  const format::ChunkLayout layout = format::chunk_layout(context.reader.chunk_page_count(chunk));
  const bool has_copies = area.columns.size() > 1;
  for (u32 column = 0; column < area.columns.size(); ++column) {
    const HeaderArea::Column& copy = area.columns[column];
    if (!copy.is_here) continue;
    for (u32 slot = 0; slot < 2; ++slot) {
      const SlotCopy& own = copy.slots[slot];
      const u64 page = slot == 0 ? layout.bitmap_a_page : layout.bitmap_b_page;
      const std::string text = fmt::format("bitmap slot {}: {}", slot == 0 ? "A" : "B", own.problem);
      if (slot != area.slot) {
        // In a pool with copies, another copy may be newer than this one.
        if (!own.problem.empty() && area.slot != 2) {
          add_copy_finding(context, FindingId::bitmap_slot_stale, chunk, column, page, text);
        } else if (!own.problem.empty()) {
          add_copy_finding(context, FindingId::bitmap_damaged, chunk, column, page, text);
        }
      } else if (!copy.is_sound) {
        const bool is_other = own.problem.empty();
        const FindingId id = has_copies            ? FindingId::header_copy_damaged
                             : area.bitmap.empty() ? FindingId::bitmap_damaged
                                                   : FindingId::descriptors_damaged;
        add_copy_finding(
            context, id, chunk, column, page,
            is_other ? fmt::format("bitmap slot {}: it is not that of another copy", slot == 0 ? "A" : "B") : text);
      }
    }
  }
  const std::string place = fmt::format("chunk {:#x}", context.pool.chunks[chunk].descriptor.base_address);
  if (area.slot == 2) {
    context.add(FindingId::bitmap_damaged, place, "no bitmap slot holds a state of this epoch");
  } else if (area.bitmap.empty() && has_copies) {
    context.add(FindingId::bitmap_damaged, place, "in all copies");
  }
}

void check_bitmap_counts(CheckContext& context, u32 chunk, const BitWords& words) {
  const HeaderArea& area = context.reader.headers()->area(chunk);
  const u64 page_count = context.reader.chunk_page_count(chunk);
  const std::string place = fmt::format("chunk {:#x}", context.pool.chunks[chunk].descriptor.base_address);
  u64 set_count = 0;
  bool is_beyond = false;
  for (u64 bit = 0; bit < words.size() * 64; bit += 64) {
    const u64 word = words[bit / 64];
    set_count += static_cast<u64>(std::popcount(word));
    if (bit + 64 > page_count) is_beyond = is_beyond || (bit >= page_count ? word : word >> (page_count - bit)) != 0;
  }
  if (is_beyond) {
    context.add(FindingId::bitmap_count, place, fmt::format("bits beyond the {} that count are set", page_count));
  }
  if (set_count != area.header.set_count) {
    context.add(FindingId::bitmap_count, place,
                fmt::format("{} bits are set, the header says {}", set_count, area.header.set_count));
  }
}

// Every page of descriptors in every column.
void check_descriptors(CheckContext& context, u32 chunk) {
  HeaderReader& headers = *context.reader.headers();
  const HeaderArea& area = headers.area(chunk);
  if (area.describes_nothing()) return;
  const format::ChunkLayout layout = format::chunk_layout(context.reader.chunk_page_count(chunk));
  PageBuffer page;
  for (u64 index = 0; index < layout.descriptor_pages; ++index) {
    const DescriptorPage found = headers.find_descriptors(chunk, index, &page);
    if (found.is_known && found.entry == format::descriptor_page_unwritten) continue;
    if (!found.is_known) {
      if (area.tables.empty()) continue;
      add_copy_finding(
          context, FindingId::descriptors_damaged, chunk, 0, layout.descriptor_page(index, 0),
          fmt::format("no column has the descriptors of pages {} to {} as they should be",
                      index * format::descriptors_per_page, (index + 1) * format::descriptors_per_page - 1));
      continue;
    }
    const u64 at = layout.descriptor_page(index, format::descriptor_place(found.entry));
    for (u32 column = 0; column < area.columns.size(); ++column) {
      if (!area.columns[column].is_here || column == found.column) continue;
      if (headers.has_descriptors(chunk, column, index, found.entry, &page)) continue;
      add_copy_finding(context, FindingId::header_copy_damaged, chunk, column, at,
                       fmt::format("page {} of descriptors does not match its checksum", index));
    }
  }
}

void check_counts(CheckContext& context, u64 pages_allocated, bool all_known) {
  const format::Superblock& superblock = context.pool.superblock;
  const std::string place = context.pool.devices.front().file.path();
  if (context.reader.headers()->slot_sum() != superblock.slot_sum) {
    context.add(FindingId::superblock_count, place, "it means other bitmap slots than there are: one was lost");
  }
  if (all_known && pages_allocated != superblock.page_used) {
    context.add(FindingId::superblock_count, place,
                fmt::format("{} pages in use, the bitmaps hold {}", superblock.page_used, pages_allocated));
  }
  if (context.result.pages_total != superblock.page_total) {
    context.add(FindingId::superblock_count, place,
                fmt::format("{} pages in all, the chunks hold {}", superblock.page_total, context.result.pages_total));
  }
}

}  // namespace

void check_header_areas(CheckContext& context, u32 chunk) {
  for (u32 column = 0; column <= context.pool.chunks[chunk].descriptor.redundancy; ++column) {
    if (context.reader.is_here(chunk, column)) check_chunk_header(context, chunk, column);
  }
  check_slots(context, chunk);
  check_descriptors(context, chunk);
}

void check_chunks(CheckContext& context) {
  const auto chunk_count = static_cast<u32>(context.pool.chunks.size());
  context.chunks.resize(chunk_count);
  u64 pages_allocated = 0;
  bool all_known = true;
  for (u32 chunk = 0; chunk < chunk_count; ++chunk) {
    check_header_areas(context, chunk);
    const u64 page_count = context.reader.chunk_page_count(chunk);
    ChunkUse& use = context.chunks[chunk];
    use.slot = context.reader.headers()->area(chunk).slot;
    use.allocated = context.reader.headers()->take_bitmap(chunk);
    use.has_bitmap = !use.allocated.empty();
    if (use.has_bitmap) check_bitmap_counts(context, chunk, use.allocated);
    all_known = all_known && use.has_bitmap;
    use.allocated.resize(format::chunk_layout(page_count).bitmap_pages * page_size / 8);
    use.reached.resize(use.allocated.size());
    for (const u64 word : use.allocated) pages_allocated += static_cast<u64>(std::popcount(word));
    context.result.pages_total += page_count;
  }
  check_counts(context, pages_allocated, all_known);
}

}  // namespace gpu4fs::fsck::check
