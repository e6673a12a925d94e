// Opens a pool: its devices, the newest superblock and the chunk tree. Host only; nothing of the
// file tree is read. Everything on the devices is hostile input: whatever they hold, the result is
// a pool whose numbers are consistent, or a PoolError that names the device and the place.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "format/superblock_format.hpp"
#include "server/pool_chunk_tree.hpp"
#include "server/pool_device_file.hpp"
#include "server/pool_error.hpp"
#include "server/pool_superblock.hpp"

namespace gpu4fs::server {

struct OpenPoolOptions {
  // Members in any order; each may be a colon separated list. Members that are not named are looked
  // for in the folders of those that are.
  std::vector<std::string> device_paths;
  bool read_only = false;
  // Off: no lock is taken, for looking at a pool that may be mounted. Only with `read_only`.
  bool lock = true;
};

struct OpenedDevice {
  DeviceFile file;
  format::DevicePart part;
  bool has_newest_superblock;  // false: this device holds the epoch before, see
                               // complete_superblocks()
};

struct OpenedPool {
  format::Superblock superblock;      // the chosen epoch; its device part is device 0's
  std::vector<OpenedDevice> devices;  // by device index
  std::vector<OpenedChunk> chunks;    // ascending base address, at least one
  std::vector<std::string> warnings;  // for the log: what was repaired, passed over or is odd
  bool read_only;
};

// The newest epoch with a valid superblock on any member counts. Every member must hold it or,
// after a crash between superblock writes, the epoch before; a member that is older has missed
// writes and is refused.
OpenedPool open_pool(const OpenPoolOptions& options);

// Paths of all members of the pool of `path` that lie in the same folder, by device index; `path`
// itself included. Members that were not found are left out.
std::vector<std::string> find_members(const std::string& path);

// Writes the chosen epoch's superblock to members that lack it and flushes. Must be done before the
// next epoch is written: otherwise a crash could leave a member without any superblock.
void complete_superblocks(OpenedPool& pool);

}  // namespace gpu4fs::server
