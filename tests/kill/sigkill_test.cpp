// A server is killed by SIGKILL some milliseconds into its work, hundreds of times, and each time the pool is opened
// again. Every client finds one of its states, none from before an acknowledged sync, and no operation is present
// without those that its client had seen (model/actor.hpp). fsck checks some of the pools before they are opened.
//
// The server is a child process with its clients in threads, over files on tmpfs: the kill interrupts stores,
// checkpoints, mounts and recoveries. The moments are random and not repeatable; a failure prints the operations.
//
// Environment: GPU4FS_KILL_COUNT: number of kills, default 320; GPU4FS_TEST_SCALE: percent of them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "kill/kill_journal.hpp"
#include "server/pool_server.hpp"
#include "support/basic_test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::sigkill_test {
namespace {

constexpr u64 session_bytes = u64{128} << 10;

SourceOptions small_actor() {
  SourceOptions options = actor_source_options();
  options.node_max = 6;
  options.offset_max = u64{12} << 10;
  options.length_max = u64{8} << 10;
  return options;
}

std::unique_ptr<client::Session> open_session(server::PoolServer& server) {
  server::LocalSession local = server.open_session(session_bytes);
  return std::make_unique<client::Session>(client::Connection{local.producer, local.port, std::move(local.owner)});
}

class Killed {
 public:
  // `forgets_syncs`: a mistake for the test of the test; syncs are acknowledged but not executed.
  explicit Killed(u64 seed, bool forgets_syncs = false) : random_(seed), forgets_syncs_(forgets_syncs) {
    pool::MakePoolOptions make;
    for (u32 i = 0; i < 2; ++i) make.device_paths.push_back(folder_.device(i));
    make.size_bytes = u64{24} << 20;
    make.chunk_size_bytes = u64{8} << 20;
    make.root_uid = make.root_gid = 0;
    pool::make_pool(make);
    server::PoolServer server(options());
    server.start();
    {
      const auto session = open_session(server);
      FileClient client(*session);
      for (u32 i = 0; i < kill_actor_count; ++i) {
        FileOperation op;
        op.opcode = wire::Opcode::mkdir;
        op.inode = PosixModel::root;
        op.name = fmt::format("actor{}", i);
        op.mode = 0755;
        const client::Reply reply = client.call(op);
        if (reply.status != Status::ok) throw std::runtime_error("mkdir fails");
        actors_.emplace_back(seed * 100 + i, reply.result, small_actor());
      }
    }
    if (!server.stop()) throw std::runtime_error("the first unmount fails");
  }

  u64 operations = 0;
  u64 lost = 0;  // operations that had ended and are gone, as may be
  u64 replayed = 0;
  u64 unstarted = 0;  // kills before the mount had ended
  u64 checkpoints = 0;

  // One kill. Returns "" or the fault.
  std::string round(u64 number) {
    journal_->reset();
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child < 0) return "fork fails";
    if (child == 0) serve();
    const bool hits_mount = number % 6 == 5;
    while (!hits_mount && journal_->is_started == 0 && journal_->has_problem == 0) wait_us(200);
    wait_us(1000 + random_.next() % (hits_mount ? 15'000 : 49'000));  // the moment of the kill
    const bool had_problem = journal_->has_problem != 0;
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (had_problem) return fmt::format("while it ran: {}", journal_->problem);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
      return fmt::format("the server ended on its own: {:#x}", status);
    unstarted += journal_->is_started == 0 ? 1 : 0;
    checkpoints += journal_->checkpoints;
    const std::string problem = follow_journal();
    if (!problem.empty()) return problem;
    if (number % 8 == 0) {
      const std::string found = check();
      if (!found.empty()) return found;
    }
    return reopen(random_.next() % 4 != 0);
  }

  std::string check() {
    fsck::CheckOptions check_options;
    check_options.device_paths = options().device_paths;
    const fsck::CheckResult result = fsck::check_pool(check_options);
    return errors_of_a_crash(result) == 0 ? "" : "fsck:" + findings_text(result);
  }

 private:
  session::ServerOptions options() const {
    session::ServerOptions options;
    options.device_paths = {folder_.device(0), folder_.device(1)};
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 1;
    options.commit_interval_s = 0;
    options.cache_bytes = u64{8} << 20;
    return options;
  }
  static void wait_us(u64 duration_us) { std::this_thread::sleep_for(std::chrono::microseconds(duration_us)); }

  // ---- in the child, until it is killed

  [[noreturn]] void serve() {
    try {
      server::PoolServer server(options());
      server.start();
      std::vector<std::thread> threads;
      for (u32 i = 0; i < kill_actor_count; ++i) threads.emplace_back([this, &server, i] { act(server, i); });
      journal_->is_started = 1;
      const auto internal = server.open_internal_session(page_size);
      for (;;) {
        wait_us(random_.next() % 20'000);
        wire::Command command{};
        command.opcode = wire::Opcode::checkpoint;
        const Status status = internal->call(command).status;
        if (status != Status::ok) journal_->tell(fmt::format("a checkpoint answers {}", status_name(status)));
        ++journal_->checkpoints;
      }
    } catch (const std::exception& error) {
      journal_->tell(error.what());
    }
    for (;;) ::pause();
  }

  void act(server::PoolServer& server, u32 index) {
    const auto session = open_session(server);
    FileClient client(*session);
    Actor& actor = actors_[index];
    KillJournal::Row& row = journal_->rows[index];
    Sequence random(row.steps[0].result + index);
    while (row.begun < KillJournal::step_max && journal_->has_problem == 0) {
      const KillJournal::Counts seen = journal_->ended();
      if (random.next() % 12 == 0) {
        const Status status = forgets_syncs_ ? Status::ok : client.simple(wire::Opcode::sync).status;
        if (status == Status::ok) {
          KillJournal::promise(row, seen);
        } else {
          journal_->tell(fmt::format("a sync answers {}", status_name(status)));
        }
        continue;
      }
      KillJournal::Step& step = row.steps[row.begun];
      step.seen = seen;
      const FileOperation op = actor.begin(StepCounts(seen.begin(), seen.end()));
      ++row.begun;
      const client::Reply reply = client.call(actor.engine_form(op), Actor::content(op));
      step.status = static_cast<u32>(reply.status);
      step.result = reply.result;
      ++row.ended;
      const std::string problem = actor.end(reply, &client);
      if (!problem.empty()) journal_->tell(fmt::format("actor {}: {}", index, problem));
    }
    for (;;) ::pause();
  }

  // ---- in the parent

  // The actions of the child's actors, from the same beginning.
  std::string follow_journal() {
    for (u32 i = 0; i < kill_actor_count; ++i) {
      KillJournal::Row& row = journal_->rows[i];
      const u64 ended = row.ended;
      for (u64 k = 0; k < row.begun; ++k) {
        const KillJournal::Step& step = row.steps[k];
        actors_[i].begin(StepCounts(step.seen.begin(), step.seen.end()));
        if (k >= ended) break;
        const client::Reply reply{static_cast<Status>(step.status), step.result};
        const std::string problem = actors_[i].end(reply, nullptr);
        if (!problem.empty()) return problem;
      }
      operations += ended;
    }
    for (const KillJournal::Row& row : journal_->rows) {
      if (row.promise_count == 0) continue;
      const KillJournal::Counts& promise = row.promises[row.promise_count % 2];
      for (u32 i = 0; i < kill_actor_count; ++i) actors_[i].promise(promise[i]);
    }
    return "";
  }

  std::string reopen(bool is_clean) {
    server::PoolServer server(options());
    server.start();
    replayed += server.recovery().records_replayed;
    std::string problem = compare(server);
    if (!is_clean) {
      server.abandon();
    } else if (!server.stop() && problem.empty()) {
      problem = "the pool cannot be unmounted";
    }
    return problem;
  }
  std::string compare(server::PoolServer& server) {
    const auto session = open_session(server);
    FileClient client(*session);
    std::vector<std::string> found;
    std::vector<const Actor*> actors;
    for (Actor& actor : actors_) {
      actor.consider_mixtures(client);
      found.push_back(PoolText(*session, actor.folder()).text());
      actors.push_back(&actor);
    }
    std::vector<u64> kept;
    std::string problem = survivors_problem(actors, found, &kept);
    for (u32 i = 0; i < kill_actor_count && problem.empty(); ++i) {
      lost += actors_[i].ended_count() - std::min(actors_[i].ended_count(), kept[i]);
      problem = actors_[i].survive(kept[i], found[i], client);
    }
    // Earlier operations are not checked again.
    const Status synced = client.simple(wire::Opcode::sync).status;
    return problem.empty() && synced != Status::ok ? "a sync after the kill fails" : problem;
  }

  DeviceFolder folder_;
  Sequence random_;
  bool forgets_syncs_;
  std::vector<Actor> actors_;
  SharedJournal journal_;
};

TEST(SigKill, NothingAcknowledgedIsLost) {
  const char* asked = std::getenv("GPU4FS_KILL_COUNT");
  const u64 count = asked != nullptr ? std::strtoull(asked, nullptr, 10) : scaled(320);
  Killed killed(static_cast<u64>(::getpid()));
  for (u64 i = 0; i < count; ++i) {
    const std::string problem = killed.round(i);
    ASSERT_EQ(problem, "") << "kill " << i;
  }
  EXPECT_EQ(killed.check(), "");
  const auto number = [](u64 value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "%llu kills, %llu of them while mounting: %llu operations, %llu replayed, %llu that nobody was promised lost, "
      "%llu checkpoints\n",
      number(count), number(killed.unstarted), number(killed.operations), number(killed.replayed), number(killed.lost),
      number(killed.checkpoints));
  if (count < 100) return;
  EXPECT_GT(killed.replayed, count);
  EXPECT_GT(killed.lost, 0u);
}

TEST(SigKill, ForgottenSyncsAreNoticed) {
  Killed killed(static_cast<u64>(::getpid()), true);
  std::string problem;
  for (u64 i = 0; i < 60 && problem.empty(); ++i) problem = killed.round(i);
  EXPECT_NE(problem.find("were promised"), std::string::npos) << problem;
}

}  // namespace
}  // namespace gpu4fs::test::sigkill_test
