// Engine side of a ring: fetch and validate descriptors, write completions.
//
// Protocol. The producer writes payload (names, data) into the session's memory, then the eight units of the
// descriptor, each in one 16-byte store that carries the position's sequence number. The engine reads the eight units.
// They are the descriptor of position p only if all carry p's number, so no flag and no second read is needed. The
// stores of the units are not ordered among each other, but all come after the payload: the producer executes a release
// fence in between, and the engine an acquire fence between validation and payload. The answer uses the opposite
// direction: payload, release fence, one 16-byte completion unit.
//
// The number of a slot changes once a lap; a torn read shows an older number in some unit. The validation of the
// command, and not this code, handles a hostile producer: units with equal numbers are a descriptor, whatever their
// content, and each is read exactly once, into engine memory.
//
// On the GPU, session memory is read with accesses that bypass the L1 cache; plain loads of it are
// forbidden in engine code (base/copy.hpp has the bulk functions).
#pragma once

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/trace.hpp"
#include "ring/ring_layout.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::ring {

// The engine's view of one ring. It is in engine memory, and its addresses are valid in the engine.
struct EngineRing {
  wire::RingDescriptor* descriptors;
  wire::RingCompletion* completions;
  u32 depth_log2;
  u32 reserved;

  GPU4FS_FN u64 slot(u64 position) const { return position & ((u64{1} << depth_log2) - 1); }
};

inline constexpr u32 units_per_descriptor = 8;

GPU4FS_FN constexpr Vector16 unit_to_vector(const wire::RingUnit& unit) {
  return Vector16{unit.value, u64{unit.word} | (u64{unit.sequence} << 32)};
}
GPU4FS_FN constexpr u32 vector_sequence(const Vector16& vector) {
  return static_cast<u32>(vector.high >> 32);
}

// A warp reads so many descriptors in one access, and a fetch at most so many.
inline constexpr u32 fetch_row = 4;
inline constexpr u32 fetch_max = 8;

// The bytes of a read that a warp answers without a slot if it is alone in its ring. Longer ones, and those beside
// other commands, are left to several workers. A Lane would have to copy each page twice.
inline constexpr u64 long_read_max = 32 * page_size;

// The result of a fetch; bit i refers to descriptor i.
struct FetchedDescriptors {
  u32 valid;    // it is the descriptor of its position; the bytes of others are garbage
  u32 linked;   // valid, and the next one belongs to the same chain
  u32 plain;    // valid, and a noop without flags, names and addresses
  u32 answers;  // valid, and an upcall's answer
  // Valid, about no more than a page and one name, and of a kind that can be answered without locks, alone or in a
  // chain.
  u32 unlocked;
  Vector16 units[fetch_max / fetch_row];  // of a warp: unit rank % 8 of descriptor rank / 8 of each row
};

namespace detail {

inline constexpr u32 unit_links = 1u << 0;
inline constexpr u32 unit_is_plain = 1u << 1;
inline constexpr u32 unit_answers = 1u << 2;
inline constexpr u32 unit_is_unlocked = 1u << 3;

GPU4FS_FN constexpr bool unit_is_valid(const Vector16& value, [[maybe_unused]] u32 unit, u32 sequence) {
  return GPU4FS_MUTANT(torn_descriptor_taken, vector_sequence(value) == sequence,
                       unit != 0 || vector_sequence(value) == sequence);
}

// The properties of a descriptor that unit number `unit`, which is valid, shows, as bits.
GPU4FS_FN constexpr u32 unit_facts(const Vector16& value, u32 unit) {
  const u32 word = static_cast<u32>(value.high);
  u32 facts = 0;
  if (unit != 0 && (unit != 3 || value.low <= page_size) && (unit != 6 || word <= name_length_max)) {
    facts |= unit_is_unlocked;
  }
  if (unit == 0) {
    const u32 opcode = word & 0xffff;
    constexpr u32 allowed = wire::command_flag_follow | wire::command_flag_link | wire::command_flag_previous_inode;
    const u32 flags = word >> 16 & ~allowed;
    if (flags == 0 && wire::is_in(wire::commands_without_locks, static_cast<wire::Opcode>(opcode))) {
      facts |= unit_is_unlocked;
    }
    if (((word >> 16) & wire::command_flag_link) != 0) facts |= unit_links;
    if (opcode == static_cast<u32>(wire::Opcode::upcall_done)) facts |= unit_answers;
    if (word == static_cast<u32>(wire::Opcode::noop)) facts |= unit_is_plain;
  } else if (unit == 6) {
    if (word == 0) facts |= unit_is_plain;
  } else if (unit != 7 || value.low == 0) {
    facts |= unit_is_plain;
  }
  return facts;
}

// Converts one bit for each unit to one bit for each descriptor: the bit of its first unit.
GPU4FS_FN constexpr u32 first_units(u32 unit_bits) {
  // Bits 0, 8, 16 and 24 move to 24 to 27.
  return ((unit_bits & 0x01010101u) * 0x01020408u >> 24) & 0xf;
}
// The same where the bits of all eight units are set.
GPU4FS_FN constexpr u32 all_units(u32 unit_bits) {
  unit_bits &= unit_bits >> 4;
  unit_bits &= unit_bits >> 2;
  unit_bits &= unit_bits >> 1;
  return first_units(unit_bits);
}
static_assert(first_units(0x01000100u) == 0b1010 && first_units(0x00010001u) == 0b0101);
static_assert(all_units(0xff00ff7fu) == 0b1010);

// The properties of up to four descriptors, of which those in `valid` are valid, from those of a warp's units.
// Collective.
template <class Group>
GPU4FS_FN FetchedDescriptors judge_row(Group g, u32 facts, u32 valid) {
  FetchedDescriptors row{};
  row.valid = valid;
  row.linked = row.valid & first_units(g.ballot((facts & unit_links) != 0));
  row.plain = row.valid & all_units(g.ballot((facts & unit_is_plain) != 0));
  row.answers = row.valid & first_units(g.ballot((facts & unit_answers) != 0));
  row.unlocked = row.valid & all_units(g.ballot((facts & unit_is_unlocked) != 0));
  return row;
}

GPU4FS_FN inline Vector16 copy_unit(const wire::RingDescriptor& from, wire::RingDescriptor& to, u32 unit) {
  const Vector16 value = load_shared_16(&from.units[unit]);
  to.units[unit] = wire::RingUnit{value.low, static_cast<u32>(value.high), vector_sequence(value)};
  return value;
}

// As fetch_descriptors(), by a Lane.
GPU4FS_FN inline FetchedDescriptors fetch_alone(const EngineRing& ring, u64 position, u32 count,
                                                wire::RingDescriptor* destination) {
  FetchedDescriptors fetched{};
  for (u32 i = 0; i < count; ++i) {
    const u32 sequence = wire::ring_sequence(position + i, ring.depth_log2);
    const wire::RingDescriptor& descriptor = ring.descriptors[ring.slot(position + i)];
    u32 first = 0;
    u32 all = ~0u;
    bool is_valid = true;
    GPU4FS_UNROLL
    for (u32 unit = 0; unit < units_per_descriptor; ++unit) {
      const Vector16 value = copy_unit(descriptor, destination[i], unit);
      const u32 facts = unit_facts(value, unit);
      if (unit == 0) first = facts;
      all &= facts;
      is_valid = unit_is_valid(value, unit, sequence) && is_valid;
    }
    // Nobody looks at what is behind a missing one.
    if (!is_valid) break;
    fetched.valid |= 1u << i;
    if ((first & unit_links) != 0) fetched.linked |= 1u << i;
    if ((all & unit_is_plain) != 0) fetched.plain |= 1u << i;
    if ((first & unit_answers) != 0) fetched.answers |= 1u << i;
    if ((all & unit_is_unlocked) != 0) fetched.unlocked |= 1u << i;
  }
  return fetched;
}

}  // namespace detail

// FetchedDescriptors::plain, of a decoded command.
GPU4FS_FN constexpr bool is_plain(const wire::Command& command) {
  return command.opcode == wire::Opcode::noop && command.flags == 0 && command.name_length == 0 &&
         command.second_name_length == 0 && command.output == 0;
}

// FetchedDescriptors::unlocked, of a decoded command that is no part of a chain, if `length_max` is page_size. With
// long_read_max also of a long read.
GPU4FS_FN constexpr bool is_unlocked_alone(const wire::Command& command, u64 length_max) {
  const u32 flags = command.flags & ~u32{wire::command_flag_follow};
  return flags == 0 && wire::is_in(wire::commands_without_locks, command.opcode) && command.length <= length_max &&
         command.name_length <= name_length_max && command.second_name_length == 0;
}

// Reads the descriptors of positions [position, position + count), count <= fetch_row * rows, into registers, and
// determines which of them are valid. For a warp. Collective.
template <u32 rows, class Group>
GPU4FS_FN FetchedDescriptors fetch_units(Group g, const EngineRing& ring, u64 position, u32 count) {
  static_assert(Group::size() == fetch_row * units_per_descriptor && fetch_row * rows <= fetch_max);
  FetchedDescriptors fetched{};
  const u32 unit = g.rank() % units_per_descriptor;
  // All rows are on their way before one is looked at.
  GPU4FS_UNROLL
  for (u32 row = 0; row < rows; ++row) {
    const u32 i = row * fetch_row + g.rank() / units_per_descriptor;
    if (i < count) fetched.units[row] = load_shared_16(&ring.descriptors[ring.slot(position + i)].units[unit]);
  }
  GPU4FS_UNROLL
  for (u32 row = 0; row < rows; ++row) {
    if (row * fetch_row >= count) break;
    const u32 i = row * fetch_row + g.rank() / units_per_descriptor;
    const u32 sequence = wire::ring_sequence(position + i, ring.depth_log2);
    const bool is_valid = i < count && detail::unit_is_valid(fetched.units[row], unit, sequence);
    fetched.valid |= detail::all_units(g.ballot(is_valid)) << row * fetch_row;
  }
  return fetched;
}

// Determines the other properties of the valid ones among the first `count` descriptors. Collective.
template <u32 rows, class Group>
GPU4FS_FN void judge_units(Group g, u32 count, FetchedDescriptors& fetched) {
  GPU4FS_UNROLL
  for (u32 row = 0; row < rows; ++row) {
    if (row * fetch_row >= count) break;
    const u32 facts = detail::unit_facts(fetched.units[row], g.rank() % units_per_descriptor);
    const FetchedDescriptors seen = detail::judge_row(g, facts, fetched.valid >> row * fetch_row & 0xf);
    fetched.linked |= seen.linked << row * fetch_row;
    fetched.plain |= seen.plain << row * fetch_row;
    fetched.answers |= seen.answers << row * fetch_row;
    fetched.unlocked |= seen.unlocked << row * fetch_row;
  }
}

// Copies the first `count` fetched descriptors to `destination` in engine memory. Collective.
template <class Group>
GPU4FS_FN void stage_units(Group g, const FetchedDescriptors& fetched, u32 count, wire::RingDescriptor* destination) {
  GPU4FS_UNROLL
  for (u32 row = 0; row < fetch_max / fetch_row; ++row) {
    const u32 i = row * fetch_row + g.rank() / units_per_descriptor;
    const Vector16& value = fetched.units[row];
    if (i >= count) continue;
    destination[i].units[g.rank() % units_per_descriptor] =
        wire::RingUnit{value.low, static_cast<u32>(value.high), vector_sequence(value)};
  }
  g.sync();
}

// Copies the descriptors of positions [position, position + count), count <= fetch_max, to `destination` in engine
// memory, and determines their properties from the registers. The caller executes acquire_payload() before the payload
// of a valid one is read. Collective.
template <class Group>
GPU4FS_FN FetchedDescriptors fetch_descriptors(Group g, const EngineRing& ring, u64 position, u32 count,
                                               wire::RingDescriptor* destination) {
  GPU4FS_CHECK_LE(count, fetch_max);
  if constexpr (Group::size() == 1) {
    return detail::fetch_alone(ring, position, count, destination);
  } else {
    FetchedDescriptors fetched = fetch_units<fetch_max / fetch_row>(g, ring, position, count);
    judge_units<fetch_max / fetch_row>(g, count, fetched);
    stage_units(g, fetched, count, destination);
    return fetched;
  }
}

// True if the first unit of `position` has arrived: a cheap test that guarantees nothing about the others.
GPU4FS_FN inline bool peek_descriptor(const EngineRing& ring, u64 position) {
  const Vector16 value = load_shared_16(&ring.descriptors[ring.slot(position)].units[0]);
  return vector_sequence(value) == wire::ring_sequence(position, ring.depth_log2);
}

// After validation, before the first access to payload.
GPU4FS_FN inline void acquire_payload() {
  fence<Order::acquire, Scope::system>();
}

// For a command that wrote nothing for the client to read: any single rank.
GPU4FS_FN inline void write_bare_completion(const EngineRing& ring, u64 position, Status status, u64 result) {
  GPU4FS_CHECK(!is_control(status));
  const wire::RingUnit unit{status == Status::ok ? result : 0, static_cast<u32>(status),
                            wire::ring_sequence(position, ring.depth_log2)};
  store_shared_16(&ring.completions[ring.slot(position)], unit_to_vector(unit));
}

// Leader only, after the g.sync() that follows the last write of the payload. `result` is 0 unless status is ok.
GPU4FS_FN inline void write_completion(const EngineRing& ring, u64 position, Status status, u64 result) {
  fence<Order::release, Scope::system>();
  GPU4FS_TRACE_POINT(fence);
  write_bare_completion(ring, position, status, result);
}

}  // namespace gpu4fs::ring
