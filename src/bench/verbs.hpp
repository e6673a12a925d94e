// The subcommands of `gpu4fs bench`. Private to the tools.
#pragma once

#include <string>
#include <vector>

namespace gpu4fs::bench {

struct BenchRunOptions {
  std::string engine = "auto";
  std::string output;
  std::string step;  // size text; empty: the default
  bool quick = false;
  std::vector<std::string> only;    // parts to run; empty: all
  std::vector<std::string> levels;  // of the pools with redundancy; empty: all
};
int bench_run(const BenchRunOptions& options);

// Cycles of small commands by phase; for a build with GPU4FS_TRACE.
struct BenchTraceOptions {
  std::string engine = "auto";
  std::string output;
  bool quick = false;
};
int bench_trace(const BenchTraceOptions& options);

struct BenchFuseOptions {
  std::string engine = "cpu";      // or cuda, or both
  std::vector<std::string> peers;  // programs; empty: built from libfuse's examples
  std::string folder;              // for pool and peer data, default /dev/shm
  std::string output;
  bool quick = false;
  std::vector<std::string> only;  // parts to run: small, passthrough; empty: both
};
int bench_fuse(const BenchFuseOptions& options);

struct BenchProgramsOptions {
  std::string folder;  // for pool and peer data, default /dev/shm
  std::string output;
  bool quick = false;
  std::vector<std::string> only;  // parts to run; empty: all
};
int bench_programs(const BenchProgramsOptions& options);

struct BenchBtrfsOptions {
  std::string folder;  // for pool and peer data, default /dev/shm
  std::string output;
  bool quick = false;
  std::vector<std::string> only;  // parts to run: mount, ring; empty: both
};
int bench_btrfs(const BenchBtrfsOptions& options);

// The NVMe driver on an emulated drive.
struct BenchNvmeOptions {
  std::string engine = "auto";
  std::string output;
  bool quick = false;
  std::vector<std::string> only;  // parts to run; empty: all
};
int bench_nvme(const BenchNvmeOptions& options);

// Pools on files and block devices of a disk.
struct BenchDrivesOptions {
  std::string engine = "cpu";
  std::string access = "direct";  // emulated: on emulated NVMe drives in memory
  std::string drive = "p5800x";   // profile of emulated drives
  std::string folder;             // on a disk, default: the current one; of emulated drives: /dev/shm
  std::string peer = "auto";      // fio, or bare: a loop of this program; auto: fio if it is installed
  std::string output;
  bool quick = false;
  std::vector<std::string> only;  // parts to run; empty: all
};
int bench_drives(const BenchDrivesOptions& options);

int bench_report(const std::vector<std::string>& paths);

}  // namespace gpu4fs::bench
