// The cycles of commands by phase, in a program whose engine is compiled with GPU4FS_TRACE.
#include "base/trace.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <functional>
#include <string>

#include "engine/file_fixture.hpp"

namespace gpu4fs::test {
namespace {

static_assert(trace_is_compiled_in);

struct Traced {
  TraceTotals totals;
  u64 sum;       // of all phases, cycles
  u64 duration;  // cycles
  u64 optimistic;

  u64 points(TracePhase phase) const { return totals.points[static_cast<u32>(phase)]; }
};

class Trace : public ::testing::Test {
 protected:
  Trace() {
    // The clocks of two cores may differ.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    file_ = client_.create("file").result;
    std::memset(client_.data(), 7, 4 * page_size);
    EXPECT_EQ(client_.write(file_, 0, 4 * page_size).status, Status::ok);
    EXPECT_EQ(client_.read(file_, 0, 2 * page_size).status, Status::ok);
    EXPECT_EQ(client_.lookup("file").status, Status::ok);
  }

  // What one command adds. The thread that calls is the engine's only worker.
  Traced trace(const std::function<ring::Completion()>& call) {
    const TraceTotals before = engine_.host().trace();
    const u64 optimistic = engine_.host().counters().commands_optimistic;
    const u64 begin = detail::trace_clock();
    EXPECT_EQ(call().status, Status::ok);
    const u64 end = detail::trace_clock();
    Traced traced{engine_.host().trace(), 0, end - begin, engine_.host().counters().commands_optimistic - optimistic};
    for (u32 i = 0; i < trace_phase_count; ++i) {
      traced.totals.cycles[i] -= before.cycles[i];
      traced.totals.points[i] -= before.points[i];
      EXPECT_TRUE(traced.totals.points[i] != 0 || traced.totals.cycles[i] == 0) << i;
      traced.sum += traced.totals.cycles[i];
    }
    return traced;
  }

  FileEngine engine_{FileEngineOptions{.worker_count = 1, .start = false}};
  FileClient client_{engine_};
  u64 file_ = 0;
};

// Phases follow each other and do not overlap, so they do not take longer than the call.
void expect_within_the_call(const Traced& traced) {
#if GPU4FS_X86_64
  EXPECT_GT(traced.sum, 0u);
#endif
  EXPECT_LE(traced.sum, traced.duration);
}

TEST_F(Trace, AReadWithoutLocks) {
  const Traced read = trace([&] { return client_.read(file_, page_size, page_size); });
  ASSERT_EQ(read.optimistic, 1u);
  for (const TracePhase phase :
       {TracePhase::fetch, TracePhase::slot, TracePhase::name, TracePhase::gate, TracePhase::translate,
        TracePhase::transfer, TracePhase::fence, TracePhase::completion, TracePhase::leave, TracePhase::claims}) {
    EXPECT_EQ(read.points(phase), 1u) << static_cast<u32>(phase);
  }
  for (const TracePhase phase : {TracePhase::lock, TracePhase::finish, TracePhase::commit, TracePhase::unlock}) {
    EXPECT_EQ(read.points(phase), 0u) << static_cast<u32>(phase);
  }
  expect_within_the_call(read);
}

TEST_F(Trace, AReadTheOrdinaryWay) {
  const Traced read = trace([&] { return client_.read(file_, 0, 2 * page_size); });
  ASSERT_EQ(read.optimistic, 0u);
  for (const TracePhase phase :
       {TracePhase::fetch, TracePhase::slot, TracePhase::prepare, TracePhase::inode, TracePhase::lock, TracePhase::map,
        TracePhase::transfer, TracePhase::fence, TracePhase::completion, TracePhase::unlock}) {
    EXPECT_GE(read.points(phase), 1u) << static_cast<u32>(phase);
  }
  expect_within_the_call(read);
}

TEST_F(Trace, ACreate) {
  const Traced create = trace([&] { return client_.create("other"); });
  for (const TracePhase phase : {TracePhase::claim, TracePhase::reserve, TracePhase::commit, TracePhase::unlock}) {
    EXPECT_GE(create.points(phase), 1u) << static_cast<u32>(phase);
  }
  expect_within_the_call(create);
}

}  // namespace
}  // namespace gpu4fs::test
