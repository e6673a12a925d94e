// The work of the thread that answers upcalls, for a simulated engine.
#include "server/upcall_server.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/stack/device_stack.hpp"
#include "support/memory_folder.hpp"
#include "support/played_pool.hpp"

namespace gpu4fs::server::test::upcall_server_test {
namespace {

using gpu4fs::test::CommandList;
using gpu4fs::test::of;
using gpu4fs::test::PlayedHost;
using gpu4fs::test::PlayedPool;
using ring::UpcallKind;

const auto answers = of(wire::Opcode::upcall_done);

// The flushes of a device, which fail on request of the test.
class FlushWatch final : public device::StackLayer {
 public:
  struct State {
    std::atomic<bool> fails{false};
    std::atomic<u32> count{0};
  };

  explicit FlushWatch(State& state) : state_(state) {}
  Status may_flush() override { return state_.fails ? Status::device_failed : Status::ok; }
  void flushed() override { ++state_.count; }

 private:
  State& state_;
};

class UpcallServerTest : public ::testing::Test {
 protected:
  UpcallServerTest() {
    for (FlushWatch::State& flushes : flushes_) {
      std::vector<std::unique_ptr<device::StackLayer>> layers;
      layers.push_back(std::make_unique<FlushWatch>(flushes));
      pool_.add_device(device::MappedFile::anonymous(PlayedPool::device_bytes,
                                                     std::make_shared<device::DeviceStack>(std::move(layers))));
    }
    pool_.add_chunk();
    pool_.mounted.setup.upcalls = &ring_;
    server_.start(pool_.open_session());
  }
  ~UpcallServerTest() override { stop(); }

  void stop() {
    if (std::exchange(is_stopped_, true)) return;
    server_.stop();
    server_.close_session();
  }
  void ask(UpcallKind kind, u64 argument, u32 detail = 0, u64 id = 0) {
    pool_.engine().ask({kind, detail, argument, id});
  }
  // Sends an upcall that needs an answer, and waits for it.
  wire::Command call(UpcallKind kind, u64 argument, u32 detail = 0) {
    const u64 id = ++last_id_;
    const CommandList::Filter is_answer = [id](const wire::Command& c) { return answers(c) && c.inode == id; };
    ask(kind, argument, detail, id);
    if (!pool_.engine().commands().wait_for(1, is_answer)) ADD_FAILURE() << "no answer to upcall " << id;
    EXPECT_EQ(pool_.engine().commands().count(is_answer), 1u);
    for (const wire::Command& command : pool_.engine().commands().all()) {
      if (is_answer(command)) return command;
    }
    return {};
  }
  static Status status_of(const wire::Command& answer) { return static_cast<Status>(answer.offset); }
  std::vector<u32> take_flushes() { return {flushes_[0].count.exchange(0), flushes_[1].count.exchange(0)}; }

  FlushWatch::State flushes_[2];
  PlayedPool pool_;
  ring::UpcallRing ring_{};
  PlayedHost host_;
  maintenance::ChunkMapper mapper_{pool_.mounted, session::ServerPurpose::mount};
  maintenance::PoolGrower grower_{pool_.mounted, mapper_, host_};
  ChunkMaker maker_{grower_};
  EngineDeath death_{pool_.engine()};
  UpcallServer server_{pool_.mounted, mapper_, grower_, maker_, death_};
  u64 last_id_ = 0;
  bool is_stopped_ = false;
};

TEST_F(UpcallServerTest, FlushesOneDeviceOrAll) {
  EXPECT_EQ(status_of(call(UpcallKind::flush_device, 1)), Status::ok);
  EXPECT_EQ(take_flushes(), (std::vector<u32>{0, 1}));
  const wire::Command answer = call(UpcallKind::flush_device, ~u64{0});
  EXPECT_EQ(status_of(answer), Status::ok);
  EXPECT_EQ(answer.aux, 0u);
  EXPECT_EQ(take_flushes(), (std::vector<u32>{1, 1}));
}

TEST_F(UpcallServerTest, CountsADeviceAsFailedUntilItsErrorsAreForgotten) {
  flushes_[1].fails = true;
  wire::Command answer = call(UpcallKind::flush_device, ~u64{0});
  EXPECT_EQ(status_of(answer), Status::device_failed);
  EXPECT_EQ(answer.aux, u64{1} << 1);
  EXPECT_EQ(take_flushes(), (std::vector<u32>{1, 0}));
  EXPECT_EQ(server_.flush_errors(1), 1u);

  flushes_[1].fails = false;
  answer = call(UpcallKind::flush_device, ~u64{0});
  EXPECT_EQ(status_of(answer), Status::device_failed) << "what was lost stays lost";
  EXPECT_EQ(answer.aux, u64{1} << 1);
  EXPECT_EQ(take_flushes(), (std::vector<u32>{1, 0}));
  EXPECT_EQ(server_.flush_errors(0), 0u);

  server_.forget_errors(1);
  answer = call(UpcallKind::flush_device, ~u64{0});
  EXPECT_EQ(status_of(answer), Status::ok);
  EXPECT_EQ(answer.aux, 0u);
  EXPECT_EQ(take_flushes(), (std::vector<u32>{1, 1}));
}

// A discard may take long. Whoever needs its chunk waits, and nobody else.
TEST_F(UpcallServerTest, PutsOffWhoNeedsAChunkThatIsBeingDiscarded) {
  mapper_.begin_discards(0);
  EXPECT_FALSE(mapper_.is_wanted(0));
  ask(UpcallKind::map_chunk, 0, 0, 77);
  for (u32 round = 0; round < 3; ++round) EXPECT_EQ(status_of(call(UpcallKind::flush_device, 0)), Status::ok);
  const CommandList::Filter is_late = [](const wire::Command& c) { return answers(c) && c.inode == 77; };
  EXPECT_EQ(pool_.engine().commands().count(is_late), 0u);
  EXPECT_TRUE(mapper_.is_wanted(0));
  mapper_.end_discards();
  ASSERT_TRUE(pool_.engine().commands().wait_for(1, is_late));
  for (const wire::Command& command : pool_.engine().commands().all()) {
    if (!is_late(command)) continue;
    EXPECT_EQ(status_of(command), Status::ok);
  }
}

TEST_F(UpcallServerTest, AnswersNobodyWhoWantsNoAnswer) {
  testing::internal::CaptureStderr();
  ask(UpcallKind::wake_client, 0);
  ask(UpcallKind::log, 0xabc, 12);
  ask(UpcallKind::none, 0);
  call(UpcallKind::flush_device, 0);
  stop();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(pool_.engine().commands().all().size(), 1u);
  EXPECT_NE(log.find("the engine reports 12 0xabc"), std::string::npos) << log;
}

TEST_F(UpcallServerTest, NamesTheFileOfALostDeviceUnlessAnotherTookItsPlace) {
  pool_.mounted.setup.file_numbers[1] = 5;
  EXPECT_FALSE(server_.has_lost_devices());
  testing::internal::CaptureStderr();
  ask(UpcallKind::device_lost, 1, 5);
  ask(UpcallKind::device_lost, 1, 4);
  ask(UpcallKind::device_lost, 2, 0);  // there is no such device
  call(UpcallKind::flush_device, 0);
  stop();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(server_.has_lost_devices());
  EXPECT_EQ(pool_.engine().commands().all().size(), 1u);
  const std::string name = pool_.mounted.setup.files[1].path();
  const std::size_t named = log.find("device 1 failed and is not used any more: " + name);
  ASSERT_NE(named, std::string::npos) << log;
  const std::size_t unnamed = log.find("device 1 failed and is not used any more; another has taken its place");
  ASSERT_NE(unnamed, std::string::npos) << log;
  EXPECT_LT(named, unnamed);
  EXPECT_EQ(log.find("device 2"), std::string::npos) << log;
}

// They check which devices are lost when they are set, and again at each loss.
TEST_F(UpcallServerTest, TellsTheSparesOfALostDevice) {
  pool_.mounted.pool.devices[0].state = pool_.mounted.pool.devices[1].state = pool::MemberState::here;
  const std::string path = gpu4fs::test::memory_folder() + "/gpu4fs_spare_" + std::to_string(::getpid());
  pool::DeviceFile::create(path, u64{64} << 20);
  maintenance::Rebuilder rebuilder(pool_.mounted, grower_, host_);
  maintenance::DeviceExchange exchange(pool_.mounted, mapper_, grower_, rebuilder, host_);
  {
    maintenance::SpareDevices spares(pool_.mounted, exchange, rebuilder);
    EXPECT_EQ(spares.add(path, false), "");
    EXPECT_TRUE(pool_.engine().commands().wait_for(1, of(wire::Opcode::health)));
    server_.set_spares(&spares);
    ask(UpcallKind::device_lost, 1);
    EXPECT_TRUE(pool_.engine().commands().wait_for(2, of(wire::Opcode::health)));
    server_.set_spares(nullptr);
  }
  std::filesystem::remove(path);
}

TEST_F(UpcallServerTest, MapsChunksThatAreThere) {
  EXPECT_EQ(status_of(call(UpcallKind::map_chunk, 0)), Status::ok);
  EXPECT_EQ(pool_.engine().take_mapped().size(), 2u);
  EXPECT_TRUE(mapper_.is_mapped(0));
  EXPECT_EQ(status_of(call(UpcallKind::map_chunk, 1)), Status::stale);
  EXPECT_EQ(pool_.engine().take_mapped().size(), 0u);
}

TEST_F(UpcallServerTest, WritesNoGrowthThatWasWithdrawn) {
  EXPECT_EQ(status_of(call(UpcallKind::write_growth, 3, 1)), Status::stale);
}

TEST_F(UpcallServerTest, LeavesChunksToWhoeverMakesThem) {
  EXPECT_EQ(status_of(call(UpcallKind::make_chunk, 0)), Status::no_space) << "nobody makes any";
  EXPECT_EQ(host_.commands().all().size(), 0u);
  // On hold it creates none, and tells the engine the room after each attempt.
  grower_.hold();
  maker_.start(pool_.open_session());
  EXPECT_EQ(status_of(call(UpcallKind::make_chunk, 0)), Status::no_space);
  EXPECT_EQ(host_.commands().count(of(wire::Opcode::grow, wire::grow_room)), 1u);
  maker_.stop();
  maker_.close_session();
}

// It may have sent a request between the last poll and its death.
TEST_F(UpcallServerTest, ReadsWhatADeadEngineAskedForAndEnds) {
  const u64 id = ++last_id_;
  pool_.engine().when_idle([&, id] {
    pool_.engine().die("a check failed");
    ask(UpcallKind::flush_device, 0, 0, id);
  });
  EXPECT_TRUE(pool_.engine().commands().wait_for(1, answers));
  EXPECT_EQ(take_flushes(), (std::vector<u32>{1, 0}));
  stop();
  EXPECT_TRUE(death_.is_reported());
  EXPECT_EQ(pool_.engine().commands().all().size(), 1u);
  EXPECT_EQ(pool_.engine().open_session_count(), 0u);
}

}  // namespace
}  // namespace gpu4fs::server::test::upcall_server_test
