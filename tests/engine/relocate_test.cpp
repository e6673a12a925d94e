// relocate: chunks are emptied, files are joined, and users see no change. The same bodies run on lanes and on emulated
// warps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/file_fixture.hpp"
#include "engine/warp_workers.hpp"
#include "raid/translate.hpp"
#include "wire/health_format.hpp"
#include "wire/relocate_format.hpp"

namespace gpu4fs::test::relocate_test {
namespace {

using wire::Opcode;
using wire::RelocateStep;

FileEngineOptions options(bool with_warps) {
  FileEngineOptions options;
  options.pool.chunk_count = 4;
  options.pool.chunk_bytes = u64{8} << 20;
  options.start = !with_warps;
  return options;
}

struct Moved {
  Status status = Status::ok;
  u64 moved = 0;
  u64 stayed = 0;
};

template <class Connection>
class Mover {
 public:
  explicit Mover(FileEngine& engine) : client(engine), engine_(engine) {}

  static u8 byte_at(u64 at, u64 seed) { return static_cast<u8>((at * 31 + at / 4096 * 7 + seed) >> 2); }

  u64 new_file(const std::string& name, u64 page, u64 page_count, u64 seed) {
    const u64 inode = client.create(name).result;
    write(inode, page, page_count, seed);
    return inode;
  }
  void write(u64 inode, u64 page, u64 page_count, u64 seed) {
    for (u64 i = 0; i < page_count * page_size; ++i) client.data()[i] = byte_at(page * page_size + i, seed);
    const ring::Completion done = client.write(inode, page * page_size, page_count * page_size);
    ASSERT_EQ(done.status, Status::ok) << status_name(done.status);
  }
  // The number of bytes of the pages that differ from those of write().
  u64 wrong_bytes(u64 inode, u64 page, u64 page_count, u64 seed) {
    const ring::Completion done = client.read(inode, page * page_size, page_count * page_size);
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    EXPECT_EQ(done.result, page_count * page_size);
    u64 wrong = 0;
    for (u64 i = 0; i < page_count * page_size; ++i) wrong += client.data()[i] != byte_at(page * page_size + i, seed);
    return wrong;
  }
  // The answer's record, if it has one, is at client.data().
  ring::Completion relocate(RelocateStep step, u64 inode, u64 offset = 0, u32 mask = 0, u64 length = 0) {
    wire::Command command = make_command(Opcode::relocate);
    command.mode = static_cast<u32>(step);
    command.inode = inode;
    command.offset = offset;
    command.length = length;
    command.mask = mask;
    command.data = wire::ring_address(0, FileClient::data_offset);
    return client.call(command);
  }
  Moved move(RelocateStep step, u64 inode, u32 mask = 0, u64 length = 0) {
    Moved sum;
    for (u64 offset = 0; offset != wire::relocate_end;) {
      const ring::Completion done = relocate(step, inode, offset, mask, length);
      sum.status = done.status;
      if (done.status != Status::ok) break;
      wire::RelocateReport report;
      std::memcpy(&report, client.data(), sizeof(report));
      EXPECT_TRUE(report.next > offset) << "the command goes nowhere";
      if (report.next <= offset) break;
      sum.moved += report.moved;
      sum.stayed += report.stayed;
      offset = report.next;
    }
    return sum;
  }
  // Moves everything in frozen chunks, then makes a checkpoint.
  Moved move_all() {
    Moved sum;
    const auto add = [&](const Moved& moved) {
      EXPECT_EQ(moved.status, Status::ok) << status_name(moved.status);
      sum.moved += moved.moved;
      sum.stayed += moved.stayed;
    };
    for (u64 inode = 1;;) {
      const u64 found = relocate(RelocateStep::next_inode, inode).result;
      if (found == wire::relocate_end) break;
      if (found == 1 || found >= format::inode_number_first_free) {
        add(move(RelocateStep::data, found, wire::relocate_frozen));
        add(move(RelocateStep::metadata, found));
      }
      inode = found + 1;
    }
    for (const u64 inode : {2, 3, 0}) add(move(RelocateStep::metadata, inode));
    EXPECT_EQ(client.checkpoint().status, Status::ok);
    return sum;
  }
  std::vector<wire::ChunkUsage> usage() {
    const ring::Completion done = relocate(RelocateStep::usage, 0, 0, 0, 4096);
    EXPECT_EQ(done.status, Status::ok);
    std::vector<wire::ChunkUsage> list(done.result);
    std::memcpy(list.data(), client.data(), done.result * sizeof(wire::ChunkUsage));
    return list;
  }
  std::vector<wire::BlockRecord> blocks(u64 inode) {
    wire::Command command = make_command(Opcode::list_blocks);
    command.inode = inode;
    command.length = 65536;
    command.data = wire::ring_address(0, FileClient::data_offset);
    const ring::Completion done = client.call(command);
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    std::vector<wire::BlockRecord> list(done.result);
    std::memcpy(list.data(), client.data() + sizeof(wire::BlockListHeader), done.result * sizeof(wire::BlockRecord));
    return list;
  }
  u64 content_pieces(u64 inode) {
    const auto list = blocks(inode);
    return static_cast<u64>(std::count_if(list.begin(), list.end(),
                                          [](const auto& record) { return record.kind == wire::BlockKind::content; }));
  }
  format::AttributeRecord attributes(u64 inode) {
    EXPECT_EQ(client.getattr(inode).status, Status::ok);
    return client.attributes();
  }
  wire::Command on_attribute(Opcode opcode, u64 inode, u32 number, u64 length) {
    constexpr u64 name_shift = u64{1} << 20;
    const std::string name = "user.n" + std::to_string(number);
    std::memcpy(client.data(name_shift), name.data(), name.size());
    wire::Command command = make_command(opcode);
    command.inode = inode;
    command.name = wire::ring_address(0, FileClient::data_offset + name_shift);
    command.name_length = static_cast<u16>(name.size());
    command.data = wire::ring_address(0, FileClient::data_offset);
    command.length = length;
    return command;
  }
  // Attributes number 0 to `count` - 1.
  void set_attributes(u64 inode, u32 count, u64 length) {
    for (u32 i = 0; i < count; ++i) {
      for (u64 at = 0; at < length; ++at) client.data()[at] = byte_at(at, i);
      ASSERT_EQ(client.call(on_attribute(Opcode::set_attribute, inode, i, length)).status, Status::ok);
    }
  }
  u64 wrong_attributes(u64 inode, u32 count, u64 length) {
    u64 wrong = 0;
    for (u32 i = 0; i < count; ++i) {
      const ring::Completion done = client.call(on_attribute(Opcode::get_attribute, inode, i, length));
      if (done.status != Status::ok || done.result != length) ++wrong;
      for (u64 at = 0; at < length; ++at) wrong += client.data()[at] != byte_at(at, i);
    }
    return wrong;
  }
  space::SpaceCounters& counters() { return engine_.fs().data_counters(); }

  BasicFileClient<Connection> client;

 private:
  FileEngine& engine_;
};

bool same(const format::AttributeRecord& a, const format::AttributeRecord& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

template <class Connection>
void empties_a_chunk(FileEngine& engine) {
  Mover<Connection> mover(engine);
  BasicFileClient<Connection>& client = mover.client;
  const bool is_fast = std::is_same_v<Connection, Client>;  // a warp is emulated
  const u64 large_pages = is_fast ? 700 : 150;
  const u64 small = mover.new_file("small", 0, 1, 1);
  const u64 large = mover.new_file("large", 512, large_pages, 2);
  const u64 sparse = mover.new_file("sparse", 600, 3, 3);
  ASSERT_EQ(client.fallocate(sparse, 0, 700 * page_size, 40 * page_size).status, Status::ok);
  const u64 tiny = client.create("tiny").result;
  ASSERT_EQ(client.write(tiny, 0, 100).status, Status::ok);
  const u64 orphan = mover.new_file("orphan", 0, 5, 4);
  ASSERT_EQ(client.unlink("orphan").result, orphan);
  // Two levels of map pages over their pages, or one.
  const u64 attributed = client.create("attributed").result;
  const u32 attribute_count = is_fast ? 40 : 2;
  const u64 attribute_length = is_fast ? 60000 : 9000;
  mover.set_attributes(attributed, attribute_count, attribute_length);
  const u64 attribute_pages = 1 + attribute_count * divide_up(attribute_length, page_size) + (is_fast ? 3 : 1);
  const int name_count = is_fast ? 150 : 10;
  for (int i = 0; i < name_count; ++i)
    ASSERT_EQ(client.create("name with some length " + std::to_string(i)).status, Status::ok);
  ASSERT_EQ(client.checkpoint().status, Status::ok);
  // Access times are updated as by reads.
  EXPECT_EQ(mover.wrong_bytes(small, 0, 1, 1) + mover.wrong_bytes(large, 512, large_pages, 2), 0u);
  EXPECT_EQ(mover.wrong_bytes(sparse, 600, 3, 3) + mover.wrong_bytes(orphan, 0, 5, 4), 0u);
  ASSERT_EQ(client.checkpoint().status, Status::ok);
  std::map<u64, format::AttributeRecord> before;
  for (const u64 inode : {small, large, sparse, tiny, orphan, attributed, u64{1}})
    before[inode] = mover.attributes(inode);
  const space::SpaceCounters counters_before = mover.counters();

  for (const u32 chunk : {0u, 1u}) {
    const wire::ChunkUsage usage = mover.usage()[chunk];
    EXPECT_GT(usage.used, 0u);
    const u64 available = mover.counters().available;
    ASSERT_EQ(mover.relocate(RelocateStep::freeze, chunk).status, Status::ok);
    EXPECT_EQ(mover.usage()[chunk].is_frozen, 1u);
    EXPECT_LT(mover.counters().available, available);
    const Moved moved = mover.move_all();
    EXPECT_GT(moved.moved, 0u);
    EXPECT_EQ(moved.stayed, 0u);
    EXPECT_EQ(mover.usage()[chunk].used, 0u);
    EXPECT_EQ(mover.usage()[chunk].occupied, 0u);
    EXPECT_EQ(mover.wrong_bytes(small, 0, 1, 1), 0u);
    EXPECT_EQ(mover.wrong_bytes(large, 512, large_pages, 2), 0u);
    EXPECT_EQ(mover.wrong_bytes(sparse, 600, 3, 3), 0u);
    EXPECT_EQ(mover.wrong_bytes(orphan, 0, 5, 4), 0u);
    for (const auto& [inode, record] : before) EXPECT_TRUE(same(mover.attributes(inode), record)) << inode;
    EXPECT_EQ(mover.wrong_attributes(attributed, attribute_count, attribute_length), 0u);
    EXPECT_EQ(mover.blocks(attributed).size(), attribute_pages);
    u64 unwritten = 0;
    for (const wire::BlockRecord& record : mover.blocks(sparse)) {
      if (record.kind == wire::BlockKind::unwritten) unwritten += record.page_count;
    }
    EXPECT_EQ(unwritten, 40u);
    ASSERT_EQ(mover.relocate(RelocateStep::unfreeze, chunk).status, Status::ok);
    ASSERT_EQ(client.checkpoint().status, Status::ok);
  }
  EXPECT_EQ(mover.counters().used, counters_before.used);
  EXPECT_EQ(mover.counters().free, counters_before.free);
  EXPECT_EQ(mover.counters().available, counters_before.available);
  EXPECT_EQ(mover.counters().freed_pending, counters_before.freed_pending);
  EXPECT_EQ(engine.fs().had_error, 0u);
}

// The pool after a crash at this moment is the same.
TEST(RelocateDurably, AnotherEngineFindsEverything) {
  FileEngine engine(options(false));
  Mover<Client> mover(engine);
  const u64 large = mover.new_file("large", 0, 900, 5);
  ASSERT_EQ(mover.client.checkpoint().status, Status::ok);
  ASSERT_EQ(mover.relocate(RelocateStep::freeze, 0).status, Status::ok);
  EXPECT_GT(mover.move_all().moved, 0u);
  const DeviceImages images = engine.images();
  // Half-way through the next one.
  ASSERT_EQ(mover.relocate(RelocateStep::unfreeze, 0).status, Status::ok);
  ASSERT_EQ(mover.relocate(RelocateStep::freeze, 1).status, Status::ok);
  ASSERT_EQ(mover.relocate(RelocateStep::data, large, 0, wire::relocate_frozen).status, Status::ok);
  for (const DeviceImages& image : {images, engine.images()}) {
    FileEngine after(options(false), image);
    Mover<Client> reader(after);
    EXPECT_EQ(reader.wrong_bytes(large, 0, 900, 5), 0u);
    EXPECT_EQ(reader.client.lookup("large").result, large);
    EXPECT_EQ(after.fs().had_error, 0u);
  }
}

template <class Connection>
void frozen_chunks_get_no_pages(FileEngine& engine) {
  Mover<Connection> mover(engine);
  // Without the flag the same writes would use it.
  constexpr u32 chunk = 0;
  const u32 before = mover.usage()[chunk].used;
  mover.new_file("canary", 0, 900, 1);
  ASSERT_EQ(mover.client.checkpoint().status, Status::ok);
  EXPECT_GT(mover.usage()[chunk].used, before);
  ASSERT_EQ(mover.relocate(RelocateStep::freeze, chunk).status, Status::ok);
  ASSERT_EQ(mover.relocate(RelocateStep::freeze, chunk).status, Status::ok) << "once more";
  const u32 occupied = mover.usage()[chunk].occupied;
  Status status = Status::ok;
  for (u64 i = 0; i < 100 && status == Status::ok; ++i) {
    const ring::Completion made = mover.client.create("file " + std::to_string(i));
    status = made.status;
    if (status != Status::ok) break;
    status = mover.client.write(made.result, i % 4 == 0 ? 0 : 5000, (1 + i * 37 % 600) * page_size).status;
    EXPECT_LE(mover.usage()[chunk].occupied, occupied);
  }
  EXPECT_EQ(status, Status::no_space) << "the others are full: " << status_name(status);
  ASSERT_EQ(mover.client.statfs().status, Status::ok);
  EXPECT_LT(mover.client.space().page_available, 600u);
  ASSERT_EQ(mover.relocate(RelocateStep::unfreeze, chunk).status, Status::ok);
  mover.new_file("again", 0, 300, 1);
  EXPECT_GT(mover.usage()[chunk].occupied, occupied);
}

template <class Connection>
void refuses_what_cannot_be(FileEngine& engine) {
  Mover<Connection> mover(engine);
  EXPECT_EQ(mover.relocate(RelocateStep::freeze, 4).status, Status::out_of_range);
  EXPECT_EQ(mover.relocate(RelocateStep::unfreeze, 4).status, Status::out_of_range);
  EXPECT_EQ(mover.relocate(RelocateStep::data, 5).status, Status::stale);
  EXPECT_EQ(mover.relocate(RelocateStep::data, 77).status, Status::stale);
  EXPECT_EQ(mover.relocate(RelocateStep::data, 1, 0, 8).status, Status::invalid_argument);
  EXPECT_EQ(mover.relocate(static_cast<RelocateStep>(99), 1).status, Status::invalid_argument);
  // The content of the chunks does not fit into the remaining one.
  for (int i = 0; i < 9; ++i) mover.new_file("file " + std::to_string(i), 0, 800, 1);
  ASSERT_EQ(mover.client.checkpoint().status, Status::ok);
  const space::SpaceCounters before = mover.counters();
  EXPECT_EQ(mover.relocate(RelocateStep::freeze, 3).status, Status::no_space);
  EXPECT_EQ(mover.usage()[3].is_frozen, 0u);
  EXPECT_EQ(mover.counters().available, before.available);
  EXPECT_EQ(mover.counters().free, before.free);
}

template <class Connection>
void damage_stays(FileEngine& engine) {
  Mover<Connection> mover(engine);
  const u64 file = mover.new_file("file", 0, 40, 1);
  ASSERT_EQ(mover.client.checkpoint().status, Status::ok);
  u64 address = 0;
  for (const wire::BlockRecord& record : mover.blocks(file)) {
    if (11 - record.file_page < record.page_count) address = record.address + (11 - record.file_page) * page_size;
  }
  raid::PageLocation location{};
  ASSERT_EQ(raid::find_page(engine.fs().space, address, &location), Status::ok);
  raid::page_memory(engine.fs().space, location)[100] ^= 1;
  ASSERT_EQ(mover.relocate(RelocateStep::freeze, location.chunk).status, Status::ok);
  const Moved moved = mover.move_all();
  EXPECT_EQ(moved.stayed, 1u);
  EXPECT_EQ(mover.usage()[location.chunk].occupied, 1u);
  EXPECT_EQ(mover.wrong_bytes(file, 0, 11, 1), 0u);
  EXPECT_EQ(mover.wrong_bytes(file, 12, 28, 1), 0u);
  EXPECT_EQ(mover.client.read(file, 11 * page_size, page_size).status, Status::checksum_mismatch);
}

template <class Connection>
void scattered_files_are_put_together(FileEngine& engine) {
  Mover<Connection> mover(engine);
  const u64 a = mover.client.create("a").result;
  const u64 b = mover.client.create("b").result;
  for (u64 page = 0; page < 600; page += 3) {
    mover.write(a, page, 3, 1);
    mover.write(b, page, 3, 2);
  }
  ASSERT_EQ(mover.client.checkpoint().status, Status::ok);
  EXPECT_GT(mover.content_pieces(a), 50u);
  const format::AttributeRecord before = mover.attributes(a);
  const Moved moved = mover.move(RelocateStep::data, a, wire::relocate_scattered);
  EXPECT_EQ(moved.status, Status::ok);
  EXPECT_EQ(moved.moved, 600u);
  ASSERT_EQ(mover.client.checkpoint().status, Status::ok);
  EXPECT_LE(mover.content_pieces(a), 2u);
  EXPECT_EQ(mover.attributes(a).modification_seconds, before.modification_seconds);
  EXPECT_EQ(mover.attributes(a).size_bytes, before.size_bytes);
  EXPECT_EQ(mover.wrong_bytes(a, 0, 600, 1), 0u);
  EXPECT_EQ(mover.wrong_bytes(b, 0, 600, 2), 0u);
  // The second time there is nothing to do; and with a limit the rest of b follows in more steps.
  EXPECT_EQ(mover.move(RelocateStep::data, a, wire::relocate_scattered).moved, 0u);
  EXPECT_GT(mover.move(RelocateStep::data, b, wire::relocate_scattered, 64).moved, 500u);
  EXPECT_EQ(mover.wrong_bytes(b, 0, 600, 2), 0u);
}

class Relocate : public ::testing::TestWithParam<bool> {
 protected:
  template <class Lanes, class Warps>
  void run(Lanes&& with_lanes, Warps&& with_warps) {
    FileEngine engine(options(GetParam()));
    if (!GetParam()) return with_lanes(engine);
    WarpWorkers workers(engine.engine(), 1);
    with_warps(engine);
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, Relocate, ::testing::Values(false, true),
                         [](const auto& value) { return std::string(value.param ? "Warp" : "Lane"); });

TEST_P(Relocate, EmptiesAChunk) {
  run(empties_a_chunk<Client>, empties_a_chunk<WaitingClient>);
}
TEST_P(Relocate, DamageStays) {
  run(damage_stays<Client>, damage_stays<WaitingClient>);
}

// Many commands, which would take long on a warp.
class RelocateOnLanes : public ::testing::Test {
 protected:
  FileEngine engine_{options(false)};
};
TEST_F(RelocateOnLanes, FrozenChunksGetNoPages) {
  frozen_chunks_get_no_pages<Client>(engine_);
}
TEST_F(RelocateOnLanes, RefusesWhatCannotBe) {
  refuses_what_cannot_be<Client>(engine_);
}
TEST_F(RelocateOnLanes, ScatteredFilesArePutTogether) {
  scattered_files_are_put_together<Client>(engine_);
}

}  // namespace
}  // namespace gpu4fs::test::relocate_test
