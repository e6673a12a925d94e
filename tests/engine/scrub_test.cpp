// scrub, list_blocks, health: exactly the damage that was made on the medium is found, and its owner is named. The same
// bodies run on lanes and on emulated warps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "engine/file_fixture.hpp"
#include "engine/warp_workers.hpp"
#include "raid/translate.hpp"
#include "wire/health_format.hpp"

namespace gpu4fs::test {
namespace {

using wire::Opcode;

FileEngineOptions options(bool with_warps) {
  FileEngineOptions options;
  options.pool.chunk_count = 4;
  options.pool.chunk_bytes = u64{16} << 20;
  options.start = !with_warps;
  return options;
}

struct Blocks {
  std::vector<wire::BlockRecord> records;
  bool skipped = false;
  u64 pages(wire::BlockKind kind) const {
    u64 count = 0;
    for (const wire::BlockRecord& record : records) count += record.kind == kind ? record.page_count : 0;
    return count;
  }
  // Address of a page of the file, 0: none.
  u64 address(u64 file_page) const {
    for (const wire::BlockRecord& record : records) {
      if (record.kind != wire::BlockKind::content && record.kind != wire::BlockKind::unwritten) continue;
      if (file_page - record.file_page < record.page_count) {
        return record.address + (file_page - record.file_page) * page_size;
      }
    }
    return 0;
  }
};

// The operations that the tests need of an engine.
template <class Connection>
class Patient {
 public:
  explicit Patient(FileEngine& engine) : engine_(engine), client(engine) {}

  u64 new_file(const std::string& name, u64 page, u64 page_count, u64 seed) {
    const u64 inode = client.create(name).result;
    write(inode, page, page_count, seed);
    return inode;
  }
  void write(u64 inode, u64 page, u64 page_count, u64 seed) {
    for (u64 i = 0; i < page_count * page_size; ++i) client.data()[i] = static_cast<u8>((i * 31 + seed) >> 3);
    const ring::Completion done = client.write(inode, page * page_size, page_count * page_size);
    ASSERT_EQ(done.status, Status::ok) << status_name(done.status);
    ASSERT_EQ(done.result, page_count * page_size);
  }
  ring::Completion scrub(u32 chunk, u64 first, u64 count, u32 mask = 0, u64 owner = 0, u32 kind = 0) {
    std::memset(client.data(), 0, 4096);
    wire::Command command = make_command(Opcode::scrub);
    command.inode = chunk;
    command.offset = first;
    command.length = count;
    command.mask = mask;
    command.second_inode = owner;
    command.mode = kind;
    command.data = wire::ring_address(0, FileClient::data_offset);
    return client.call(command);
  }
  // Addresses of all damaged pages of the pool, and how many were verified.
  std::set<u64> damaged(u64* verified = nullptr) {
    std::set<u64> found;
    u64 sum = 0;
    const raid::LogicalSpace& space = engine_.fs().space;
    for (u32 chunk = 0; chunk < space.chunk_count; ++chunk) {
      const u64 pages = space.chunks[chunk].page_count;
      const ring::Completion done = scrub(chunk, 0, pages);
      EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
      sum += wire::scrub_pages_verified(done.result);
      const u64 before = found.size();
      for (u64 page = 0; page < pages; ++page) {
        u64 word = 0;
        std::memcpy(&word, client.data() + page / 64 * 8, 8);
        if ((word >> (page % 64) & 1) != 0) found.insert(space.chunks[chunk].base_address + page * page_size);
      }
      EXPECT_EQ(found.size() - before, wire::scrub_pages_damaged(done.result));
    }
    if (verified != nullptr) *verified = sum;
    return found;
  }
  Blocks blocks(u64 inode, u64 buffer = 64 * 1024) {
    Blocks blocks;
    for (u64 page = 0; page != wire::block_list_end;) {
      wire::Command command = make_command(Opcode::list_blocks);
      command.inode = inode;
      command.offset = page;
      command.length = buffer;
      command.data = wire::ring_address(0, FileClient::data_offset);
      const ring::Completion done = client.call(command);
      EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
      if (done.status != Status::ok) break;
      wire::BlockListHeader header;
      std::memcpy(&header, client.data(), sizeof(header));
      EXPECT_EQ(header.record_count, done.result);
      EXPECT_TRUE(header.next_page > page);
      const auto* records = reinterpret_cast<const wire::BlockRecord*>(client.data() + sizeof(header));
      blocks.records.insert(blocks.records.end(), records, records + header.record_count);
      blocks.skipped = blocks.skipped || header.skipped != 0;
      page = header.next_page;
    }
    return blocks;
  }
  std::vector<wire::DamageRecord> table(wire::HealthRecord* health = nullptr) {
    wire::Command command = make_command(Opcode::health);
    command.length = 65536;
    command.data = wire::ring_address(0, FileClient::data_offset);
    const ring::Completion done = client.call(command);
    EXPECT_EQ(done.status, Status::ok);
    wire::HealthRecord record;
    std::memcpy(&record, client.data(), sizeof(record));
    EXPECT_EQ(done.result, sizeof(record) + record.damage_count * sizeof(wire::DamageRecord));
    const auto* entries = reinterpret_cast<const wire::DamageRecord*>(client.data() + sizeof(record));
    if (health != nullptr) *health = record;
    return {entries, entries + record.damage_count};
  }
  void damage(u64 address) {
    raid::PageLocation location{};
    ASSERT_EQ(raid::find_page(engine_.fs().space, address, &location), Status::ok);
    raid::page_memory(engine_.fs().space, location)[address / page_size % page_size] ^= 0x10;
  }

 private:
  FileEngine& engine_;

 public:
  BasicFileClient<Connection> client;
};

template <class Connection>
void finds_exactly_what_was_planted(FileEngine& engine) {
  Patient<Connection> patient(engine);
  const u64 small = patient.new_file("small", 0, 3, 1);
  const u64 large = patient.new_file("large", 5, 700, 2);
  ASSERT_EQ(patient.client.checkpoint().status, Status::ok);
  u64 verified = 0;
  EXPECT_EQ(patient.damaged(&verified), std::set<u64>{}) << "a sound pool";
  EXPECT_EQ(verified, engine.fs().data_counters().used);

  const Blocks in_small = patient.blocks(small);
  const Blocks in_large = patient.blocks(large);
  EXPECT_EQ(in_small.pages(wire::BlockKind::content), 3u);
  EXPECT_EQ(in_large.pages(wire::BlockKind::content), 700u);
  EXPECT_GE(in_large.pages(wire::BlockKind::map_page), 1u);
  const std::set<u64> planted{in_small.address(2), in_large.address(5), in_large.address(704), in_large.address(300),
                              in_large.address(301)};
  ASSERT_EQ(planted.count(0), 0u);
  for (const u64 address : planted) patient.damage(address);
  EXPECT_EQ(patient.damaged(), planted);
  EXPECT_TRUE(patient.table().empty()) << "nobody asked to record it";

  // Freed pages belong to nobody.
  ASSERT_EQ(patient.client.unlink("small").result, small);
  ASSERT_EQ(patient.client.reclaim(small).status, Status::ok);
  std::set<u64> left = planted;
  left.erase(in_small.address(2));
  EXPECT_EQ(patient.damaged(), left);
}

template <class Connection>
void keeps_the_table(FileEngine& engine) {
  Patient<Connection> patient(engine);
  const u64 file = patient.new_file("file", 0, 70, 3);
  ASSERT_EQ(patient.client.checkpoint().status, Status::ok);
  const u64 address = patient.blocks(file).address(40);
  patient.damage(address);
  EXPECT_EQ(patient.client.read(file, 0, 70 * page_size).status, Status::checksum_mismatch);
  EXPECT_EQ(patient.client.read(file, 40 * page_size + 7, 9).status, Status::checksum_mismatch);
  EXPECT_EQ(patient.client.read(file, 41 * page_size, page_size).status, Status::ok);
  wire::HealthRecord health{};
  std::vector<wire::DamageRecord> table = patient.table(&health);
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(table[0].address, address);
  EXPECT_EQ(table[0].inode, file);
  EXPECT_EQ(table[0].kind, wire::DamageKind::data);
  EXPECT_EQ(table[0].count, 2u);
  EXPECT_EQ(health.mismatch_counts[table[0].device], 2u);
  EXPECT_EQ(health.flags, 0u) << "damaged content is no metadata error";

  // A scrub that records damage uses the given owner; a page that is valid again leaves the table.
  raid::PageLocation place{};
  ASSERT_EQ(raid::find_page(engine.fs().space, address, &place), Status::ok);
  const u32 metadata = static_cast<u32>(wire::DamageKind::metadata);
  ASSERT_EQ(patient.scrub(place.chunk, place.page, 1, wire::scrub_mask_record, 99, metadata).result,
            u64{1} | u64{1} << 32);
  table = patient.table();
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(table[0].inode, 99u);
  EXPECT_EQ(table[0].kind, wire::DamageKind::metadata);
  patient.damage(address);  // damaging it twice restores it
  EXPECT_EQ(patient.scrub(place.chunk, place.page, 1, wire::scrub_mask_record).result, 1u);
  EXPECT_TRUE(patient.table().empty());
  // A free page leaves it too.
  raid::note_damage(engine.fs().space, address);
  ASSERT_EQ(patient.client.unlink("file").result, file);
  ASSERT_EQ(patient.client.reclaim(file).status, Status::ok);
  EXPECT_EQ(patient.scrub(place.chunk, place.page, 1, wire::scrub_mask_record).result, 0u);
  EXPECT_TRUE(patient.table().empty());
}

template <class Connection>
void lists_maps(FileEngine& engine) {
  Patient<Connection> patient(engine);
  const u64 file = patient.client.create("sparse").result;
  for (const u64 page : {u64{0}, u64{3}, u64{600}, u64{512 * 512 * 3}}) patient.write(file, page, 2, page);
  ASSERT_EQ(patient.client.fallocate(file, 1, 1000 * page_size, 5 * page_size).status, Status::ok);
  ASSERT_EQ(patient.client.checkpoint().status, Status::ok);
  const Blocks blocks = patient.blocks(file, 16 + 16 * 24);
  EXPECT_EQ(blocks.pages(wire::BlockKind::content), 8u);
  EXPECT_EQ(blocks.pages(wire::BlockKind::unwritten), 5u);
  ASSERT_EQ(patient.client.getattr(file).status, Status::ok);
  u64 all = 0;
  std::set<u64> addresses;
  for (const wire::BlockRecord& record : blocks.records) {
    all += record.page_count;
    for (u32 i = 0; i < record.page_count; ++i) addresses.insert(record.address + i * page_size);
  }
  EXPECT_EQ(all * 8, patient.client.attributes().blocks_512) << "every page of the file, indirect blocks included";
  EXPECT_EQ(addresses.size(), all) << "each once";
  EXPECT_FALSE(blocks.skipped);
  for (const u64 page : {u64{0}, u64{4}, u64{601}, u64{512 * 512 * 3 + 1}, u64{1004}}) {
    EXPECT_NE(blocks.address(page), 0u) << page;
  }
  EXPECT_EQ(blocks.address(1005), 0u);
  // Inode file and bitmap files have maps as well.
  EXPECT_GE(patient.blocks(0).pages(wire::BlockKind::content), 1u);
  EXPECT_GE(patient.blocks(2).pages(wire::BlockKind::content), 1u);
}

template <class Connection>
void refuses_what_is_out_of_range(FileEngine& engine) {
  Patient<Connection> patient(engine);
  const u64 pages = engine.fs().space.chunks[0].page_count;
  EXPECT_EQ(patient.scrub(engine.fs().space.chunk_count, 0, 1).status, Status::out_of_range);
  EXPECT_EQ(patient.scrub(0, pages, 1).status, Status::out_of_range);
  EXPECT_EQ(patient.scrub(0, 1, pages).status, Status::out_of_range);
  EXPECT_EQ(patient.scrub(0, 1, ~u64{0}).status, Status::out_of_range);
  EXPECT_EQ(patient.scrub(0, 0, 0).status, Status::invalid_argument);
  EXPECT_EQ(patient.scrub(0, 0, 1, 2).status, Status::invalid_argument);
  EXPECT_EQ(patient.scrub(0, 0, 1, 0, 0, 7).status, Status::invalid_argument);
  EXPECT_EQ(patient.scrub(0, 13, pages - 13).status, Status::ok) << "ranges begin anywhere";
  wire::Command command = make_command(Opcode::list_blocks);
  command.inode = 5;
  command.length = 65536;
  command.data = wire::ring_address(0, FileClient::data_offset);
  EXPECT_EQ(patient.client.call(command).status, Status::stale);
  command.inode = 1;
  command.length = 16;
  EXPECT_EQ(patient.client.call(command).status, Status::invalid_argument);
}

class Scrub : public ::testing::TestWithParam<bool> {
 protected:
  template <class Lanes, class Warps>
  void run(Lanes&& with_lanes, Warps&& with_warps) {
    FileEngine engine(options(GetParam()));
    if (!GetParam()) return with_lanes(engine);
    WarpWorkers workers(engine.engine(), 1);
    with_warps(engine);
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, Scrub, ::testing::Values(false, true),
                         [](const auto& value) { return std::string(value.param ? "Warp" : "Lane"); });

TEST_P(Scrub, FindsExactlyWhatWasPlanted) {
  run(finds_exactly_what_was_planted<Client>, finds_exactly_what_was_planted<WaitingClient>);
}
TEST_P(Scrub, KeepsTheTable) {
  run(keeps_the_table<Client>, keeps_the_table<WaitingClient>);
}
TEST_P(Scrub, ListsMaps) {
  run(lists_maps<Client>, lists_maps<WaitingClient>);
}
TEST_P(Scrub, RefusesWhatIsOutOfRange) {
  run(refuses_what_is_out_of_range<Client>, refuses_what_is_out_of_range<WaitingClient>);
}

// Clients cannot send these commands, whatever their session may do.
TEST(ScrubRights, AreTheManagementsAlone) {
  FileEngine engine(options(false));
  Client client(engine, ClientOptions{.trusted = true, .internal = false});
  for (const Opcode opcode : {Opcode::scrub, Opcode::health, Opcode::list_blocks}) {
    wire::Command command = make_command(opcode);
    command.length = 4096;
    command.data = wire::ring_address(0, 0);
    EXPECT_EQ(client.call(command).status, Status::permission);
  }
}

// After a metadata error a pool with this option refuses changes, but keeps everything that it has acknowledged.
TEST(StopOnError, RefusesChangesAndStillWritesThoseBefore) {
  for (const bool stops : {true, false}) {
    FileEngine engine(options(false));
    engine.fs().stop_on_error = stops ? 1 : 0;
    Patient<Client> patient(engine);
    const u64 file = patient.new_file("file", 0, 2, 1);
    raid::note_damage(engine.fs().space, engine.fs().space.chunks[0].base_address);
    fs::note_metadata_error(engine.fs(), 7, engine.fs().space.chunks[0].base_address);
    const Status expected = stops ? Status::read_only : Status::ok;
    EXPECT_EQ(patient.client.write(file, 0, 100).status, expected);
    EXPECT_EQ(patient.client.truncate(file, 5000).status, expected);
    EXPECT_EQ(patient.client.create("other").status, expected);
    EXPECT_EQ(patient.client.unlink("file").status, expected);
    if (stops) {
      EXPECT_EQ(patient.client.read(file, 0, 100).status, Status::ok);
    }
    const u64 durable = engine.fs().epoch_durable;
    EXPECT_EQ(patient.client.sync().status, Status::ok);
    EXPECT_GT(engine.fs().epoch_durable, durable) << "what was written before is durable now";
    wire::HealthRecord health{};
    const std::vector<wire::DamageRecord> table = patient.table(&health);
    ASSERT_EQ(table.size(), 1u);
    EXPECT_EQ(table[0].inode, 7u);
    EXPECT_EQ(health.flags & wire::health_metadata_damaged, u32{wire::health_metadata_damaged});
    EXPECT_EQ((health.flags & wire::health_changes_stopped) != 0, stops);
  }
}

}  // namespace
}  // namespace gpu4fs::test
