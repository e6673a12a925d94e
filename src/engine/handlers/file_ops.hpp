// The handlers of file data and of whole inodes, and statfs.
#pragma once

#include "engine/handlers/file_allocate.hpp"
#include "engine/handlers/file_copy.hpp"
#include "engine/handlers/file_read.hpp"
#include "engine/handlers/file_reclaim.hpp"
#include "engine/handlers/file_setattr.hpp"
#include "engine/handlers/file_truncate.hpp"
#include "engine/handlers/file_write.hpp"

namespace gpu4fs::engine {
namespace detail {

// The amount of data of the pool's profile that can be stored, including chunks that can still be created. Inodes are
// stored with the metadata.
GPU4FS_FN inline wire::StatfsRecord statfs_of(const fs::FileSystem& fs) {
  wire::StatfsRecord record{};
  const space::ClassRoom data = space::room_of(fs, fs.space.data_class);
  const space::ClassRoom metadata = space::room_of(fs, fs.space.metadata_class);
  record.page_total = data.total;
  record.page_free = data.free;
  record.page_available = space::room_for_content(fs, fs.space.data_class);
  record.inode_used = load<Order::relaxed, Scope::engine>(&fs.inode_used);
  record.inode_free = minimum((metadata.available - metadata.stranded) * format::inodes_per_page,
                              fs::inode_number_max - minimum(fs::inode_number_max, record.inode_used));
  record.epoch_open = load<Order::relaxed, Scope::engine>(&fs.epoch_open);
  record.epoch_durable = load<Order::relaxed, Scope::engine>(&fs.epoch_durable);
  return record;
}

}  // namespace detail

// Writes a StatfsRecord to `output`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_statfs(Group g, Engine& engine, CommandState& c) {
  wire::StatfsRecord& record = detail::scratch_of<wire::StatfsRecord>(c);
  u8* destination = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.output, sizeof(wire::StatfsRecord), &destination));
  on_leader(g, [&] { record = detail::statfs_of(engine.fs); });
  put_record(g, destination, &record, sizeof(record));
  return Step::complete();
}

}  // namespace gpu4fs::engine
