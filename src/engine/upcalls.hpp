// Upcalls from engine code. An upcall with an answer parks the command. The answer sets c.upcall_result and restarts
// the command. The handler advances c.stage before the upcall, so it knows its position afterwards. All functions run
// on one rank.
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/mutant.hpp"
#include "engine/wait_list.hpp"
#include "ring/upcall_ring.hpp"

namespace gpu4fs::engine {

// Sends an upcall without an answer. It is dropped and counted if the server is far behind.
GPU4FS_FN inline void notify_server(Engine& engine, ring::UpcallKind kind, u32 detail, u64 argument) {
  GPU4FS_CHECK(!ring::wants_answer(kind));
  const u64 read = load<Order::relaxed, Scope::system>(&engine.upcalls->consumed);
  const u64 written = load<Order::relaxed, Scope::engine>(&engine.upcall_position);
  if (written - read > ring::upcall_depth / 2) {
    fetch_add<Order::relaxed, Scope::engine>(&engine.counters.upcalls_dropped, u64{1});
    return;
  }
  const u64 position = fetch_add<Order::relaxed, Scope::engine>(&engine.upcall_position, u64{1});
  ring::write_upcall(*engine.upcalls, position, ring::Upcall{kind, detail, argument, 0});
  wake_server(*engine.upcalls);
}

GPU4FS_FN inline Status post_upcall(Engine& engine, CommandState& c, ring::UpcallKind kind, u64 argument,
                                    u32 detail = 0) {
  GPU4FS_CHECK(ring::wants_answer(kind));
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&c.upcall_id)), u64{0});
  const u64 generation = fetch_add<Order::relaxed, Scope::engine>(&engine.upcall_generation, u64{1}) + 1;
  const u64 id = (generation << 16) | c.index;
  c.upcall_result = Status::upcall_failed;
  c.upcall_devices = 0;
  c.upcall_replaced = 0;
  announce_wait(c, Status::waits_for_answer);
  store<Order::release, Scope::engine>(&c.upcall_id, id);
  const u64 position = fetch_add<Order::relaxed, Scope::engine>(&engine.upcall_position, u64{1});
  ring::write_upcall(*engine.upcalls, position, ring::Upcall{kind, detail, argument, id});
  wake_server(*engine.upcalls);
  return Status::waits_for_answer;
}

namespace detail {

// The caller that wins the id owns the waiting command.
GPU4FS_FN inline bool claim_upcall(Engine& engine, u64 id) {
  const u32 index = static_cast<u32>(id & 0xffffu);
  if (index >= engine.config.command_count || id == 0) return false;
  u64 expected = GPU4FS_MUTANT(upcall_answer_of_another, id,
                               (load<Order::acquire, Scope::engine>(&engine.commands[index].upcall_id)));
  return compare_exchange<Order::acq_rel, Scope::engine>(&engine.commands[index].upcall_id, expected, u64{0});
}

}  // namespace detail

// The server's answer. `devices`: as for CommandState::upcall_devices. not_found: no command waits for it.
GPU4FS_FN inline Status answer_upcall(Engine& engine, u64 id, u64 result, u64 devices = 0) {
  if (result >= status_count) return Status::invalid_argument;
  if (!detail::claim_upcall(engine, id)) return Status::not_found;
  const u32 index = static_cast<u32>(id & 0xffffu);
  const Status status = static_cast<Status>(result);
  engine.commands[index].upcall_result = is_control(status) ? Status::upcall_failed : status;
  engine.commands[index].upcall_devices = devices;
  wake_command(engine, index);
  return Status::ok;
}

GPU4FS_FN inline bool cancel_upcall_wait(Engine& engine, u32 index, u64 now_ns) {
  const u64 id = load<Order::acquire, Scope::engine>(&engine.commands[index].upcall_id);
  if (id == 0 || !is_past_deadline(engine.commands[index], now_ns)) return false;
  return detail::claim_upcall(engine, id);
}

}  // namespace gpu4fs::engine
