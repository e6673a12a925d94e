#include "bench/fuse_engines.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/mounts.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double ratio_min = 0.7;  // of the CPU engine's rate
// Every such file is asked about first, which brings the pages with the metadata of all of them into the engine's
// memory. The kernel then knows nothing about the others.
constexpr u32 first_files_step = 8;

struct EnginesScale {
  u32 file_count;
  u32 page_count;
  u32 rounds;
};

struct FreeMemory {
  void operator()(u8* memory) const { std::free(memory); }
};
// For O_DIRECT.
using AlignedPages = std::unique_ptr<u8, FreeMemory>;

AlignedPages allocate_pages(u64 count) {
  AlignedPages pages(static_cast<u8*>(std::aligned_alloc(page_size, count * page_size)));
  if (pages == nullptr) fail_by_errno("memory for pages");
  return pages;
}

// A pool that one engine serves, with files to ask about and a file to read. Each round mounts it anew, so the kernel's
// caches know neither names nor attributes nor pages.
class EngineSide {
 public:
  EngineSide(std::string engine, const std::string& folder, const EnginesScale& scale)
      : engine_(std::move(engine)),
        scale_(scale),
        mount_(folder + "/pool-" + engine_, folder + "/mount-" + engine_, pool_bytes(scale), "engine=" + engine_),
        many_(mount_.folder() + "/many"),
        big_(mount_.folder() + "/big") {
    mount_.up();
    make_files();
    write_big();
    mount_.down();
  }

  const std::string& engine() const { return engine_; }
  const std::vector<double>& first_stat_rates() const { return first_stat_rates_; }
  const std::vector<double>& stat_rates() const { return stat_rates_; }
  const std::vector<double>& read_rates() const { return read_rates_; }

  // The first round warms up.
  void run_round(u32 round) {
    mount_.up();
    std::vector<u32> first;
    std::vector<u32> others;
    for (const u32 file : shuffled(scale_.file_count, round)) {
      (file % first_files_step == 0 ? first : others).push_back(file);
    }
    const double first_stats = time_stats(first);
    const double stats = time_stats(others);
    const double reads = time_reads(shuffled(scale_.page_count, round));
    mount_.down();
    if (round == 0) return;
    first_stat_rates_.push_back(static_cast<double>(first.size()) / first_stats);
    stat_rates_.push_back(static_cast<double>(others.size()) / stats);
    read_rates_.push_back(scale_.page_count / reads);
  }

 private:
  static u64 pool_bytes(const EnginesScale& scale) { return 4 * page_size * scale.page_count + (u64{256} << 20); }

  std::string path_of(u32 file) const { return fmt::format("{}/file{}", many_, file); }

  // File i has a size of its own.
  static off_t size_of(u32 file) { return static_cast<off_t>(file) + 1; }

  void make_files() {
    if (::mkdir(many_.c_str(), 0755) != 0) fail_by_errno(many_);
    for (u32 i = 0; i < scale_.file_count; ++i) {
      const OpenFile file(path_of(i), O_WRONLY | O_CREAT | O_EXCL);
      if (::ftruncate(file.get(), size_of(i)) != 0) fail_by_errno(path_of(i));
    }
  }

  void write_big() {
    const AlignedPages content = allocate_pages(scale_.page_count);
    fill_pattern(content.get(), 0, 0, scale_.page_count);
    const OpenFile file(big_, O_WRONLY | O_CREAT | O_EXCL);
    constexpr u64 call_bytes = 1 << 20;
    for (u64 offset = 0; offset < scale_.page_count * page_size; offset += call_bytes) {
      const ssize_t count = ::pwrite(file.get(), content.get() + offset, call_bytes, static_cast<off_t>(offset));
      if (count != ssize_t{call_bytes}) fail_by_errno(big_);
    }
  }

  // Seconds for a stat of each file. Sizes are compared afterwards.
  double time_stats(const std::vector<u32>& order) const {
    std::vector<std::string> paths;
    for (const u32 file : order) paths.push_back(path_of(file));
    std::vector<off_t> sizes(order.size());
    // The engine has started when the clock does.
    struct stat first {};
    if (::stat(big_.c_str(), &first) != 0) fail_by_errno(big_);
    const double began = now_seconds();
    for (std::size_t i = 0; i < paths.size(); ++i) {
      struct stat state {};
      if (::stat(paths[i].c_str(), &state) != 0) fail_by_errno(paths[i]);
      sizes[i] = state.st_size;
    }
    const double took_s = now_seconds() - began;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (sizes[i] != size_of(order[i])) throw std::runtime_error(paths[i] + ": wrong size");
    }
    return took_s;
  }

  // Seconds for an O_DIRECT read of each page. Pages are compared afterwards.
  double time_reads(const std::vector<u32>& order) const {
    const AlignedPages content = allocate_pages(order.size());
    std::fill_n(content.get(), order.size() * page_size, u8{0});
    const OpenFile file(big_, O_RDONLY | O_DIRECT);
    const double began = now_seconds();
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto offset = static_cast<off_t>(order[i] * page_size);
      if (::pread(file.get(), content.get() + i * page_size, page_size, offset) != ssize_t{page_size})
        fail_by_errno(big_);
    }
    const double took_s = now_seconds() - began;
    for (std::size_t i = 0; i < order.size(); ++i) check_pattern(content.get() + i * page_size, 0, order[i], 1);
    return took_s;
  }

  std::string engine_;
  EnginesScale scale_;
  PoolMount mount_;
  std::string many_;
  std::string big_;
  std::vector<double> first_stat_rates_;
  std::vector<double> stat_rates_;
  std::vector<double> read_rates_;
};

// One of the measurements of each engine.
struct EngineRow {
  const char* name;
  const char* what;
  double required;  // ratio to the CPU engine's rate; 0: none
};

// `cpu`: the rates of the CPU engine on this machine, empty if they were not measured.
void add_row(BenchResult& result, const EngineRow& about, const EngineSide& side, const std::vector<double>& rates,
             const std::vector<double>& cpu) {
  BenchRow row;
  row.name = fmt::format("fuse-{}-{}", about.name, side.engine());
  row.what =
      fmt::format("{} through FUSE, one process, {} engine", about.what, side.engine() == "cuda" ? "GPU" : "CPU");
  row.unit = "1/s";
  set_samples(row, rates);
  if (side.engine() == "cuda" && !cpu.empty()) {
    BenchRow limit;
    set_samples(limit, cpu);
    row.limit = limit.value;
    row.limit_what = "CPU engine";
    if (about.required != 0) {
      row.requirement = Requirement::at_least;
      row.required = about.required;
    }
  }
  result.rows.push_back(std::move(row));
}

}  // namespace

void bench_fuse_engines(const FuseEnginesOptions& options, BenchResult& result) {
  const EnginesScale scale = options.quick ? EnginesScale{1000, 4096, 2} : EnginesScale{5000, 16384, 5};
  std::vector<std::unique_ptr<EngineSide>> sides;
  for (const std::string& engine : options.engines) {
    report_part("fuse, " + engine + " engine");
    sides.push_back(std::make_unique<EngineSide>(engine, options.folder, scale));
  }
  // The engines take turns, so changes of the machine's speed affect both.
  for (u32 round = 0; round <= scale.rounds; ++round) {
    for (auto& side : sides) side->run_round(round);
  }
  std::vector<double> cpu_first_stats;
  std::vector<double> cpu_stats;
  std::vector<double> cpu_reads;
  for (const auto& side : sides) {
    if (side->engine() != "cpu") continue;
    cpu_first_stats = side->first_stat_rates();
    cpu_stats = side->stat_rates();
    cpu_reads = side->read_rates();
  }
  for (const auto& side : sides) {
    add_row(result, {"first-stat", "first stats after a mount", 0}, *side, side->first_stat_rates(), cpu_first_stats);
    add_row(result, {"stat", "stat", ratio_min}, *side, side->stat_rates(), cpu_stats);
    add_row(result, {"direct-4k", "direct read of 4 KiB", ratio_min}, *side, side->read_rates(), cpu_reads);
  }
}

}  // namespace gpu4fs::bench
