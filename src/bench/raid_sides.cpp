#include "bench/raid_sides.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/drive_peer.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double peer_ratio_min = 1;
constexpr u64 call_bytes = 1 << 20;
constexpr u64 spare_bytes = u64{64} << 20;  // of the folder

std::string ratio_spread(const std::vector<double>& own, const std::vector<double>& peer) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(own.size(), peer.size()); ++i) ratios.push_back(own[i] / peer[i]);
  const auto [least, greatest] = std::minmax_element(ratios.begin(), ratios.end());
  return fmt::format("{:.2f} to {:.2f} by round", *least, *greatest);
}

}  // namespace

u64 raid_device_bytes(const RaidLevel& level, u64 file_bytes) {
  return align_up(3 * file_bytes / 2 / level.data_devices, u64{1} << 20) + (u64{256} << 20);
}

void check_free_space(const std::string& folder, u64 needed_bytes) {
  struct statvfs state {};
  if (::statvfs(folder.c_str(), &state) != 0) fail_by_errno(folder);
  const u64 free_bytes = u64{state.f_bavail} * state.f_frsize;
  if (free_bytes >= needed_bytes + spare_bytes) return;
  throw std::runtime_error(fmt::format("{} has {} MiB of free space, and {} MiB are needed", folder, free_bytes >> 20,
                                       (needed_bytes + spare_bytes) >> 20));
}

double write_and_compare(Mount& mount, u64 length_bytes, u64 version) {
  const std::string path = mount.folder() + "/file";
  AlignedBytes content(length_bytes);
  fill_pattern(content.data(), version, 0, length_bytes / page_size);
  mount.up();
  const double began = now_seconds();
  {
    const OpenFile file(path, O_WRONLY | O_CREAT | O_EXCL);
    for (u64 at = 0; at < length_bytes; at += call_bytes) {
      if (::pwrite(file.get(), content.data() + at, call_bytes, static_cast<off_t>(at)) != ssize_t{call_bytes}) {
        fail_by_errno(path);
      }
    }
    if (::fsync(file.get()) != 0) fail_by_errno(path);
  }
  const double seconds = now_seconds() - began;
  mount.down();
  mount.up();
  {
    const OpenFile file(path, O_RDONLY);
    for (u64 at = 0; at < length_bytes; at += call_bytes) {
      if (::pread(file.get(), content.data(), call_bytes, static_cast<off_t>(at)) != ssize_t{call_bytes}) {
        fail_by_errno(path);
      }
      check_pattern(content.data(), version, at / page_size, call_bytes / page_size);
    }
  }
  mount.down();
  return static_cast<double>(length_bytes) / 1e9 / seconds;
}

BenchRow raid_row(std::string name, std::string what, const RaidSide& own, const std::vector<RaidSide>& peers) {
  BenchRow row;
  row.name = std::move(name);
  row.what = std::move(what);
  row.unit = "GB/s";
  set_samples(row, own.gb_per_s);
  std::string rates;
  bool is_complete = true;
  for (const RaidSide& peer : peers) {
    if (!rates.empty()) rates += ", ";
    if (peer.gb_per_s.empty()) {
      rates += fmt::format("{} not measured: {}", peer.name, peer.problem);
      is_complete = false;
      continue;
    }
    BenchRow its;
    set_samples(its, peer.gb_per_s);
    rates += fmt::format("{} {:.3g} GB/s ({:.3g} to {:.3g})", peer.name, its.value, its.least, its.greatest);
    if (its.value <= row.limit) continue;
    row.limit = its.value;
    row.limit_what = peer.name;
    row.remark = ratio_spread(own.gb_per_s, peer.gb_per_s) + ", ";
  }
  row.remark += rates;
  if (row.limit > 0 && (is_complete || row.judged() < peer_ratio_min)) {
    row.requirement = Requirement::at_least;
    row.required = peer_ratio_min;
  }
  return row;
}

}  // namespace gpu4fs::bench
