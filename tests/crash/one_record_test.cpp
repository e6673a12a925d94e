// An operation's changes are one record of the log, so a crash leaves all of it or nothing. Operations of many commits
// (docs/internals/durability.md) do not occur: files are small, and the pools have room.
#include <gtest/gtest.h>

#include "crash/crash_histories.hpp"

namespace gpu4fs::test::one_record_test {
namespace {

// Counts the records of each operation.
class RecordCounter : public CrashWriter {
 public:
  RecordCounter(CrashPool& pool, PosixModel model, CrashRecord* record)
      : CrashWriter(pool, std::move(model), nullptr, record), log_(pool.engine()->fs.log), record_(record) {}

  client::Reply run(const FileOperation& op) override {
    const u64 before = log_.tail;
    const client::Reply reply = CrashWriter::run(op);
    u64 count = 0;
    for (u64 lsn = before; lsn < log_.tail;) {
      const auto& record = *reinterpret_cast<const format::LogRecord*>(log_.ring + lsn % log_.capacity);
      if (record.lsn != lsn || record.length == 0) throw std::runtime_error("no record where one should be");
      if (record.opcode != format::LogOpcode::filler) ++count;
      lsn += record.length;
    }
    if (count > 1) several_ += fmt::format("{}: {} records\n", record_->operations.back(), count);
    operation_count_ += count;
    return reply;
  }
  const std::string& several() const { return several_; }
  u64 record_count() const { return operation_count_; }

 private:
  const fs::OperationLog& log_;
  CrashRecord* record_;
  std::string several_;
  u64 operation_count_ = 0;
};

// The operations of the history that make several records.
std::string several_of(const CrashHistory& history, u64* record_count) {
  const CrashBase& base = base_of(history.place);
  CrashImage image(base.devices);
  CrashPool pool(image, nullptr, history.id.c_str());
  CrashRecord record;
  RecordCounter counter(pool, base.model, &record);
  history.body(counter);
  *record_count += counter.record_count();
  return counter.several() + record.problem;
}

TEST(OneRecord, EachOperationAlone) {
  for (const CrashHistory& history : crash_histories(0, 0)) {
    if (!history.id.starts_with("alone_") || history.place == CrashPlace::nearly_full) continue;
    u64 count = 0;
    EXPECT_EQ(several_of(history, &count), "") << history.id;
    EXPECT_GE(count, 2u) << history.id;
  }
}

TEST(OneRecord, RandomOperations) {
  u64 count = 0;
  for (u64 seed = 1; seed <= 200; ++seed) {
    const std::vector<CrashHistory> history = crash_histories_of(fmt::format("random_{}", seed));
    ASSERT_EQ(history.size(), 1u);
    if (history.front().place == CrashPlace::nearly_full) continue;
    EXPECT_EQ(several_of(history.front(), &count), "") << history.front().id;
  }
  EXPECT_GT(count, 1000u);
}

// The situation that the crash explorer has to test does occur.
TEST(CrashHistories, ShrinkingGivesPagesBack) {
  for (const CrashPlace place : {CrashPlace::one_device, CrashPlace::two_devices, CrashPlace::mixed}) {
    const CrashHistory history = detail::shrinking(place);
    const CrashBase& base = base_of(place);
    CrashImage image(base.devices);
    CrashPool pool(image, nullptr, history.id.c_str());
    CrashRecord record;
    CrashWriter writer(pool, base.model, nullptr, &record);
    history.body(writer);
    EXPECT_EQ(record.problem, "");
    EXPECT_GE(pool.engine()->fs.inode_pages_given_back, 2u) << history.id;
    EXPECT_GE(pool.engine()->fs.directory_pages_given_back, 2u) << history.id;
  }
}

}  // namespace
}  // namespace gpu4fs::test::one_record_test
