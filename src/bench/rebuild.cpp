// The rate at which a lost device is filled again, with one large file and with many small ones in the pool.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/bits.hpp"
#include "bench/client.hpp"
#include "bench/parts.hpp"
#include "bench/raid_pool.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double rebuild_ratio_min = 0.7;
constexpr u32 in_flight = 2;

struct FileSet {
  std::vector<u64> inodes;
  u64 file_bytes;
};

FileSet write_files(server::PoolServer& server, const BenchScale& scale, u64 total_bytes, u32 count) {
  FileSet files;
  files.file_bytes = align_down(total_bytes / count, page_size);
  BenchClient client(frontend::open_local_session(server, files.file_bytes + BenchClient::control_bytes));
  for (u32 i = 0; i < count; ++i) {
    files.inodes.push_back(client.create(format::inode_number_root, fmt::format("file-{}", i)));
    fill_pattern(client.buffer(), i, 0, files.file_bytes / page_size);
    client.stream(wire::Opcode::write, files.inodes[i], files.file_bytes,
                  std::min<u64>(scale.command_bytes(), files.file_bytes), in_flight, client.buffer_address(0));
  }
  client.sync();
  return files;
}

BenchClient make_client(server::PoolServer& server, const FileSet& files) {
  return BenchClient(frontend::open_local_session(server, files.file_bytes + BenchClient::control_bytes));
}

void verify_files(BenchClient& client, const BenchScale& scale, const FileSet& files) {
  for (u32 i = 0; i < files.inodes.size(); ++i) {
    std::fill_n(client.buffer(), files.file_bytes, u8{0});
    client.stream(wire::Opcode::read, files.inodes[i], files.file_bytes,
                  std::min<u64>(scale.command_bytes(), files.file_bytes), in_flight, client.buffer_address(0));
    check_pattern(client.buffer(), i, 0, files.file_bytes / page_size);
  }
}

// A file with all its blocks, so nothing is allocated during the measurement.
std::string make_target(const RaidPool& pool, u32 index) {
  const std::string lost = pool.path(index) + ".away/device";
  const std::string path = pool.path(index) + ".new";
  const u64 bytes = std::filesystem::file_size(lost);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const int error = file < 0 ? errno : ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (file >= 0) ::close(file);
  if (error != 0) throw std::runtime_error(fmt::format("{}: {}", path, std::strerror(error)));
  return path;
}

// GB/s of the data that the device lacked.
double rebuild(server::PoolServer& server, u32 device, const std::string& path) {
  const std::string problem = server.exchange().replace(std::to_string(device), path, false, 0);
  if (!problem.empty()) throw std::runtime_error("replace: " + problem);
  for (;;) {
    const maintenance::RebuildReport report = server.rebuilder().report();
    if (report.state == maintenance::JobState::finished) {
      if (report.written_count == 0 || report.active_ms == 0) throw std::runtime_error("nothing was rebuilt");
      return static_cast<double>(report.written_count * page_size) / 1e6 / static_cast<double>(report.active_ms);
    }
    if (report.state != maintenance::JobState::running) throw std::runtime_error("rebuild: " + report.problem);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The size of a pool's files. Mirrors get more, because one of their devices is filled in a third of the time.
u64 measured_bytes(const BenchLevel& level, const BenchScale& scale) {
  return (level.rows.copy_count > 1 ? 16 : 8) * scale.file_bytes;
}

// Replaces device 0 by another one; then verifies the bytes without device 1.
double measure_rebuild(const BenchLevel& level, const BenchScale& scale, const session::ServerOptions& options,
                       u32 file_count) {
  const u64 total_bytes = measured_bytes(level, scale);
  RaidPool pool(level, 2 * total_bytes, options);
  const FileSet files = write_files(pool.start(), scale, total_bytes, file_count);
  pool.stop();
  pool.take_away(1);
  server::PoolServer& server = pool.start();
  double rate = 0;
  std::string path;
  {
    // It stays during the measurement: unregistering its memory from the GPU stops all accesses for 60 ms.
    BenchClient client = make_client(server, files);
    // A read makes the memory of the other devices known to the engine.
    verify_files(client, scale, files);
    path = make_target(pool, 0);
    rate = rebuild(server, 0, path);
  }
  pool.stop();
  pool.use_instead(0, path);
  {
    BenchClient client = make_client(pool.start(), files);
    verify_files(client, scale, files);
  }
  pool.stop();
  return rate;
}

}  // namespace

void bench_rebuild(const BenchScale& scale, const session::ServerOptions& options,
                   const std::vector<std::string>& levels, const Limits& limits, bool on_gpu, BenchResult& result) {
  for (const BenchLevel& level : bench_levels) {
    if (level.redundancy == 0 || level.rows.parity_count > 2 || !is_wanted_level(levels, level)) continue;
    for (const u32 file_count : {1u, on_gpu ? 10000u : 100u}) {
      report_part(fmt::format("rebuild, {}, {} files", level.name, file_count));
      BenchRow row;
      row.name = fmt::format("rebuild-{}-{}", level.name, file_count == 1 ? "one" : "many");
      row.what = fmt::format("fill a device of {} again, {} file{}, {} MiB", level.name, file_count,
                             file_count == 1 ? "" : "s", measured_bytes(level, scale) >> 20);
      row.unit = "GB/s";
      set_samples(row, {measure_rebuild(level, scale, options, file_count)});
      const u32 read_columns = level.rows.copy_count > 1 ? 1 : level.rows.data_slots;
      row.limit = (on_gpu ? limits.device_gb_per_s : limits.read_gb_per_s) / read_columns;
      row.limit_what = on_gpu ? fmt::format("host memory to GPU, {} columns", read_columns)
                              : fmt::format("memcpy, all CPUs, {} columns", read_columns);
      if (on_gpu) {
        row.requirement = Requirement::at_least;
        row.required = rebuild_ratio_min;
      }
      result.rows.push_back(std::move(row));
    }
  }
}

}  // namespace gpu4fs::bench
