// Commands in progress: their state in engine memory and the result of a handler's step.
//
// A handler consists of two uniform functions:
//   template <class Group> Step step_x(Group g, Engine& engine, CommandState& c);
//   template <class Group> void task_x(Group g, Engine& engine, CommandState& c, u32 task);
// step_x runs from the top each time the command is started or restarted. `c.stage` (0 at first) and `c.scratch` keep
// its state in between. The Step that it returns says how it ended. A failed task calls fail_task(). The engine
// releases locks, gate and reservations when the command is done.
#pragma once

#include "base/check.hpp"
#include "base/command_lock.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "fs/fs_types.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::engine {

enum class LockMode : u16 { shared = 1, exclusive = 2 };

struct HeldLock {
  CommandLock* lock;
  u64 inode;
  LockMode mode;
  u16 reserved;
  u32 granted;  // atomic. 0: queued; granting the lock sets 1
};

inline constexpr u32 held_lock_max = 8;
inline constexpr u32 command_name_capacity = 4096;
inline constexpr u32 command_scratch_size = 1024;
inline constexpr u32 command_buffer_size = 4096;
inline constexpr u32 command_extent_capacity = 512;
inline constexpr u32 linked_command_max = 16;

// done: the command ends with a status and, if that is ok, a result
// waits: for one thing, which the control code names
// again: it goes to the end of the run queue
// tasks: tasks 0..n-1 run on any workers; after the last one the step runs again
enum class StepKind : u32 { done, waits, again, tasks };

// How a step ended. Each combination of the fields has one meaning, so the kind needs no field of its own. A step is
// returned in four registers.
//
// The command goes on after a control code when this has happened:
//   waits_for_...           it is woken, by whoever removes it from the list in which it is. A function that appends it
//                           calls announce_wait() (wait_list.hpp) and returns the code. The step has to end with it
//   retry_after_checkpoint  a checkpoint has ended, which also evicts. Locks and reservations are dropped, and the
//                           stage becomes 0
//   chunk_not_mapped        the server has mapped operation.wanted_chunk. If the chunk was deleted meanwhile, its
//                           successor in the table is not the wanted one, and the step just runs again
//   needs_new_chunk         the server has made a chunk of class operation.wanted_class. Everything is dropped as for
//                           retry_after_checkpoint. If the server cannot make one, the command finds that there is no
//                           space
// no_space also restarts a command, once, if operation.blocked_by_reservations shows that other commands hold the
// missing space. This is done as for retry_after_checkpoint, because by the end of a checkpoint most of them have used
// the space or released it. With the reservations, the engine also releases extents in c.extents[0, extent_count) and a
// claimed inode number.
class Step {
 public:
  constexpr Step() = default;

  GPU4FS_FN static constexpr Step complete(u64 result = 0) { return Step{Status::ok, 0, result}; }
  // As the status says: ok and errors end the command, a control code makes it wait or run again.
  GPU4FS_FN static constexpr Step end(Status status) { return Step{status, 0, 0}; }
  GPU4FS_FN static constexpr Step again() { return end(Status::again); }
  GPU4FS_FN static Step fan_out(u32 task_count) {
    GPU4FS_CHECK_GT(task_count, 0u);
    return Step{Status::ok, task_count, 0};
  }

  GPU4FS_FN constexpr StepKind kind() const {
    if (task_count_ != 0) return StepKind::tasks;
    if (status_ == Status::again) return StepKind::again;
    return is_control(status_) ? StepKind::waits : StepKind::done;
  }
  GPU4FS_FN constexpr Status status() const { return status_; }
  GPU4FS_FN constexpr u64 result() const { return result_; }
  GPU4FS_FN constexpr u32 task_count() const { return task_count_; }

 private:
  GPU4FS_FN constexpr Step(Status status, u32 task_count, u64 result)
      : status_(status), task_count_(task_count), result_(result) {}

  Status status_ = Status::ok;
  u32 task_count_ = 0;
  u64 result_ = 0;
};
static_assert(sizeof(Step) == 16);

// The state of a command's execution. `linked` waits for its predecessor in a chain; `woken` is running and must run
// again.
enum class CommandPhase : u32 { free = 0, linked, queued, running, woken, parked };

// Whether a command's names are copied and its addresses checked. stale_scratch: it restarts from the beginning, after
// its scratch memory is cleared.
enum class Prepared : u16 { no, yes, stale_scratch };

// The server's answer to the request of one command (upcalls.hpp). There is at most one request at a time.
struct UpcallMailbox {
  u64 id;                // atomic, of the request without an answer; 0: none
  Status status;         // of the answer; waits_for_answer: there is none, or it was taken
  u32 chunk_generation;  // of map_chunk: ChunkState::generation of the chunk that the step wanted
  u64 failed_devices;    // of a flush that failed, one bit each; 0: not known
  u64 replaced_devices;  // since the request, one bit each
};

// The tasks of a command (tasks.hpp).
struct CommandTasks {
  u64 word;    // atomic: their count in the upper half, the next one in the lower
  u32 left;    // atomic: not ended yet
  u32 status;  // atomic, Status: the first failure
};

inline constexpr u32 memory_sector = 32;  // the bytes that a GPU loads together

// Fields that are used together are in the same sector. command_reset.hpp sets all that do not keep their values from
// one command to the next.
struct CommandState {
  alignas(memory_sector) wire::Command command;  // decoded once and validated; never read again from shared memory
  fs::Operation operation;                       // what the layers below keep for it: reservations, claims, wishes

  // Which command it is, and how far it is.
  alignas(memory_sector) u32 index;  // in Engine::commands
  u32 stage;
  u16 session;
  Prepared prepared;
  u32 next_linked;              // command index, no_command: none
  u32 wait_next;                // link in the list in which it waits, no_command: last
  u32 waited_for_reservations;  // 1: it has waited once for a checkpoint because of no_space
  u64 ring_position;

  // What the engine looks at before and after each step.
  alignas(memory_sector) u16 in_gate;
  u16 in_step_gate;  // counted by Engine::step_gate
  u32 lock_count;
  u32 extent_count;
  u32 phase;          // atomic, CommandPhase
  u32 waits_for;      // atomic, Status: what the step has announced that it waits for; ok: nothing
  Status ended_with;  // control code of the last step that the next one has to look at; ok: none
  u32 cancel_status;  // atomic, Status: not ok: the command ends with it when it is restarted
  u32 wait_status;    // Status: error of the wait for an epoch

  alignas(memory_sector) u64 deadline_ns;  // monotonic, 0: none
  u64 result;                              // atomic, 0 at first: for handlers whose tasks add to it
  u64 progress;                            // amount done before a restart, 0 at first, see wire::Restart
  CommandLock* wait_lock;                  // atomic, with waits_for_lock
  u32 io_left;      // atomic: loads that are in flight for it, and one while its step begins some
  u32 awaits_page;  // 1: it has run no step, and its page was not in memory (optimistic/awaited_page.hpp)

  alignas(memory_sector) HeldLock locks[held_lock_max];

  alignas(memory_sector) CommandTasks tasks;
  u64 wait_epoch;  // waits_for_epoch: restarted when this epoch is durable,
  u64 wait_round;  // or when this checkpoint round has ended

  UpcallMailbox mailbox;
  format::AttributeRecord attributes;  // staging of put_attributes
  alignas(16) u8 scratch[command_scratch_size];
  alignas(16) u8 names[command_name_capacity];  // name, then second name, or a path
  alignas(16) u8 buffer[command_buffer_size];   // a page of work space for the handler
  fs::RoundExtent extents[command_extent_capacity];
};
static_assert(sizeof(CommandState) % memory_sector == 0);

}  // namespace gpu4fs::engine

// In handlers: returns a Status that is not ok from the step.
#define GPU4FS_STEP_TRY(expression)                                                             \
  do {                                                                                          \
    const ::gpu4fs::Status step_status_ = (expression);                                         \
    if (step_status_ != ::gpu4fs::Status::ok) return ::gpu4fs::engine::Step::end(step_status_); \
  } while (false)
