// The layout of a session's shared memory.
//
//   page 0              RingControl
//   descriptor_offset   depth * 128 bytes
//   completion_offset   depth * 16 bytes, in a page of its own
//   data_offset         the data area, buffer 0 of the session's addresses; page aligned
//
// Every word has one writer (docs/wire.md). The engine takes the geometry from the server's copy,
// never from this memory, which the client can change.
#pragma once

#include "base/bits.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::ring {

inline constexpr u64 ring_magic = 0x676e697273346667ull;  // "gf4sring"
inline constexpr u32 ring_version = 1;

struct RingControl {
  u64 magic;
  u32 version;
  u32 depth_log2;
  u64 data_offset;
  u64 data_length;
  alignas(cache_line) u32 wake_sequence;    // engine: a futex word, counts wake-ups of the client
  alignas(cache_line) u32 client_sleeping;  // client: 1 while it sleeps or is about to on wake_sequence
  alignas(cache_line) u32 engine_asleep;    // engine's host side: 1 when publishing needs a doorbell
};
static_assert(sizeof(RingControl) == 512);

// Byte offsets from the start of the session's memory, and its size. 1 <= depth_log2 <= 10.
struct SessionLayout {
  u32 depth_log2;
  u32 reserved;
  u64 descriptor_offset;
  u64 completion_offset;
  u64 data_offset;
  u64 data_length;
  u64 total_length;

  GPU4FS_FN constexpr u32 depth() const { return 1u << depth_log2; }

  GPU4FS_FN static constexpr SessionLayout make(u32 depth_log2, u64 data_length) {
    SessionLayout layout{};
    layout.depth_log2 = depth_log2;
    const u64 depth = u64{1} << depth_log2;
    layout.descriptor_offset = page_size;
    layout.completion_offset = layout.descriptor_offset + align_up(depth * sizeof(wire::RingDescriptor), page_size);
    layout.data_offset = layout.completion_offset + align_up(depth * sizeof(wire::RingCompletion), page_size);
    layout.data_length = align_up(data_length, page_size);
    layout.total_length = layout.data_offset + layout.data_length;
    return layout;
  }
};

inline constexpr u32 ring_depth_log2_max = 10;
static_assert((1u << ring_depth_log2_max) == wire::ring_depth_max);

}  // namespace gpu4fs::ring
