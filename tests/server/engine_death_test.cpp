// Who reports the death of a simulated engine, and how often.
#include "server/engine_death.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "support/played_engine.hpp"

namespace gpu4fs::server::test::engine_death_test {
namespace {

using gpu4fs::test::PlayedEngine;

TEST(EngineDeath, IsReportedOnceByWhoeverSeesItFirst) {
  PlayedEngine engine;
  EngineDeath death(engine);
  std::atomic<u32> calls{0};
  death.on_death([&] {
    EXPECT_TRUE(death.is_reported());
    ++calls;
  });
  death.report();
  EXPECT_FALSE(death.is_reported()) << "it lives";
  EXPECT_EQ(calls, 0u);

  engine.die("a check failed");
  EXPECT_FALSE(death.is_reported()) << "nobody has seen it";
  testing::internal::CaptureStderr();
  constexpr u32 thread_count = 4;
  std::latch all_here(thread_count);
  std::vector<std::thread> threads;
  for (u32 i = 0; i < thread_count; ++i) {
    threads.emplace_back([&] {
      all_here.arrive_and_wait();
      for (u32 round = 0; round < 100; ++round) death.report();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(calls, 1u);
  EXPECT_TRUE(death.is_reported());
  const std::size_t reason = log.find("a check failed");
  ASSERT_NE(reason, std::string::npos) << log;
  EXPECT_EQ(log.find("a check failed", reason + 1), std::string::npos) << log;
}

TEST(EngineDeath, NeedsNobodyWhoHearsOfIt) {
  PlayedEngine engine;
  EngineDeath death(engine);
  engine.die("a check failed");
  death.report();
  EXPECT_TRUE(death.is_reported());
}

}  // namespace
}  // namespace gpu4fs::server::test::engine_death_test
