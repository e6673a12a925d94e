// Pages that a command has allocated and that no file map contains yet: c.extents[0, c.extent_count).
//
// They stay with the command across steps. When the command ends early, they are freed.
#pragma once

#include "engine/engine_types.hpp"
#include "space/space.hpp"

namespace gpu4fs::engine {

// The row that the command logged has been written, or will never be written (handlers/file_write_rows.hpp). Leader
// only.
GPU4FS_FN inline void end_row_update(Engine& engine, CommandState& c) {
  if (c.operation.row_update == 0) return;
  end_use(engine.fs.space.parity->updates, c.operation.row_update - 1);
  c.operation.row_update = 0;
}

// Leader only.
GPU4FS_FN inline void abandon_owned_extents(Engine& engine, CommandState& c) {
  GPU4FS_CHECK_LE(c.extent_count, command_extent_capacity);
  end_row_update(engine, c);
  u64 page_count = 0;
  for (u32 i = 0; i < c.extent_count; ++i) {
    const fs::RoundExtent& extent = c.extents[i];
    if (extent.is_in_place()) continue;
    // A replayed command adopts them again.
    if (c.operation.replay != nullptr) continue;
    page_count += space::abandon_extent(engine.fs, c.operation, extent.pages());
  }
  if (page_count != 0) space::unreserve_pages(engine.fs, c.operation, page_count);
  c.extent_count = 0;
}

// Whether the pages that a record names may become part of a file. The log's contents are not trusted, and a record may
// name a page twice. Leader.
GPU4FS_FN GPU4FS_NOINLINE inline Status check_adopted_extents(const Engine& engine, const CommandState& c) {
  GPU4FS_CHECK_LE(c.extent_count, command_extent_capacity);
  for (u32 i = 0; i < c.extent_count; ++i) {
    const fs::RoundExtent& extent = c.extents[i];
    const u64 end = extent.address + u64{extent.page_count} * page_size;
    for (u32 before = 0; before < i; ++before) {
      const fs::RoundExtent& other = c.extents[before];
      const u64 other_end = other.address + u64{other.page_count} * page_size;
      if (extent.address < other_end && other.address < end) return Status::corrupt_structure;
    }
    if (extent.is_in_place()) continue;
    if (!space::pages_are_uncommitted(engine.fs, extent.pages())) return Status::corrupt_structure;
  }
  return Status::ok;
}

}  // namespace gpu4fs::engine
