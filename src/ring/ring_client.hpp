// Producer side of a ring. One producer at a time; a producer in a kernel is one lane.
//
// publish() returns `ring_full` while the required slot belongs to a command without completion, so at most `depth`
// commands are in flight. A position's completion can be polled until the slot is published again, that is for `depth`
// positions.
#pragma once

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/status.hpp"
#include "ring/ring_layout.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::ring {

struct Completion {
  Status status;
  u64 result;
};

struct RingProducer {
  RingControl* control;
  wire::RingDescriptor* descriptors;
  wire::RingCompletion* completions;
  u8* data;
  u64 data_length;
  u32 depth_log2;
  u32 reserved;
  u64 next_position;

  GPU4FS_FN static RingProducer attach(u8* memory, const SessionLayout& layout) {
    RingProducer producer{};
    producer.control = reinterpret_cast<RingControl*>(memory);
    producer.descriptors = reinterpret_cast<wire::RingDescriptor*>(memory + layout.descriptor_offset);
    producer.completions = reinterpret_cast<wire::RingCompletion*>(memory + layout.completion_offset);
    producer.data = memory + layout.data_offset;
    producer.data_length = layout.data_length;
    producer.depth_log2 = layout.depth_log2;
    return producer;
  }

  GPU4FS_FN u64 depth() const { return u64{1} << depth_log2; }
  GPU4FS_FN u64 slot(u64 position) const { return position & (depth() - 1); }

  // True once `position` is complete; then *out is the answer, and the engine's output of this command may be read.
  GPU4FS_FN bool poll(u64 position, Completion* out) const {
    const Vector16 value = load_shared_16(&completions[slot(position)]);
    if (static_cast<u32>(value.high >> 32) != wire::ring_sequence(position, depth_log2)) return false;
    fence<Order::acq_rel, Scope::system>();
    *out = {static_cast<Status>(static_cast<u32>(value.high)), value.low};
    return true;
  }

  // Whether `count` more commands can be published at this time.
  GPU4FS_FN bool has_room(u64 count) const {
    if (count == 0 || next_position + count <= depth()) return count <= depth();
    if (count > depth()) return false;
    Completion unused{};
    for (u64 i = 0; i < count; ++i) {
      const u64 position = next_position + i;
      if (position >= depth() && !poll(position - depth(), &unused)) return false;
    }
    return true;
  }

  // Publishes the command for the engine. This thread must have written the payload before. The engine may be asleep:
  // see EnginePort::doorbell. Status: ok, ring_full.
  GPU4FS_FN Status publish(const wire::Command& command, u64* position) {
    if (!has_room(1)) return Status::ring_full;
    *position = next_position++;
    fence<Order::acq_rel, Scope::system>();
    const wire::RingDescriptor descriptor = wire::encode_command(command, wire::ring_sequence(*position, depth_log2));
    wire::RingDescriptor& target = descriptors[slot(*position)];
    // The first unit is written last, because the engine polls it.
    for (u32 i = 8; i-- > 0;) {
      const wire::RingUnit& unit = descriptor.units[i];
      store_shared_16(&target.units[i], Vector16{unit.value, u64{unit.word} | (u64{unit.sequence} << 32)});
    }
    return Status::ok;
  }
};

}  // namespace gpu4fs::ring
