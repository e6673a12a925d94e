// Status codes, checks and locks.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/locks.hpp"
#include "base/status.hpp"

namespace gpu4fs {
namespace {

TEST(Status, EveryCodeHasNameErrnoAndSentence) {
  std::set<std::string> names;
  for (u32 code = 0; code < status_count; ++code) {
    const Status status = static_cast<Status>(code);
    EXPECT_TRUE(names.insert(status_name(status)).second) << status_name(status);
    const std::string text = status_text(status);
    EXPECT_GT(text.size(), 5u);
    EXPECT_EQ(text.back(), '.') << text;
    EXPECT_GT(to_errno(status), code == 0 ? -1 : 0) << status_name(status);
    EXPECT_LT(to_errno(status), 4096);
  }
  EXPECT_EQ(to_errno(Status::ok), 0);
  EXPECT_EQ(to_errno(Status::not_found), ENOENT);
  EXPECT_EQ(to_errno(Status::checksum_mismatch), EIO);
  EXPECT_EQ(to_errno(Status::waits_for_lock), EINPROGRESS);
  EXPECT_EQ(to_errno(static_cast<Status>(status_count)), EIO);
  EXPECT_STREQ(status_name(static_cast<Status>(status_count)), "unknown");
}

TEST(Status, ControlCodesAreNoAnswers) {
  std::set<std::string> waits;
  std::set<std::string> others;
  for (u32 code = 0; code < status_count; ++code) {
    const Status status = static_cast<Status>(code);
    if (is_wait(status)) {
      EXPECT_TRUE(is_control(status)) << status_name(status);
      waits.insert(status_name(status));
    } else if (is_control(status)) {
      others.insert(status_name(status));
    }
  }
  EXPECT_EQ(waits, (std::set<std::string>{"waits_for_lock", "waits_for_gate", "waits_for_drain", "waits_for_epoch",
                                          "waits_for_log", "waits_for_answer", "waits_for_io",
                                          "waits_for_media"}));
  EXPECT_EQ(others, (std::set<std::string>{"retry_after_checkpoint", "chunk_not_mapped", "needs_new_chunk", "again"}));
}

Status doubled(int value, int& result) {
  if (value < 0) return Status::out_of_range;
  result = 2 * value;
  return Status::ok;
}

Status doubled_twice(int value, int& result) {
  GPU4FS_TRY([&] {
    GPU4FS_TRY(doubled(value, result));
    return Status::ok;
  }());
  GPU4FS_TRY(doubled(result, result));
  return Status::ok;
}

TEST(Status, TryReturnsTheFirstFailure) {
  int result = 0;
  EXPECT_EQ(doubled_twice(3, result), Status::ok);
  EXPECT_EQ(result, 12);
  EXPECT_EQ(doubled_twice(-1, result), Status::out_of_range);
  EXPECT_EQ(result, 12);
}

struct Failure {
  std::string expression;
  u64 left;
  u64 right;
  u32 line;
};

class CheckTest : public testing::Test {
 protected:
  void SetUp() override {
    previous_ = set_check_handler([](const CheckFailure& failure) {
      throw Failure{failure.expression, failure.left, failure.right, failure.line};
    });
  }
  void TearDown() override { set_check_handler(previous_); }

  template <class Body>
  static bool fails(Body&& body) {
    try {
      body();
    } catch (const Failure&) {
      return true;
    }
    return false;
  }

 private:
  CheckHandler previous_ = nullptr;
};

TEST_F(CheckTest, RecordsBothValues) {
  const u64 big = 41;
  try {
    GPU4FS_CHECK_EQ(big + 1, u32{43});
    FAIL() << "the check passed";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.expression, "big + 1 == u32{43}");
    EXPECT_EQ(failure.left, 42u);
    EXPECT_EQ(failure.right, 43u);
    EXPECT_GT(failure.line, 0u);
  }
}

TEST_F(CheckTest, ComparesByValue) {
  EXPECT_FALSE(fails([] { GPU4FS_CHECK_EQ(5u, 5); }));
  EXPECT_FALSE(fails([] { GPU4FS_CHECK_LT(-1, 5u); }));
  EXPECT_TRUE(fails([] { GPU4FS_CHECK_EQ(-1, 0xffffffffu); }));
  EXPECT_TRUE(fails([] { GPU4FS_CHECK_GT(-1, u64{1}); }));
  EXPECT_FALSE(fails([] { GPU4FS_CHECK_GE(u64{1}, -1); }));
  EXPECT_TRUE(fails([] { GPU4FS_CHECK_LE(3, 2); }));
  EXPECT_FALSE(fails([] { GPU4FS_CHECK_LE(2, 2); }));
  EXPECT_TRUE(fails([] { GPU4FS_CHECK_NE(7, 7); }));
  EXPECT_TRUE(fails([] { GPU4FS_CHECK_NE(static_cast<const char*>(nullptr), nullptr); }));
  EXPECT_TRUE(fails([] { GPU4FS_CHECK_OK(Status::io_error); }));
  EXPECT_FALSE(fails([] { GPU4FS_CHECK_OK(Status::ok); }));
  EXPECT_TRUE(fails([] { GPU4FS_CHECK(1 + 1 == 3); }));
}

TEST_F(CheckTest, EvaluatesArgumentsOnce) {
  int count = 0;
  GPU4FS_CHECK_EQ(++count, 1);
  GPU4FS_CHECK(++count == 2);
  EXPECT_EQ(count, 2);
}

TEST(CheckDeathTest, PrintsAndAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const u32 free_pages = 3;
  EXPECT_DEATH(GPU4FS_CHECK_GE(free_pages, 4),
               "base/status_check_test.cpp:[0-9]+: check failed: free_pages >= 4 .3 = 0x3, 4");
  EXPECT_DEATH(GPU4FS_UNREACHABLE("no such level"), "no such level");
}

TEST(TicketLock, ExcludesAndCounts) {
  TicketLock lock{};
  u64 counter = 0;
  constexpr u32 thread_count = 6;
  constexpr u32 round_count = 500;
  std::vector<std::thread> threads;
  for (u32 t = 0; t < thread_count; ++t) {
    threads.emplace_back([&] {
      for (u32 i = 0; i < round_count; ++i) {
        lock.lock();
        counter += 1;  // protected only by the lock
        lock.unlock();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter, u64{thread_count} * round_count);
  EXPECT_FALSE(lock.is_locked());
}

TEST(TicketLock, ServesInOrder) {
  TicketLock lock{};
  lock.lock();
  EXPECT_FALSE(lock.try_lock());
  std::vector<u32> order;
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      lock.lock();
      order.push_back(t);
      lock.unlock();
    });
    // The next thread starts only when this one holds its ticket.
    while (load<Order::acquire, Scope::engine>(&lock.next_ticket) != t + 2) backoff(1000);
  }
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<u32>{0, 1, 2, 3}));
  EXPECT_TRUE(lock.try_lock());
  EXPECT_TRUE(lock.is_locked());
  lock.unlock();
}

TEST(TicketLock, SurvivesTheWrapOfItsTickets) {
  TicketLock lock{0xfffffffeu, 0xfffffffeu};
  for (u32 i = 0; i < 5; ++i) {
    lock.lock();
    lock.unlock();
  }
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
  EXPECT_EQ(lock.next_ticket, 4u);
}

}  // namespace
}  // namespace gpu4fs
