// Transfers of staged devices that no step waits for. Commands wait for loads in no list: whoever takes the last
// completion restarts them (device/staged/detached_io.hpp). Writes that find the media busy wait in a list before they
// begin, so frames do not fill with pages that are written one by one when they have to leave.
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

// Completions that a Lane takes before it goes on with what has waited for them.
inline constexpr u32 loaded_command_max = 8;

// Commands in phase `running` that go on without locks, now that their page has been loaded
// (optimistic/awaited_page.hpp). The caller of step_from_devices() goes on with them.
struct LoadedCommands {
  u32 count;
  u32 indices[loaded_command_max];
};

// True: it was the last one.
GPU4FS_FN inline bool end_io(CommandState& c) {
  const u32 before = fetch_sub<Order::acq_rel, Scope::engine>(&c.io_left, 1u);
  GPU4FS_CHECK_GT(before, 0u);
  return before == 1;
}

// `loaded`: commands whose page has been loaded may be put here; null: they go to the run queue as all others do.
GPU4FS_FN inline void tell_command(Engine& engine, u32 index, LoadedCommands* loaded = nullptr) {
  GPU4FS_CHECK_LT(index, engine.config.command_count);
  CommandState& c = engine.commands[index];
  if (!end_io(c)) return;
  const bool is_wanted = loaded != nullptr && loaded->count < loaded_command_max && c.awaits_page != 0;
  if (!is_wanted || !take_parked(c)) return wake_command(engine, index);
  loaded->indices[loaded->count++] = index;
}

// Under the guard, after a change of the list.
GPU4FS_FN inline void note_media_waiters(MediaQueue& queue) {
  store<Order::relaxed, Scope::engine>(&queue.has_waiters, queue.head != no_command ? 1u : 0u);
}

}  // namespace detail

// Restarts the commands that wait for the media, unless these are busy. After completions were taken. Leader.
GPU4FS_FN GPU4FS_NOINLINE inline void wake_media_waiters(Engine& engine) {
  MediaQueue& queue = engine.media_queue;
  // Either this sees the command in the list, or the command sees what was taken (await_media()).
  fence<Order::seq_cst, Scope::engine>();
  if (load<Order::relaxed, Scope::engine>(&queue.has_waiters) == 0) return;
  if (device::media_are_busy(*engine.fs.space.staged)) return;
  queue.guard.lock();
  const u32 waiting = queue.head;
  queue.head = queue.tail = no_command;
  detail::note_media_waiters(queue);
  queue.guard.unlock();
  wake_list(engine, waiting);
}

// False: somebody is about to wake the command.
GPU4FS_FN inline bool leave_media_queue(Engine& engine, u32 index) {
  MediaQueue& queue = engine.media_queue;
  queue.guard.lock();
  const bool removed = remove_waiter(engine, queue.head, queue.tail, index);
  detail::note_media_waiters(queue);
  queue.guard.unlock();
  return removed;
}

GPU4FS_FN inline bool cancel_media_wait(Engine& engine, u32 index, u64 now_ns) {
  MediaQueue& queue = engine.media_queue;
  queue.guard.lock();
  const bool removed =
      is_past_deadline(engine.commands[index], now_ns) && remove_waiter(engine, queue.head, queue.tail, index);
  detail::note_media_waiters(queue);
  queue.guard.unlock();
  return removed;
}

// ok: the media are not busy with pages that are written behind. waits_for_media: they are, and the command is
// restarted when they are not. Leader.
GPU4FS_FN GPU4FS_NOINLINE inline Status await_media(Engine& engine, CommandState& c) {
  const device::StagedDevices* const staged = engine.fs.space.staged;
  if (staged == nullptr || !device::media_are_busy(*staged)) return Status::ok;
  MediaQueue& queue = engine.media_queue;
  queue.guard.lock();
  announce_wait(c, Status::waits_for_media);
  append_waiter(engine, queue.head, queue.tail, c.index);
  detail::note_media_waiters(queue);
  queue.guard.unlock();
  fence<Order::seq_cst, Scope::engine>();
  const bool waits = device::media_are_busy(*staged);
  if (waits || !leave_media_queue(engine, c.index)) {
    return Status::waits_for_media;
  }
  announce_wait(c, Status::ok);
  return Status::ok;
}

// Takes completions of devices, and restarts commands that waited for them. True if there were some. Collective.
// `loaded`, for a Lane: commands that the caller goes on with. Null: all of them go to the run queue.
template <class Group>
GPU4FS_FN bool step_from_devices(Group g, Engine& engine, detail::LoadedCommands* loaded = nullptr) {
  const device::StagedDevices* const staged = engine.fs.space.staged;
  if (staged == nullptr) return false;
  // Others take completions meanwhile, so ranks that look one after the other may see different counts.
  if (!on_leader(g, [&] { return device::has_detached(*staged); })) return false;
  const u32 count =
      device::take_completions(g, *staged, [&](u32 index) { detail::tell_command(engine, index, loaded); });
  if (GPU4FS_MUTANT(media_waiters_not_woken, count != 0, false)) on_leader(g, [&] { wake_media_waiters(engine); });
  return count != 0;
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
GPU4FS_FN inline void count_io(CommandState& c, u32 count = 1) {
  fetch_add<Order::relaxed, Scope::engine>(&c.io_left, count);
}
GPU4FS_FN inline void drop_io(CommandState& c, u32 count = 1) {
  fetch_sub<Order::relaxed, Scope::engine>(&c.io_left, count);
}

// Between begin_io() and await_io(): the command also waits for the next report, if it can be told. True: it is told.
// Leader.
GPU4FS_FN inline bool await_next_report(Engine& engine, CommandState& c) {
  count_io(c);
  if (device::tell_of_next_report(*engine.fs.space.staged, c.index)) return true;
  drop_io(c);
  return false;
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

// Calls begin(index) for 0 <= index < count, each on some rank, and with an index from count on where a rank has none
// left, so the calls are collective. True: the rank has begun a load whose owner is the command. Then calls
// meanwhile(), before the command can go on elsewhere. Status: as await_io(). Collective.
template <class Group, class Begin, class Meanwhile>
GPU4FS_FN GPU4FS_NOINLINE Status wait_for_loads(Group g, Engine& engine, CommandState& c, u32 count, Begin&& begin,
                                                Meanwhile&& meanwhile) {
  begin_io(g, c);
  bool has_begun = false;
  for (u32 base = 0; base < count; base += Group::size()) {
    on_leader(g, [&] { count_io(c, Group::size()); });
    const u32 begun = g.ballot(begin(base + g.rank()));
    on_leader(g, [&] { drop_io(c, Group::size() - popcount(begun)); });
    has_begun |= begun != 0;
  }
  meanwhile();
  return await_io(g, engine, c, has_begun);
}

}  // namespace gpu4fs::engine
