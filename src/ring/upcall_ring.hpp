// Upcalls: requests of the engine to its management process. The engine writes, the server reads.
//
// An upcall is two 16-byte units with a sequence number each, in shared memory; a counter in engine memory assigns the
// slot. The number of upcalls that need an answer is bounded by the number of commands (one each), and the ring is
// deeper than that. Upcalls without an answer (`wake_client`, `log`) are dropped if the reader is more than half a ring
// behind. The answer is an `upcall_done` command on an internal session, with the upcall's id in `inode` and a Status
// code in `offset`. After a failed flush, `aux` has one bit for each failed device.
#pragma once

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/types.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::ring {

enum class UpcallKind : u32 {
  none = 0,
  flush_device,  // argument: device index, or ~0 for all; answer when durable
  map_chunk,     // argument: chunk index; answer when the chunk's memory is accessible; stale: there is no such chunk,
                 // try again
  wake_client,   // argument: session index; no answer
  log,           // argument: a number, `detail` is its meaning; no answer
  device_lost,   // argument: device index, detail: its file_number; the pool continues without it; no answer
  make_chunk,    // a command found no space; answer when there is a new chunk, no_space if there cannot be one
  // argument: epoch of the checkpoint that takes up the staged growth, detail: its number; answer when everything is
  // written
  write_growth,
};

GPU4FS_FN constexpr bool wants_answer(UpcallKind kind) {
  return kind == UpcallKind::flush_device || kind == UpcallKind::map_chunk || kind == UpcallKind::make_chunk ||
         kind == UpcallKind::write_growth;
}

struct Upcall {
  UpcallKind kind;
  u32 detail;
  u64 argument;
  u64 id;  // the answer contains it; 0: no answer needed
};

inline constexpr u32 upcall_depth_log2 = 13;
inline constexpr u32 upcall_depth = 1u << upcall_depth_log2;

struct UpcallSlot {
  wire::RingUnit units[2];
};

// Shared memory, zeroed before use.
struct UpcallRing {
  alignas(128) u64 consumed;       // server: upcalls read so far
  alignas(128) u32 wake_sequence;  // engine on the CPU: futex word
  alignas(128) u32 server_sleeping;
  alignas(128) u64 write_errors;  // engine: checkpoints that failed, see engine/write_errors.hpp
  alignas(128) UpcallSlot slots[upcall_depth];
};

GPU4FS_FN constexpr u32 upcall_sequence(u64 position) {
  return wire::ring_sequence(position, upcall_depth_log2);
}

// Engine: one lane, `position` taken from the engine's counter.
GPU4FS_FN inline void write_upcall(UpcallRing& ring, u64 position, const Upcall& upcall) {
  const u32 sequence = upcall_sequence(position);
  UpcallSlot& slot = ring.slots[position & (upcall_depth - 1)];
  fence<Order::acq_rel, Scope::system>();
  store_shared_16(&slot.units[1], Vector16{upcall.id, u64{upcall.detail} | (u64{sequence} << 32)});
  store_shared_16(&slot.units[0],
                  Vector16{upcall.argument, u64{static_cast<u32>(upcall.kind)} | (u64{sequence} << 32)});
}

// Server: reads in order. Not thread-safe.
struct UpcallReader {
  UpcallRing* ring;
  u64 next_position;

  GPU4FS_FN bool read(Upcall* out) {
    UpcallSlot& slot = ring->slots[next_position & (upcall_depth - 1)];
    const Vector16 first = load_shared_16(&slot.units[0]);
    const Vector16 second = load_shared_16(&slot.units[1]);
    const u32 sequence = upcall_sequence(next_position);
    if (static_cast<u32>(first.high >> 32) != sequence) return false;
    if (static_cast<u32>(second.high >> 32) != sequence) return false;
    fence<Order::acq_rel, Scope::system>();
    *out = {static_cast<UpcallKind>(static_cast<u32>(first.high)), static_cast<u32>(second.high), first.low,
            second.low};
    ++next_position;
    store<Order::release, Scope::system>(&ring->consumed, next_position);
    return true;
  }
};

}  // namespace gpu4fs::ring
