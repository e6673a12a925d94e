// Loads pages of files on staged devices before their readers ask for them (read_streams.hpp).
//
// The pages of a window are looked up as reads without locks do: whatever is resident of the file's map is read, and
// the version of the inode's lock says whether it belongs together. So both kinds of reads use the same code, and
// nothing waits. A page that changes its place afterwards has been loaded in vain: frames hold pages of devices, and
// whoever writes a page of a device has its frame.
//
// What is not resident, a hole, or beyond the end of the file is not loaded. Pages that have no room now are left to
// the next read.
#pragma once

#include "base/mutant.hpp"
#include "engine/engine_types.hpp"
#include "engine/optimistic/file_slots.hpp"
#include "engine/optimistic/inode_view.hpp"
#include "fs/map/map_walk.hpp"
#include "raid/page_copies.hpp"
#include "raid/stage_pages.hpp"

namespace gpu4fs::engine {

namespace detail {

// A window is a small part of the frames, so a few streams cannot fill them.
inline constexpr u32 window_frames_share = 16;

// A file whose content is in pages, without its lock.
struct AheadFile {
  const format::Inode* inode;  // nullptr: none, or somebody changes it
  const CommandLock* lock;
  u64 version;
  u64 page_end;
  u32 height;
};

GPU4FS_FN GPU4FS_NOINLINE inline AheadFile view_file_ahead(const fs::PageRoot& pages, u64 number) {
  const u32 frame =
      fs::peek_frame(pages, fs::PageKey::make(format::inode_number_inode_file, 0, number / format::inodes_per_page));
  if (frame == fs::no_frame) return {};
  const InodeView view = view_in_frame(pages, frame, number);
  if (view.inode == nullptr) return {};
  const format::Inode copy = copy_without_content(view);
  if (!is_usable(copy) || !fs::is_regular(copy.mode) || copy.is_inline()) return {};
  return {view.inode, view.lock, view.version, divide_up(copy.size_bytes, page_size), copy.height};
}

// The place of a page. False: the map has to be loaded first. no_address: nothing is to be loaded. `view`: of the last
// page.
GPU4FS_FN GPU4FS_NOINLINE inline bool find_page_ahead(const raid::LogicalSpace& space, const fs::PageRoot& pages,
                                                      const AheadFile& file, u64 page, FileView* view, u64* address) {
  *address = raid::no_address;
  if (page >= file.page_end) return true;
  const bool is_covered = view->slots != nullptr && covers(*view, page);
  format::BlockPointer pointer = is_covered ? slot_of_page(*view, page) : format::BlockPointer::indirect(0);
  if (pointer.is_indirect()) {
    const auto find = [&pages](fs::PageKey key) { return fs::peek_frame(pages, key); };
    if (!find_slots(pages, file.inode, file.height, page, view, find)) return false;
    pointer = slot_of_page(*view, page);
  }
  if (!fs::detail::slot_fits_level(pointer, view->level) || pointer.is_indirect()) return false;
  const fs::MapKind kind = fs::detail::kind_of(pointer);
  const bool has_content = kind == fs::MapKind::data;
  if (!GPU4FS_MUTANT(unwritten_loaded_ahead, has_content, kind != fs::MapKind::hole)) return true;
  const u64 found = address_in(*view, pointer, page);
  if (space.tier == nullptr || !raid::has_copy(space, found)) *address = found;
  return true;
}

// Begins to load pages [first, first + count) of a file. Inside the step gate. Collective. Returns how many of them
// are dealt with.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 load_ahead(Group g, const fs::FileSystem& fs, u64 inode, u64 first, u32 count) {
  const raid::LogicalSpace& space = fs.space;
  const AheadFile file = on_leader(g, [&] { return view_file_ahead(fs.pages, inode); });
  if (file.inode == nullptr) return 0;
  FileView view{};
  view.number = inode;
  u32 done = 0;
  u32 begun = 0;
  while (done < count) {
    const u32 batch = minimum(count - done, Group::size());
    if (on_leader(g, [&] { return device::ahead_room(*space.staged); }) < batch) break;
    u64 address = raid::no_address;
    const bool is_found =
        g.rank() >= batch || find_page_ahead(space, fs.pages, file, first + done + g.rank(), &view, &address);
    const bool is_same = is_unchanged(*file.lock, file.version);
    if (!g.all(is_found && is_same)) break;
    const device::BegunAhead of_batch = raid::begin_pages_ahead(g, space, address);
    begun += of_batch.count;
    if (!of_batch.has_room) break;
    done += batch;
  }
  if (begun != 0) on_leader(g, [&] { raid::ring_staged(space); });
  return done;
}

// Uniform.
template <class Group>
GPU4FS_FN void fulfil(Group g, Engine& engine, u64 inode, const AheadWish& wish) {
  const u32 done = load_ahead(g, engine.fs, inode, wish.first, wish.count);
  on_leader(g, [&] { note_begun(engine.read_streams, inode, wish, done); });
}

}  // namespace detail

// The limit of windows in pages; 0: nothing is loaded ahead.
GPU4FS_FN inline u32 read_ahead_limit(const Engine& engine) {
  const u32 limit = engine.config.read_ahead_pages;
  if (limit == 0 || !raid::stages_pages(engine.fs.space)) return 0;
  return minimum(limit, engine.fs.space.staged->cache.line_count / detail::window_frames_share);
}

// A command reads these bytes. Inside the step gate. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void follow_read(Group g, Engine& engine, const SeenRead& read) {
  const u32 limit = read_ahead_limit(engine);
  if (limit == 0) return;
  const AheadWish wish = on_leader(g, [&] { return note_read(engine.read_streams, read, limit, true); });
  if (wish.count != 0) detail::fulfil(g, engine, read.inode, wish);
}

// The same for reads without locks; each rank of `set` has read some bytes. `stream`: the one that the read continues,
// or no_stream, and then its pages had to be loaded. The last read of each stream speaks for the others, and of those
// that begin one the last: so a batch of random reads costs as much as one.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void follow_unlocked_reads(Group g, Engine& engine, u32 set, const SeenRead& read,
                                                     u32 stream) {
  const u32 limit = read_ahead_limit(engine);
  const bool is_in_set = (set >> g.rank() & 1) != 0;
  const u32 of_stream = g.match_any(stream != no_stream ? read.inode * streams_per_set + stream : ~u64{0}) & set;
  const bool is_last = is_in_set && of_stream >> g.rank() == 1;
  AheadWish wish{0, 0, 0};
  if (is_last) wish = note_read(engine.read_streams, read, limit, stream == no_stream);
  for (u32 left = g.ballot(wish.count != 0); left != 0; left &= left - 1) {
    const u32 rank = count_trailing_zeros(left);
    const AheadWish chosen = g.shuffle(wish, rank);
    detail::fulfil(g, engine, g.shuffle(read.inode, rank), chosen);
  }
}

}  // namespace gpu4fs::engine
