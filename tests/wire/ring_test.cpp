#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <set>

#include "wire/ring_format.hpp"

namespace gpu4fs::wire {
namespace {

Command random_command(std::mt19937_64& random) {
  Command command{};
  command.opcode = static_cast<Opcode>(random() & 0xffff);
  command.flags = static_cast<std::uint16_t>(random());
  command.uid = static_cast<std::uint32_t>(random());
  command.gid = static_cast<std::uint32_t>(random());
  command.deadline_ms = static_cast<std::uint32_t>(random());
  command.mode = static_cast<std::uint32_t>(random());
  command.mask = static_cast<std::uint32_t>(random());
  command.name_length = static_cast<std::uint16_t>(random());
  command.second_name_length = static_cast<std::uint16_t>(random());
  command.umask_bits = static_cast<std::uint32_t>(random());
  command.inode = random();
  command.second_inode = random();
  command.offset = random();
  command.length = random();
  command.data = random();
  command.aux = random();
  command.name = random();
  command.output = random();
  return command;
}

bool equal(const Command& a, const Command& b) {
  return a.opcode == b.opcode && a.flags == b.flags && a.uid == b.uid && a.gid == b.gid &&
         a.deadline_ms == b.deadline_ms && a.mode == b.mode && a.mask == b.mask && a.name_length == b.name_length &&
         a.second_name_length == b.second_name_length && a.umask_bits == b.umask_bits && a.inode == b.inode &&
         a.second_inode == b.second_inode && a.offset == b.offset && a.length == b.length && a.data == b.data &&
         a.aux == b.aux && a.name == b.name && a.output == b.output;
}

TEST(RingCommand, decode_undoes_encode) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const Command command = random_command(random);
    const RingDescriptor descriptor = encode_command(command, 17);
    for (const RingUnit& unit : descriptor.units) EXPECT_EQ(unit.sequence, 17u);
    EXPECT_TRUE(equal(decode_command(descriptor), command));
  }
}

// Every bit of the 12 payload bytes of every unit reaches the command: nothing is lost or duplicated.
TEST(RingCommand, every_bit_arrives) {
  const Command zero = decode_command(RingDescriptor{});
  for (unsigned unit = 0; unit < 8; ++unit) {
    for (unsigned bit = 0; bit < 96; ++bit) {
      RingDescriptor descriptor{};
      if (bit < 64) descriptor.units[unit].value = std::uint64_t{1} << bit;
      if (bit >= 64) descriptor.units[unit].word = 1u << (bit - 64);
      const Command command = decode_command(descriptor);
      EXPECT_FALSE(equal(command, zero)) << "unit " << unit << " bit " << bit;
      const RingDescriptor again = encode_command(command, 0);
      EXPECT_EQ(std::memcmp(&again, &descriptor, sizeof(again)), 0);
    }
  }
}

TEST(RingSequence, tells_laps_apart_and_is_never_zero) {
  const unsigned depth_log2 = 4;
  std::set<std::uint32_t> seen;
  for (std::uint64_t lap = 0; lap < 1000; ++lap) {
    const std::uint32_t first = ring_sequence(lap << depth_log2, depth_log2);
    EXPECT_EQ(ring_sequence((lap << depth_log2) + 15, depth_log2), first);
    EXPECT_TRUE(seen.insert(first).second);
  }
  EXPECT_EQ(ring_sequence(0, depth_log2), 1u);
  EXPECT_EQ(ring_sequence(0xfffffffeull << depth_log2, depth_log2), 0xffffffffu);
  EXPECT_EQ(ring_sequence(0xffffffffull << depth_log2, depth_log2), 1u);
}

TEST(RingAddress, region_and_offset) {
  const std::uint64_t address = ring_address(200, 0x123456789abcull);
  EXPECT_EQ(ring_address_buffer(address), 200u);
  EXPECT_EQ(ring_address_offset(address), 0x123456789abcull);
}

}  // namespace
}  // namespace gpu4fs::wire
