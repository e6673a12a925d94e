// Commands that a worker answers directly when it takes them from the ring: no slot, no waiting, and no lock except
// that a long read holds its file's, shared.
//
// Each rank plans one command. All ranks together move the pages, one command after the other. A command that is not
// answered has changed nothing, and the client has seen at most some bytes of its own read. The command is then
// processed like any other one.
#pragma once

#include "engine/gate.hpp"
#include "engine/optimistic/absent_pages.hpp"
#include "engine/optimistic/read_move.hpp"
#include "engine/optimistic/walk.hpp"
#include "engine/read_ahead.hpp"
#include "engine/ring_token.hpp"

namespace gpu4fs::engine::detail {

inline constexpr u32 long_read_pages_max = static_cast<u32>(ring::long_read_max / page_size);

enum class Planned : u32 {
  nothing,   // for the ordinary way
  answered,  // complete except for the completion
  page,      // a ReadPlan
  absent,    // a ReadPlan of a page that has to be loaded
  repeated,  // a ReadPlan of a page that deserves a copy
  pages,     // a ReadPlan of several pages
};

struct Attempt {
  Planned planned;
  Status status;
  u64 result;
  ReadPlan read;
  FilledViews filled;
  bool was_absent;  // the page of the plan was loaded for it
};

GPU4FS_FN inline RootView root_view(Engine& engine) {
  return RootView::of(engine.fs, read_ahead_limit(engine) != 0 ? &engine.read_streams : nullptr);
}

GPU4FS_FN constexpr bool is_lookup(const wire::Command& command) {
  return command.opcode == wire::Opcode::lookup || command.opcode == wire::Opcode::lookup_path;
}

// Where a command's name and answer are in its session's memory.
struct CommandPlaces {
  const u8* name;   // of a lookup, otherwise nullptr
  u8* answer;       // nullptr: not requested
  bool has_record;  // the answer is an AttributeRecord
  bool are_good;    // false: the ordinary way finds the error
};

// As resolve_in(). The buffer that a session always has is in registers.
GPU4FS_FN inline bool find_place(const RingTurn& turn, u64 address, u64 length, u8** pointer) {
  const Status status = wire::ring_address_buffer(address) == 0
                            ? resolve_in_buffer(turn.own_buffer, address, length, pointer)
                            : resolve_in(*turn.session, address, length, pointer);
  return status == Status::ok;
}

GPU4FS_FN inline CommandPlaces places_of(const RingTurn& turn, const wire::Command& command) {
  CommandPlaces places{nullptr, nullptr, false, false};
  const bool has_name = is_lookup(command);
  if ((command.name_length != 0) != has_name) return places;
  u32 allowed = wire::command_flag_link | wire::command_flag_previous_inode;
  if (command.opcode == wire::Opcode::lookup_path) allowed |= wire::command_flag_follow;
  if ((command.flags & ~allowed) != 0) return places;
  u8* memory = nullptr;
  if (has_name) {
    if (!find_place(turn, command.name, command.name_length, &memory)) return places;
    places.name = memory;
  }
  // Also of commands that store nothing there, as by the ordinary way.
  const u32 output_length = wire::output_bytes(command.opcode);
  if (command.output != 0 && output_length != 0) {
    if (!find_place(turn, command.output, output_length, &places.answer)) return places;
    if (!is_aligned(places.answer, 16)) return places;
    places.has_record = command.opcode != wire::Opcode::access;
  }
  if (command.opcode == wire::Opcode::read || command.opcode == wire::Opcode::readlink) {
    if (!find_place(turn, command.data, command.length, &places.answer)) return places;
    places.has_record = false;
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

// One of the commands that a worker answers together.
struct OwnCommand {
  wire::Command command;
  CommandPlaces places;
};

struct AloneAnswer {
  bool is_answered;
  Status status;
  u64 result;
};

// Answers anything but a read of a file with its content in pages. For a single rank, inside the step gate. In a kernel
// this is a function of its own, because reads do not need its registers. *answer: status ok and the command's inode.
// A record is written to views.records[slot].
GPU4FS_FN GPU4FS_NOINLINE inline void answer_alone(const ReaderContext& reader, const OwnCommand& own, u32 slot,
                                                   AloneAnswer* answer) {
  const wire::Command& command = own.command;
  u8* const destination = own.places.answer;
  format::AttributeRecord* const record = own.places.has_record ? &reader.views->records[slot] : nullptr;
  switch (command.opcode) {
    case wire::Opcode::read:
      answer->is_answered = answer_inline_read(reader, command, destination, &answer->result);
      break;
    case wire::Opcode::readlink:
      answer->is_answered = answer_readlink(reader, command, destination, &answer->result);
      break;
    case wire::Opcode::access:
      answer->result = 0;
      answer->is_answered = answer_access(reader, command);
      break;
    case wire::Opcode::open:
      answer->is_answered = answer_open(reader, command, record);
      break;
    case wire::Opcode::getattr:
      answer->is_answered = answer_getattr(reader, command, record);
      break;
    default:
      answer->status = answer_lookup(reader, command, reader.views->names[slot], record, &answer->result);
      answer->is_answered = answer->status != Status::busy;
      break;
  }
}

GPU4FS_FN constexpr Planned planned_as(PlannedRead kind) {
  switch (kind) {
    case PlannedRead::page:
      return Planned::page;
    case PlannedRead::absent:
      return Planned::absent;
    case PlannedRead::repeated:
      return Planned::repeated;
    case PlannedRead::pages:
      return Planned::pages;
    default:
      return Planned::nothing;
  }
}

// For a single rank, inside the step gate. `slot`: its name and record in the views.
GPU4FS_FN inline void attempt(const ReaderContext& reader, const OwnCommand& own, u32 slot, Attempt* result,
                              FreshViews* fresh) {
  PlannedRead kind = PlannedRead::in_inode;
  if (own.command.opcode == wire::Opcode::read) {
    const ReadRange range{own.command.inode, own.command.offset, own.command.length};
    kind = plan_read(reader, range, own.places.answer, &result->read, fresh, &result->filled);
    result->result = result->read.to - result->read.from;
    result->planned = planned_as(kind);
  }
  if (kind != PlannedRead::in_inode) return;
  // Only copies are in memory, because their addresses are passed on.
  const ReaderContext context = reader;
  const OwnCommand copy = own;
  AloneAnswer answer{false, Status::ok, own.command.inode};
  answer_alone(context, copy, slot, &answer);
  if (!answer.is_answered && context.known != nullptr && context.known->has_changed != 0) {
    context.known->forget(Lane{}, context.era);
    answer = {false, Status::ok, own.command.inode};
    answer_alone(context, copy, slot, &answer);
  }
  if (!answer.is_answered) return;
  result->status = answer.status;
  result->result = answer.result;
  result->planned = Planned::answered;
}

// Copies the records of the ranks in `wanted` from the views to their clients. Uniform.
template <class Group>
GPU4FS_FN void give_records(Group g, const WorkerViews& views, u8* destination, u32 wanted) {
  g.sync();
  for (u32 left = wanted; left != 0; left &= left - 1) {
    const u32 rank = count_trailing_zeros(left);
    // As a number: a compiler took the emulated warp's copy of the pointer for what it points to.
    const std::uintptr_t to = g.shuffle(reinterpret_cast<std::uintptr_t>(destination), rank);
    const Vector16* const from = reinterpret_cast<const Vector16*>(&views.records[rank]);
    for (u32 i = g.rank(); i < sizeof(format::AttributeRecord) / 16; i += Group::size()) {
      store_stream_16(reinterpret_cast<u8*>(to) + 16 * i, from[i]);
    }
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

// Whether a successor in a chain may take its inode from this command's result.
GPU4FS_FN constexpr bool gives_inode(wire::Opcode opcode) {
  return opcode == wire::Opcode::lookup || opcode == wire::Opcode::lookup_path || opcode == wire::Opcode::getattr ||
         opcode == wire::Opcode::open;
}

// Waits for the pages of the ranks' planned reads that are in no frame. A worker of the host has other commands to
// process meanwhile, so there the command waits without it (engine/poll/answer_each.hpp). Uniform.
template <class Group>
GPU4FS_FN void load_absent(Group g, const ReaderContext& reader, WorkerMemory& memory, const FreshViews& fresh,
                           Attempt* mine) {
  const bool is_absent = mine->planned == Planned::absent;
  if (g.ballot(is_absent) == 0) return;
  if (is_absent) mine->planned = Planned::nothing;
  if constexpr (Group::size() == 1) {
    memory.absent = {fresh.absent.device, fresh.absent.page, mine->read};
  } else {
    const device::StagedPage page = is_absent ? fresh.absent : device::StagedPage{nullptr, 0};
    const u8* const frame = await_frames(g, *reader.engine, page);
    if (is_absent && frame != nullptr) {
      mine->read.page = frame;
      mine->planned = Planned::page;
      mine->was_absent = true;
    }
  }
}

// Copies the pages of the ranks' planned reads that deserve it. Uniform.
template <class Group>
GPU4FS_FN void copy_repeated(Group g, const ReaderContext& reader, Attempt* mine) {
  const bool is_repeated = mine->planned == Planned::repeated;
  const u32 set = g.ballot(is_repeated);
  if (set == 0) return;
  mine->read.page = promote_planned(g, reader.engine->fs.space, set, mine->read.address, mine->read.page);
  if (is_repeated) mine->planned = Planned::page;
}

// Attempts the commands in `wanted`, the first ones of chains together, then their successors, and so on. Returns the
// set of those that failed or may not continue a chain. Uniform.
template <class Group>
GPU4FS_FN u32 attempt_chains(Group g, const ReaderContext& reader, const RingTurn& turn, OwnCommand& own, u32 wanted,
                             Attempt* mine) {
  const u32 rank = g.rank();
  const u32 slot = rank % unlocked_max;
  const u32 successors = g.ballot((own.command.flags & wire::command_flag_previous_inode) != 0) & wanted;
  u32 ready = wanted & ~successors;
  u32 left = successors;
  FreshViews fresh;
  while (ready != 0) {
    if (own.places.are_good && (ready >> rank & 1) != 0) attempt(reader, own, slot, mine, &fresh);
    // A view is checked each time it is used.
    remember(g, reader, fresh, mine->filled);
    if (left == 0) break;
    const bool is_source =
        mine->planned == Planned::answered && mine->status == Status::ok && gives_inode(own.command.opcode);
    ready = left & (g.ballot(is_source) & turn.linked) << 1;
    left &= ~ready;
    const u64 inode = g.shuffle(mine->result, (rank + Group::size() - 1) % Group::size());
    if ((ready >> rank & 1) != 0) own.command.inode = inode;
    mine->filled = {};
  }
  load_absent(g, reader, *turn.memory, fresh, mine);
  copy_repeated(g, reader, mine);
  // An error ends a chain, and the ordinary way cancels its rest.
  const bool is_error = mine->status != Status::ok && (turn.linked >> rank & 1) != 0;
  return g.ballot(mine->planned == Planned::nothing || is_error) & wanted;
}

// Moves the bytes of the planned reads in `wanted`. Returns the set of those that were not given. Uniform.
template <class Group>
GPU4FS_FN u32 move_reads(Group g, const ReaderContext& reader, const RingTurn& turn, const OwnCommand& own,
                         const Attempt& mine, u32 wanted) {
  const RootView& root = reader.views->root;
  u8* const lane_copy = turn.memory->page;
  u32 failed = 0;
  const u32 single = g.ballot(mine.planned == Planned::page) & wanted;
  if ((single & (single - 1)) != 0) {
    failed = single & ~move_set(g, root, mine.read, single, lane_copy);
  } else if (single != 0) {
    const ReadPlan plan = g.shuffle(mine.read, count_trailing_zeros(single));
    if (!move_planned(g, root, plan, lane_copy)) failed = single;
  }
  if constexpr (Group::size() != 1) {
    // A long read is alone in its ring, so it is the leader's.
    if ((g.ballot(mine.planned == Planned::pages) & wanted) != 0) {
      const ReadRange range{own.command.inode, own.command.offset, own.command.length};
      if (g.leader()) reader.views->long_read = {range, mine.read};
      g.sync();
      const ReaderContext context = reader;  // only copies are in memory, because their addresses are passed on
      if (!move_long_read(g, context)) failed = 1;
    }
  }
  return failed;
}

// Two sets of commands.
struct Answered {
  u32 completed;
  u32 failed;  // completed ones with an error
};

// The reads in `answered` may be followed by others: begins to load what these will need. The clients have their
// answers already. Uniform.
template <class Group>
GPU4FS_FN void load_for_next(Group g, const ReaderContext& reader, const RingTurn& turn, const OwnCommand& own,
                             const Attempt& mine, u32 answered) {
  ReadStreams* const streams = reader.views->root.read_streams;
  if (streams == nullptr) return;
  const bool is_read = (answered >> g.rank() & 1) != 0 && own.command.opcode == wire::Opcode::read &&
                       mine.planned != Planned::answered && mine.result != 0;
  const SeenRead read{own.command.inode, own.command.offset, own.command.offset + mine.result};
  const u32 stream = is_read ? find_stream(*streams, read) : no_stream;
  const u32 set = g.ballot(is_read && (mine.was_absent || stream != no_stream));
  if (set == 0) return;
  on_leader(g, [&] { wake_client(*turn.session); });
  follow_unlocked_reads(g, *reader.engine, set, read, stream);
}

// Tries the commands in `wanted`, which are whole chains; each rank has one of them. The completed commands are whole
// chains, too. The caller counts them. Inside the step gate. Uniform.
template <class Group>
GPU4FS_FN Answered answer_inside_gate(Group g, const ReaderContext& reader, const RingTurn& turn, OwnCommand& own,
                                      u32 wanted) {
  WorkerViews& views = *reader.views;
  Attempt mine{};
  const u32 failed = attempt_chains(g, reader, turn, own, wanted, &mine);
  u32 answered = wanted & ~GPU4FS_MUTANT(chain_answered_in_part, whole_chains_of(turn.linked, failed), failed);
  GPU4FS_TRACE_POINT(translate);
  const bool has_record = own.places.has_record && mine.planned == Planned::answered && mine.status == Status::ok;
  give_records(g, views, own.places.answer, g.ballot(has_record) & answered);
  answered &= ~whole_chains_of(turn.linked, move_reads(g, reader, turn, own, mine, answered));
  g.sync();
  GPU4FS_TRACE_POINT(transfer);
  if (answered == 0) return {0, 0};
  fence<Order::release, Scope::system>();
  GPU4FS_TRACE_POINT(fence);
  if ((answered >> g.rank() & 1) != 0) {
    ring::write_bare_completion(turn.ring, turn.position + g.rank(), mine.status, mine.result);
  }
  GPU4FS_TRACE_POINT(completion);
  load_for_next(g, reader, turn, own, mine, answered);
  return {answered, g.ballot(mine.status != Status::ok) & answered};
}

// Tries the turn's first `count` commands, whose units the ranks have. Returns the set of completed commands. Uniform.
// In a kernel this is a function of its own, because polling does not need its registers. A Lane has answer_each().
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 answer_without_locks(Group g, Engine& engine, const RingTurn& turn,
                                                   const ring::FetchedDescriptors& seen, u32 count) {
  OwnCommand own{own_command(g, turn, seen, count), {}};
  const u32 wanted = (1u << count) - 1;
  GPU4FS_TRACE_POINT(slot);
  WorkerViews& views = *turn.views;
  if (g.any(views.root.pages.frames == nullptr)) on_leader(g, [&] { views.root = root_view(engine); });
  own.places = places_of(turn, own.command);
  copy_names(g, views, own.command, own.places.are_good ? own.places.name : nullptr, wanted);
  GPU4FS_TRACE_POINT(name);
  const Entered entered = on_leader(g, [&] { return try_enter_era(engine, engine.step_gate); });
  if (!entered.is_inside) return 0;
  GPU4FS_TRACE_POINT(gate);
  const ReaderContext reader{&engine, turn.session, &views, entered.era, turn.is_trusted, 1};
  const Answered answered = answer_inside_gate(g, reader, turn, own, wanted);
  on_leader(g, [&] {
    leave(engine, engine.step_gate);
    const u32 completed = popcount(answered.completed);
    count_completed(turn.memory->counters, completed, completed, popcount(answered.failed));
  });
  GPU4FS_TRACE_POINT(leave);
  return answered.completed;
}

}  // namespace gpu4fs::engine::detail
