// NVMe drives as media of staged devices.
//
// A device may have a drive. Requests for it then become NVMe commands in virtual queues (device/nvme/queue_types.hpp)
// and are not given to threads of a controller. Slots, statuses and reports are those of the I/O queue, so the code
// above sees no difference (drives/drive_requests.hpp).
//
// The engine knows queues, doorbells and memory, and not who serves them: an emulated drive, or one on the bus. Nothing
// interrupts. Whoever has time polls; on the host whoever serves the drive wakes those who sleep.
//
// A drive that is silent, and an answer that cannot be, make the drive failed. A drive is silent if the command that it
// has had longest stays the same for the time-out. So a command may wait for any number of older ones, and no command
// waits for ever. The host has the drive abort a late command first, if it can (Drive::can_abort): the request is then
// repeated. The host reads the failure in the drive's signal, makes sure that the drive touches no memory any more, and
// says so there. Then the commands that were left end as device_failed. A drive never works again; another one may take
// its place. That may be the same one after a reset: then the commands that were left are repeated.
//
// Plain data in engine memory.
#pragma once

#include <type_traits>

#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "device/nvme/queue_types.hpp"

namespace gpu4fs::device {

inline constexpr u32 drive_queue_max = 8;
inline constexpr u32 drive_memory_max = 4;
// Of a drive with three queues or more: the queue of requests that a lane waits for, which are those of the log and of
// metadata. The last queue has pages that are written behind, and those between have loads. Two queues: the first one
// has loads too.
inline constexpr u32 urgent_queue = 0;
// Pages of one command at most, so that its list fits into drive_list_bytes.
inline constexpr u32 drive_transfer_page_max = 32;
// Of the list of a command: PRP entries, or the range that is deallocated.
inline constexpr u64 drive_list_bytes = drive_transfer_page_max * sizeof(u64);
static_assert(page_size % drive_list_bytes == 0, "a list is in one page");

// A drive's pages are in neighbourhoods of this many pages. Those whose numbers differ by a multiple of
// `neighbourhood_count` share a fate (drives/shared_commands.hpp), so a drive has a fixed number of them.
inline constexpr u32 neighbourhood_pages = 64;
inline constexpr u32 neighbourhood_count = 64;
static_assert(drive_transfer_page_max <= neighbourhood_pages, "a command is in two neighbourhoods at most");

// In memory that the host accesses too.
struct alignas(cache_line) DriveSignal {
  u32 failure;   // atomic, of the engine: a nvme::Failure; 0: none
  u32 is_quiet;  // atomic, of the host, after a failure: 1: the drive touches no memory any more
  u64 late;      // atomic, of the engine: the LateCommand that the host should have the drive abort; 0: none yet
};

// A command that a drive has had for too long, as a word: its queue from 0 on, its identifier, and a number from 1 on,
// so each word is another.
struct LateCommand {
  u32 queue;
  u16 command_id;
  u32 number;

  GPU4FS_FN constexpr u64 word() const { return u64{number} << 32 | u64{queue + 1} << 16 | command_id; }
  GPU4FS_FN static constexpr LateCommand of(u64 word) {
    return {static_cast<u32>(word >> 16 & 0xffff) - 1, static_cast<u16>(word & 0xffff), static_cast<u32>(word >> 32)};
  }
};

// As Linux has it for I/O of NVMe drives.
inline constexpr u64 drive_timeout_ns = 30000000000;

// Of whoever has the token: the command that the drive has had longest, as the look before has found it.
struct DriveWatch {
  u32 token;  // atomic: 1: somebody looks
  u32 queue;
  u32 ticket;
  u64 submitted_ns;  // ~0: there was none
  u64 since_ns;      // the first look that has found just this command
  u64 told_ns;       // when the host was told that this command is late; 0: it was not
  u64 last_told_ns;  // of any command
  u32 told_number;   // of the last one
  u32 told_count;    // those since the drive has kept its time
};

struct Drive {
  nvme::VirtualQueue* queues[drive_queue_max];
  nvme::ControllerState* controller;
  DriveSignal* signal;
  u64 command_timeout_ns;
  DriveWatch watch;
  u64 next_look_ns;   // atomic: when somebody looks whether the drive is silent
  u64 next_clean_ns;  // atomic: when somebody looks for commands that a failed drive has left
  // Atomic, by neighbourhood: until then each of its pages has a command of its own; 0: none has failed.
  u64 single_until_ns[neighbourhood_count];
  u64 block_count;
  u32 queue_count;  // from 1 on, see urgent_queue
  u32 namespace_id;
  u32 block_shift;        // log2 of the bytes of a block
  u32 transfer_page_max;  // of a command, 1 to drive_transfer_page_max
  u32 has_zeroes;         // Write Zeroes
  u32 has_deallocate;     // Dataset Management
  u32 read_only;          // 1: commands that change the medium are not sent
  u32 can_abort;          // 1: the host is told of a late command before the drive fails
  u32 loses_next_flush;   // atomic: 1: a reset may have lost what was written, so the next flush fails
};

// A range of memory that drives reach.
struct DriveMemory {
  u8* memory;
  u64 bytes;
  u64 bus_address;
};

struct DriveSet {
  Drive* drives[device_count_max];  // atomic, by device; null: none
  u64 connected;                    // atomic: devices that have or had a drive, one bit each
  DriveMemory memory[drive_memory_max];
  u32 memory_count;
  u32 slot_count;
  u8* lists;  // by slot of the queue: drive_list_bytes, aligned to it
  u64 lists_bus_address;

  // Of an engine whose workers are threads of this process: requests were reported, and somebody has to take the
  // reports. Null: nobody sleeps.
  void (*on_reports)(void* context);
  void* context;
};

static_assert(std::is_trivially_copyable_v<Drive> && std::is_trivially_copyable_v<DriveSet>);

}  // namespace gpu4fs::device
