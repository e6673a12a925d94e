#include "server/pool_jobs.hpp"

namespace gpu4fs::server {
namespace {

maintenance::ScrubSetup scrub_setup(maintenance::MountedPool& mounted) {
  const bool has_checksums = (mounted.pool.superblock.feature_incompatible & format::feature_data_checksums) != 0;
  return {*mounted.setup.host, mounted.open_close, mounted.chunk_ranges(), has_checksums, !mounted.pool.read_only};
}

}  // namespace

PoolJobs::PoolJobs(const JobParts& parts, const std::vector<std::string>& spare_paths)
    : mounted_(parts.mounted),
      upcalls_(parts.upcalls),
      scrubber_(scrub_setup(parts.mounted)),
      rebuilder_(parts.mounted, parts.grower, parts.host),
      exchange_(parts.mounted, parts.mapper, parts.grower, rebuilder_, parts.host),
      relocator_(parts.mounted, parts.host),
      reshaper_(parts.mounted, parts.grower, relocator_),
      spares_(parts.mounted, exchange_, rebuilder_) {
  open_spares(spare_paths);
}

// A mount does not fail because of unsuitable spares.
void PoolJobs::open_spares(const std::vector<std::string>& paths) {
  if (!mounted_.pool.read_only) {
    for (const std::string& path : paths) {
      const std::string problem = spares_.add(path, false);
      if (!problem.empty()) mounted_.pool.warnings.push_back("spare " + problem);
    }
  }
  upcalls_.set_spares(&spares_);
  if (!mounted_.pool.read_only) spares_.device_lost();  // one may have been lost before the spares could be told
}

// The reshaper moves pages with the relocator, so it ends first. The thread of the spares starts rebuilds, so it ends
// before the rebuilder. The scrubber needs none of them and ends with its destructor.
void PoolJobs::stop() {
  reshaper_.job().stop();
  relocator_.job().stop();
  upcalls_.set_spares(nullptr);
  spares_.stop();
  rebuilder_.job().stop();
}

JobControl PoolJobs::control() {
  return {scrubber_, rebuilder_, exchange_, relocator_, reshaper_, spares_, mounted_.pool.read_only};
}

}  // namespace gpu4fs::server
