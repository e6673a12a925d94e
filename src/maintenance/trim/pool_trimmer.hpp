// Returns space of free regions: punches them out of the files of devices, and lets disks forget them.
//
// The engine selects the regions (space/backing.hpp explains why, and their state until they are needed again); this
// code punches them, one run at a time. Memory that is registered with the GPU is pinned: a punch would free nothing
// and leave the GPU with pages that the file does not contain. So it is unregistered before, while no kernel runs.
//
// Disks and files that are accessed directly are discarded by their controller. The engine has written the frames of
// the run before, and nobody gets a page of it until the engine hears that the discard has ended. So no request for the
// run is in flight. Parities of its rows have no meaning, because no page of the rows is in use. A discard that fails
// loses nothing: the region is free in any case.
//
// A disk may take long to discard. So this is done in units, and only the table of devices is locked during one. Who
// needs the chunk meanwhile is put off (ChunkMapper::begin_discards()), and the run ends with the unit.
//
// Any thread; one run at a time. Host only.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "maintenance/chunk_mapper.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/pool_host.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::maintenance {

struct TrimReport {
  u64 run_count = 0;
  u64 punch_count = 0;       // those of the runs that had memory
  u64 region_count = 0;      // 2 MiB of logical space each
  u64 byte_count = 0;        // of files, without holes, and of disks
  u64 failed_count = 0;      // ranges of devices whose discard failed
  u64 command_count = 0;     // that were sent to the engine
  bool is_complete = false;  // there is nothing more, or nothing at this time: `status`
  Status status = Status::ok;
};

class PoolTrimmer {
 public:
  // Everything outlives it. `scope`: of trim().
  PoolTrimmer(MountedPool& mounted, ChunkMapper& mapper, PoolHost& host,
              session::DiscardScope scope = session::DiscardScope::memory)
      : mounted_(mounted), mapper_(mapper), host_(host), scope_(scope) {}

  // At most this number of runs with memory, and sixteen times as many that may have none, from the end of the last
  // call on, among regions that have been free for a whole pass. Does nothing while another thread trims.
  TrimReport trim(u64 runs_max);
  // Everything that is free after a checkpoint, in one pass over the pool, on all devices.
  TrimReport trim_all();
  // Calls under way end after their unit, and later ones do nothing; they answer `cancelled`.
  void stop() { is_stopped_ = true; }
  // Commands that were sent to the engine, or are about to be.
  [[nodiscard]] u64 command_count() const { return command_count_; }
  // Called before each unit, without locks. For tests; set while nobody trims.
  void before_units(std::function<void()> call) { before_unit_ = std::move(call); }
  // Of each present device that cannot be told of free space: a sentence.
  [[nodiscard]] std::vector<std::string> obstacles();

 private:
  // A range of a device's medium, of a run.
  struct Piece {
    u32 device;
    u64 offset;
    u64 length;
    u32 file_number;  // EngineSetup::file_numbers
  };

  Status ask(wire::GrowMask mask, u64 chunk, u64 region, u32 mode, u64* result, TrimReport& report);
  [[nodiscard]] u64 kept_regions() const;
  [[nodiscard]] bool takes_part(u32 device, session::DiscardScope scope) const;
  bool has_space_to_give(session::DiscardScope scope);
  TrimReport trim_from_here(u64 runs_max, session::DiscardScope scope, bool now);
  bool trim_run(TrimReport& report, session::DiscardScope scope, bool now);
  [[nodiscard]] std::vector<Piece> pieces_of(const wire::TrimResult& run, session::DiscardScope scope) const;
  bool punch(const wire::TrimResult& run, const std::vector<Piece>& pieces, session::DiscardScope scope,
             TrimReport& report);
  void release_memory(const std::vector<Piece>& pieces, TrimReport& report);
  void discard_units(const wire::TrimResult& run, const std::vector<Piece>& pieces, TrimReport& report);
  void discard(const Piece& piece, TrimReport& report);

  MountedPool& mounted_;
  ChunkMapper& mapper_;
  PoolHost& host_;
  const session::DiscardScope scope_;
  std::atomic<bool> is_stopped_{false};
  std::atomic<u64> command_count_{0};
  std::function<void()> before_unit_;
  std::mutex one_at_a_time_;
  u64 next_chunk_ = 0;  // under one_at_a_time_: where the next search begins
  u64 next_region_ = 0;
  u64 failed_devices_ = 0;  // under one_at_a_time_: one bit for each whose failure was logged
};

}  // namespace gpu4fs::maintenance
