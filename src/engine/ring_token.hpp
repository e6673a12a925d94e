// A ring's token: its holder looks at the ring, reads the next descriptors and advances the position.
#pragma once

#include "engine/command_life.hpp"
#include "ring/ring.hpp"

namespace gpu4fs::engine::detail {

// Acquires nothing: for looks at many rings.
GPU4FS_FN inline bool session_looks_open(const Session& session) {
  return load<Order::relaxed, Scope::system>(&session.phase) == static_cast<u32>(SessionPhase::open);
}
GPU4FS_FN inline bool session_is_open(const Session& session) {
  return load<Order::acquire, Scope::system>(&session.phase) == static_cast<u32>(SessionPhase::open);
}

// Takes the token if the session's word still equals `word`, which was just loaded.
GPU4FS_FN inline bool try_token(Session& session, u64 word) {
  return compare_exchange<Order::relaxed, Scope::engine>(&session.poll_word, word, word | 1);
}
GPU4FS_FN inline void pass_token(Session& session, u64 position) {
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&session.poll_word)) & 1, u64{1});
  store<Order::relaxed, Scope::engine>(&session.poll_word, position << 1);
}

// The commands taken from a ring. The heads of the chains are linked through wait_next.
struct Taken {
  u32 first_head;  // no_command: nothing to run
  u32 head_count;
  u32 consumed;     // ring positions
  u32 keeps_token;  // 1: the token is still held although something was consumed
};

// A look at a ring by a worker that has its token.
struct RingTurn {
  Session* session;
  ring::EngineRing ring;     // of the session
  SessionBuffer own_buffer;  // of the session: buffer 0, which it keeps
  WorkerMemory* memory;      // of the worker
  WorkerViews* views;        // of the worker
  u32 session_index;
  bool is_trusted;  // of the session
  bool is_quiet;    // of a kernel's worker: no command seems to follow
  u64 position;     // of the first staged descriptor
  u32 linked;       // bit i: staged descriptor i belongs to the same chain as the next one

  GPU4FS_FN static RingTurn make(Engine& engine, const WorkerState& worker, bool is_quiet, u32 linked) {
    Session& session = engine.sessions[worker.held_session];
    WorkerMemory& memory = engine.worker_memory[worker.index];
    WorkerViews* const views = worker.views != nullptr ? worker.views : &memory.views;
    return {&session,
            session.ring,
            session.buffers[0],
            &memory,
            views,
            worker.held_session,
            session.trusted != 0,
            is_quiet,
            worker.held_position,
            linked};
  }
};

// The number of commands among the first `count` that form whole chains.
GPU4FS_FN constexpr u32 cut_to_chains(u32 linked, u32 count) {
  while (count != 0 && (linked >> (count - 1) & 1) != 0) --count;
  return count;
}

// All commands of the chains that have a command in `set`.
GPU4FS_FN constexpr u32 whole_chains_of(u32 linked, u32 set) {
  for (u32 links = linked, i = 0; links != 0 && i < linked_command_max; ++i) {
    const u32 before = set;
    set |= (set & links) << 1;
    set |= set >> 1 & links;
    if (set == before) break;
  }
  return set;
}
static_assert(whole_chains_of(0b0011011, 0b0000010) == 0b0000111 && whole_chains_of(0b011, 0b1000) == 0b1000);

GPU4FS_FN inline u32 session_room(const Session& session) {
  const u32 depth = 1u << session.ring.depth_log2;
  const u32 used = load<Order::relaxed, Scope::engine>(&session.in_flight);
  return used < depth ? depth - used : 0;
}

GPU4FS_FN inline void reject(WorkerMemory& memory, Session& session, u64 position, Status status) {
  ring::write_completion(session.ring, position, status, 0);
  add_as_only_writer<Scope::engine>(&memory.counters.descriptors_rejected, u64{1});
}

}  // namespace gpu4fs::engine::detail
