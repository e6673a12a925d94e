// There is no write hole either if pages are written into rows that contain other pages, because the pool is full: a
// crash at each write, then the loss of each set of devices.
//
// Environment: GPU4FS_LOSS_ALL, GPU4FS_LOSS_ID as in write_hole_test.cpp.
#include <gtest/gtest.h>

#include <cstdio>

#include "crash/crash_histories.hpp"
#include "crash/loss_explorer.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::shared_rows_test {
namespace {

struct SharedPool {
  const char* name;
  CrashPoolShape shape;
  u32 file_pages;  // of files that leave free pages in their stripes
};

// Metadata has chunks of its own, with always or never a whole stripe.
const SharedPool pools[] = {
    {"raid5_3", {3, "raid5+raid1", 0, u64{20} << 20}, 3},
    {"raid6_5", {5, "raid6+raid1c3", 0, u64{20} << 20}, 4},
    {"raid5_4_16k", {4, "raid5+raid1", 16384, u64{20} << 20}, 3},
};

// Files that leave free pages in their stripes, and blocks that take all whole stripes.
void use_up_stripes(CrashWriter& writer, u32 file_pages) {
  for (u32 i = 0; i < 60; ++i) {
    const std::string name = fmt::format("d/f{}", i);
    writer.create(name);
    writer.write(name, 0, file_pages * page_size);
  }
  writer.create("big");
  FileOperation op;
  op.opcode = wire::Opcode::fallocate;
  op.inode = writer.at("big");
  op.mode = 1;  // FALLOC_FL_KEEP_SIZE
  for (u64 length = u64{1} << 20; length >= page_size; length /= 4) {
    for (op.length = length; writer.run(op).status == Status::ok;) op.offset += length;
  }
}

CrashBase make_full_base(const SharedPool& pool) {
  return make_crash_base(pool.shape, CrashPlace::one_device,
                         [&](CrashWriter& writer) { use_up_stripes(writer, pool.file_pages); });
}

// Each write within a page: longer ones may become durable in pieces.
CrashHistory shared_history() {
  CrashHistory history{"shared", CrashPlace::one_device, 2, {}};
  history.body = [](CrashWriter& w) {
    w.create("r1");
    w.write("r1", 0, 4000);
    w.fsync("r1");
    w.write("d/f3", 100, 300);
    w.write("d/f4", page_size, page_size);
    w.fsync("d/f4");
    w.write("r1", 2 * page_size, 4000);
    w.write("d/f5", 10, 20);
    w.unlink("d/f7");
    w.sync();
    w.checkpoint();
    w.write("d/f9", 0, page_size);
    w.fsync("d/f9");
    w.write("d/f11", 2 * page_size, 1000);
    w.write("r1", 0, 5);
    w.checkpoint();
    w.write("d/f10", 0, 700);
    w.sync();
  };
  return history;
}

// The place of a row's record in the entry, ~0: none.
u64 find_row_record(const device::WriteLogEntry& entry) {
  if (entry.kind != device::WriteLogKind::write) return ~u64{0};
  for (u64 at = 0; at + sizeof(format::LogRecord) <= entry.bytes.size(); at += format::log_record_granule) {
    format::LogRecord record;
    std::memcpy(&record, &entry.bytes[at], sizeof(record));
    const u64 pages = record.data_length / page_size;
    if (record.opcode == format::LogOpcode::row && record.data_length % page_size == 0 &&
        pages > popcount(record.number) &&
        record.length == format::log_record_layout(0, record.data_length, 0).length) {
      return at;
    }
  }
  return ~u64{0};
}

bool is_row_record(const device::WriteLogEntry& entry) {
  return find_row_record(entry) != ~u64{0};
}

u64 count_row_records(const CrashRecord& record) {
  u64 count = 0;
  for (const device::WriteLogEntry& entry : record.entries) count += is_row_record(entry) ? 1 : 0;
  return count;
}

class SharedRows : public ::testing::TestWithParam<SharedPool> {
 protected:
  void SetUp() override {
    previous_ = set_check_handler([](const CheckFailure& failure) {
      std::fprintf(stderr, "GPU4FS_LOSS_ID=%s\n%s:%d: check %s fails\n", LossExplorer::current_id().c_str(),
                   failure.file, static_cast<int>(failure.line), failure.expression);
      std::abort();
    });
  }
  void TearDown() override { set_check_handler(previous_); }

  CheckHandler previous_ = nullptr;
};

TEST_P(SharedRows, CrashAndLossTakeNothingThatWasPromised) {
  const CrashBase base = make_full_base(GetParam());
  const LossShape shape = LossShape::of(base.devices);
  CrashRecord record = record_history(shared_history(), base);
  ASSERT_GT(count_row_records(record), 8u) << "the history does not do what it is for";
  LossOptions options;
  options.all_sets = number_from("GPU4FS_LOSS_ALL", 0) != 0;
  if (!options.all_sets) {
    options.before_every = is_short() ? 6 : 2;
    options.after_every = 2 * options.before_every;
  }
  const char* only = std::getenv("GPU4FS_LOSS_ID");
  if (only != nullptr) options.only = only;
  const LossCounts counts = LossExplorer(GetParam().name, std::move(record), shape, options).explore();
  for (const std::string& failure : counts.failures) ADD_FAILURE() << failure;
  if (only == nullptr && counts.failures.empty()) {
    EXPECT_GT(counts.lost_before, 20u);
    EXPECT_GT(counts.lost_after, 10u);
  }
  std::printf("%llu states, %llu recovered without some devices, %llu recovered and then without some\n",
              static_cast<unsigned long long>(counts.states), static_cast<unsigned long long>(counts.lost_before),
              static_cast<unsigned long long>(counts.lost_after));
}

INSTANTIATE_TEST_SUITE_P(Pools, SharedRows, ::testing::ValuesIn(pools),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

// Rows that are written before their record is durable would be noticed: the test drops the records, and explores the
// states before the log has anything after them.
TEST(SharedRowsWithoutRecords, AreCaught) {
  const CrashBase base = make_full_base(pools[0]);
  const LossShape shape = LossShape::of(base.devices);
  const CrashRecord whole = record_history(shared_history(), base);
  u32 made = 0;
  u32 caught = 0;
  for (std::size_t first = 0; first < whole.entries.size() && caught == 0; ++first) {
    if (!is_row_record(whole.entries[first])) continue;
    CrashRecord record = whole;
    // The other log devices have it directly after this one.
    std::size_t end = first;
    while (end < record.entries.size() && is_row_record(record.entries[end])) ++end;
    record.entries.erase(record.entries.begin() + static_cast<std::ptrdiff_t>(first),
                         record.entries.begin() + static_cast<std::ptrdiff_t>(end));
    LossOptions options;
    options.all_sets = true;
    options.after_every = 1u << 30;
    options.failure_max = 1;
    options.first_moment = first;
    options.last_moment = first + 12;
    ++made;
    caught += LossExplorer("mutant", std::move(record), shape, options).explore().failures.empty() ? 0 : 1;
    first = end;
  }
  EXPECT_GT(made, 0u);
  EXPECT_GT(caught, 0u);
}

// Changes the last parity in the record, as if a recovery wrote it wrong or not at all.
void spoil_parity(device::WriteLogEntry& entry, u64 seed) {
  u8* bytes = &entry.bytes[find_row_record(entry)];
  format::LogRecord record;
  std::memcpy(&record, bytes, sizeof(record));
  const u64 data_end = format::log_record_layout(0, record.data_length, 0).data_offset + record.data_length;
  for (u64 i = data_end - page_size; i < data_end; ++i) bytes[i] ^= 0x5a;
  record.checksum = 0;
  std::memcpy(bytes, &record, sizeof(record));
  record.checksum = xxh3_64(bytes, record.length, seed ^ record.lsn);
  std::memcpy(bytes, &record, sizeof(record));
}

TEST(SharedRowsWithWrongParities, AreCaught) {
  const CrashBase base = make_full_base(pools[0]);
  const LossShape shape = LossShape::of(base.devices);
  CrashRecord record = record_history(shared_history(), base);
  u64 seed = 0;
  u64 first = 0;
  u32 spoilt = 0;
  for (std::size_t i = 0; i < record.entries.size(); ++i) {
    device::WriteLogEntry& entry = record.entries[i];
    const bool is_superblock =
        entry.kind == device::WriteLogKind::write && entry.bytes.size() == page_size &&
        (entry.offset == format::superblock_offset_a || entry.offset == format::superblock_offset_b);
    if (is_superblock) std::memcpy(&seed, &entry.bytes[offsetof(format::Superblock, log_seed)], sizeof(seed));
    if (!is_row_record(entry)) continue;
    if (spoilt++ == 0) first = i;
    spoil_parity(entry, seed);
  }
  ASSERT_GT(spoilt, 1u);
  LossOptions options;
  options.all_sets = true;
  options.after_every = 1u << 30;
  options.failure_max = 1;
  options.first_moment = first;
  options.last_moment = first + 30;
  const LossCounts counts = LossExplorer("mutant", std::move(record), shape, options).explore();
  ASSERT_FALSE(counts.failures.empty());
  EXPECT_EQ(counts.failures[0].find("the operation log"), std::string::npos) << "that was a bad record\n"
                                                                             << counts.failures[0];
}

}  // namespace
}  // namespace gpu4fs::test::shared_rows_test
