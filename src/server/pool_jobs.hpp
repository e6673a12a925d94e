// What goes on in the background of a mounted pool, or changes its devices: made and ended together.
//
//   PoolJobs jobs(parts, spare_paths);   // a scrub that a former mount left running goes on; PoolError
//   jobs.stop();                         // before the engine stops; nothing is asked of them any more
//
// Host only.
#pragma once

#include <string>
#include <vector>

#include "maintenance/chunk_mapper.hpp"
#include "maintenance/device_exchange.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "maintenance/growth/reshaper.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/pool_host.hpp"
#include "maintenance/rebuilder.hpp"
#include "maintenance/relocator.hpp"
#include "maintenance/scrubber.hpp"
#include "maintenance/spare_devices.hpp"
#include "server/job_control.hpp"
#include "server/upcall_server.hpp"

namespace gpu4fs::server {

// What the jobs work with. Everything outlives them.
struct JobParts {
  maintenance::MountedPool& mounted;
  maintenance::ChunkMapper& mapper;
  maintenance::PoolGrower& grower;
  maintenance::PoolHost& host;
  UpcallServer& upcalls;  // tells the spares of losses
};

class PoolJobs {
 public:
  PoolJobs(const JobParts& parts, const std::vector<std::string>& spare_paths);
  PoolJobs(const PoolJobs&) = delete;
  PoolJobs& operator=(const PoolJobs&) = delete;
  ~PoolJobs() { stop(); }

  void stop();

  maintenance::Scrubber& scrubber() { return scrubber_; }
  maintenance::Rebuilder& rebuilder() { return rebuilder_; }
  maintenance::DeviceExchange& exchange() { return exchange_; }
  maintenance::Relocator& relocator() { return relocator_; }
  maintenance::Reshaper& reshaper() { return reshaper_; }
  maintenance::SpareDevices& spares() { return spares_; }
  [[nodiscard]] JobControl control();

 private:
  void open_spares(const std::vector<std::string>& paths);

  maintenance::MountedPool& mounted_;
  UpcallServer& upcalls_;
  // In this order, and gone in the opposite one.
  maintenance::Scrubber scrubber_;
  maintenance::Rebuilder rebuilder_;
  maintenance::DeviceExchange exchange_;
  maintenance::Relocator relocator_;
  maintenance::Reshaper reshaper_;
  maintenance::SpareDevices spares_;
};

}  // namespace gpu4fs::server
