// A virtual queue: many lanes share one pair of NVMe queues.
//
// The design follows BaM (ASPLOS 2023, section 3.3) and Djerfi (section 4.1.1). A ticket orders the commands of a
// queue. It gives a command its place in the submission queue, and a mark at the place says that the entry is complete.
// Whoever gets the tail moves it over all marked entries and rings the doorbell once. Three things differ:
//
// - One counter bounds everything. `completed` counts the completions that were taken. A ticket is valid as soon as
//   less than capacity = depth - 1 older commands are unfinished. Then its entry is free, since the controller fetches
//   in order and has fetched at least as many commands as it has completed; so is an entry of the completion queue, and
//   so is a command identifier.
// - Free identifiers are in a ring. Ticket t takes the one at place t, and completion c puts its own at place c. The
//   ring has `depth` places, so the identifier of ticket t was put there by completion t - depth, or at the beginning.
//   Nobody searches, and no command waits for the identifier of a slow one.
// - One group at a time takes completions, up to a batch (device/nvme/completions.hpp), and rings their doorbell once.
//
// Counters have 32 bits and wrap. Depths are powers of two, so places and phases stay right.
//
// The controller is not trusted. What it writes is compared with what this program knows (device/nvme/completions.hpp),
// and the first thing that cannot be makes the whole controller failed. Then no command is submitted, and no completion
// is taken. When the host has made sure that the controller touches no memory any more, it says so, and whoever polls
// gets the outcome `stopped` for each command that was left.
//
// Memory order. Lanes of the engine: `completed` is released by the poller and acquired with a ticket; a mark is
// released by its lane and acquired by whoever moves the tail. Towards the controller (scope system): doorbells release
// (device/nvme/doorbell.hpp), and the last word of a completion entry, which has the phase, is acquired. Between lanes,
// the fence of the doorbell covers entries of others, because their marks were acquired before it.
#pragma once

#include <type_traits>

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "device/nvme/spec/queue_entries.hpp"

namespace gpu4fs::nvme {

inline constexpr u32 queue_depth_min = 2;
// Leaves four bits of a command identifier for the generation.
inline constexpr u32 queue_depth_max = 4096;
// Entries that one call of poll() takes.
inline constexpr u32 poll_batch_max = 32;

// Why a controller is not used any more.
enum class Failure : u32 {
  none,
  unknown_command,   // a completion of a command that is not outstanding, or was completed before
  early_completion,  // a completion of a command that the controller cannot have fetched yet
  wrong_queue,       // a completion that names another submission queue
  impossible_head,   // a submission head outside of what was submitted
  torn_entry,        // a completion entry that changed while it was read
  timed_out,         // a command or a change of a register takes too long
  fatal_status,      // CSTS.CFS
  absent,            // the registers are gone
  refused,           // a command of the set-up failed, or its answer cannot be
  resetting,         // the host resets the controller
  reset_by_others,   // somebody else has reset it
};

// Of one controller, for all its queues. Zeroed memory is a good controller.
struct alignas(cache_line) ControllerState {
  u32 failure;   // atomic, a Failure; the first one stays
  u32 is_quiet;  // atomic: after a failure: the controller touches no memory any more
  // atomic: 1: the controller was brought up again with other queues and another state. Set before `is_quiet`.
  u32 is_renewed;
  u32 may_return;  // atomic: 1: if it fails, it may be brought up again so
};

// Of one command identifier. The lane that has the ticket writes all but `state` before it submits.
struct CommandSlot {
  u32 state;   // atomic: generation << 1 | is_outstanding
  u32 ticket;  // all others: atomic, ordered by `state`
  u64 cookie;
  u64 submitted_ns;
  u32 service_class;
  u32 has_abort;  // 1: an Abort command was sent for it
};
static_assert(sizeof(CommandSlot) == 32);

// Plain data in engine memory. The entries may be in any memory that the controller reaches.
struct VirtualQueue {
  SubmissionEntry* submissions;
  CompletionEntry* completions;
  u32* submission_doorbell;
  u32* completion_doorbell;
  CommandSlot* slots;  // by identifier
  u32* marks;          // by place: atomic; ticket + 1 once the entry of the ticket is complete
  u32* free_ids;       // by place: atomic
  ControllerState* controller;
  u32 depth;  // of both queues, a power of two
  u16 queue_id;
  u16 reserved;

  alignas(cache_line) u32 next_ticket;  // atomic
  alignas(cache_line) u32 completed;    // atomic; written by whoever has the poll token
  u32 poll_token;                       // atomic: 1: somebody takes completions
  alignas(cache_line) u32 tail_lock;    // atomic: 1: somebody moves the tail
  u32 tail;                             // atomic: tickets below it were shown to the controller
};
static_assert(std::is_trivially_copyable_v<VirtualQueue>);

// How a command has ended.
enum class CommandEnd : u32 {
  answered,  // by the controller, with a status
  stopped,   // the controller has failed or was reset; whether the command was carried out is unknown
  returned,  // the same, and the controller works again, with other queues: the command may be repeated there
};

struct Outcome {
  u64 cookie;
  CommandEnd end;
  u32 status;  // type and code (status_code_of); 0: success
  u32 result;  // dword 0 of the completion
  bool do_not_retry;
  u32 service_class;  // of its RankCommand
};

GPU4FS_FN inline Failure failure_of(const ControllerState& controller) {
  return static_cast<Failure>(load<Order::acquire, Scope::engine>(&controller.failure));
}

// As failure_of(), in no order with other accesses: a look that overlaps with others.
GPU4FS_FN inline bool has_failed(const ControllerState& controller) {
  return load<Order::relaxed, Scope::engine>(&controller.failure) != 0;
}

// The first failure stays.
GPU4FS_FN inline void fail(ControllerState& controller, Failure failure) {
  u32 none = static_cast<u32>(Failure::none);
  compare_exchange<Order::release, Scope::engine>(&controller.failure, none, static_cast<u32>(failure));
}

namespace detail {

GPU4FS_FN inline u32 capacity_of(const VirtualQueue& queue) {
  return queue.depth - 1;
}
GPU4FS_FN inline u32 place_of(const VirtualQueue& queue, u32 ticket) {
  return ticket & (queue.depth - 1);
}

// Identifiers are index | generation << log2(depth). The last generation is left out: it has command_id_reserved.
GPU4FS_FN inline u32 generation_count(const VirtualQueue& queue) {
  return (1u << (16 - count_trailing_zeros(queue.depth))) - 1;
}
GPU4FS_FN inline u16 command_id_of(const VirtualQueue& queue, u32 index, u32 generation) {
  return static_cast<u16>(generation * queue.depth + index);
}

}  // namespace detail

}  // namespace gpu4fs::nvme
