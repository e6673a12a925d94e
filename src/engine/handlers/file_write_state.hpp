// The state that the ways of a write share (file_write.hpp).
#pragma once

#include "engine/handlers/file_round.hpp"

namespace gpu4fs::engine {
namespace detail {

// The row whose pages are those of the round (file_write_rows.hpp).
struct RowRound {
  u32 is_used;  // 0: the round has pages of its own
  u32 chunk;
  u64 row;
  u64 included;  // raid::RowValues
  u64 written;
  u64 lsn;  // of the row's record, which has the pages' bytes
};

struct WriteState {
  u32 started;
  u32 reserved;
  u64 begin;  // bytes in the file
  u64 end;
  u64 position;  // committed up to here
  u64 round_end;
  u8* data;  // source of byte `begin`
  Round round;
  RowRound row;
};

// A replay of a write whose pages are on the medium.
GPU4FS_FN inline bool replays_extents(const CommandState& c) {
  return is_replay(c) && c.operation.replay->extent_count != 0;
}

// The bytes of file page `page` in [begin, end).
GPU4FS_FN constexpr ByteRange range_in_page(u64 page, u64 begin, u64 end) {
  const u64 page_begin = page * page_size;
  return {static_cast<u32>(maximum(page_begin, begin) - page_begin),
          static_cast<u32>(minimum(page_begin + page_size, end) - page_begin)};
}

// Finds the old content of file page `page` if the write leaves a part of it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_old_page(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                               u64 page, u64* address) {
  const WriteState& state = scratch_of<WriteState>(c);
  *address = raid::no_address;
  const u64 page_begin = page * page_size;
  if (page_begin >= ref.inode->size_bytes) return Status::ok;
  const bool begins_it = state.position <= page_begin;
  if (begins_it && state.end >= minimum(page_begin + page_size, ref.inode->size_bytes)) return Status::ok;
  return data_page_of(g, engine, c, ref, page, address);
}

}  // namespace detail
}  // namespace gpu4fs::engine
