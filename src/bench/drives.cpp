// gpu4fs bench drives: pools on files and block devices of a disk that are accessed directly, past the page cache of
// the system, compared with what the same disk gives to programs without a pool. Client and engine share a process;
// every byte that is read is compared.
#include "bench/drives.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>

#include "bench/limits.hpp"
#include "bench/mounts.hpp"
#include "bench/verbs.hpp"

namespace gpu4fs::bench {

namespace {

struct DrivePart {
  const char* name;
  void (*run)(DrivesContext&);
};
constexpr DrivePart drive_parts[] = {
    {"file", bench_drive_file}, {"block", bench_drive_block}, {"idle", bench_drive_idle},
    {"sync", bench_drive_sync}, {"raid", bench_drive_raid},   {"hits", bench_drive_hits},
};

constexpr DrivePart emulated_parts[] = {{"emulated", bench_drive_emulated},
                                        {"misses", bench_drive_misses},
                                        {"recovery", bench_drive_recovery},
                                        {"readahead", bench_drive_readahead}};

}  // namespace

std::string file_system_name(const std::string& folder) {
  struct statfs state {};
  if (::statfs(folder.c_str(), &state) != 0) fail_by_errno(folder);
  switch (state.f_type) {
    case EXT4_SUPER_MAGIC:
      return "ext4";
    case BTRFS_SUPER_MAGIC:
      return "btrfs";
    case XFS_SUPER_MAGIC:
      return "xfs";
    case TMPFS_MAGIC:
      return "tmpfs";
    case RAMFS_MAGIC:
      return "ramfs";
    default:
      return fmt::format("file system {:#x}", state.f_type);
  }
}

void check_drive_folder(const std::string& folder) {
  const std::string name = file_system_name(folder);
  if (name == "tmpfs" || name == "ramfs") {
    throw std::runtime_error(fmt::format("{} is on {}: name a folder on a disk with --folder", folder, name));
  }
  const TemporaryFolder own(folder);
  const OpenFile file(own.path() + "/direct", O_RDWR | O_CREAT | O_DIRECT);  // says if it cannot
}

namespace {

void run_part(DrivesContext& context, const DrivePart& part) {
  report_part(part.name);
  try {
    part.run(context);
  } catch (const std::exception& error) {
    context.result.left_out.push_back(fmt::format("{}: {}", part.name, error.what()));
  }
}

void run_parts(DrivesContext& context, std::span<const DrivePart> parts, const std::vector<std::string>& only) {
  for (const DrivePart& part : parts) {
    if (only.empty() || std::find(only.begin(), only.end(), part.name) != only.end()) run_part(context, part);
  }
}

}  // namespace

void run_drive_parts(DrivesContext& context, const std::vector<std::string>& only) {
  run_parts(context, drive_parts, only);
}

void run_emulated_parts(DrivesContext& context, const std::vector<std::string>& only) {
  run_parts(context, emulated_parts, only);
}

int bench_drives(const BenchDrivesOptions& options) {
  const bool is_on_gpu = options.engine == "cuda";
  const std::string problem = is_on_gpu ? gpu_problem() : "";
  if (!problem.empty()) throw std::runtime_error("engine cuda: " + problem);
  const bool is_emulated = options.access == "emulated";
  const std::string standard = is_emulated ? "/dev/shm" : std::filesystem::current_path().string();
  const std::string folder = options.folder.empty() ? standard : options.folder;
  if (!is_emulated) check_drive_folder(folder);
  BenchResult result = new_result("drives", options.engine, options.quick);
  const DrivesScale scale = options.quick ? DrivesScale::quick() : DrivesScale::full(is_on_gpu);
  const std::unique_ptr<DrivePeer> peer = new_drive_peer(options.peer);
  DrivesContext context{
      folder,       scale, *peer, result, is_on_gpu ? session::EngineChoice::cuda : session::EngineChoice::cpu,
      options.drive};
  if (is_emulated) {
    run_emulated_parts(context, options.only);
  } else {
    run_drive_parts(context, options.only);
  }
  print_rows(result);
  if (!options.output.empty()) write_result(result, options.output);
  return result.left_out.empty() ? 0 : 8;
}

}  // namespace gpu4fs::bench
