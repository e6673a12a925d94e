// Opens a pool: its devices, the newest superblock and the chunk tree. Host only; nothing of the file tree is read.
// Everything on the devices is untrusted input: the result is always a pool whose numbers are consistent, or a
// PoolError that names the device and the place.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "format/superblock_format.hpp"
#include "pool/lock_wait.hpp"
#include "pool/pool_chunk_tree.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_superblock.hpp"

namespace gpu4fs::pool {

struct OpenPoolOptions {
  // Members in any order; each may be a colon separated list. Members that are not named are searched for in the
  // folders of those that are.
  std::vector<std::string> device_paths;
  bool read_only = false;
  // Off: no lock is taken, for reading a pool that may be mounted. Only with `read_only`.
  bool lock = true;
  // Continue without devices that are missing or stale if this loses no data.
  bool degraded = false;
  // When opened for writing, rewrites bad or old replicas of chunk tree nodes. Off if the caller does it.
  bool repairs_tree = true;
  LockPatience patience = {};  // with devices that are in use
};

enum class MemberState : u8 {
  here,
  missing,
  stale,    // it was absent while the pool was written: its content is ignored
  removed,  // the pool has no device with this index
};

struct OpenedDevice {
  DeviceFile file;             // for an absent device DeviceFile::absent()
  format::DevicePart part;     // for an absent device only UUID and index
  bool has_newest_superblock;  // false: this device holds the previous epoch, see complete_superblocks()
  MemberState state = MemberState::here;
  u64 stale_since = 0;  // epoch; 0: no superblock says that it lacks anything
  bool is_here() const { return state == MemberState::here; }
};

// "ok", "missing", "stale", "removed".
const char* member_state_name(MemberState state);

struct OpenedPool {
  format::Superblock superblock;      // the chosen epoch; its device part is that of the first present device
  std::vector<OpenedDevice> devices;  // by device index
  std::vector<OpenedChunk> chunks;    // ascending base address, at least one
  std::vector<std::string> warnings;  // for the log: repaired, skipped or odd structures
  bool read_only;

  bool is_degraded() const;
  // One bit for each device that is absent although it should be present.
  u64 absent_devices() const;
};

// The newest epoch with a valid superblock on any member is used. Every member must hold it or, after a crash between
// superblock writes, the previous epoch. A member that is older, or that the newest superblock names, has missed
// writes. Without `degraded`, such a member and a missing one are refused. With `degraded` they are skipped as long as
// every chunk keeps enough columns. A member that was written without the others is refused.
OpenedPool open_pool(const OpenPoolOptions& options);

// The profiles of the pool's data and metadata.
struct PoolProfiles {
  format::Profile data;
  format::Profile metadata;
};
PoolProfiles profiles_of(const OpenedPool& pool);

// Paths of all members of the pool of `path` that lie beside it, by device index; `path` itself included. Beside a file
// are the files of its folder, and beside a block device the other block devices (list_block_devices()). Members that
// were not found are omitted.
std::vector<std::string> find_members(const std::string& path);

// Writes the chosen epoch's superblock to members that lack it and flushes. Must be done before the
// next epoch is written: otherwise a crash could leave a member without any superblock.
void complete_superblocks(OpenedPool& pool);

}  // namespace gpu4fs::pool
