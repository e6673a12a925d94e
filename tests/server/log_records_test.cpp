// Records of the operation log, field by field: a replay relies on these checks.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/xxh3.hpp"
#include "fs/inode/inode.hpp"
#include "server/recovery/log_scan.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::server::test::log_records_test {
namespace {

using format::LogExtent;
using format::LogOpcode;
using format::LogRecord;

constexpr u64 lsn = 0x12340;
constexpr u64 seed = 0x5eed;

// A record in memory of its greatest length; its checksum is set when it is checked.
class RecordBytes {
 public:
  explicit RecordBytes(LogOpcode opcode, u32 name_bytes = 0, u32 data_length = 0, u32 extent_count = 0)
      : bytes_(format::log_record_bytes_max / 8) {
    record().opcode = opcode;
    record().lsn = lsn;
    record().durable_lsn = lsn - 64;
    record().name_length = static_cast<u16>(name_bytes);
    record().data_length = data_length;
    record().extent_count = static_cast<u16>(extent_count);
    record().inode = format::inode_number_root;
    layout_ = format::log_record_layout(name_bytes, data_length, extent_count);
    record().length = layout_.length;
  }

  LogRecord& record() { return *reinterpret_cast<LogRecord*>(bytes_.data()); }
  LogExtent& extent(u32 index) {
    return reinterpret_cast<LogExtent*>(reinterpret_cast<u8*>(bytes_.data()) + layout_.extents_offset)[index];
  }
  void seal() {
    record().checksum = 0;
    record().checksum = xxh3_64(bytes_.data(), record().length, seed ^ record().lsn);
  }
  std::string problem(u64 available = format::log_record_bytes_max) {
    seal();
    return unsealed_problem(available);
  }
  std::string unsealed_problem(u64 available = format::log_record_bytes_max) {
    return find_record_problem(record(), available, lsn, seed);
  }

 private:
  std::vector<u64> bytes_;
  format::LogRecordLayout layout_{};
};

RecordBytes make_file() {
  RecordBytes bytes(LogOpcode::mknod, 5);
  bytes.record().number = format::inode_number_first_free;
  bytes.record().mode = S_IFREG | 0644;
  bytes.record().mask = S_IFREG | 0666;
  bytes.record().size = 1;  // its generation
  return bytes;
}

// Two extents of three pages in total, from the middle of a page to the middle of another.
RecordBytes write_extents() {
  RecordBytes bytes(LogOpcode::write_extents, 0, 0, 2);
  bytes.record().offset = 100;
  bytes.record().size = 2 * page_size;
  bytes.extent(0) = {u64{8} << 20, 1, 2, 0, 0};
  bytes.extent(1) = {u64{16} << 20, 2, 1, format::log_extent_in_place, 0};
  return bytes;
}

RecordBytes allocate() {
  RecordBytes bytes(LogOpcode::fallocate, 0, 0, 2);
  bytes.record().size = 10 * page_size;
  bytes.extent(0) = {u64{8} << 20, 0, 2, format::log_extent_unwritten, 1};
  bytes.extent(1) = {u64{16} << 20, 0, 3, format::log_extent_unwritten, 5};
  return bytes;
}

struct Change {
  const char* what;
  std::function<void(RecordBytes&)> change;
};

void expect_refused(const std::function<RecordBytes()>& make, const std::vector<Change>& changes) {
  EXPECT_EQ(make().problem(), "");
  for (const Change& change : changes) {
    RecordBytes bytes = make();
    change.change(bytes);
    EXPECT_NE(bytes.problem(), "") << change.what;
  }
}

TEST(LogRecords, EveryBitIsInTheChecksum) {
  RecordBytes bytes = write_extents();
  bytes.seal();
  ASSERT_EQ(bytes.unsealed_problem(), "");
  u8* memory = reinterpret_cast<u8*>(&bytes.record());
  for (u32 at = 0; at < bytes.record().length; ++at) {
    memory[at] ^= 0x10;
    EXPECT_NE(bytes.unsealed_problem(), "") << "byte " << at;
    memory[at] ^= 0x10;
  }
  EXPECT_EQ(bytes.unsealed_problem(), "");
}

TEST(LogRecords, AnotherSeedOrPlaceIsAnotherRecord) {
  RecordBytes bytes = make_file();
  bytes.seal();
  EXPECT_EQ(find_record_problem(bytes.record(), 4096, lsn, seed), "");
  EXPECT_NE(find_record_problem(bytes.record(), 4096, lsn, seed + 1), "");
  EXPECT_NE(find_record_problem(bytes.record(), 4096, lsn + 64, seed), "");
}

TEST(LogRecords, LengthsAndHeadersAreBounded) {
  EXPECT_NE(make_file().problem(make_file().record().length - 1), "");
  EXPECT_NE(make_file().problem(format::log_record_granule - 1), "");
  expect_refused(make_file, {
                                {"too short", [](RecordBytes& r) { r.record().length = 64; }},
                                {"no multiple", [](RecordBytes& r) { r.record().length += 8; }},
                                {"longer than its parts", [](RecordBytes& r) { r.record().length += 64; }},
                                {"parts beyond it", [](RecordBytes& r) { r.record().name_length = 200; }},
                                {"data beyond it", [](RecordBytes& r) { r.record().data_length = 64; }},
                                {"extents beyond it", [](RecordBytes& r) { r.record().extent_count = 2; }},
                                {"flags", [](RecordBytes& r) { r.record().flags = 1; }},
                                {"reserved bytes", [](RecordBytes& r) { r.record().reserved = 1; }},
                                {"durable behind itself", [](RecordBytes& r) { r.record().durable_lsn = lsn + 64; }},
                                {"impossible time", [](RecordBytes& r) { r.record().time = (u64{1} << 30) - 1; }},
                            });
}

TEST(LogRecords, NewInodesHaveOneType) {
  expect_refused(make_file,
                 {
                     {"a reserved number", [](RecordBytes& r) { r.record().number = 3; }},
                     {"a number beyond all", [](RecordBytes& r) { r.record().number = fs::inode_number_max; }},
                     {"no generation", [](RecordBytes& r) { r.record().size = 0; }},
                     {"a generation beyond all", [](RecordBytes& r) { r.record().size = u64{1} << 32; }},
                     {"two types", [](RecordBytes& r) { r.record().mask = S_IFIFO | 0666; }},
                     {"a directory", [](RecordBytes& r) { r.record().mode = r.record().mask = S_IFDIR | 0755; }},
                     {"a symbolic link", [](RecordBytes& r) { r.record().mode = r.record().mask = S_IFLNK | 0777; }},
                     {"no type", [](RecordBytes& r) { r.record().mode = r.record().mask = 0644; }},
                     {"mkdir of a file", [](RecordBytes& r) { r.record().opcode = LogOpcode::mkdir; }},
                     {"symlink of a file", [](RecordBytes& r) { r.record().opcode = LogOpcode::symlink; }},
                     {"a name too long",
                      [](RecordBytes& r) {
                        r = RecordBytes(LogOpcode::mknod, name_length_max + 1);
                        r.record().number = format::inode_number_first_free;
                        r.record().mode = r.record().mask = S_IFREG;
                        r.record().size = 1;
                      }},
                 });
}

TEST(LogRecords, ExtentsAreAsLongAsTheRange) {
  expect_refused(write_extents,
                 {
                     {"a page more", [](RecordBytes& r) { ++r.extent(0).page_count; }},
                     {"a page less", [](RecordBytes& r) { r.extent(0).page_count = 1; }},
                     {"a longer range", [](RecordBytes& r) { r.record().size += page_size; }},
                     {"an empty extent", [](RecordBytes& r) { r.extent(0).page_count = 0; }},
                     {"an unwritten one", [](RecordBytes& r) { r.extent(0).flags = format::log_extent_unwritten; }},
                     {"unknown flags", [](RecordBytes& r) { r.extent(0).flags = 8; }},
                     {"a page number", [](RecordBytes& r) { r.extent(0).page = 1; }},
                     {"an empty range", [](RecordBytes& r) { r.record().size = 0; }},
                     {"a range beyond all", [](RecordBytes& r) { r.record().offset = ~u64{0} - 4096; }},
                     {"of another operation", [](RecordBytes& r) { r.record().opcode = LogOpcode::set_size; }},
                 });
}

TEST(LogRecords, AllocatedExtentsLieInOrderInsideTheRange) {
  expect_refused(allocate, {
                               {"beyond the range", [](RecordBytes& r) { r.extent(1).page = 8; }},
                               {"far beyond", [](RecordBytes& r) { r.extent(1).page = ~u64{0}; }},
                               {"overlapping", [](RecordBytes& r) { r.extent(1).page = 2; }},
                               {"out of order", [](RecordBytes& r) { std::swap(r.extent(0).page, r.extent(1).page); }},
                               {"written", [](RecordBytes& r) { r.extent(0).flags = 0; }},
                               {"empty", [](RecordBytes& r) { r.extent(0).page_count = 0; }},
                               {"unknown mode", [](RecordBytes& r) { r.record().mode = 0x100; }},
                               {"unknown mask", [](RecordBytes& r) { r.record().mask = 2; }},
                               {"an empty range", [](RecordBytes& r) { r.record().size = 0; }},
                           });
}

}  // namespace
}  // namespace gpu4fs::server::test::log_records_test
