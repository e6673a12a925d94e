// Tables of a check (Opcode::check) in engine memory, and the code that its handlers share.
//
// A pool does not change during a check, so the bitmaps of its chunks are free for other uses:
//   committed  allocated       staged     reached by the walk      busy    reached by the search for owners
//   freed_now  to be verified  freed_old  do not match             stable  pages of directories seen
// Functions without a group are for any rank.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/group.hpp"
#include "format/inode_format.hpp"
#include "raid/translate.hpp"
#include "wire/check_format.hpp"

namespace gpu4fs::engine {

inline constexpr u32 check_buffer_max = 1024;
inline constexpr u32 check_buffer_pages = 16;

// Work space of one task.
struct CheckBuffer {
  alignas(page_size) u8 pages[check_buffer_pages][page_size];
};

struct CheckTables {
  wire::CheckInode* inodes;  // nullptr: no check can run
  u64 inode_count;
  CheckBuffer* buffers;
  u32 buffer_count;
  u32 reserved;
  u64 buffer_bits[check_buffer_max / 64];  // atomic: taken
};

// The destination of a command's findings. It is equal on all ranks.
struct CheckSink {
  wire::CheckCounts* counts;  // engine memory
  wire::CheckRecord* records;
  u64 capacity;
};

GPU4FS_FN inline void emit_record(const CheckSink& sink, const wire::CheckRecord& record) {
  const u64 index = fetch_add<Order::relaxed, Scope::engine>(&sink.counts->records, u64{1});
  if (index < sink.capacity) sink.records[index] = record;
}

GPU4FS_FN inline wire::CheckRecord make_record(wire::CheckKind kind, u64 inode, u64 address = 0, u64 value = 0,
                                               u64 expected = 0, u32 level = 0) {
  return {kind, static_cast<u16>(level), 0, inode, address, value, expected};
}

// Leader. There are as many buffers as there can be concurrent tasks.
GPU4FS_FN inline u32 take_check_buffer(CheckTables& tables) {
  for (u32 at = 0;; at = (at + 1) % tables.buffer_count) {
    const u64 bit = u64{1} << (at % 64);
    if ((fetch_or<Order::acquire, Scope::engine>(&tables.buffer_bits[at / 64], bit) & bit) == 0) return at;
  }
}
GPU4FS_FN inline void put_check_buffer(CheckTables& tables, u32 index) {
  GPU4FS_CHECK_LT(index, tables.buffer_count);
  fetch_and<Order::release, Scope::engine>(&tables.buffer_bits[index / 64], ~(u64{1} << (index % 64)));
}

// The mask of bits [page, end) that are in the word of `page`.
GPU4FS_FN inline u64 word_mask(u64 page, u64 end) {
  const u64 low = page % 64;
  const u64 high = minimum(end - align_down(page, u64{64}), u64{64});
  const u64 below = high == 64 ? ~u64{0} : (u64{1} << high) - 1;
  return below & (~u64{0} << low);
}

struct ClaimedPages {
  u64 before;         // bits that were already set
  u64 not_allocated;  // not allocated, among the others
};

// Sets the bits of pages [page, page + count) in `bits`.
GPU4FS_FN inline ClaimedPages claim_bits(const raid::ChunkState& chunk, u64* bits, u64 page, u64 count) {
  GPU4FS_CHECK_LE(count, chunk.page_count);
  GPU4FS_CHECK_LE(page, chunk.page_count - count);
  ClaimedPages result{0, 0};
  const u64 end = page + count;
  for (u64 at = page; at < end; at = align_down(at, u64{64}) + 64) {
    const u64 mask = word_mask(at, end);
    const u64 old = fetch_or<Order::relaxed, Scope::engine>(&bits[at / 64], mask);
    const u64 fresh = mask & ~old;
    result.before += popcount(old & mask);
    result.not_allocated += popcount(fresh & ~load<Order::relaxed, Scope::engine>(&chunk.bitmaps.committed[at / 64]));
  }
  return result;
}

}  // namespace gpu4fs::engine
