#include "bench/raid_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/held_signals.hpp"
#include "bench/result.hpp"
#include "bench/side_by_side.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 step_bytes = 1 << 20;

// Also what the kernel keeps of devices. A machine that does not allow it reads from a new mount all the same.
void drop_kernel_caches() {
  const int file = ::open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  (void)!::write(file, "3", 1);
  ::close(file);
}

std::string path_of(const Mount& mount, u32 file) {
  return fmt::format("{}/file{}", mount.folder(), file);
}

}  // namespace

template <class Work>
double RaidFiles::gb_per_s(const Work& work) const {
  const double began = now_seconds();
  run_side_by_side(load_.file_count, work);
  return static_cast<double>(load_.total_bytes) / 1e9 / (now_seconds() - began);
}

RaidRates RaidFiles::run(Mount& mount) {
  RaidRates rates;
  for (u32 i = 0; i < load_.file_count; ++i) fill_pattern(memory(i), i, 0, load_.file_bytes() / page_size);
  mount.up();
  rates.write_gb_per_s = gb_per_s([&](u32 i) { write(path_of(mount, i), i); });
  mount.down();
  drop_kernel_caches();
  std::memset(memory_.data(), 0, load_.total_bytes);
  mount.up();
  rates.read_gb_per_s = gb_per_s([&](u32 i) { read(path_of(mount, i), i); });
  mount.down();
  for (u32 i = 0; i < load_.file_count; ++i) check_pattern(memory(i), i, 0, load_.file_bytes() / page_size);
  return rates;
}

void RaidFiles::write(const std::string& path, u32 file) {
  const OpenFile target(path, O_WRONLY | O_CREAT | O_EXCL);
  for (u64 at = 0; at < load_.file_bytes(); at += step_bytes) {
    HeldSignals::check();
    if (::pwrite(target.get(), memory(file) + at, step_bytes, static_cast<off_t>(at)) != ssize_t{step_bytes}) {
      fail_by_errno(path);
    }
  }
  if (::fsync(target.get()) != 0) fail_by_errno(path);
}

void RaidFiles::read(const std::string& path, u32 file) {
  const OpenFile source(path, O_RDONLY);
  for (u64 at = 0; at < load_.file_bytes(); at += step_bytes) {
    HeldSignals::check();
    if (::pread(source.get(), memory(file) + at, step_bytes, static_cast<off_t>(at)) != ssize_t{step_bytes}) {
      fail_by_errno(path);
    }
  }
}

RaidRates run_on_rings(const DrivePoolOptions& options, const RaidLoad& load, u32 depth) {
  RaidRates rates;
  const double gigabytes = static_cast<double>(load.total_bytes) / 1e9;
  DrivePool pool(options);
  {
    std::vector<std::unique_ptr<DriveFile>> files;
    for (u32 i = 0; i < load.file_count; ++i) {
      files.push_back(std::make_unique<DriveFile>(pool.server(), load.file_bytes(), fmt::format("file{}", i)));
      files.back()->fill();
    }
    double began = now_seconds();
    run_side_by_side(load.file_count, [&](u32 i) { files[i]->write_filled(step_bytes, depth); });
    rates.write_gb_per_s = gigabytes / (now_seconds() - began);
    HeldSignals::check();
    for (auto& file : files) file->clear();
    began = now_seconds();
    run_side_by_side(load.file_count, [&](u32 i) { files[i]->read_cleared(step_bytes, depth); });
    rates.read_gb_per_s = gigabytes / (now_seconds() - began);
    for (auto& file : files) file->check();
    HeldSignals::check();
  }
  pool.stop();
  return rates;
}

}  // namespace gpu4fs::bench
