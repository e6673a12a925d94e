// Commands that a worker answers directly when it takes them from the ring: no slot, no lock, no waiting.
//
// Each rank plans one command. All ranks together move the pages, one command after the other. A command that is not
// answered has changed nothing, and the client has seen nothing of it. It is then processed like any other command.
#pragma once

#include "engine/gate.hpp"
#include "engine/optimistic/read_plan.hpp"
#include "engine/optimistic/walk.hpp"
#include "engine/poll/token.hpp"

namespace gpu4fs::engine::detail {

enum class Planned : u32 {
  nothing,   // for the ordinary way
  answered,  // complete except for the completion
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
  u8* answer;      // nullptr: not requested
  bool are_good;   // false: the ordinary way finds the error
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
  // Also of commands that store nothing there, as by the ordinary way.
  const u32 output_length = wire::output_bytes(command.opcode);
  if (command.output != 0 && output_length != 0) {
    if (resolve_in(session, command.output, output_length, &places.answer) != Status::ok) return places;
    if (!is_aligned(places.answer, 16)) return places;
  }
  if (command.opcode == wire::Opcode::read || command.opcode == wire::Opcode::readlink) {
    if (resolve_in(session, command.data, command.length, &places.answer) != Status::ok) return places;
  }
  places.are_good = true;
  return places;
}

// Copies the names of the commands in `wanted` to memory that clients cannot write. Uniform.
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

// For a single rank, inside the step gate. `name`: of a lookup.
GPU4FS_FN inline void attempt(const ReaderContext& reader, const wire::Command& command, const CommandPlaces& places,
                              const u8* name, Attempt* own, FreshViews* fresh) {
  bool is_answered = false;
  own->result = command.inode;
  switch (command.opcode) {
    case wire::Opcode::read:
      switch (plan_read(reader, command, places.answer, &own->read, fresh)) {
        case PlannedRead::page:
          own->result = own->read.to - own->read.from;
          own->planned = Planned::page;
          return;
        case PlannedRead::in_inode:
          is_answered = answer_inline_read(reader, command, places.answer, &own->result);
          break;
        default:
          break;
      }
      break;
    case wire::Opcode::readlink:
      is_answered = answer_readlink(reader, command, places.answer, &own->result);
      break;
    case wire::Opcode::access:
      own->result = 0;
      is_answered = answer_access(reader, command);
      break;
    case wire::Opcode::open:
      is_answered = answer_open(reader, command, places.answer);
      break;
    case wire::Opcode::getattr:
      is_answered = answer_getattr(reader, command, places.answer);
      break;
    default:
      own->status = answer_lookup(reader, command, name, places.answer, &own->result);
      is_answered = own->status != Status::busy;
      break;
  }
  if (is_answered) own->planned = Planned::answered;
}

// Stores the views that the ranks have filled, one after the other. Uniform.
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

// The command whose number in the turn is the rank's number, with the fields that these commands use. A warp has the
// units in its registers.
template <class Group>
GPU4FS_FN wire::Command own_command(Group g, const RingTurn& turn, const ring::FetchedDescriptors& seen, u32 count) {
  if constexpr (Group::size() == 1) {
    return wire::decode_command(turn.memory->staging[0]);
  } else {
    const u32 first = g.rank() % ring::fetch_row * ring::units_per_descriptor;
    const bool has_rows = count > ring::fetch_row;
    const bool is_second = g.rank() / ring::fetch_row % 2 != 0;
    const auto unit = [&](u32 index) {
      Vector16 value = g.shuffle(seen.units[0], first + index);
      if (!has_rows) return value;
      const Vector16 second = g.shuffle(seen.units[1], first + index);
      return is_second ? second : value;
    };
    const auto word_of = [](const Vector16& value) { return static_cast<u32>(value.high); };
    wire::Command command{};
    const Vector16 head = unit(0);
    command.opcode = static_cast<wire::Opcode>(word_of(head) & 0xffff);
    command.flags = static_cast<u16>(word_of(head) >> 16);
    command.inode = head.low;
    command.offset = unit(2).low;
    command.length = unit(3).low;
    const Vector16 data = unit(4);
    command.data = data.low;
    command.mode = word_of(data);
    command.mask = word_of(unit(5));
    const Vector16 name = unit(6);
    command.name = name.low;
    command.name_length = static_cast<u16>(word_of(name));
    command.output = unit(7).low;
    return command;
  }
}

// Tries the turn's first `count` commands, whose units the ranks have. Returns the set of completed commands. Uniform.
// In a kernel this is a function of its own, because polling does not need its registers.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 answer_without_locks(Group g, Engine& engine, const RingTurn& turn,
                                                   const ring::FetchedDescriptors& seen, u32 count) {
  const wire::Command own = own_command(g, turn, seen, count);
  const u32 wanted = (1u << count) - 1;
  GPU4FS_TRACE_POINT(slot);
  WorkerViews& views = *turn.views;
  if (views.root.pages.frames == nullptr) on_leader(g, [&] { views.root = RootView::of(engine.fs); });
  // Data of the session is read before the gate, because entering the gate empties a GPU's first-level cache.
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
  if (places.are_good && g.rank() < count)
    attempt(reader, own, places, views.names[g.rank() % unlocked_max], &mine, &fresh);
  // A view is checked each time it is used.
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
  if (answered != 0) fence<Order::acq_rel, Scope::system>();
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
