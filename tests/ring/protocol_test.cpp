#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "ring/ring.hpp"
#include "ring/ring_client.hpp"
#include "ring/upcall_ring.hpp"

namespace gpu4fs::ring {
namespace {

struct alignas(4096) Memory {
  explicit Memory(u32 depth_log2, u64 data_length = 4096)
      : layout(SessionLayout::make(depth_log2, data_length)),
        bytes(static_cast<u8*>(std::aligned_alloc(4096, layout.total_length))) {
    std::memset(bytes, 0, layout.total_length);
    engine.descriptors = reinterpret_cast<wire::RingDescriptor*>(bytes + layout.descriptor_offset);
    engine.completions = reinterpret_cast<wire::RingCompletion*>(bytes + layout.completion_offset);
    engine.depth_log2 = depth_log2;
    producer = RingProducer::attach(bytes, layout);
  }
  ~Memory() { std::free(bytes); }

  SessionLayout layout;
  u8* bytes;
  EngineRing engine{};
  RingProducer producer{};
};

wire::Command numbered(u64 number) {
  wire::Command command{};
  command.opcode = wire::Opcode::noop;
  command.inode = number;
  command.output = ~number;
  return command;
}

TEST(RingLayout, AreasDoNotOverlap) {
  for (u32 depth_log2 = 1; depth_log2 <= ring_depth_log2_max; ++depth_log2) {
    const SessionLayout layout = SessionLayout::make(depth_log2, 5000);
    EXPECT_GE(layout.descriptor_offset, sizeof(RingControl));
    EXPECT_GE(layout.completion_offset, layout.descriptor_offset + (u64{128} << depth_log2));
    EXPECT_GE(layout.data_offset, layout.completion_offset + (u64{16} << depth_log2));
    EXPECT_EQ(layout.data_offset % 4096, 0u);
    EXPECT_EQ(layout.data_length, 8192u);
    EXPECT_EQ(layout.total_length, layout.data_offset + layout.data_length);
  }
}

TEST(Ring, FreshMemoryHoldsNoDescriptor) {
  Memory memory(3);
  wire::RingDescriptor staging[4];
  EXPECT_EQ(fetch_descriptors(Lane{}, memory.engine, 0, 4, staging).valid, 0u);
  EXPECT_FALSE(peek_descriptor(memory.engine, 0));
}

TEST(Ring, ManyLapsThroughASmallRing) {
  Memory memory(2);
  wire::RingDescriptor staging[1];
  for (u64 i = 0; i < 1000; ++i) {
    u64 position = 0;
    ASSERT_EQ(memory.producer.publish(numbered(i), &position), Status::ok);
    ASSERT_EQ(position, i);
    ASSERT_EQ(fetch_descriptors(Lane{}, memory.engine, i, 1, staging).valid, 1u);
    ASSERT_EQ(wire::decode_command(staging[0]).inode, i);
    // Neither the next position nor the one a lap later has arrived.
    ASSERT_EQ(fetch_descriptors(Lane{}, memory.engine, i + 1, 1, staging).valid, 0u);
    ASSERT_EQ(fetch_descriptors(Lane{}, memory.engine, i + 4, 1, staging).valid, 0u);
    Completion completion{};
    ASSERT_FALSE(memory.producer.poll(i, &completion));
    write_completion(memory.engine, i, Status::ok, i * 3);
    ASSERT_TRUE(memory.producer.poll(i, &completion));
    ASSERT_EQ(completion.status, Status::ok);
    ASSERT_EQ(completion.result, i * 3);
  }
}

TEST(Ring, SlotIsReusedOnlyAfterItsCompletion) {
  Memory memory(2);
  u64 position = 0;
  for (u64 i = 0; i < 4; ++i) ASSERT_EQ(memory.producer.publish(numbered(i), &position), Status::ok);
  EXPECT_EQ(memory.producer.publish(numbered(4), &position), Status::ring_full);
  write_completion(memory.engine, 1, Status::ok, 0);
  // Slot 1 is free, but position 4 needs slot 0.
  EXPECT_EQ(memory.producer.publish(numbered(4), &position), Status::ring_full);
  write_completion(memory.engine, 0, Status::not_found, 77);
  EXPECT_TRUE(memory.producer.has_room(2));
  EXPECT_FALSE(memory.producer.has_room(3));
  EXPECT_EQ(memory.producer.publish(numbered(4), &position), Status::ok);
  Completion completion{};
  EXPECT_TRUE(memory.producer.poll(1, &completion));
}

TEST(Ring, ErrorsCarryNoResult) {
  Memory memory(2);
  write_completion(memory.engine, 0, Status::no_space, 77);
  Completion completion{};
  ASSERT_TRUE(memory.producer.poll(0, &completion));
  EXPECT_EQ(completion.status, Status::no_space);
  EXPECT_EQ(completion.result, 0u);
}

TEST(Ring, EveryTornDescriptorIsRefused) {
  Memory memory(2);
  wire::RingDescriptor staging[1];
  u64 position = 0;
  for (u32 lap = 0; lap < 3; ++lap) {
    for (u32 i = 0; i < 4; ++i) {
      ASSERT_EQ(memory.producer.publish(numbered(lap * 4 + i), &position), Status::ok);
      wire::RingDescriptor& slot = memory.engine.descriptors[position % 4];
      for (u32 unit = 0; unit < 8; ++unit) {
        const u32 whole = slot.units[unit].sequence;
        for (const u32 wrong : {whole - 1, whole + 1, 0u, whole | 0x80000000u}) {
          slot.units[unit].sequence = wrong;
          EXPECT_EQ(fetch_descriptors(Lane{}, memory.engine, position, 1, staging).valid, 0u);
        }
        slot.units[unit].sequence = whole;
      }
      EXPECT_EQ(fetch_descriptors(Lane{}, memory.engine, position, 1, staging).valid, 1u);
      write_completion(memory.engine, position, Status::ok, 0);
    }
  }
}

TEST(Ring, WarpFetchesFourWithHolesMarked) {
  Memory memory(3);
  u64 position = 0;
  for (u64 i = 0; i < 4; ++i) ASSERT_EQ(memory.producer.publish(numbered(100 + i), &position), Status::ok);
  memory.engine.descriptors[2].units[7].sequence ^= 1;
  wire::RingDescriptor staging[4];
  u32 masks[32] = {};
  run_emulated_warp(
      [&](EmulatedWarp g) { masks[g.rank()] = fetch_descriptors(g, memory.engine, 0, 4, staging).valid; });
  for (const u32 mask : masks) EXPECT_EQ(mask, 0b1011u);
  EXPECT_EQ(wire::decode_command(staging[0]).inode, 100u);
  EXPECT_EQ(wire::decode_command(staging[3]).inode, 103u);
}

// A producer and an engine on two threads: every command arrives once, whole, in order.
TEST(Ring, TwoThreadsExchangeEverything) {
  Memory memory(4);
  constexpr u64 count = 20000;
  std::thread engine([&] {
    for (u64 position = 0; position < count;) {
      wire::RingDescriptor staging[1];
      if (fetch_descriptors(Lane{}, memory.engine, position, 1, staging).valid == 0) {
        std::this_thread::yield();
        continue;
      }
      acquire_payload();
      const wire::Command command = wire::decode_command(staging[0]);
      const u64* payload = reinterpret_cast<u64*>(memory.producer.data) + position % 16;
      const u64 good = command.inode == position && command.output == ~position && *payload == position;
      write_completion(memory.engine, position, good ? Status::ok : Status::io_error, position);
      ++position;
    }
  });
  u64 failures = 0;
  u64 finished = 0;
  for (u64 i = 0; i < count;) {
    Completion completion{};
    while (finished < i && memory.producer.poll(finished, &completion)) {
      if (completion.status != Status::ok || completion.result != finished) ++failures;
      ++finished;
    }
    u64 position = 0;
    if (i - finished >= 16) {
      std::this_thread::yield();
      continue;
    }
    reinterpret_cast<u64*>(memory.producer.data)[i % 16] = i;
    if (memory.producer.publish(numbered(i), &position) == Status::ok) ++i;
  }
  engine.join();
  EXPECT_EQ(failures, 0u);
}

// The properties of a descriptor follow from its units and from the decoded command alike.
TEST(Ring, PropertiesOfUnitsAreThoseOfTheCommand) {
  Memory memory(4);
  wire::RingDescriptor staging[1];
  constexpr u32 chain_flags = wire::command_flag_link | wire::command_flag_previous_inode;
  u64 position = 0;
  u32 plain = 0;
  u32 unlocked = 0;
  for (u32 opcode = 0; opcode <= 80; ++opcode) {
    for (u32 variant = 0; variant < 512; ++variant) {
      wire::Command command{};
      command.opcode = static_cast<wire::Opcode>(opcode);
      command.flags = static_cast<u16>(variant & wire::command_flag_known);
      if ((variant & 32) != 0) command.name_length = (variant & 64) != 0 ? 256 : 255;
      if ((variant & 128) != 0) command.second_name_length = 1;
      if ((variant & 256) != 0) command.output = 16;
      command.length = page_size + (variant & 64) / 64;
      const u32 sequence = wire::ring_sequence(position, memory.engine.depth_log2);
      memory.engine.descriptors[memory.engine.slot(position)] = wire::encode_command(command, sequence);
      const FetchedDescriptors seen = fetch_descriptors(Lane{}, memory.engine, position, 1, staging);
      ASSERT_EQ(seen.valid, 1u);
      ASSERT_EQ(seen.plain == 1, is_plain(command)) << opcode << " " << variant;
      const bool is_alone = (command.flags & chain_flags) == 0;
      const bool is_expected = is_unlocked_alone(command, page_size);
      ASSERT_EQ(seen.unlocked == 1 && is_alone, is_expected) << opcode << " " << variant;
      plain += seen.plain;
      unlocked += seen.unlocked;
      ++position;
    }
  }
  EXPECT_EQ(plain, 2u) << "a noop, with a length that is of no use to it or without";
  EXPECT_GT(unlocked, 100u);
}

TEST(UpcallRing, ArrivesInOrderAcrossTheWrap) {
  auto ring = std::make_unique<UpcallRing>();
  std::memset(static_cast<void*>(ring.get()), 0, sizeof(UpcallRing));
  UpcallReader reader{ring.get(), 0};
  Upcall upcall{};
  EXPECT_FALSE(reader.read(&upcall));
  for (u64 i = 0; i < 3 * upcall_depth; ++i) {
    write_upcall(*ring, i, Upcall{UpcallKind::map_chunk, static_cast<u32>(i), i * 7, i + 1});
    ASSERT_TRUE(reader.read(&upcall));
    ASSERT_EQ(upcall.argument, i * 7);
    ASSERT_EQ(upcall.detail, static_cast<u32>(i));
    ASSERT_EQ(upcall.id, i + 1);
    ASSERT_FALSE(reader.read(&upcall));
  }
  EXPECT_EQ(ring->consumed, 3 * upcall_depth);
}

}  // namespace
}  // namespace gpu4fs::ring
