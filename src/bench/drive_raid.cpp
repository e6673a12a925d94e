// One large file, fsync included, in pools with redundancy on loop devices that are accessed directly, compared with
// btrfs and with ext4 on md of the same level on the same devices.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "bench/btrfs_mount.hpp"
#include "bench/client.hpp"
#include "bench/drive_pool.hpp"
#include "bench/drives.hpp"
#include "bench/loop_device.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 call_bytes = 1 << 20;
constexpr u32 depth = 4;  // of the pool's ring
constexpr double peer_ratio_min = 1;

struct Level {
  const char* profile;
  u32 device_count;
  u32 data_devices;  // whose bytes count for files
};
constexpr Level levels[] = {{"raid1", 2, 1}, {"raid5", 3, 2}};

// ext4 on an array of the kernel, for level raid1 or raid5.
class ArrayMount final : public Mount {
 public:
  ArrayMount(const std::vector<std::string>& devices, std::string folder, const std::string& profile)
      : Mount(std::move(folder)), devices_(devices) {
    if (!std::filesystem::exists("/proc/mdstat")) throw std::runtime_error("the kernel has no md");
    try {
      run_program({"mdadm", "--version"}, true);
    } catch (const std::runtime_error&) {
      throw std::runtime_error("there is no mdadm");
    }
    // The devices count as synchronous: nothing but the file system's own bytes is read.
    std::vector<std::string> words{"mdadm",      "--create", array,
                                   "--run",      "--quiet",  "--assume-clean",
                                   "--metadata", "1.2",      "--level=" + profile.substr(4)};
    words.push_back(fmt::format("--raid-devices={}", devices.size()));
    words.insert(words.end(), devices.begin(), devices.end());
    run_program(words, true);
    is_made_ = true;
    run_program({"mkfs.ext4", "-q", "-F", array}, true);
  }
  ~ArrayMount() override {
    if (is_up_) ::umount2(folder_.c_str(), MNT_DETACH);
    try {
      if (is_made_) run_program({"mdadm", "--quiet", "--stop", array}, true);
      std::vector<std::string> words{"mdadm", "--quiet", "--zero-superblock"};
      words.insert(words.end(), devices_.begin(), devices_.end());
      if (is_made_) run_program(words, true);
    } catch (const std::runtime_error&) {  // the loop devices go away
    }
  }
  void up() override {
    if (::mount(array, folder_.c_str(), "ext4", 0, nullptr) != 0) fail_by_errno("mounting ext4 on md");
    is_up_ = true;
  }
  void down() override {
    if (::umount(folder_.c_str()) != 0) fail_by_errno("unmounting ext4 on md");
    is_up_ = false;
  }

 private:
  static constexpr const char* array = "/dev/md/gpu4fs-bench";
  std::vector<std::string> devices_;
  bool is_made_ = false;
  bool is_up_ = false;
};

// Calls of 1 MiB and an fsync, by a file system of the system; then it is mounted anew, and the bytes are compared.
// Returns GB/s of the write.
double write_file(Mount& mount, u64 length) {
  const std::string path = mount.folder() + "/file";
  AlignedBytes content(length);
  fill_pattern(content.data(), 0, 0, length / page_size);
  mount.up();
  const double began = now_seconds();
  {
    const OpenFile file(path, O_WRONLY | O_CREAT);
    for (u64 at = 0; at < length; at += call_bytes) {
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
    for (u64 at = 0; at < length; at += call_bytes) {
      if (::pread(file.get(), content.data(), call_bytes, static_cast<off_t>(at)) != ssize_t{call_bytes}) {
        fail_by_errno(path);
      }
      check_pattern(content.data(), 0, at / page_size, call_bytes / page_size);
    }
  }
  mount.down();
  return static_cast<double>(length) / 1e9 / seconds;
}

double write_to_pool(const DrivesContext& context, const std::vector<std::string>& devices, const Level& level,
                     u64 length) {
  DrivePool pool({.paths = devices,
                  .profile = level.profile,
                  .engine = context.engine,
                  .page_cache_bytes = context.scale.page_cache_bytes});
  double seconds = 0;
  {
    DriveFile file(pool.server(), length);
    seconds = file.write_whole(call_bytes, depth).seconds;
    file.read_whole(call_bytes, depth);
  }
  pool.stop();
  return static_cast<double>(length) / 1e9 / seconds;
}

// The size of the scale, or half of it as often as it takes to write it in the time. At least twice the page cache.
u64 choose_length(const DrivesScale& scale, double gb_per_s) {
  u64 length = scale.file_bytes;
  while (length / 2 >= 2 * scale.page_cache_bytes &&
         static_cast<double>(length) / 1e9 / gb_per_s > scale.raid_s_max / 2)
    length /= 2;
  return length;
}

// Who writes, with a new pool or file system each time.
struct Side {
  std::string name;
  std::function<double()> write;
  std::vector<double> gb_per_s = {};
};

void add_row(DrivesContext& context, const Level& level, u64 length, const std::vector<Side>& sides) {
  BenchRow row;
  row.name = fmt::format("drives-{}-write", level.profile);
  row.what = fmt::format("{} MiB in writes of 1 MiB, fsync, {} on {} loop devices", length >> 20, level.profile,
                         level.device_count);
  row.unit = "GB/s";
  set_samples(row, sides[0].gb_per_s);
  for (std::size_t i = 1; i < sides.size(); ++i) {
    BenchRow peer;
    set_samples(peer, sides[i].gb_per_s);
    row.remark += fmt::format("{}{} {:.2f} GB/s", row.remark.empty() ? "" : ", ", sides[i].name, peer.value);
    if (peer.value <= row.limit) continue;
    row.limit = peer.value;
    row.limit_what = sides[i].name;
  }
  if (sides.size() > 1) {
    row.requirement = Requirement::at_least;
    row.required = peer_ratio_min;
  }
  context.result.rows.push_back(std::move(row));
}

void measure_level(DrivesContext& context, const Level& level) {
  const DrivesScale& scale = context.scale;
  const TemporaryFolder folder(context.folder);
  const u64 device_bytes = align_up(3 * scale.file_bytes / 2 / level.data_devices, u64{1} << 20) + (u64{256} << 20);
  LoopDevices loops;
  for (u32 i = 0; i < level.device_count; ++i) {
    const std::string file = fmt::format("{}/device{}", folder.path(), i);
    write_all_blocks(file, device_bytes);
    loops.push_back(std::make_unique<LoopDevice>(file, true));
  }
  const std::vector<std::string> devices = paths_of(loops);
  const std::string mount = folder.path() + "/mount";
  const auto write_own = [&](u64 length) { return write_to_pool(context, devices, level, length); };
  const u64 length = choose_length(scale, write_own(2 * scale.page_cache_bytes));
  std::vector<Side> sides{
      {"pool", [&] { return write_own(length); }},
      {"btrfs",
       [&] {
         BtrfsMount btrfs(devices, mount, level.profile);
         return write_file(btrfs, length);
       }},
      {"ext4 on md",
       [&] {
         ArrayMount array(devices, mount, level.profile);
         return write_file(array, length);
       }},
  };
  Rounds rounds(scale.rounds, scale.raid_s_max);
  while (rounds.next()) {
    for (std::size_t i = 0; i < sides.size();) {
      try {
        sides[i].gb_per_s.push_back(sides[i].write());
        ++i;
      } catch (const std::exception& error) {
        if (i == 0) throw;
        context.result.left_out.push_back(fmt::format("raid, {}, {}: {}", level.profile, sides[i].name, error.what()));
        sides.erase(sides.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  add_row(context, level, length, sides);
}

}  // namespace

void bench_drive_raid(DrivesContext& context) {
  for (const Level& level : levels) {
    report_part(fmt::format("raid, {}", level.profile));
    try {
      measure_level(context, level);
    } catch (const std::exception& error) {
      context.result.left_out.push_back(fmt::format("raid, {}: {}", level.profile, error.what()));
    }
  }
}

}  // namespace gpu4fs::bench
