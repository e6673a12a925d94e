// Pools on emulated NVMe drives, compared with what the driver alone gets out of the same drives in the same run.
//
// The driver alone is one thread that keeps a number of commands of one page in flight, and touches no byte. Files lie
// in memory.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/access.hpp"
#include "base/bits.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/drive_pool.hpp"
#include "bench/drives.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"
#include "device/drives/drive_requests.hpp"
#include "device/memory/mapped_file.hpp"
#include "device/queue/io_queue.hpp"
#include "engine/engine_cpu.hpp"
#include "session/direct_media.hpp"
#include "session/emulated_drives.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 step_bytes = 1 << 20;
constexpr u32 sequential_depth = 8;
constexpr u32 random_depth = 256;
constexpr u32 raid_drives = 4;

// Commands that write the same file run one after the other, so large ones use more workers.
struct RaidStep {
  const char* suffix;
  u64 bytes;
  u32 depth;
};
constexpr RaidStep raid_steps[] = {{"", step_bytes, sequential_depth}, {"-large", u64{64} << 20, 4}};
constexpr double raid_ratio_min = 0.85;
constexpr double random_ratio_min = 0.8;

// The driver without a file system, on files that exist.
class BareDrives {
 public:
  BareDrives(const std::vector<std::string>& paths, const session::EmulatedDriveOptions& options)
      : queue_memory_(heap_.allocate(device::io_queue_shared_bytes(session::DirectMedia::slot_count), cache_line)),
        media_(heap_, {queue_memory_, queue_memory_}, true),
        pages_(static_cast<u8*>(heap_.allocate(session::DirectMedia::slot_count * page_size, page_size))) {
    media_.use_drives(heap_, heap_, static_cast<u32>(paths.size()), options);
    for (const std::string& path : paths) {
      files_.push_back(device::MappedFile::open(path));
      media_.set(static_cast<u32>(files_.size() - 1), files_.back());
    }
    media_.start({}, {});
    // So no page of the files is touched for the first time later.
    (void)rate(device::IoOperation::read, files_.size() * files_.front().size_bytes(), 256, false);
  }

  // Bytes per second, of commands of one page that are spread over the drives.
  double rate(device::IoOperation operation, u64 total_bytes, u32 depth, bool is_random) {
    const u64 drive_pages = files_.front().size_bytes() / page_size;
    const u64 count = total_bytes / page_size;
    u64 begun = 0;
    u64 ended = 0;
    u64 state = 1;
    const double began = now_seconds();
    while (ended < count) {
      while (begun < count && begun - ended < depth) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const u64 page = is_random ? (state >> 33) % drive_pages : begun / files_.size() % drive_pages;
        submit(operation, static_cast<u32>(begun % files_.size()), page);
        ++begun;
      }
      device::ring(*media_.queue());
      ended += take();
    }
    return static_cast<double>(total_bytes) / (now_seconds() - began);
  }

  // Microseconds of reads of a page, one at a time.
  std::vector<double> read_latencies_us(u32 count) {
    const std::vector<u32> pages = shuffled(static_cast<u32>(files_.front().size_bytes() / page_size), 1);
    std::vector<double> latencies_us;
    for (u32 i = 0; i < count; ++i) {
      const double began = now_seconds();
      submit(device::IoOperation::read, 0, pages[i % pages.size()]);
      device::ring(*media_.queue());
      while (take() == 0) {
      }
      latencies_us.push_back((now_seconds() - began) * 1e6);
    }
    return latencies_us;
  }

 private:
  void submit(device::IoOperation operation, u32 drive, u64 page) {
    device::IoQueue& queue = *media_.queue();
    const u32 slot = device::take_slot(queue);
    if (slot == device::no_io_slot) throw std::runtime_error("no slot is free");
    device::set_request(queue, slot,
                        {operation, drive, page * page_size, u32{page_size}, 1, pages_ + slot * page_size});
    (void)device::publish_requests(Lane{}, queue, slot);
  }
  u64 take() {
    device::IoQueue& queue = *media_.queue();
    if (device::poll_drives(Lane{}, queue, false) == 0) backoff(100);
    u64 count = 0;
    for (u32 slot = 0; device::take_reports(Lane{}, queue, &slot) != 0; ++count) {
      const Status status = device::poll(queue, slot).status;
      if (status != Status::ok) throw std::runtime_error(fmt::format("a command: {}", status_text(status)));
      device::release(queue, slot);
    }
    return count;
  }

  engine::HeapAllocator heap_;
  void* queue_memory_;
  std::vector<device::MappedFile> files_;
  session::DirectMedia media_;
  u8* pages_;
};

// In memory that is present.
std::vector<std::string> make_files(const std::string& folder, u32 count, u64 bytes) {
  std::vector<std::string> paths;
  for (u32 i = 0; i < count; ++i) {
    paths.push_back(fmt::format("{}/drive{}", folder, i));
    write_all_blocks(paths.back(), bytes);
  }
  return paths;
}

struct EmulatedSide {
  std::string name;
  std::string what;
  std::string unit;
  double unit_bytes;
  double ratio_min;
  std::function<double()> pool;   // bytes per second
  std::function<double()> alone;  // the limit
  std::vector<double> pool_rates = {};
  std::vector<double> alone_rates = {};
};

void measure_sides(DrivesContext& context, std::vector<EmulatedSide>& sides, const std::string& access) {
  Rounds rounds(context.scale.rounds, context.scale.medium_s_max);
  while (rounds.next()) {
    for (EmulatedSide& side : sides) side.pool_rates.push_back(side.pool() / side.unit_bytes);
  }
  for (EmulatedSide& side : sides) {
    BenchRow row;
    row.name = "drives-emulated-" + side.name;
    row.what = side.what;
    row.unit = side.unit;
    set_samples(row, side.pool_rates);
    BenchRow alone;
    set_samples(alone, side.alone_rates);
    row.limit = alone.value;
    row.limit_what = "the driver alone, by a host thread";
    row.requirement = Requirement::at_least;
    row.required = side.ratio_min;
    row.remark = access;
    context.result.rows.push_back(std::move(row));
  }
}

void measure_alone(const DrivesContext& context, std::vector<EmulatedSide>& sides) {
  for (u32 i = 0; i < context.scale.rounds; ++i) {
    for (EmulatedSide& side : sides) side.alone_rates.push_back(side.alone() / side.unit_bytes);
  }
}

DrivePoolOptions pool_options(const DrivesContext& context, const std::vector<std::string>& paths,
                              const std::string& level, const session::EmulatedDriveOptions& drives) {
  DrivePoolOptions options;
  options.paths = paths;
  options.profile = level;
  options.engine = context.engine;
  options.access = session::DeviceAccess::emulated;
  options.drives = drives;
  options.page_cache_bytes = context.scale.page_cache_bytes;
  return options;
}

void measure_raid(DrivesContext& context, const std::string& folder, const std::string& profile) {
  const session::EmulatedDriveOptions drives = drives_of(profile);
  const u64 file_bytes = context.scale.file_bytes;
  const u64 drive_bytes = align_up(file_bytes, u64{1} << 20) + (u64{128} << 20);
  const std::vector<std::string> paths = make_files(folder, raid_drives, drive_bytes);
  const double data_part = static_cast<double>(raid_drives - 1) / raid_drives;
  std::unique_ptr<BareDrives> bare;
  std::unique_ptr<DriveFile> file;
  const auto total = static_cast<double>(file_bytes);
  const auto alone = [&](device::IoOperation operation) { return bare->rate(operation, file_bytes, 1024, false); };
  std::vector<EmulatedSide> sides;
  for (const RaidStep& step : raid_steps) {
    const std::string where = fmt::format("by {} MiB, raid5 on {} drives {}", step.bytes >> 20, raid_drives, profile);
    sides.push_back({fmt::format("raid5-write{}", step.suffix), "sequential write with fsync " + where, "GB/s", 1e9,
                     raid_ratio_min, [&, step] { return total / file->write_whole(step.bytes, step.depth).seconds; },
                     [&] { return alone(device::IoOperation::write) * data_part; }});
    sides.push_back({fmt::format("raid5-read{}", step.suffix), "sequential read " + where, "GB/s", 1e9, raid_ratio_min,
                     [&, step] { return total / file->read_whole(step.bytes, step.depth).seconds; },
                     [&] { return alone(device::IoOperation::read); }});
  }
  bare = std::make_unique<BareDrives>(paths, drives);
  measure_alone(context, sides);
  bare.reset();
  DrivePool pool(pool_options(context, paths, "raid5", drives));
  file = std::make_unique<DriveFile>(pool.server(), file_bytes);
  measure_sides(context, sides, pool.server().engine_text());
  file.reset();
  pool.stop();
}

void measure_random(DrivesContext& context, const std::string& folder) {
  const session::EmulatedDriveOptions drives = drives_of("10us");
  const u64 file_bytes = context.scale.file_bytes;
  const std::vector<std::string> paths = make_files(folder, 1, 5 * file_bytes / 2 + (u64{128} << 20));
  std::unique_ptr<BareDrives> bare;
  std::unique_ptr<DriveFile> file;
  u64 seed = 0;
  std::vector<EmulatedSide> sides{
      {"read-random", fmt::format("random reads of 4 KiB at depth {}, a drive of 10 us", random_depth), "1/s",
       static_cast<double>(page_size), random_ratio_min,
       [&] {
         std::vector<u32> pages = shuffled(static_cast<u32>(file_bytes / page_size), ++seed);
         pages.resize(context.scale.random_bytes / page_size);
         return static_cast<double>(context.scale.random_bytes) / file->read_pages(pages, random_depth).seconds;
       },
       [&] { return bare->rate(device::IoOperation::read, context.scale.random_bytes, random_depth, true); }},
  };
  bare = std::make_unique<BareDrives>(paths, drives);
  measure_alone(context, sides);
  bare.reset();
  DrivePool pool(pool_options(context, paths, "single", drives));
  file = std::make_unique<DriveFile>(pool.server(), file_bytes);
  file->write_whole(step_bytes, sequential_depth);
  measure_sides(context, sides, pool.server().engine_text());
  file.reset();
  pool.stop();
}

}  // namespace

session::EmulatedDriveOptions drives_of(const std::string& profile) {
  session::EmulatedDriveOptions options;
  if (!session::choose_drives(profile, &options)) {
    throw std::runtime_error(fmt::format("a drive is {}, not {}", session::emulated_drive_names(), profile));
  }
  return options;
}

double bare_drive_latency_us(const DrivesContext& context, const session::EmulatedDriveOptions& drives) {
  const TemporaryFolder own(context.folder);
  BareDrives bare(make_files(own.path(), 1, u64{64} << 20), drives);
  return percentile(bare.read_latencies_us(context.scale.miss_reads), 0.5);
}

void bench_drive_emulated(DrivesContext& context) {
  const auto in_folder = [&](const std::function<void(const std::string&)>& measure) {
    const TemporaryFolder folder(context.folder);
    measure(folder.path());
  };
  in_folder([&](const std::string& folder) { measure_raid(context, folder, context.drive); });
  in_folder([&](const std::string& folder) { measure_random(context, folder); });
}

}  // namespace gpu4fs::bench
