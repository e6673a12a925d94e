// Opens a pool: its devices, the newest superblock and the chunk tree. Host only; nothing of the
// file tree is read. Everything on the devices is hostile input: whatever they hold, the result is
// a pool whose numbers are consistent, or a PoolError that names the device and the place.
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
  // Members in any order; each may be a colon separated list. Members that are not named are looked
  // for in the folders of those that are.
  std::vector<std::string> device_paths;
  bool read_only = false;
  // Off: no lock is taken, for looking at a pool that may be mounted. Only with `read_only`.
  bool lock = true;
  // Go on without devices that are missing or stale, where no data is lost by it.
  bool degraded = false;
  // Opened for writing: replicas of chunk tree nodes that are bad or old are written again. Off for who does it
  // himself.
  bool repairs_tree = true;
  LockPatience patience = {};  // with devices that are in use
};

enum class MemberState : u8 {
  here,
  missing,
  stale,    // it was away while the pool was written: what it holds does not count
  removed,  // the pool has no device of this index
};

struct OpenedDevice {
  DeviceFile file;             // of one that is not here: DeviceFile::absent()
  format::DevicePart part;     // of one that is not here: UUID and index alone
  bool has_newest_superblock;  // false: this device holds the epoch before, see
                               // complete_superblocks()
  MemberState state = MemberState::here;
  u64 stale_since = 0;  // epoch, 0: nobody has written down that it lacks anything
  bool is_here() const { return state == MemberState::here; }
};

// "ok", "missing", "stale", "removed".
const char* member_state_name(MemberState state);

struct OpenedPool {
  format::Superblock superblock;      // the chosen epoch; its device part is that of the first device that is here
  std::vector<OpenedDevice> devices;  // by device index
  std::vector<OpenedChunk> chunks;    // ascending base address, at least one
  std::vector<std::string> warnings;  // for the log: what was repaired, passed over or is odd
  bool read_only;

  bool is_degraded() const;
  // A bit a device: those that are not here, and should be.
  u64 absent_devices() const;
};

// The newest epoch with a valid superblock on any member counts. Every member must hold it or,
// after a crash between superblock writes, the epoch before; a member that is older, or that the newest superblock
// names, has missed writes. Without `degraded` such a member and one that is not found are refused, with it they are
// passed over as long as every chunk keeps what it needs. A member that was written without the others is refused.
OpenedPool open_pool(const OpenPoolOptions& options);

// What the pool's data and metadata have.
struct PoolProfiles {
  format::Profile data;
  format::Profile metadata;
};
PoolProfiles profiles_of(const OpenedPool& pool);

// Paths of all members of the pool of `path` that lie in the same folder, by device index; `path`
// itself included. Members that were not found are left out.
std::vector<std::string> find_members(const std::string& path);

// Writes the chosen epoch's superblock to members that lack it and flushes. Must be done before the
// next epoch is written: otherwise a crash could leave a member without any superblock.
void complete_superblocks(OpenedPool& pool);

}  // namespace gpu4fs::pool
