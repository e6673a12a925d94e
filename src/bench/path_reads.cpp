// Thousands of small files read by path, many at once: each file is a chain of a walk and a read of what it finds. The
// same files on tmpfs, read by a loop of open, pread and close, are the peer.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/mounts.hpp"
#include "bench/parts.hpp"
#include "bench/path_files.hpp"
#include "bench/side_by_side.hpp"
#include "format/inode_format.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double files_per_second_min = 1.5e6;
constexpr u32 ring_count_max = 8;
// By all rings together: the engine's table of commands has room for them.
constexpr u32 commands_in_flight = 1024;

// One ring of the measurement, with its share of the files. Each file has its own place in the data area, so every byte
// is compared after the clock has stopped.
class PathReader {
 public:
  PathReader(BenchContext& context, u32 number, u32 ring_count)
      : client_(context.server, (path_file_count + ring_count - 1) / ring_count, commands_in_flight / ring_count),
        number_(number),
        ring_count_(ring_count) {}

  // Paths and commands are in memory before the clock starts, as the page numbers are in other measurements. The no-op
  // keeps the engine awake.
  void prepare_batch() {
    files_.clear();
    pairs_.clear();
    const std::vector<u32> all = shuffled(path_file_count, ++batch_);
    for (u32 i = number_; i < path_file_count; i += ring_count_) {
      const auto slot = static_cast<u32>(files_.size());
      files_.push_back(all[i]);
      Pair pair{};
      pair.first.opcode = wire::Opcode::lookup_path;
      pair.first.flags = wire::command_flag_follow;
      pair.first.inode = format::inode_number_root;
      client_.set_name(slot, path_of_file(all[i]), &pair.first);
      pair.second = BenchClient::transfer(wire::Opcode::read, 0, 0, page_size, client_.content_address(slot));
      pairs_.push_back(pair);
    }
    std::memset(client_.content(0), 0, files_.size() * page_size);
    wire::Command noop{};
    noop.opcode = wire::Opcode::noop;
    client_.client().call(noop, "noop");
  }

  void run_batch() { client_.run(pairs_, page_size); }

  void check_batch() {
    for (u32 slot = 0; slot < files_.size(); ++slot) check_pattern(client_.content(slot), files_[slot], 0, 1);
  }

 private:
  PairClient client_;
  u32 number_;
  u32 ring_count_;
  u64 batch_ = 0;
  std::vector<u32> files_;  // by slot
  std::vector<Pair> pairs_;
};

// The peer: one process that reads the same files on tmpfs.
class PosixReader {
 public:
  PosixReader() : folder_("/dev/shm"), content_(path_file_count * page_size) {
    for (u32 i = 0; i < path_directory_count; ++i) {
      std::filesystem::create_directories(folder_.path() + path_directory(i));
    }
    for (u32 i = 0; i < path_file_count; ++i) {
      fill_pattern(content_.data(), i, 0, 1);
      const std::string path = folder_.path() + path_of_file(i);
      const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
      const bool is_written = file >= 0 && ::write(file, content_.data(), page_size) == ssize_t{page_size};
      if (!is_written || ::close(file) != 0) fail_by_errno(path);
    }
  }

  void prepare_batch() {
    files_ = shuffled(path_file_count, ++batch_);
    paths_.clear();
    for (const u32 file : files_) paths_.push_back(folder_.path() + path_of_file(file));
    std::memset(content_.data(), 0, content_.size());
  }

  void run_batch() {
    u8* to = content_.data();
    for (const std::string& path : paths_) {
      const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      const bool is_read = file >= 0 && ::pread(file, to, page_size, 0) == ssize_t{page_size};
      if (!is_read || ::close(file) != 0) fail_by_errno(path);
      to += page_size;
    }
  }

  void check_batch() {
    for (u32 slot = 0; slot < path_file_count; ++slot) check_pattern(&content_[slot * page_size], files_[slot], 0, 1);
  }

 private:
  TemporaryFolder folder_;
  std::vector<u8> content_;
  u64 batch_ = 0;
  std::vector<u32> files_;
  std::vector<std::string> paths_;
};

template <class Reader>
std::vector<double> measure_rates(std::vector<std::unique_ptr<Reader>> readers, u32 repeats) {
  std::vector<double> rates;
  for (const double seconds : time_batches(readers, repeats)) rates.push_back(path_file_count / seconds);
  return rates;
}

BenchRow rate_row(const std::string& name, std::string what, const std::vector<double>& rates) {
  BenchRow row;
  row.name = name;
  row.what = std::move(what);
  row.unit = "1/s";
  set_samples(row, rates);
  return row;
}

void measure_rings(BenchContext& context, u32 ring_count, double posix_rate) {
  std::vector<std::unique_ptr<PathReader>> readers;
  for (u32 i = 0; i < ring_count; ++i) readers.push_back(std::make_unique<PathReader>(context, i, ring_count));
  const std::vector<double> rates = measure_rates(std::move(readers), 4 * context.scale.repeats);
  const std::string rings = ring_count == 1 ? "one ring" : fmt::format("{} rings", ring_count);
  const std::string name = ring_count == 1 ? "paths-ring" : "paths-rings";
  const std::string what = fmt::format("{} files of 4 KiB by path, {}", path_file_count, rings);
  BenchRow row = rate_row(name, what, rates);
  if (context.on_gpu) {
    row.requirement = Requirement::at_least;
    row.required = files_per_second_min;
  }
  context.result.rows.push_back(std::move(row));
  BenchRow ratio = rate_row(name + "-peer", what + ", peer", rates);
  ratio.limit = posix_rate;
  ratio.limit_what = "open, pread and close on tmpfs";
  context.result.rows.push_back(std::move(ratio));
  std::vector<double> bytes;
  for (const double rate : rates) bytes.push_back(rate * static_cast<double>(page_size) / 1e9);
  add_rate(context, (name + "-bytes").c_str(), what + ", bytes", bytes, context.limits.read_gb_per_s, 0);
}

}  // namespace

void bench_path_reads(BenchContext& context) {
  PairClient writer(context.server, path_file_count, commands_in_flight);
  const std::vector<u64> directories = make_path_files(writer);
  std::vector<std::unique_ptr<PosixReader>> posix;
  posix.push_back(std::make_unique<PosixReader>());
  const BenchRow peer = rate_row("", "", measure_rates(std::move(posix), 4 * context.scale.repeats));
  measure_rings(context, 1, peer.value);
  measure_rings(context, ring_count_max, peer.value);
  remove_path_files(writer, directories);
}

}  // namespace gpu4fs::bench
