// Replaces a device of a mounted pool that is lost, or that will be removed, and starts the rebuilder to fill the new
// one.
//
//   replace   another file or block device, with a UUID of its own. So the old device cannot be confused with it: it is
//             not a member of the pool afterwards, even if its content is fresh
//   rebuild   the stale device itself, which keeps its UUID: superblocks name it as stale until everything that it
//             lacks is written
//
// The device is opened, locked, mapped and registered as at the mount. Any thread, one call at a time. Host only.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "maintenance/chunk_mapper.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/pool_host.hpp"
#include "maintenance/rebuilder.hpp"
#include "session/direct_media.hpp"
#include "wire/rebuild_format.hpp"

namespace gpu4fs::maintenance {

class DeviceExchange {
 public:
  // Everything outlives it.
  DeviceExchange(MountedPool& mounted, ChunkMapper& mapper, PoolGrower& grower, Rebuilder& rebuilder, PoolHost& host)
      : mounted_(mounted), mapper_(mapper), grower_(grower), rebuilder_(rebuilder), host_(host) {}

  // `device`: index, path or UUID. `force`: the content of the new one is ignored. Returns "" or why not.
  std::string replace(const std::string& device, const std::string& path, bool force, u64 rate_limit);
  // `device` empty: the only one that is stale or failed.
  std::string rebuild(const std::string& device, u64 rate_limit);

  // The index of a device by index, path or UUID. PoolError.
  u32 find_device(const std::string& text) const;

 private:
  struct Entrant {
    pool::DeviceFile file;
    format::DevicePart part;
    bool is_new;       // not a member before
    bool is_fresh;     // it has no useful content
    std::string spec;  // path with its layers
    std::optional<device::MappedFile> mapped = std::nullopt;
    std::optional<session::DirectMedia::Prepared> prepared = std::nullopt;  // nothing: it is mapped
  };

  u32 find_stale() const;
  void give_up(u32 device);
  void make_stale(u32 device);
  Entrant open_new(u32 device, const std::string& path, bool force) const;
  void refuse_member(const pool::DeviceFile& file) const;
  u64 enter(u32 device, Entrant entrant);
  void map_file(u32 device, Entrant& entrant) const;
  void await_quiet(u32 device) const;
  void install_file(u32 device, Entrant& entrant);
  std::optional<session::DirectMedia::Prepared> prepare_renewal(u32 device) const;
  u64 begin(u32 device, const format::DevicePart& part);
  void name_newcomer(u32 device, const format::DevicePart& part);
  std::string fill(u32 device, bool is_fresh, u64 page_total, u64 rate_limit);

  MountedPool& mounted_;
  ChunkMapper& mapper_;
  PoolGrower& grower_;
  Rebuilder& rebuilder_;
  PoolHost& host_;
  std::mutex busy_;
};

}  // namespace gpu4fs::maintenance
