// The options of a pool server. Host only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "pool/lock_wait.hpp"
#include "session/emulated_drives.hpp"

namespace gpu4fs::session {

// `automatic`: the GPU if it is present, works and can reach the pool's memory; otherwise the CPU.
enum class EngineChoice { automatic, cpu, cuda };

enum class AccessTimes { relative, never, strict, directories_never };

// `recovery`: the engine replays the log; it records nothing, and frees nothing by itself. `check`: it executes only
// Opcode::check; read-only.
enum class ServerPurpose { mount, recovery, check };

// How the engine reaches the devices. `mapped`: by loads and stores. `direct`: pages of disks and of files on disk pass
// through a page cache in engine memory, which threads of this process fill and write back past the page cache of the
// system; memory is mapped. For tests: `staged`, through the same page cache, but from mappings, with the CPU engine;
// `direct_everywhere`, files on tmpfs too. `emulated`: each device is behind an emulated NVMe drive, to which the
// engine sends commands (session/emulated_drives.hpp). `automatic`: as the environment variable GPU4FS_DEVICE_ACCESS
// says, else direct.
enum class DeviceAccess { automatic, mapped, staged, direct, direct_everywhere, emulated };

// Which devices are told of free space. `memory`: those whose pages lie in memory (tmpfs), which returns to the system.
// `all`: also disks and files on disk that are accessed directly.
enum class DiscardScope { none, memory, all };

// What a restarted mount knows about its dead engines; its status shows it.
struct EngineHistory {
  u32 restart_count = 0;
  std::string last_reason;          // why the last one died
  std::int64_t last_restart_s = 0;  // since 1970
};

struct ServerOptions {
  std::vector<std::string> device_paths;  // members in any order, each may be a colon separated list
  bool read_only = false;
  EngineChoice engine = EngineChoice::automatic;
  AccessTimes access_times = AccessTimes::relative;
  unsigned worker_count = 0;       // 0: chosen by the machine
  unsigned commit_interval_s = 5;  // longest time until a change becomes durable by itself; 0: never
  DiscardScope discard = DiscardScope::memory;
  DeviceAccess device_access = DeviceAccess::automatic;
  EmulatedDriveOptions drives;              // of emulated drives
  u64 page_cache_bytes = 0;                 // option page_cache= (session/page_tier_setup.hpp); 0: the default
  u64 host_cache_bytes = 0;                 // option host_cache=, only with the GPU engine; 0: depending on the memory
  u64 page_readahead_bytes = u64{1} << 20;  // of a file on devices that are not mapped, at most; 0: none
  u64 cache_bytes = 0;                      // metadata pages held in engine memory; 0: depending on the memory
  bool ignore_log = false;                  // read-only: the pool as of its newest checkpoint
  bool drop_damaged_log = false;            // continue although acknowledged operations in the log cannot be read
  ServerPurpose purpose = ServerPurpose::mount;
  u64 check_inode_count = 0;          // purpose check: greater than any inode number
  bool stop_on_error = true;          // after damage of metadata changes are refused (fs/errors.hpp)
  std::string control_folder;         // of the sockets; empty: there are none
  bool has_process_sessions = false;  // other processes may open sessions (session/processes/session_socket.hpp)
  EngineHistory history;
  u64 write_errors_before = 0;            // of this mount's earlier engines, see PoolServer::write_errors()
  bool keep_orphans = false;              // files without a name may still be open: a front end frees them
  u32 generation_skip = 0;                // see fs::FileSystem; 0: a mount after a crash takes a random one
  bool allow_fault = false;               // the control socket accepts "end-engine"; for tests
  std::vector<std::string> spare_paths;   // devices that replace a lost one
  bool degraded = false;                  // continue although a device is missing, if this loses no data
  pool::LockPatience lock_patience = {};  // with devices that are in use
};

}  // namespace gpu4fs::session
