// What the page cache of a pool adds to a drive when a page is not in it, and a mount after a crash. Emulated drives,
// whose latency is known.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/crashed_pool.hpp"
#include "bench/drive_pool.hpp"
#include "bench/drives.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 step_bytes = 1 << 20;
constexpr u64 pattern = 1;
constexpr u32 load_clients = 16;
constexpr double added_us_max = 10;
constexpr double added_with_write_us_max = 15;
constexpr double tail_ratio_max = 10;
constexpr double mount_s_max = 10;
constexpr const char* file_name = "missed";

// One client of a file that is larger than the page cache. Each call moves one page and is measured.
class PageClient {
 public:
  explicit PageClient(server::PoolServer& server)
      : client_(frontend::open_local_session(server, step_bytes + BenchClient::control_bytes)) {}

  void make_file(u64 length_bytes) {
    inode_ = client_.create(format::inode_number_root, file_name);
    for (u64 offset = 0; offset < length_bytes; offset += step_bytes) {
      fill_pattern(client_.buffer(), pattern, offset / page_size, step_bytes / page_size);
      client_.call(BenchClient::transfer(wire::Opcode::write, inode_, offset, step_bytes, client_.buffer_address(0)),
                   "write");
    }
    client_.sync();
  }
  void find_file() {
    inode_ = client_.call(client_.named(wire::Opcode::lookup, format::inode_number_root, file_name), "lookup").result;
  }

  // Microseconds.
  double read(u64 page) {
    const double us = move(wire::Opcode::read, page);
    check_pattern(client_.buffer(), pattern, page, 1);
    return us;
  }
  void write(u64 page) {
    fill_pattern(client_.buffer(), pattern, page, 1);
    move(wire::Opcode::write, page);
  }

 private:
  double move(wire::Opcode opcode, u64 page) {
    const wire::Command command =
        BenchClient::transfer(opcode, inode_, page * page_size, page_size, client_.buffer_address(0));
    const double began = now_seconds();
    client_.call(command, opcode == wire::Opcode::read ? "read" : "write");
    return (now_seconds() - began) * 1e6;
  }

  BenchClient client_;
  u64 inode_ = 0;
};

class MissedPages {
 public:
  MissedPages(DrivesContext& context, const std::string& folder, const std::string& profile)
      : context_(context), profile_(profile), pool_(options(context, folder, profile)) {
    client_ = std::make_unique<PageClient>(pool_.server());
    client_->make_file(context.scale.file_bytes);
    pages_ = shuffled(static_cast<u32>(context.scale.file_bytes / page_size), 1);
  }

  void measure(double drive_us) {
    const double hit_us = percentile(hits(), 0.5);
    const std::vector<double> missed_us = misses([](u32) {});
    add_row("miss", "read that misses the page cache", missed_us, hit_us, drive_us + added_us_max);
    // First as many dirty pages as there are frames.
    const u32 frames = static_cast<u32>(context_.scale.page_cache_bytes / page_size);
    for (u32 i = 0; i < frames; ++i) client_->write(next_page());
    const std::vector<double> written_us = misses([&](u32) { client_->write(next_page()); });
    add_row("miss-dirty", "the same with a write of another page before each", written_us, hit_us,
            drive_us + added_with_write_us_max);
    measure_load();
    client_.reset();
    pool_.stop();
  }

 private:
  static DrivePoolOptions options(const DrivesContext& context, const std::string& folder, const std::string& profile) {
    DrivePoolOptions options;
    options.paths = {folder + "/drive"};
    write_all_blocks(options.paths.front(), 5 * context.scale.file_bytes / 2 + (u64{128} << 20));
    options.engine = context.engine;
    options.access = session::DeviceAccess::emulated;
    options.drives = drives_of(profile);
    options.page_cache_bytes = context.scale.page_cache_bytes;
    return options;
  }

  u32 next_page() { return pages_[next_++ % pages_.size()]; }

  std::vector<double> hits() {
    std::vector<double> times_us;
    for (u32 i = 0; i < context_.scale.miss_reads; ++i) times_us.push_back(client_->read(pages_.front()));
    return times_us;
  }
  std::vector<double> misses(const std::function<void(u32)>& before_each) {
    std::vector<double> times_us;
    for (u32 i = 0; i < context_.scale.miss_reads; ++i) {
      before_each(i);
      times_us.push_back(client_->read(next_page()));
    }
    return times_us;
  }

  // What a miss takes longer than a hit, in the middle.
  void add_row(const char* name, const char* what, const std::vector<double>& times_us, double hit_us,
               double limit_us) {
    BenchRow row;
    row.name = fmt::format("drives-{}-{}", name, profile_);
    row.what = fmt::format("{}, drive {}, p50, more than a hit", what, profile_);
    row.unit = "us";
    row.value = row.least = row.greatest = percentile(times_us, 0.5) - hit_us;
    row.sample_count = times_us.size();
    row.limit = limit_us;
    row.limit_what = "the driver alone, and what may be added";
    row.requirement = Requirement::at_most;
    row.required = 1;
    row.remark = fmt::format("{:.1f} us, a hit {:.1f} us", percentile(times_us, 0.5), hit_us);
    context_.result.rows.push_back(std::move(row));
  }

  void measure_load() {
    std::vector<double> times_us;
    std::mutex mutex;
    std::exception_ptr failure;
    std::vector<std::thread> threads;
    for (u32 i = 0; i < load_clients; ++i) {
      threads.emplace_back([&, i] {
        try {
          PageClient client(pool_.server());
          client.find_file();
          std::vector<double> own_us;
          for (u32 k = 0; k < context_.scale.miss_reads; ++k) {
            own_us.push_back(client.read(pages_[(k * load_clients + i) % pages_.size()]));
          }
          const std::lock_guard guard(mutex);
          times_us.insert(times_us.end(), own_us.begin(), own_us.end());
        } catch (...) {
          const std::lock_guard guard(mutex);
          failure = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);
    BenchRow row;
    row.name = fmt::format("drives-miss-tail-{}", profile_);
    row.what = fmt::format("reads of {} clients that miss, drive {}, p99.9", load_clients, profile_);
    row.unit = "us";
    row.value = row.least = row.greatest = percentile(times_us, 0.999);
    row.sample_count = times_us.size();
    row.limit = percentile(times_us, 0.5);
    row.limit_what = "p50";
    row.requirement = Requirement::at_most;
    row.required = tail_ratio_max;
    row.remark = pool_.server().engine_text();
    context_.result.rows.push_back(std::move(row));
  }

  DrivesContext& context_;
  std::string profile_;
  DrivePool pool_;
  std::unique_ptr<PageClient> client_;
  std::vector<u32> pages_;
  u64 next_ = 0;
};

}  // namespace

void bench_drive_misses(DrivesContext& context) {
  for (const char* const profile : {"10us", "100us"}) {
    const double drive_us = bare_drive_latency_us(context, drives_of(profile));
    const TemporaryFolder folder(context.folder);
    MissedPages(context, folder.path(), profile).measure(drive_us);
  }
}

void bench_drive_recovery(DrivesContext& context) {
  constexpr const char* profile = "100us";
  session::ServerOptions options;
  options.engine = context.engine;
  options.device_access = session::DeviceAccess::emulated;
  options.drives = drives_of(profile);
  const CrashedPool pool(context.folder, context.scale.recovered_bytes, options);
  const double began = now_seconds();
  server::PoolServer server(pool.options());
  server.start();
  const double seconds = now_seconds() - began;
  const u64 records = server.recovery().records_replayed;
  if (records < context.scale.recovered_bytes / page_size) {
    throw std::runtime_error("the recovery found too little in the log");
  }
  pool.check(server);
  BenchRow row;
  row.name = "drives-mount-after-crash";
  row.what =
      fmt::format("mount after a crash with {} MiB of log, drive {}", context.scale.recovered_bytes >> 20, profile);
  row.unit = "s";
  set_samples(row, {seconds});
  row.requirement = Requirement::at_most;
  row.required = mount_s_max;
  row.remark = fmt::format("{} records; {}", records, server.engine_text());
  if (!server.stop()) throw std::runtime_error("the last checkpoint failed");
  context.result.rows.push_back(std::move(row));
}

}  // namespace gpu4fs::bench
