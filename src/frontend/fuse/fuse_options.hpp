// The options of a FUSE mount from the mount program.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::frontend {

struct FuseOptions {
  std::string mountpoint;
  std::string source;                     // first field of /proc/mounts: the devices
  std::vector<std::string> kernel_flags;  // nosuid, nodev, noexec, sync ... passed to the kernel
  bool read_only = false;
  bool allow_other = false;
  bool synchronous = false;              // changes are durable before they are answered
  bool synchronous_directories = false;  // the same for changes of names
  bool direct_io = false;                // no page cache for file data
  bool fast_close = false;               // the kernel opens and closes without requests; then close reports no errors
  bool idmap = false;                    // idmapped mounts; then the kernel names callers only if they become owners
  bool writeback = false;                // the kernel collects small writes; no other program may write the pool
  unsigned threads = 0;                  // 0: chosen by the number of processors
  unsigned readahead_kib = 1024;
  bool debug = false;
};

}  // namespace gpu4fs::frontend
