#include "bench/raid_sides.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <stdexcept>
#include <utility>

#include "base/bits.hpp"
#include "bench/mounts.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double peer_ratio_min = 1;
constexpr u64 spare_bytes = u64{64} << 20;  // of the folder

}  // namespace

u64 raid_device_bytes(const RaidLevel& level, u64 file_bytes) {
  return align_up(3 * file_bytes / 2 / level.data_devices, u64{1} << 20) + (u64{160} << 20);
}

void check_raid_space(const std::string& folder, u64 needed_bytes) {
  struct statvfs state {};
  if (::statvfs(folder.c_str(), &state) != 0) fail_by_errno(folder);
  const u64 available_bytes = u64{state.f_bavail} * state.f_frsize;
  if (available_bytes >= needed_bytes + spare_bytes) return;
  throw std::runtime_error(fmt::format("{} has {} MiB of free space, and {} MiB are needed", folder,
                                       available_bytes >> 20, (needed_bytes + spare_bytes) >> 20));
}

BenchRow raid_row(std::string name, std::string what, const std::vector<double>& own,
                  const std::vector<RaidPeer>& peers, bool is_required) {
  BenchRow row;
  row.name = std::move(name);
  row.what = std::move(what);
  row.unit = "GB/s";
  set_samples(row, own);
  for (const RaidPeer& peer : peers) {
    row.remark += row.remark.empty() ? "" : ", ";
    if (peer.gb_per_s.empty()) {
      row.remark += fmt::format("{} not available: {}", peer.name, peer.problem);
      continue;
    }
    BenchRow its;
    set_samples(its, peer.gb_per_s);
    row.remark += fmt::format("{} {:.2f} GB/s ({:.2f} to {:.2f})", peer.name, its.value, its.least, its.greatest);
    if (its.value <= row.limit) continue;
    row.limit = its.value;
    row.limit_what = peer.name;
  }
  if (is_required && row.limit > 0) {
    row.requirement = Requirement::at_least;
    row.required = peer_ratio_min;
  }
  return row;
}

}  // namespace gpu4fs::bench
