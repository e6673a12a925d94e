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

GPU4FS_FN inline void tell_command(Engine& engine, u32 index) {
  GPU4FS_CHECK_LT(index, engine.config.command_count);
  if (end_io(engine.commands[index])) wake_command(engine, index);
}

}  // namespace detail

// Takes completions of devices, and restarts commands that waited for them. True if there were some. Collective.
template <class Group>
GPU4FS_FN bool step_from_devices(Group g, Engine& engine) {
  const device::StagedDevices* const staged = engine.fs.space.staged;
  if (staged == nullptr || !device::has_detached(*staged)) return false;
  return device::take_completions(g, *staged, [&](u32 index) { detail::tell_command(engine, index); }) != 0;
}

// A step that will begin requests whose owner is its command. Collective. Each request is counted by count_io() before
// it can end, and by drop_io() if it was not begun after all; await_io() follows.
template <class Group>
GPU4FS_FN void begin_io(Group g, CommandState& c) {
  on_leader(g, [&] {
    GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&c.io_left)), 0u);
    store<Order::relaxed, Scope::engine>(&c.io_left, 1u);
    announce_wait(c, Status::waits_for_io);
  });
  g.sync();
}
GPU4FS_FN inline void count_io(CommandState& c) {
  fetch_add<Order::relaxed, Scope::engine>(&c.io_left, 1u);
}
GPU4FS_FN inline void drop_io(CommandState& c) {
  fetch_sub<Order::relaxed, Scope::engine>(&c.io_left, 1u);
}

// Status: ok if nothing is in flight for the command; waits_for_io: it is restarted when everything has ended, well or
// not. `has_begun`: whether this rank has begun a request. Collective.
template <class Group>
GPU4FS_FN Status await_io(Group g, Engine& engine, CommandState& c, bool has_begun) {
  const bool rings = g.any(has_begun);
  g.sync();
  return on_leader(g, [&] {
    if (rings) device::ring_detached(*engine.fs.space.staged);
    if (!detail::end_io(c)) return Status::waits_for_io;
    announce_wait(c, Status::ok);
    return Status::ok;
  });
}

// Calls begin(index) for 0 <= index < count, each on some rank: true if it has begun a load whose owner is the command.
// Status: as await_io(). Collective.
template <class Group, class Begin>
GPU4FS_FN GPU4FS_NOINLINE Status wait_for_loads(Group g, Engine& engine, CommandState& c, u32 count, Begin&& begin) {
  begin_io(g, c);
  bool has_begun = false;
  for (u32 index = g.rank(); index < count; index += Group::size()) {
    count_io(c);
    if (begin(index)) {
      has_begun = true;
    } else {
      drop_io(c);
    }
  }
  return await_io(g, engine, c, has_begun);
}

}  // namespace gpu4fs::engine
