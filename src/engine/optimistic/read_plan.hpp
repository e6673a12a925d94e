// A read without the inode's lock: finds the place of the bytes. read_move.hpp moves them.
//
// One rank makes a plan, so each rank of a warp can plan a read of its own, or the ranks plan the pages of a long read.
// A plan covers the usual case: a regular file with its content in pages, a resident map, healthy devices, an access
// time that stays. Everything else, including damage, is left to the ordinary way.
#pragma once

#include "base/mutant.hpp"
#include "engine/clock.hpp"
#include "engine/optimistic/file_slots.hpp"
#include "engine/optimistic/inode_view.hpp"
#include "engine/optimistic/views.hpp"
#include "engine/session_memory.hpp"
#include "fs/inode/access_time.hpp"
#include "fs/map/map_walk.hpp"
#include "raid/page_access.hpp"
#include "raid/page_copies.hpp"

namespace gpu4fs::engine {

enum class PlannedRead : u32 {
  unusual,   // for the ordinary way
  page,      // a ReadPlan
  absent,    // a ReadPlan of a page that is in no frame of the page cache
  repeated,  // a ReadPlan of a page that deserves a copy (raid/page_copies.hpp)
  pages,     // a ReadPlan of several pages without their places
  in_inode,  // the content seems to be in the inode
};

// Views that a rank has filled and its worker may remember.
struct FreshViews {
  FileView file;
  ChunkView chunk;
  device::StagedPage absent;  // of a plan for an absent page: where it is
};

// Which of them are filled. They are apart because these stay in registers, while the views are in memory.
struct FilledViews {
  bool has_file;
  bool has_chunk;
};

namespace detail {

GPU4FS_FN inline bool is_of_era(u64 era, const ReaderContext& reader) {
  return GPU4FS_MUTANT(era_ignored, era == reader.era, true);
}

// The time until which a read does not change the access time, by the rule of access_time_is_due(). 0: this read
// changes it.
GPU4FS_FN inline u64 fresh_until_ns(const Engine& engine, const format::Inode& inode, u64 now_ns) {
  const fs::FileSystem& fs = engine.fs;
  const u64 now = stamp_at(engine, now_ns);
  if (access_time_is_due(fs, inode, inode.access_time, now)) return 0;
  // Any later read changes it, although a read in the same nanosecond does not.
  if (GPU4FS_MUTANT(strict_times_remembered, fs.access_time_mode == fs::AccessTimeMode::strict, false)) return now_ns;
  constexpr i64 day_seconds = 24 * 60 * 60;
  const i64 age_seconds = format::time_seconds(now) - format::time_seconds(inode.access_time);
  // Where reads never change access times, an occasional check also costs little.
  if (age_seconds < 0 || age_seconds + 1 >= day_seconds) return now_ns + 1000000000u;
  return now_ns + static_cast<u64>(day_seconds - age_seconds - 1) * 1000000000u;
}

// Views file `number` for a read of the page at `offset`. *view is filled if the result is PlannedRead::page. It is a
// function of its own, as find_in_chunk() is, so a read that finds everything remembered does not save registers.
GPU4FS_FN GPU4FS_NOINLINE inline PlannedRead view_file(const ReaderContext& reader, u64 number, u64 offset,
                                                       FileView* view) {
  const u64 now_ns = reader.now_ns();
  const InodeView found = look_at_inode(reader, number);
  if (found.inode == nullptr) return PlannedRead::unusual;
  const format::Inode inode = copy_without_content(found);
  GPU4FS_TRACE_POINT(inode);
  if (!is_usable(inode) || !fs::is_regular(inode.mode)) return PlannedRead::unusual;
  if (inode.is_inline()) return PlannedRead::in_inode;
  if (!surely_may(*reader.session, inode, fs::may_read)) return PlannedRead::unusual;
  view->number = number;
  view->era = reader.era;
  view->lock = found.lock;
  view->version = found.version;
  view->size_bytes = inode.size_bytes;
  view->fresh_until_ns = fresh_until_ns(*reader.engine, inode, now_ns);
  GPU4FS_TRACE_POINT(checks);
  if (view->fresh_until_ns == 0) return PlannedRead::unusual;
  const u64 page = minimum(offset, inode.size_bytes) / page_size;
  const bool is_found = find_slots(reader.views->root.pages, found.inode, inode.height, page, view,
                                   [&reader, view](fs::PageKey key) { return find_frame(reader, key, view->version); });
  GPU4FS_TRACE_POINT(map);
  return is_found ? PlannedRead::page : PlannedRead::unusual;
}

// A page on a healthy device.
struct FoundPage {
  const u8* memory;  // nullptr: not known for sure, or must not be accessed
  const format::PageDescriptor* descriptor;
  device::StagedPage absent;  // it can be read once it is in a frame of the page cache; no device: not so
  bool deserves_copy;
};

// The page where it is, or its copy. A page in a frame of the page cache may be replaced while it is read, so only its
// checksum can show that it was this page.
GPU4FS_FN inline FoundPage look_at_page(const ReaderContext& reader, const raid::PageLocation& location, u32 copy,
                                        const format::PageDescriptor* descriptor) {
  const raid::LogicalSpace& space = reader.engine->fs.space;
  raid::CopyLook look{nullptr, false};
  if (space.tier != nullptr) look = raid::look_for_copy(space, location, copy);
  if (look.memory != nullptr) return {look.memory, descriptor, {}, false};
  const raid::PeekedPage page = raid::peek_page(space, location, copy);
  const bool is_provable = page.staged.device == nullptr || reader.views->root.data_checksums != 0;
  if (!GPU4FS_MUTANT(frame_believed, is_provable, true)) return {nullptr, descriptor, {}, false};
  if (page.memory == nullptr) return {nullptr, descriptor, page.staged, false};
  return {page.memory, descriptor, {}, look.deserves_one};
}

// Finds a page in a chunk that is not remembered. If there is none, *found stays as it is. True: *view may be
// remembered.
GPU4FS_FN GPU4FS_NOINLINE inline bool find_in_chunk(const ReaderContext& reader, u64 address, FoundPage* found,
                                                    ChunkView* view) {
  const raid::LogicalSpace& space = reader.engine->fs.space;
  u32 index = raid::no_chunk;
  if (raid::is_stacked(space) || raid::failed_devices(space) != 0) return false;
  if (raid::chunk_of(space, address, &index) != Status::ok) return false;
  const raid::ChunkState& chunk = space.chunks[index];
  const u64 page = (address - chunk.base_address) >> page_shift;
  if (page >= chunk.page_count) return false;
  *found = look_at_page(reader, {index, 0, page}, raid::preferred_copy(chunk, page), &chunk.descriptors[page]);
  // A page may get a copy, so each read looks for one.
  if (raid::pages_are_apart(space) || space.tier != nullptr) return false;
  // Regions lose their memory only while no step runs, so no region does while the chunk is remembered.
  const bool is_whole = load<Order::relaxed, Scope::engine>(&chunk.unbacked_pages) == 0;
  if (chunk.level != format::RaidLevel::single || !is_whole) return false;
  const u8* const first = found->memory - page * page_size;
  *view = {reader.era, chunk.base_address, chunk.page_count * page_size, first, chunk.descriptors};
  return true;
}

GPU4FS_FN inline FoundPage find_page(const ReaderContext& reader, u64 address, ChunkView* fresh, bool* is_fresh) {
  const ChunkView& chunk = reader.views->chunk(address >> reader.views->root.granule_shift);
  const u64 inside = address - chunk.base_address;
  if (is_of_era(chunk.era, reader) && inside < chunk.size_bytes) {
    return {chunk.memory + inside, &chunk.descriptors[inside / page_size], {}, false};
  }
  FoundPage found{};
  *is_fresh = find_in_chunk(reader, address, &found, fresh);
  return found;
}

// Without checksums of pages, the contents of a rebuilt device must be read after the load of this word (acquire).
GPU4FS_FN inline u64 failed_devices(const RootView& root) {
  if (root.failed_devices == nullptr) return 0;
  if (root.data_checksums == 0) return load<Order::acquire, Scope::engine>(root.failed_devices);
  return load<Order::relaxed, Scope::engine>(root.failed_devices);
}

// Whether the remembered view of the file can be valid for this read. A changed file is viewed again.
GPU4FS_FN inline bool is_known(const ReaderContext& reader, const ReadRange& range, const FileView& view) {
  if (view.number != range.inode || !is_of_era(view.era, reader)) return false;
  // A view says nothing about the rights of a user.
  if (GPU4FS_MUTANT(rights_remembered, !reader.is_trusted, false)) return false;
  return covers(view, minimum(range.offset, view.size_bytes) / page_size) && reader.now_ns() < view.fresh_until_ns;
}

// Stores the views that the ranks have filled, one after the other. Uniform.
template <class Group>
GPU4FS_FN void remember(Group g, const ReaderContext& reader, const FreshViews& fresh, FilledViews filled) {
  for (u32 left = g.ballot(filled.has_file || filled.has_chunk); left != 0; left &= left - 1) {
    if (g.rank() == count_trailing_zeros(left)) {
      if (filled.has_file) reader.views->file(fresh.file.number) = fresh.file;
      if (filled.has_chunk) {
        reader.views->chunk(fresh.chunk.base_address >> reader.views->root.granule_shift) = fresh.chunk;
      }
    }
    g.sync();
  }
}

}  // namespace detail

// Plans the read to `destination` if it is a usual one. For a single rank, inside the step gate.
GPU4FS_FN inline PlannedRead plan_read(const ReaderContext& reader, const ReadRange& range, u8* destination,
                                       ReadPlan* plan, FreshViews* fresh, FilledViews* filled) {
  const u64 failed = detail::failed_devices(reader.views->root);
  const FileView* view = &reader.views->file(range.inode);
  format::BlockPointer pointer = format::BlockPointer::indirect(0);
  if (detail::is_known(reader, range, *view)) {
    // The slot and the version are on their way together.
    const u64 version = load<Order::relaxed, Scope::engine>(&view->lock->version);
    const format::BlockPointer slot = detail::slot_over(*view, range.offset);
    if (version == view->version) pointer = slot;
  }
  if (pointer.is_indirect()) {
    const ReaderContext copy = reader;  // only copies are in memory, because their addresses are passed on
    const PlannedRead seen = detail::view_file(copy, range.inode, range.offset, &fresh->file);
    if (seen != PlannedRead::page) return seen;
    filled->has_file = true;
    view = &fresh->file;
    pointer = detail::slot_over(*view, range.offset);
  }
  const u64 begin = minimum(range.offset, view->size_bytes);
  const u64 length = minimum(range.length, view->size_bytes - begin);
  const u32 from = static_cast<u32>(begin % page_size);
  *plan = {nullptr, 0, nullptr, destination, from, from + static_cast<u32>(length), view->lock, view->version};
  if (length > page_size - from) {
    return from + length <= reader.read_pages_max * page_size ? PlannedRead::pages : PlannedRead::unusual;
  }
  if (length == 0) return PlannedRead::page;
  if (!fs::detail::slot_fits_level(pointer, view->level) || pointer.is_indirect()) return PlannedRead::unusual;
  if (fs::detail::kind_of(pointer) != fs::MapKind::data) return PlannedRead::page;
  plan->address = detail::address_in(*view, pointer, begin / page_size);
  const detail::FoundPage found = detail::find_page(reader, plan->address, &fresh->chunk, &filled->has_chunk);
  plan->page = found.memory;
  plan->descriptor = found.descriptor;
  if (failed != 0) return PlannedRead::unusual;
  if (found.absent.device != nullptr) {
    fresh->absent = found.absent;
    return PlannedRead::absent;
  }
  if (found.memory == nullptr) return PlannedRead::unusual;
  return found.deserves_copy ? PlannedRead::repeated : PlannedRead::page;
}

}  // namespace gpu4fs::engine
