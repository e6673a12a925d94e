// Finding metadata pages without any lock and without loading them, for readers that find out afterwards whether what
// they read belongs together (engine/optimistic/).
//
// Plain functions on a rank; each rank may look for another page. The caller is inside a step, and holds nothing.
#pragma once

#include "base/racy_access.hpp"
#include "fs/pages/pages.hpp"

namespace gpu4fs::fs {
namespace detail {

// Chains are short; whoever finds a long one takes the ordinary way.
inline constexpr u32 peeked_frames_max = 8;

}  // namespace detail

// The resident frame of a page, or no_frame, which says nothing. What is read of the frame afterwards is not older than
// what its page held when it came in.
GPU4FS_FN inline u32 peek_frame(const PageRoot& table, PageKey key) {
  u32 frame = load<Order::relaxed, Scope::engine>(&table.buckets[detail::bucket_of(table, key)]);
  GPU4FS_NO_UNROLL
  for (u32 i = 0; i < detail::peeked_frames_max && frame < table.frame_count; ++i) {
    const Frame& f = table.frames[frame];
    // The key before the state: within a step a frame that is taken for a page gets its key once, before its state.
    static_assert(offsetof(Frame, key) == 0 && offsetof(PageKey, level_and_index) == 8);
    const Vector16 name = load_racy_16(&f.key);
    const u32 next = load<Order::relaxed, Scope::engine>(&f.next);
    const u32 state = load<Order::acquire, Scope::engine>(&f.state);
    if (name.low == key.inode && name.high == key.level_and_index) return state == frame_valid ? frame : no_frame;
    frame = next;
  }
  return no_frame;
}

}  // namespace gpu4fs::fs
