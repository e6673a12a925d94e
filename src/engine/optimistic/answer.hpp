// Commands that a worker answers where it takes them from the ring: no slot, no lock, no waiting.
//
// Each rank plans one command. All ranks together move the pages, one command after the other. A command that is not
// answered has changed nothing, and nothing of it has reached the client. It goes on like any other command.
#pragma once

#include "engine/gate.hpp"
#include "engine/optimistic/read_plan.hpp"
#include "engine/optimistic/walk.hpp"
#include "engine/poll/token.hpp"

namespace gpu4fs::engine::detail {

enum class Planned : u32 {
  nothing,   // for the ordinary way
  answered,  // all is there but the completion
  page,      // a ReadPlan
};

struct Attempt {
  Planned planned;
  Status status;
  u64 result;
  ReadPlan read;
};

GPU4FS_FN constexpr bool is_lookup(const wire::Command& command) {
  return command.opcode == wire::Opcode::lookup || command.opcode == wire::Opcode::lookup_path;
}

// Where a command's name and answer are in its session's memory.
struct CommandPlaces {
  const u8* name;  // of a lookup, otherwise nullptr
  u8* answer;      // nullptr: none is wanted
  bool are_good;   // false: the ordinary way finds out what is wrong
};

GPU4FS_FN inline CommandPlaces places_of(const Session& session, const wire::Command& command) {
  CommandPlaces places{nullptr, nullptr, false};
  const bool has_name = is_lookup(command);
  if ((command.name_length != 0) != has_name) return places;
  if (command.flags != 0 && command.opcode != wire::Opcode::lookup_path) return places;
  u8* memory = nullptr;
  if (has_name) {
    if (resolve_in(session, command.name, command.name_length, &memory) != Status::ok) return places;
    places.name = memory;
  }
  const bool is_read = command.opcode == wire::Opcode::read;
  const u64 address = is_read ? command.data : command.output;
  if (is_read || address != 0) {
    const u64 length = is_read ? command.length : sizeof(format::AttributeRecord);
    if (resolve_in(session, address, length, &places.answer) != Status::ok) return places;
    if (!is_read && !is_aligned(places.answer, 16)) return places;
  }
  places.are_good = true;
  return places;
}

// The names of the commands in `wanted`, out of the clients' reach. Uniform.
template <class Group>
GPU4FS_FN void copy_names(Group g, WorkerViews& views, const wire::Command& own, const u8* source, u32 wanted) {
  u32 left = g.ballot(source != nullptr) & wanted;
  if (left == 0) return;
  ring::acquire_payload();
  for (; left != 0; left &= left - 1) {
    const u32 rank = count_trailing_zeros(left);
    const u8* const from = g.shuffle(source, rank);
    const u32 length = g.shuffle(u32{own.name_length}, rank);
    GPU4FS_CHECK_LE(length, name_length_max);
    for (u32 i = g.rank(); i < length; i += Group::size()) views.names[rank][i] = from[i];
  }
  g.sync();
}

// A rank by itself, inside the step gate. `name`: of a lookup.
GPU4FS_FN inline void attempt(const ReaderContext& reader, const wire::Command& command, const CommandPlaces& places,
                              const u8* name, Attempt* own, FreshViews* fresh) {
  own->result = command.inode;
  if (command.opcode == wire::Opcode::read) {
    if (!plan_read(reader, command, places.answer, &own->read, fresh)) return;
    own->result = own->read.to - own->read.from;
    own->planned = Planned::page;
  } else if (command.opcode == wire::Opcode::getattr) {
    if (answer_getattr(reader, command, places.answer)) own->planned = Planned::answered;
  } else {
    own->status = answer_lookup(reader, command, name, places.answer, &own->result);
    if (own->status != Status::busy) own->planned = Planned::answered;
  }
}

// What the ranks have learned, one after the other. Uniform.
template <class Group>
GPU4FS_FN void remember(Group g, const ReaderContext& reader, const FreshViews& fresh) {
  const bool has_file = fresh.file.number != 0;
  const bool has_chunk = fresh.chunk.size_bytes != 0;
  for (u32 left = g.ballot(has_file || has_chunk); left != 0; left &= left - 1) {
    if (g.rank() == count_trailing_zeros(left)) {
      if (has_file) reader.views->file(fresh.file.number) = fresh.file;
      if (has_chunk) reader.views->chunk(fresh.chunk.base_address >> reader.views->root.granule_shift) = fresh.chunk;
    }
    g.sync();
  }
}

// The command of the rank's number in the turn, as far as these commands use it. A warp has the units in its registers:
// rank r has unit r % 8 of descriptor r / 8.
template <class Group>
GPU4FS_FN wire::Command own_command(Group g, const RingTurn& turn, const Vector16& unit) {
  if constexpr (Group::size() == 1) {
    return wire::decode_command(turn.memory->staging[0]);
  } else {
    const u32 first = g.rank() % batch_max * ring::units_per_descriptor;
    wire::Command command{};
    const u32 word = g.shuffle(static_cast<u32>(unit.high), first);
    command.opcode = static_cast<wire::Opcode>(word & 0xffff);
    command.flags = static_cast<u16>(word >> 16);
    command.name_length = static_cast<u16>(g.shuffle(static_cast<u32>(unit.high), first + 6));
    command.name = g.shuffle(unit.low, first + 6);
    command.inode = g.shuffle(unit.low, first);
    command.offset = g.shuffle(unit.low, first + 2);
    command.length = g.shuffle(unit.low, first + 3);
    command.data = g.shuffle(unit.low, first + 4);
    command.output = g.shuffle(unit.low, first + 7);
    return command;
  }
}

// Tries the turn's first `count` commands, whose units the ranks have. Returns which ones are completed. Uniform.
// A kernel has it as a function, so that polling does not need its registers.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 answer_without_locks(Group g, Engine& engine, const RingTurn& turn, Vector16 unit,
                                                   u32 count) {
  const wire::Command own = own_command(g, turn, unit);
  const u32 wanted = (1u << count) - 1;
  GPU4FS_TRACE_POINT(slot);
  WorkerViews& views = *turn.views;
  if (views.root.pages.frames == nullptr) on_leader(g, [&] { views.root = RootView::of(engine.fs); });
  // What lies in the session is read before the gate: entering it empties a GPU's first-level cache.
  const ring::EngineRing ring = turn.session->ring;
  const bool is_trusted = turn.session->trusted != 0;
  const CommandPlaces places = places_of(*turn.session, own);
  copy_names(g, views, own, places.are_good ? places.name : nullptr, wanted);
  GPU4FS_TRACE_POINT(name);
  const Entered entered = on_leader(g, [&] { return try_enter_era(engine, engine.step_gate); });
  if (!entered.is_inside) return 0;
  GPU4FS_TRACE_POINT(gate);
  const ReaderContext reader{&engine, turn.session, &views, entered.era, is_trusted};
  Attempt mine{};
  FreshViews fresh{};
  if (places.are_good && g.rank() < count) attempt(reader, own, places, views.names[g.rank()], &mine, &fresh);
  // Whether it is the truth is found out each time it is used.
  remember(g, reader, fresh);
  GPU4FS_TRACE_POINT(translate);
  u32 answered = g.ballot(mine.planned == Planned::answered);
  for (u32 left = g.ballot(mine.planned == Planned::page); left != 0; left &= left - 1) {
    const u32 rank = count_trailing_zeros(left);
    const ReadPlan plan = g.shuffle(mine.read, rank);
    if (move_planned(g, views.root, plan, turn.memory->page)) answered |= 1u << rank;
  }
  g.sync();
  GPU4FS_TRACE_POINT(transfer);
  fence<Order::acq_rel, Scope::system>();
  GPU4FS_TRACE_POINT(fence);
  if ((answered >> g.rank() & 1) != 0) {
    ring::write_bare_completion(ring, turn.position + g.rank(), mine.status, mine.result);
  }
  GPU4FS_TRACE_POINT(completion);
  const u64 failed = popcount(g.ballot(mine.status != Status::ok) & answered);
  on_leader(g, [&] {
    leave(engine, engine.step_gate);
    const u64 completed = popcount(answered);
    if (failed != 0) fetch_add<Order::relaxed, Scope::engine>(&engine.counters.commands_failed, failed);
    fetch_add<Order::relaxed, Scope::engine>(&engine.counters.commands_completed, completed);
    fetch_add<Order::relaxed, Scope::engine>(&engine.counters.commands_optimistic, completed);
  });
  GPU4FS_TRACE_POINT(leave);
  return answered;
}

}  // namespace gpu4fs::engine::detail
