// The background jobs of a mounted pool and the changes of its devices: made and ended together.
//
//   PoolJobs jobs(parts, spare_paths);   // a scrub that an earlier mount left running continues; PoolError
//   jobs.stop();                         // before the engine stops; no requests afterwards
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

// The parts that the jobs use. Everything outlives them.
struct JobParts {
  maintenance::MountedPool& mounted;
  maintenance::ChunkMapper& mapper;
  maintenance::PoolGrower& grower;
  maintenance::PoolHost& host;
  UpcallServer& upcalls;  // tells the spares about losses
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
  // Made in this order, and destroyed in the opposite one.
  maintenance::Scrubber scrubber_;
  maintenance::Rebuilder rebuilder_;
  maintenance::DeviceExchange exchange_;
  maintenance::Relocator relocator_;
  maintenance::Reshaper reshaper_;
  maintenance::SpareDevices spares_;
};

}  // namespace gpu4fs::server
