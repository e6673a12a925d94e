// Transfers of staged devices that no step waits for. Commands wait for them in no list: whoever takes the last
// completion restarts them (device/staged/detached_io.hpp).
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "device/staged/detached_io.hpp"
#include "engine/engine_types.hpp"
#include "engine/wait_list.hpp"

namespace gpu4fs::engine {

namespace detail {

// True: it was the last one.
GPU4FS_FN inline bool end_io(CommandState& c) {
  const u32 before = fetch_sub<Order::acq_rel, Scope::engine>(&c.io_left, 1u);
  GPU4FS_CHECK_GT(before, 0u);
  return before == 1;
}

}  // namespace detail

// Takes completions of devices, and restarts commands that waited for them. True if there were some. Collective.
template <class Group>
GPU4FS_FN bool step_from_devices(Group g, Engine& engine) {
  const device::StagedDevices* const staged = engine.fs.space.staged;
  if (staged == nullptr || !device::has_detached(*staged)) return false;
  return device::take_completions(g, *staged, [&](u32 index) {
           GPU4FS_CHECK_LT(index, engine.config.command_count);
           if (detail::end_io(engine.commands[index])) wake_command(engine, index);
         }) != 0;
}

// Calls begin(index) for 0 <= index < count, each on some rank, and with an index from count on where a rank has none
// left, so the calls are collective. True: the rank has begun a load whose owner is the command. Status: ok if none
// has; waits_for_io: the command is restarted when all have ended, well or not. Collective.
template <class Group, class Begin>
GPU4FS_FN GPU4FS_NOINLINE Status wait_for_loads(Group g, Engine& engine, CommandState& c, u32 count, Begin&& begin) {
  on_leader(g, [&] {
    GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&c.io_left)), 0u);
    store<Order::relaxed, Scope::engine>(&c.io_left, 1u);
    announce_wait(c, Status::waits_for_io);
  });
  g.sync();
  bool has_begun = false;
  for (u32 base = 0; base < count; base += Group::size()) {
    // Before they can end.
    on_leader(g, [&] { fetch_add<Order::relaxed, Scope::engine>(&c.io_left, Group::size()); });
    const u32 begun = g.ballot(begin(base + g.rank()));
    on_leader(g, [&] { fetch_sub<Order::relaxed, Scope::engine>(&c.io_left, Group::size() - popcount(begun)); });
    has_begun |= begun != 0;
  }
  g.sync();
  return on_leader(g, [&] {
    if (has_begun) device::ring_detached(*engine.fs.space.staged);
    if (!detail::end_io(c)) return Status::waits_for_io;
    announce_wait(c, Status::ok);
    return Status::ok;
  });
}

}  // namespace gpu4fs::engine
