// Upcalls from engine code. A command that wants an answer is parked. The answer is put into the command's mailbox, and
// the command is restarted. The handler advances c.stage before the upcall, so it knows afterwards that it has to take
// the answer. All functions run on one rank.
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
    add<Scope::engine>(&engine.counters.upcalls_dropped, u64{1});
    return;
  }
  const u64 position = fetch_add<Order::relaxed, Scope::engine>(&engine.upcall_position, u64{1});
  ring::write_upcall(*engine.upcalls, position, ring::Upcall{kind, detail, argument, 0});
  wake_server(*engine.upcalls);
}

GPU4FS_FN inline Status post_upcall(Engine& engine, CommandState& c, ring::UpcallKind kind, u64 argument,
                                    u32 detail = 0) {
  GPU4FS_CHECK(ring::wants_answer(kind));
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&c.mailbox.id)), u64{0});
  const u64 generation = fetch_add<Order::relaxed, Scope::engine>(&engine.upcall_generation, u64{1}) + 1;
  const u64 id = (generation << 16) | c.index;
  c.mailbox.status = Status::waits_for_answer;
  c.mailbox.failed_devices = 0;
  c.mailbox.replaced_devices = 0;
  announce_wait(c, Status::waits_for_answer);
  store<Order::release, Scope::engine>(&c.mailbox.id, id);
  const u64 position = fetch_add<Order::relaxed, Scope::engine>(&engine.upcall_position, u64{1});
  ring::write_upcall(*engine.upcalls, position, ring::Upcall{kind, detail, argument, id});
  wake_server(*engine.upcalls);
  return Status::waits_for_answer;
}

namespace detail {

// The command that waits for the answer `id`, or nullptr. The caller owns it: nobody else wakes it.
GPU4FS_FN inline CommandState* claim_upcall(Engine& engine, u64 id) {
  const u32 index = static_cast<u32>(id & 0xffffu);
  if (index >= engine.config.command_count || id == 0) return nullptr;
  CommandState& c = engine.commands[index];
  u64 expected = GPU4FS_MUTANT(upcall_answer_of_another, id, (load<Order::acquire, Scope::engine>(&c.mailbox.id)));
  return compare_exchange<Order::acq_rel, Scope::engine>(&c.mailbox.id, expected, u64{0}) ? &c : nullptr;
}

}  // namespace detail

// The server's answer. `devices`: as UpcallMailbox::failed_devices. not_found: no command waits for it.
GPU4FS_FN inline Status answer_upcall(Engine& engine, u64 id, u64 result, u64 devices = 0) {
  if (result >= status_count) return Status::invalid_argument;
  CommandState* const c = detail::claim_upcall(engine, id);
  if (c == nullptr) return Status::not_found;
  const Status status = static_cast<Status>(result);
  c->mailbox.status = is_control(status) ? Status::upcall_failed : status;
  c->mailbox.failed_devices = devices;
  wake_command(engine, c->index);
  return Status::ok;
}

struct UpcallAnswer {
  Status status;
  u32 reserved;
  u64 failed_devices;  // as in the mailbox
  u64 replaced_devices;
};

// Empties the mailbox, once for each request.
GPU4FS_FN inline UpcallAnswer take_answer(CommandState& c) {
  UpcallMailbox& mailbox = c.mailbox;
  const UpcallAnswer answer{mailbox.status, 0, mailbox.failed_devices, mailbox.replaced_devices};
  GPU4FS_CHECK_NE(answer.status, Status::waits_for_answer);
  mailbox.status = Status::waits_for_answer;
  return answer;
}

GPU4FS_FN inline bool cancel_upcall_wait(Engine& engine, u32 index, u64 now_ns) {
  const u64 id = load<Order::acquire, Scope::engine>(&engine.commands[index].mailbox.id);
  if (id == 0 || !is_past_deadline(engine.commands[index], now_ns)) return false;
  return detail::claim_upcall(engine, id) != nullptr;
}

}  // namespace gpu4fs::engine
