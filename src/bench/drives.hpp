// The parts of `gpu4fs bench drives`. Each adds its rows to the context's result; it throws if an operation fails or
// wrong content is read. Private to the tools.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "bench/drive_peer.hpp"
#include "bench/result.hpp"
#include "session/server_options.hpp"

namespace gpu4fs::bench {

struct DrivesScale {
  u64 file_bytes;        // of sequential transfers
  u64 random_bytes;      // of one random transfer
  u64 page_cache_bytes;  // of the pools
  u32 rounds;
  double medium_s_max;  // of the parts file and block: no further round begins that would end later
  double raid_s_max;    // of a level: the same; and the file is small enough for all rounds
  u32 appends;          // a multiple of 50
  u32 idle_ms;
  u64 hit_bytes;  // of the file that fits the page cache
  u32 miss_reads;
  u64 recovered_bytes;  // of the log

  // The page cache of a GPU has room for all its workers, whatever was asked for, so its file is larger.
  static constexpr DrivesScale full(bool is_on_gpu) {
    return {u64{is_on_gpu ? 4u : 1u} << 30,
            u64{128} << 20,
            u64{64} << 20,
            3,
            25,
            60,
            1000,
            2000,
            u64{32} << 20,
            4000,
            u64{256} << 20};
  }
  static constexpr DrivesScale quick() {
    return {u64{64} << 20, u64{8} << 20, u64{16} << 20, 1, 0, 3, 200, 2000, u64{8} << 20, 400, u64{16} << 20};
  }
};

// Whether a further round fits into the time, if it takes as long as those before on average. There is always one.
class Rounds {
 public:
  Rounds(u32 count_max, double seconds_max) : count_max_(count_max), seconds_max_(seconds_max) {}
  // Called before each round.
  bool next() {
    const double seconds = now_seconds() - began_;
    if (count_ == count_max_ || (count_ != 0 && seconds / count_ * (count_ + 1) > seconds_max_)) return false;
    ++count_;
    return true;
  }
  u32 number() const { return count_; }  // of the present one, from 1

 private:
  u32 count_max_;
  double seconds_max_;
  double began_ = now_seconds();
  u32 count_ = 0;
};

struct DrivesContext {
  std::string folder;  // on a disk, for the files of all parts
  const DrivesScale& scale;
  const DrivePeer& peer;
  BenchResult& result;
  session::EngineChoice engine = session::EngineChoice::cpu;
  std::string drive = "p5800x";  // profile of emulated drives
};

// Bandwidth of a file, and the CPU time that it takes.
void bench_drive_file(DrivesContext& context);
// The same with a block device.
void bench_drive_block(DrivesContext& context);
void bench_drive_idle(DrivesContext& context);
// Small appends that are made durable one by one.
void bench_drive_sync(DrivesContext& context);
// Pools with redundancy, compared with file systems of the system on the same loop devices.
void bench_drive_raid(DrivesContext& context);
// Reads from the page cache of the pool.
void bench_drive_hits(DrivesContext& context);

// Pools on emulated NVMe drives, compared with the driver alone; the folder is in memory.
void bench_drive_emulated(DrivesContext& context);

// Reads of 4 KiB that miss the page cache, and a mount after a crash.
void bench_drive_misses(DrivesContext& context);
void bench_drive_recovery(DrivesContext& context);
// Sequential reads with and without read-ahead.
void bench_drive_readahead(DrivesContext& context);
// Microseconds of a read of one page that the driver alone gives to such a drive, one at a time, p50.
double bare_drive_latency_us(const DrivesContext& context, const session::EmulatedDriveOptions& drives);
// std::runtime_error if there is no such profile.
session::EmulatedDriveOptions drives_of(const std::string& profile);

// Throws std::runtime_error if files of the folder are memory or cannot be accessed directly.
void check_drive_folder(const std::string& folder);
// "ext4", or a number.
std::string file_system_name(const std::string& folder);

// One after the other, each named in standard error; a part that fails is left out. `only`: names of parts, empty: all.
void run_drive_parts(DrivesContext& context, const std::vector<std::string>& only);
// The same for pools on emulated drives.
void run_emulated_parts(DrivesContext& context, const std::vector<std::string>& only = {});

}  // namespace gpu4fs::bench
