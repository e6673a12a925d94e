#include "fsck/check/check_pool.hpp"

#include "base/check.hpp"
#include "fsck/check/check_context.hpp"

namespace gpu4fs::fsck {

namespace {

struct Phase {
  const char* name;
  void (*run)(check::CheckContext&);
};

// In this order: later phases use the results of earlier ones.
constexpr Phase phases[] = {
    {"superblocks", check::check_superblocks},
    {"chunk tree", check::check_tree_replicas},
    {"chunk maps", check::check_chunk_maps},
    {"chunks", check::check_chunks},
    {"operation log", check::check_log},
    {"files", check::check_files},
    {"links", check::check_links},
    {"inode bitmap", check::check_inode_bitmaps},
    {"page bitmaps", check::check_page_bitmaps},
};

// Damage, as opposed to a reason why nothing could be checked.
bool is_damage(Status status) {
  switch (status) {
    case Status::corrupt_superblock:
    case Status::corrupt_structure:
    case Status::checksum_mismatch:
    case Status::device_failed:
    case Status::wrong_version:
      return true;
    default:
      return false;
  }
}

}  // namespace

CheckResult check_pool(const CheckOptions& options) {
  return check::check_pool_with(options,
                                options.engine == CheckEngine::none ? check::EngineRunner() : check::run_server_engine);
}

CheckResult check::check_pool_with(const CheckOptions& options, const EngineRunner& run_engine) {
  CheckResult result;
  result.findings = Findings(options.on_finding);
  try {
    const pool::OpenedPool pool = pool::open_pool({options.device_paths, true, options.lock, true});
    result.epoch = pool.superblock.epoch;
    for (const pool::OpenedDevice& device : pool.devices) result.devices.push_back(device.file.path());
    check::CheckContext context(options, pool, result);
    context.run_engine = run_engine;
    for (const Phase& phase : phases) {
      context.report_progress(phase.name);
      phase.run(context);
    }
    context.report_progress("done");
  } catch (const pool::PoolError& error) {
    if (!is_damage(error.status())) throw;
    result.findings.add(FindingId::pool_unusable, "pool", error.what());
  }
  return result;
}

}  // namespace gpu4fs::fsck
