// Engine side of a ring: fetch and validate descriptors, write completions.
//
// Protocol. The producer writes payload (names, data) into the session's memory, then the eight units of
// the descriptor, each in one 16-byte store that carries the position's sequence number. The engine reads
// the eight units; they are the descriptor of position p only if all carry p's number, so no flag and no
// second read is needed. The unit stores are unordered among each other, but each is after the payload: the
// producer puts a release fence in between, the engine an acquire fence between validation and payload.
// The answer goes the other way: payload, release fence, one 16-byte completion unit.
//
// The number of a slot changes once a lap; a torn read shows an older number in some unit. What a hostile
// producer writes is caught by the validation of the command, not here: units with equal numbers are a
// descriptor, whatever they say, and each is read exactly once, into engine memory.
//
// On the GPU, session memory is read with accesses that bypass the L1 cache; plain loads of it are
// forbidden in engine code (base/copy.hpp has the bulk functions).
#pragma once

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "format/ring_format.hpp"
#include "ring/ring_layout.hpp"

namespace gpu4fs::ring {

// The engine's view of one ring; lives in engine memory, addresses are valid in the engine.
struct EngineRing {
  format::RingDescriptor* descriptors;
  format::RingCompletion* completions;
  u32 depth_log2;
  u32 reserved;

  GPU4FS_FN u64 slot(u64 position) const { return position & ((u64{1} << depth_log2) - 1); }
};

inline constexpr u32 units_per_descriptor = 8;

GPU4FS_FN constexpr Vector16 unit_to_vector(const format::RingUnit& unit) {
  return Vector16{unit.value, u64{unit.word} | (u64{unit.sequence} << 32)};
}
GPU4FS_FN constexpr u32 vector_sequence(const Vector16& vector) {
  return static_cast<u32>(vector.high >> 32);
}

// Copies the descriptors of positions [position, position + count), count <= 4, to `destination` in engine
// memory. Bit i of the answer is set where descriptor i is valid; the others' bytes are garbage.
// The caller issues acquire_payload() before anybody looks at the payload of a valid one. Collective.
template <class Group>
GPU4FS_FN u32 fetch_descriptors(Group g, const EngineRing& ring, u64 position, u32 count,
                                format::RingDescriptor* destination) {
  GPU4FS_CHECK_LE(count, 4u);
  const u32 unit_count = count * units_per_descriptor;
  u32 valid_units = 0;
  for (u32 i = g.rank(); i < unit_count; i += Group::size()) {
    const u64 at = position + i / units_per_descriptor;
    const u32 unit = i % units_per_descriptor;
    const Vector16 value = load_shared_16(&ring.descriptors[ring.slot(at)].units[unit]);
    if (vector_sequence(value) == format::ring_sequence(at, ring.depth_log2)) valid_units |= 1u << i;
    destination[i / units_per_descriptor].units[unit] =
        format::RingUnit{value.low, static_cast<u32>(value.high), vector_sequence(value)};
  }
  const u32 all = g.reduce(valid_units, [](u32 a, u32 b) { return a | b; });
  g.sync();
  u32 valid = 0;
  for (u32 i = 0; i < count; ++i) {
    if (((all >> (i * units_per_descriptor)) & 0xffu) == 0xffu) valid |= 1u << i;
  }
  return valid;
}

// True if the first unit of `position` is there: a cheap look, no promise about the others.
GPU4FS_FN inline bool peek_descriptor(const EngineRing& ring, u64 position) {
  const Vector16 value = load_shared_16(&ring.descriptors[ring.slot(position)].units[0]);
  return vector_sequence(value) == format::ring_sequence(position, ring.depth_log2);
}

// After validation, before the first access to payload.
GPU4FS_FN inline void acquire_payload() { fence<Order::acq_rel, Scope::system>(); }

// Leader only, after g.sync() behind the last writer of the payload. `result` is 0 unless status is ok.
GPU4FS_FN inline void write_completion(const EngineRing& ring, u64 position, Status status, u64 result) {
  GPU4FS_CHECK(!is_control(status));
  fence<Order::acq_rel, Scope::system>();
  const format::RingUnit unit{status == Status::ok ? result : 0, static_cast<u32>(status),
                              format::ring_sequence(position, ring.depth_log2)};
  store_shared_16(&ring.completions[ring.slot(position)], unit_to_vector(unit));
}

}  // namespace gpu4fs::ring
