// Commands in progress: their state in engine memory and the result of a handler's step.
//
// A handler consists of two uniform functions:
//   template <class Group> Step step_x(Group g, Engine& engine, CommandState& c);
//   template <class Group> void task_x(Group g, Engine& engine, CommandState& c, u32 task);
// step_x runs from the top each time the command is started or restarted. `c.stage` (0 at first) and `c.scratch` keep
// its state in between. It returns complete, fail, parked (another worker will restart it) or fan_out(n): tasks 0..n-1
// run on any workers, then step_x is called again. A failed task calls fail_task(). The engine releases locks, gate and
// reservations when the command completes or fails.
#pragma once

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

enum class StepKind : u32 { complete, parked, fan_out };

struct Step {
  StepKind kind;
  Status status;  // of complete; the engine handles control codes (see below)
  u64 result;
  u32 task_count;
  u32 reserved;

  GPU4FS_FN static Step complete(u64 result = 0) { return {StepKind::complete, Status::ok, result, 0, 0}; }
  // Any Status. Control codes restart the command and do not complete it:
  //   parked                  it is already in some queue
  //   again                   it goes to the end of the run queue
  //   retry_after_checkpoint  locks and reservations are dropped, stage becomes 0, and the command is restarted after
  //                           the next checkpoint (which also evicts)
  //   chunk_not_mapped        the server maps operation.wanted_chunk, then the command is restarted. If that is
  //                           raid::new_chunk, the server makes a chunk, and everything is dropped as for
  //                           retry_after_checkpoint. If the server cannot make one, the command finds that there is
  //                           no space. If the chunk was deleted meanwhile, its successor in the table is not the
  //                           wanted one: the step runs again
  // no_space also restarts a command, once, if operation.blocked_by_reservations shows that other commands hold the
  // missing space. This is done as for retry_after_checkpoint, because by the end of a checkpoint most of them have
  // used the space or released it. With the reservations, the engine also releases extents in c.extents[0,
  // extent_count) and a claimed inode number.
  GPU4FS_FN static Step end(Status status) { return {StepKind::complete, status, 0, 0, 0}; }
  GPU4FS_FN static Step park() { return {StepKind::parked, Status::parked, 0, 0, 0}; }
  GPU4FS_FN static Step fan_out(u32 task_count) { return {StepKind::fan_out, Status::ok, 0, task_count, 0}; }
};

// The state of a command's execution. `linked` waits for its predecessor in a chain; `woken` is running and must run
// again.
enum class CommandPhase : u32 { free = 0, linked, queued, running, woken, parked };

// The event that a parked command waits for. It tells the deadline sweep from which queue to remove the command.
enum class WaitKind : u32 { none = 0, lock, gate, epoch, upcall, step_gate, log };

enum class EngineWait : u32 { none = 0, chunk_mapping = 1, checkpoint = 2 };

// Whether a command's names are copied and its addresses checked. stale_scratch: it restarts from the beginning, after
// its scratch memory is cleared.
enum class Prepared : u32 { no, yes, stale_scratch };

struct CommandState {
  wire::Command command;  // decoded once and validated; never read again from shared memory
  fs::Operation operation;
  u32 index;      // in Engine::commands
  u32 wait_next;  // link in the queue in which it waits, no_command: last
  u32 stage;
  u32 session;
  u32 next_linked;  // command index, no_command: none
  Prepared prepared;
  u64 ring_position;
  u64 deadline_ns;  // monotonic, 0: none
  u64 result;       // atomic, 0 at first: for handlers whose tasks add to it
  u64 progress;     // amount done before a restart, 0 at first, see wire::Restart
  u32 in_gate;
  u32 in_step_gate;  // counted by Engine::step_gate
  u32 lock_count;
  u32 task_count;
  HeldLock locks[held_lock_max];
  u64 task_word;    // atomic: task count in the upper half, next task in the lower
  u32 tasks_left;   // atomic
  u32 task_status;  // atomic, first failure's Status
  u32 extent_count;
  u32 phase;                           // atomic, CommandPhase
  u32 wait_kind;                       // atomic, WaitKind
  u32 cancel_status;                   // atomic, Status: not ok: the command ends with it when it is restarted
  CommandLock* wait_lock;              // atomic, with WaitKind::lock
  u64 wait_epoch;                      // WaitKind::epoch: restarted when this epoch is durable,
  u64 wait_round;                      // or when this checkpoint round has ended
  u32 wait_status;                     // error of the wait for an epoch, Status
  u32 engine_wait;                     // EngineWait: reason for which the engine delays the next step
  u32 waited_for_reservations;         // 1: it has waited once for a checkpoint because of no_space
  u64 upcall_id;                       // atomic, 0: none outstanding
  Status upcall_result;                // of the last upcall
  u32 wanted_generation;               // with operation.wanted_chunk: ChunkState::generation when the step wanted it
  u64 upcall_devices;                  // of a flush that failed: one bit for each failed device; 0: not known
  u64 upcall_replaced;                 // devices that were replaced since the upcall, one bit each
  format::AttributeRecord attributes;  // staging of put_attributes
  alignas(16) u8 scratch[command_scratch_size];
  alignas(16) u8 names[command_name_capacity];  // name, then second name, or a path
  alignas(16) u8 buffer[command_buffer_size];   // a page of work space for the handler
  fs::RoundExtent extents[command_extent_capacity];
};

}  // namespace gpu4fs::engine

// In handlers: returns a Status that is not ok from the step.
#define GPU4FS_STEP_TRY(expression)                                                             \
  do {                                                                                          \
    const ::gpu4fs::Status step_status_ = (expression);                                         \
    if (step_status_ != ::gpu4fs::Status::ok) return ::gpu4fs::engine::Step::end(step_status_); \
  } while (false)
