// The state in which a command begins. Leader only.
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "engine/engine_types.hpp"

namespace gpu4fs::engine {

// Fills a free slot. Kept are the slot's index, the position of its last command, the fields that are set before they
// are read (the wait for an epoch or a lock, the rest of the mailbox), and the work space, which prepare_command()
// clears. All stores are relaxed: other workers get the command through the run queue, which releases.
GPU4FS_FN inline void reset_slot(CommandState& c, const wire::Command& command, u32 session) {
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&c.phase)), static_cast<u32>(CommandPhase::free));
  c.command = command;
  c.operation = fs::Operation{};

  c.stage = 0;
  c.session = static_cast<u16>(session);
  c.prepared = Prepared::no;
  c.next_linked = no_command;
  c.wait_next = no_command;
  c.waited_for_reservations = 0;

  c.in_gate = 0;
  c.in_step_gate = 0;
  c.lock_count = 0;
  c.extent_count = 0;
  store<Order::relaxed, Scope::engine>(&c.waits_for, static_cast<u32>(Status::ok));
  c.ended_with = Status::ok;
  store<Order::relaxed, Scope::engine>(&c.cancel_status, static_cast<u32>(Status::ok));
  c.wait_status = static_cast<u32>(Status::ok);

  store<Order::relaxed, Scope::engine>(&c.deadline_ns, u64{0});
  c.result = 0;
  c.progress = 0;
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&c.io_left)), 0u);
  c.awaits_page = 0;

  store<Order::relaxed, Scope::engine>(&c.tasks.word, u64{0});
  store<Order::relaxed, Scope::engine>(&c.tasks.status, static_cast<u32>(Status::ok));
  c.mailbox.status = Status::waits_for_answer;
}

}  // namespace gpu4fs::engine
