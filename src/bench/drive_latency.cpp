// Small operations on a pool whose file is accessed directly: durable appends, reads from the page cache of the pool,
// and what an idle server costs.
#include <fcntl.h>
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/drive_pool.hpp"
#include "bench/drives.hpp"
#include "bench/mounts.hpp"
#include "bench/pool.hpp"
#include "bench/result.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 small_pool_bytes = u64{192} << 20;
constexpr double append_us_added_max = 10;
constexpr double append_us_added_max_gpu = 25;
constexpr u32 batch = 50;  // operations of one side before those of the other
constexpr u32 hit_passes = 3;
constexpr u64 step_bytes = 1 << 20;

double clock_ms(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

// Of all threads of the process but the calling one.
double other_threads_cpu_ms() {
  return clock_ms(CLOCK_PROCESS_CPUTIME_ID) - clock_ms(CLOCK_THREAD_CPUTIME_ID);
}

// A file that grows by durable pages.
class AppendedFile {
 public:
  explicit AppendedFile(server::PoolServer& server)
      : client_(frontend::open_local_session(server, page_size + BenchClient::control_bytes)),
        inode_(client_.create(format::inode_number_root, "appended")) {
    client_.sync();
  }

  // Returns microseconds.
  double append() {
    fill_pattern(client_.buffer(), 1, page_count_, 1);
    wire::Command commands[2] = {
        BenchClient::transfer(wire::Opcode::write, inode_, 0, page_size, client_.buffer_address(0)), {}};
    commands[0].flags = wire::command_flag_append;
    commands[1].opcode = wire::Opcode::fsync;
    commands[1].inode = inode_;
    client::Reply replies[2];
    const double began = now_seconds();
    const Status status = client_.session().call_linked(commands, replies);
    const double seconds = now_seconds() - began;
    if (status != Status::ok) throw std::runtime_error(fmt::format("append: {}", status_text(status)));
    ++page_count_;
    return seconds * 1e6;
  }

  void check() {
    for (u64 page = 0; page < page_count_; ++page) {
      client_.call(
          BenchClient::transfer(wire::Opcode::read, inode_, page * page_size, page_size, client_.buffer_address(0)),
          "read");
      check_pattern(client_.buffer(), 1, page, 1);
    }
  }

 private:
  BenchClient client_;
  u64 inode_;
  u64 page_count_ = 0;
};

// The least that makes a page durable: it replaces bytes of a file that has its blocks, so the file system has nothing
// to note, and the disk is told to flush. Either two calls of the system do it, or two operations of an io_uring: each
// way is the faster one on some machine.
class FlushedFile {
 public:
  FlushedFile(const std::string& path, u32 page_count) : path_(path) {
    write_all_blocks(path, u64{page_count} * page_size);
    file_ = std::make_unique<OpenFile>(path, O_RDWR | O_DIRECT);
  }

  // Returns microseconds.
  double write_by_calls() {
    return write_next([&](u64 offset) {
      return ::pwrite(file_->get(), bytes_.data(), page_size, static_cast<off_t>(offset)) == ssize_t{page_size} &&
             ::fdatasync(file_->get()) == 0;
    });
  }
  double write_by_uring() {
    return write_next([&](u64 offset) {
      io_uring_sqe* const write = io_uring_get_sqe(ring_.get());
      io_uring_prep_write(write, file_->get(), bytes_.data(), page_size, offset);
      write->flags |= IOSQE_IO_LINK;
      io_uring_prep_fsync(io_uring_get_sqe(ring_.get()), file_->get(), IORING_FSYNC_DATASYNC);
      io_uring_submit_and_wait(ring_.get(), 2);
      return ring_.take_result() == i32{page_size} && ring_.take_result() == 0;
    });
  }

 private:
  template <class Write>
  double write_next(const Write& write) {
    fill_pattern(bytes_.data(), 1, page_, 1);
    const double began = now_seconds();
    if (!write(page_ * page_size)) fail_by_errno(path_);
    ++page_;
    return (now_seconds() - began) * 1e6;
  }

  std::string path_;
  std::unique_ptr<OpenFile> file_;
  AlignedBytes bytes_{page_size};
  BareRing ring_{2};
  u64 page_ = 0;
};

struct AppendTimes {
  std::vector<double> appends_us;
  std::vector<double> calls_us;
  std::vector<double> uring_us;
};

void add_append_row(DrivesContext& context, const AppendTimes& times, double fraction) {
  const double calls_us = percentile(times.calls_us, fraction);
  const double uring_us = percentile(times.uring_us, fraction);
  const bool is_on_gpu = context.engine == session::EngineChoice::cuda;
  const double added_us_max = is_on_gpu ? append_us_added_max_gpu : append_us_added_max;
  BenchRow row;
  row.name = fmt::format("drives-append-fsync-p{:.0f}", fraction * 100);
  row.what = fmt::format("append of 4 KiB and fsync, p{:.0f}", fraction * 100);
  row.unit = "us";
  set_samples(row, times.appends_us);
  row.value = percentile(times.appends_us, fraction);
  row.limit = std::min(calls_us, uring_us) + added_us_max;
  row.limit_what =
      fmt::format("pwrite and fdatasync{}, and {:.0f} us", uring_us < calls_us ? " by io_uring" : "", added_us_max);
  row.requirement = Requirement::at_most;
  row.required = 1;
  row.remark = fmt::format("by calls {:.0f} us, by io_uring {:.0f} us", calls_us, uring_us);
  context.result.rows.push_back(std::move(row));
}

}  // namespace

void bench_drive_idle(DrivesContext& context) {
  const TemporaryFolder folder(context.folder);
  const std::string path = folder.path() + "/pool";
  write_all_blocks(path, small_pool_bytes);
  // As mounted by default: a checkpoint every five seconds, if there were changes.
  DrivePool pool({.paths = {path},
                  .engine = context.engine,
                  .page_cache_bytes = context.scale.page_cache_bytes,
                  .commit_interval_s = 5});
  {
    AppendedFile file(pool.server());
    for (u32 i = 0; i < batch; ++i) file.append();
    file.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(context.scale.idle_ms / 10));
    const double began_ms = other_threads_cpu_ms();
    const double media_began_s = pool.server().media_cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(context.scale.idle_ms));
    BenchRow row;
    row.name = "drives-idle-cpu";
    row.what = fmt::format("CPU time of the idle device threads in {} ms", context.scale.idle_ms);
    row.unit = "ms";
    set_samples(row, {(pool.server().media_cpu_seconds() - media_began_s) * 1e3});
    row.remark = fmt::format("the whole server: {:.2f} ms", other_threads_cpu_ms() - began_ms);
    row.requirement = Requirement::at_most;
    row.required = 0;
    context.result.rows.push_back(std::move(row));
  }
  pool.stop();
}

void bench_drive_sync(DrivesContext& context) {
  const TemporaryFolder folder(context.folder);
  const std::string path = folder.path() + "/pool";
  write_all_blocks(path, small_pool_bytes);
  DrivePool pool({.paths = {path}, .engine = context.engine, .page_cache_bytes = context.scale.page_cache_bytes});
  AppendTimes times;
  {
    AppendedFile file(pool.server());
    FlushedFile peer(folder.path() + "/peer", 2 * (context.scale.appends + batch));
    const auto run_batch = [&](AppendTimes& into) {
      for (u32 i = 0; i < batch; ++i) into.appends_us.push_back(file.append());
      for (u32 i = 0; i < batch; ++i) into.calls_us.push_back(peer.write_by_calls());
      for (u32 i = 0; i < batch; ++i) into.uring_us.push_back(peer.write_by_uring());
    };
    AppendTimes warm_up;
    run_batch(warm_up);
    for (u32 i = 0; i < context.scale.appends / batch; ++i) run_batch(times);
    file.check();
  }
  pool.stop();
  for (const double fraction : {0.5, 0.99}) add_append_row(context, times, fraction);
}

void bench_drive_hits(DrivesContext& context) {
  const DrivesScale& scale = context.scale;
  const TemporaryFolder folder(context.folder);
  const std::string path = folder.path() + "/direct";
  write_all_blocks(path, small_pool_bytes);
  // A GPU cannot reach the mapping of a file on a disk.
  const bool is_on_gpu = context.engine == session::EngineChoice::cuda;
  std::optional<MemoryPool> memory;
  if (is_on_gpu) memory.emplace(MemoryPoolOptions{.device_bytes = small_pool_bytes, .device_count = 1});
  const std::string mapped_path = is_on_gpu ? memory->paths().front() : folder.path() + "/mapped";
  if (!is_on_gpu) write_all_blocks(mapped_path, small_pool_bytes);
  DrivePool pools[] = {
      DrivePool({.paths = {path}, .engine = context.engine, .page_cache_bytes = scale.page_cache_bytes}),
      DrivePool({.paths = {mapped_path}, .engine = context.engine, .access = session::DeviceAccess::mapped}),
  };
  {
    DriveFile files[] = {{pools[0].server(), scale.hit_bytes}, {pools[1].server(), scale.hit_bytes}};
    for (DriveFile& file : files) {
      file.write_whole(step_bytes, 4);
      file.read_whole(step_bytes, 4);
    }
    for (const u32 depth : {1u, 64u}) {
      std::vector<double> rates[2];
      for (u32 pass = 0; pass < hit_passes; ++pass) {
        const std::vector<u32> pages = shuffled(static_cast<u32>(scale.hit_bytes / page_size), pass);
        for (u32 i = 0; i < 2; ++i) {
          rates[i].push_back(static_cast<double>(pages.size()) / files[i].read_pages(pages, depth).seconds);
        }
      }
      BenchRow limit;
      set_samples(limit, rates[1]);
      BenchRow row;
      row.name = fmt::format("drives-hit-{}", depth);
      row.what = fmt::format("random read of 4 KiB from the page cache, depth {}", depth);
      row.unit = "1/s";
      set_samples(row, rates[0]);
      row.limit = limit.value;
      row.limit_what = is_on_gpu ? "mapped pool in memory" : "mapped pool";
      context.result.rows.push_back(std::move(row));
    }
  }
  for (DrivePool& pool : pools) pool.stop();
}

}  // namespace gpu4fs::bench
