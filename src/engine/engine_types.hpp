// The engine's root structure in engine memory. Everything that it points to is allocated before the engine starts
// (engine_build.hpp) and never moves.
#pragma once

#include "base/free_list.hpp"
#include "base/limits.hpp"
#include "base/trace.hpp"
#include "engine/check_tables.hpp"
#include "engine/command_types.hpp"
#include "engine/optimistic/views.hpp"
#include "engine/parking.hpp"
#include "engine/read_streams.hpp"
#include "engine/run_queue.hpp"
#include "fs/fs_types.hpp"
#include "ring/ring.hpp"
#include "ring/ring_layout.hpp"
#include "ring/upcall_ring.hpp"

namespace gpu4fs::engine {

inline constexpr u32 session_max = 64;
inline constexpr u32 session_buffer_max = 16;

// Fixed command slots. The checkpoint has its own slot, so it can always run.
inline constexpr u32 checkpoint_command = 0;
inline constexpr u32 first_client_command = 1;

// Pseudo inode of the lock that renames of directories hold. No inode has this number.
inline constexpr u64 lock_inode_rename = ~u64{0};

struct EngineConfig {
  u32 command_count = 1024;        // slots, including the internal one; at most 65534
  u32 worker_count = 1;            // maximum number of workers that run at the same time
  u32 inline_transfer_pages = 32;  // transfers up to this size run inside the step
  u32 task_pages = 32;             // maximum number of pages that one task of a transfer moves
  u32 default_deadline_ms = 30000;
  u32 sweep_interval_ms = 250;  // between searches for commands past their deadline
  u32 batch_max = 8;            // descriptors taken from a ring at a time
  u32 spin_ns = 20000;          // CPU: time without work before a worker sleeps
  u32 caches_slots = 0;         // 1: a worker caches some free slots, see WorkerMemory
  u32 read_ahead_pages = 256;   // limit of a window of read_streams.hpp; 0: nothing is loaded ahead
  u64 realtime_offset_ns = 0;   // GPU: wall clock minus the device's clock
};

struct SessionBuffer {
  u8* base;  // in the engine's address space
  u64 length;
};

enum class SessionPhase : u32 { free = 0, open = 1, closing = 2 };

// Written by the host side before `phase` becomes open. Afterwards only the fields marked atomic change.
struct Session {
  alignas(cache_line) u32 phase;  // atomic, SessionPhase
  u32 trusted;                    // the front end has checked permissions and sets its callers' uids
  u32 internal;                   // may use internal commands
  u32 uid;
  u32 gid;
  u32 group_count;
  const u32* groups;  // ascending, in memory that only the host writes
  ring::EngineRing ring;
  ring::RingControl* control;
  SessionBuffer buffers[session_buffer_max];
  alignas(cache_line) u64 poll_word;  // atomic: next ring position << 1, plus 1 while a worker holds the token
  alignas(cache_line) u32 in_flight;  // atomic: commands taken and not completed
};

// A gate counts the workers inside. While it is closed, no other can enter, and commands that want to park. When the
// last worker has left, the closer is restarted. The era counts how often the gate was opened. Functions in gate.hpp.
struct Gate {
  alignas(cache_line) u64 word;  // atomic: number inside, gate_closed, and above that the era
  alignas(cache_line) TicketLock guard;
  u32 closer;  // command that waits for the gate to drain, no_command: none
  u32 owner;   // atomic: command that closed it, no_command: open
  u32 queue_head;
  u32 queue_tail;
};

// The wait for epochs, and the times of checkpoints. Functions in epochs.hpp.
struct EpochQueue {
  alignas(cache_line) TicketLock guard;
  u32 head;
  u32 tail;
  u32 checkpoint_running;
  u32 mask_wanted;  // Command::mask of the next checkpoint
  u64 round_ended;  // checkpoints that have run
  u64 round_wanted;
  u64 write_errors;       // checkpoints that failed, see write_errors.hpp
  u32 write_error_stays;  // the last one failed and prevents all later ones from being written
  u32 reserved;
};

// The wait for the operation log to reach the medium. Functions in log_flush.hpp.
struct LogQueue {
  alignas(cache_line) TicketLock guard;
  u32 head;
  u32 tail;
  u32 flusher;    // command that is writing the log, no_command: none
  u32 failed;     // it could not be written
  u64 room_owed;  // room that a checkpoint made while the log was being written
};

// Commands that wait until fewer pages are being written. Functions in device_poll.hpp.
struct MediaQueue {
  alignas(cache_line) TicketLock guard;
  u32 head;
  u32 tail;
  u32 has_waiters;  // atomic: also read without the guard
};

inline constexpr u32 help_board_size = 16;

// Commands whose tasks need help. Workers without work look here. One cache line. Functions in tasks.hpp.
struct HelpBoard {
  alignas(cache_line) u64 entries[help_board_size];  // atomic: ticket in the upper half, command + 1; 0: free
  alignas(cache_line) u32 tickets;                   // atomic
};

// Frequent events, as one worker has counted them. It is the only writer (add_as_only_writer). One cache line.
struct WorkerCounters {
  alignas(cache_line) u64 commands_started;
  u64 commands_completed;
  u64 commands_failed;
  u64 commands_optimistic;  // completed ones that engine/optimistic/ answered
  u64 descriptors_rejected;
};
static_assert(sizeof(WorkerCounters) == cache_line);

// Rare events and times. Any thread of the engine changes them.
struct SharedCounters {
  alignas(cache_line) u64 deadlines_exceeded;
  u64 upcalls_dropped;
  u64 checkpoint_pause_last_ns;  // time during which a checkpoint kept operations from committing
  u64 checkpoint_pause_max_ns;
};

// What EngineHost::counters() returns: the sums of the workers' counters, and the shared ones.
struct EngineCounters : WorkerCounters, SharedCounters {};

inline constexpr u32 cached_slot_max = unlocked_max;

// A read of one page that a Lane has planned, and that is in no frame of the page cache (optimistic/awaited_page.hpp).
struct AbsentRead {
  const device::Device* device;  // nullptr: there is none
  u64 page;                      // of the device
  ReadPlan plan;                 // without the place of the page
};

// Work space of one worker. No other worker uses it. Hosts read the counters while the worker runs.
struct WorkerMemory {
  WorkerCounters counters;
  alignas(cache_line) wire::RingDescriptor staging[linked_command_max];
  u32 cached_slot_count;
  u32 cached_slots[cached_slot_max];  // free slots for its next commands
  WorkerViews views;                  // of a CPU worker
  AbsentRead absent;                  // of the command that a Lane has just tried to answer
  alignas(16) u8 page[page_size];     // data that a Lane has read and not verified yet
};

// A worker's check fails if exit_requested has this value, for tests of an engine's death.
inline constexpr u32 service_fault_requested = 2;

// Words through which the host and the service kernel communicate in engine memory.
struct ServiceControl {
  alignas(cache_line) u32 exit_requested;  // atomic: every worker leaves at its next check
  u32 exit_reason;                         // ServiceExit, set by the worker that requested the exit
  alignas(cache_line) u64 last_work_ns;    // atomic
};

struct Engine {
  fs::FileSystem fs;
  EngineConfig config;
  CommandState* commands;
  WorkerMemory* worker_memory;  // worker_memory_count(config) entries
  FreeList free_commands;
  RunQueue run_queue;
  HelpBoard help_board;
  alignas(cache_line) u32 commands_active;  // atomic: client commands that hold a slot
  alignas(cache_line) u32 slots_exhausted;  // atomic: a chain stayed in its ring because there were no command slots
  alignas(cache_line) u64 next_sweep_ns;    // atomic
  CommandLock rename_lock;
  Gate commit_gate;
  Gate step_gate;
  TicketLock held_back_lock;  // for items that found the step gate closed
  u32 held_back_count;
  u32* held_back;  // run_queue.capacity entries
  EpochQueue epochs;
  LogQueue log_queue;
  MediaQueue media_queue;
  alignas(cache_line) u64 upcall_position;  // atomic
  u64 upcall_generation;                    // atomic
  ring::UpcallRing* upcalls;                // shared memory
  alignas(cache_line) u32 session_end;      // atomic: sessions beyond it were never used
  u32 stop_requested;                       // atomic
  SharedCounters counters;
  ServiceControl service;
  CheckTables check;
  ReadStreams read_streams;  // of files on staged devices
  Parking parking;
  alignas(cache_line) TraceTotals trace;
  Session sessions[session_max];
};

// The workers, followed by one entry for each session, because a waiting client's thread executes work too. A worker
// and a session have one thread at a time, and so has its entry.
GPU4FS_FN constexpr u32 worker_memory_count(const EngineConfig& config) {
  return config.worker_count + session_max;
}

// Looks at a ring after which its token is passed on. The next worker remembers nothing of the ring's files, so the
// token stays long where each ring can have a worker of its own.
inline constexpr u32 polls_per_token_min = 256;
inline constexpr u32 polls_per_token_max = 4096;

// A worker's own state, equal on all ranks.
struct WorkerState {
  u32 index;           // below worker_memory_count()
  u32 session_cursor;  // next ring to look at
  u32 turn;
  u32 rings_first;      // 1: checks rings before the run queue
  u32 polls_rings;      // 0: only takes from the run queue
  u32 keeps_token;      // 1: keeps a quiet ring's token from poll to poll
  u32 held_session;     // with keeps_token; session_max: none
  u32 held_polls;       // polls since it took the token
  u32 polls_per_token;  // then it passes the token on
  u64 held_position;    // its next position
  u32 fetch_count;      // descriptors to fetch together
  u32 saw_descriptor;   // the last look at the rings saw a published descriptor
  u32 missed_token;     // the last look found such a ring, but another worker had its token
  u32 ran_tasks;        // in the last step
  u32 ring_is_quiet;    // the last look at the held ring saw at most one command
  u32 has_had_ring;     // 1: it has held a ring's token
  WorkerViews* views;   // nullptr: WorkerMemory::views

  GPU4FS_FN static constexpr WorkerState make(u32 index) {
    return WorkerState{
        index, index % session_max, 0, 0, 1, 0, session_max, 0, polls_per_token_min, 0, 1, 0, 0, 0, 0, 0, nullptr};
  }
};

}  // namespace gpu4fs::engine
