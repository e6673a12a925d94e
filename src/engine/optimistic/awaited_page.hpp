// Reads without locks of a page that is in no frame of the page cache, by a worker of the host.
//
// The command waits in its slot until the page has been loaded, and its worker goes on with others. It holds nothing,
// and has run no step. Its plan waits with it. The plan is good if the step gate has not closed and the file has not
// changed meanwhile; the page's checksum says whether the frame still has the page. Otherwise, or if the load has
// failed, the command goes the ordinary way (answer_loaded.hpp). So a miss takes neither the file's lock nor two steps,
// and all that a ring shows can be on the way at the same time.
//
// A warp waits for its pages instead (absent_pages.hpp).
#pragma once

#include "base/mutant.hpp"
#include "engine/command_life.hpp"
#include "engine/device_poll.hpp"
#include "engine/read_ahead.hpp"
#include "engine/ring_token.hpp"
#include "engine/wait_list.hpp"

namespace gpu4fs::engine::detail {

// What a command that waits for its page keeps in its scratch memory.
struct AwaitedRead {
  AbsentRead read;
  u64 era;  // of the step gate, in which it was planned
};

GPU4FS_FN inline AwaitedRead& awaited_read_of(CommandState& c) {
  static_assert(std::is_trivially_copyable_v<AwaitedRead> && sizeof(AwaitedRead) <= command_scratch_size);
  return *reinterpret_cast<AwaitedRead*>(c.scratch);
}

// Where a command may wait.
struct WaitingPlace {
  u32 slot;  // that it has taken
  u64 era;
};

// The turn's only command becomes the command of its slot, in phase `running`. ok: it is well-formed. One rank.
GPU4FS_FN inline Status begin_awaiting(Engine& engine, const RingTurn& turn, const wire::Command& command,
                                       const WaitingPlace& place) {
  const Status status = validate_command(command, sender_of(*turn.session), false);
  if (status != Status::ok) return status;
  ring::acquire_payload();
  CommandState& c = engine.commands[place.slot];
  reset_command(engine, c, command, turn.session_index, turn.position);
  c.awaits_page = 1;
  awaited_read_of(c) = {turn.memory->absent, place.era};
  announce_wait(c, Status::waits_for_io);
  // The load, and the step that begins it.
  store<Order::relaxed, Scope::engine>(&c.io_left, 2u);
  set_phase(c, CommandPhase::running);
  return Status::ok;
}

// The slot is free again: nothing was begun.
GPU4FS_FN inline void stop_awaiting(CommandState& c) {
  store<Order::relaxed, Scope::engine>(&c.io_left, 0u);
  set_phase(c, CommandPhase::free);
}

// Begins to load the page of the turn's only command, WorkerMemory::absent, and leaves the command waiting. False:
// nothing was begun, since the page is there or on its way by now, or there is no room. If some were begun,
// raid::ring_staged() follows. Inside the step gate, in which the page was found. For a Lane.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool await_page(Group g, Engine& engine, const RingTurn& turn, const wire::Command& command,
                                          const WaitingPlace& place) {
  const AbsentRead absent = turn.memory->absent;
  if (begin_awaiting(engine, turn, command, place) != Status::ok) return false;
  CommandState& c = engine.commands[place.slot];
  if (!device::begin_detached_load(*absent.device, absent.page, place.slot)) {
    stop_awaiting(c);
    return false;
  }
  // The command may have gone on elsewhere when this returns.
  if (end_io(c) || !park_command(c)) enqueue_command(engine, place.slot);
  const SeenRead read{command.inode, command.offset, command.offset + (absent.plan.to - absent.plan.from)};
  const ReadStreams* const streams = turn.views->root.read_streams;
  if (streams != nullptr) follow_unlocked_reads(g, engine, 1, read, find_stream(*streams, read));
  return true;
}

}  // namespace gpu4fs::engine::detail
