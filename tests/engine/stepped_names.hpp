// An engine whose only worker is run by the test, step by step, with concurrent commands on names.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "engine/name_fixture.hpp"
#include "engine/worker.hpp"

namespace gpu4fs::test {

class SteppedNames : public ::testing::Test {
 protected:
  SteppedNames() { EXPECT_TRUE(engine().free_commands.pop(&slot_)); }
  ~SteppedNames() override { engine().free_commands.push(slot_); }

  engine::Engine& engine() { return engine_.engine(); }
  void step() { engine::worker_step(Lane{}, engine(), worker_); }
  void steps(u32 count) {
    for (u32 i = 0; i < count; ++i) step();
  }

  // A command of the test holds the lock.
  void hold(const fs::InodeRef& ref) {
    engine::set_phase(holder(), engine::CommandPhase::running);
    EXPECT_EQ(engine::acquire_command_lock(engine(), holder(), ref.lock, ref.number, engine::LockMode::exclusive),
              Status::ok);
  }
  void release() {
    engine::release_all_locks(engine(), holder());
    engine::set_phase(holder(), engine::CommandPhase::free);
  }
  fs::InodeRef inode(u64 number) {
    fs::Operation op{};
    fs::InodeRef ref{};
    EXPECT_EQ(fs::get_inode(Lane{}, engine().fs, op, number, &ref), Status::ok);
    return ref;
  }

  // Commands use a session of their own, so only step() runs them. named() has stored the names, which belong to the
  // command after its first step.
  u64 publish(wire::Command command) {
    std::memcpy(client_.data(), names_.data() - NameClient::data_offset, NameClient::data_offset + 64);
    return client_.publish(command);
  }
  bool has_ended(u64 position, ring::Completion* done) { return client_.producer().poll(position, done); }
  bool has_ended(u64 position) {
    ring::Completion done{};
    return has_ended(position, &done);
  }
  ring::Completion end_of(u64 position) {
    ring::Completion done{Status::engine_died, 0};
    for (u32 count = 0; count < 1000 && !has_ended(position, &done); ++count) step();
    return done;
  }

  NameClient& names() { return names_; }

 private:
  static FileEngineOptions stepped() {
    FileEngineOptions options;
    options.start = false;
    return options;
  }
  engine::CommandState& holder() { return engine().commands[slot_]; }

  FileEngine engine_{stepped()};
  NameClient names_{engine_};
  Client client_{engine_.host(), ClientOptions{.trusted = true, .internal = true}};
  engine::WorkerState worker_ = engine::WorkerState::make(0);
  u32 slot_ = 0;
};

}  // namespace gpu4fs::test
