#include "maintenance/growth/reshaper.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <shared_mutex>

#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u64 balance_moves_max = 100'000;

}  // namespace

const char* reshape_kind_name(ReshapeKind kind) {
  return kind == ReshapeKind::removal ? "remove" : "balance";
}

Reshaper::Reshaper(MountedPool& mounted, PoolGrower& grower, Relocator& relocator)
    : mounted_(mounted),
      grower_(grower),
      relocator_(relocator),
      job_(*this, report_, {.is_cancelled_at_once = false}) {}

JobWords Reshaper::words() const {
  const std::string running = fmt::format("a {} is running", reshape_kind_name(report_.kind));
  return {.name = reshape_kind_name(report_.kind),
          .running = running,
          .paused = running,
          .none_running = "neither a removal nor a balance is running",
          .none_paused = "neither a removal nor a balance is paused",
          .none_to_cancel = "neither a removal nor a balance is running"};
}

std::string Reshaper::start_removal(u32 device, u64 rate_limit) {
  const std::string obstacle = grower_.removal_obstacle(device);
  if (!obstacle.empty()) return obstacle;
  ReshapeReport report;
  report.kind = ReshapeKind::removal;
  report.device = device;
  report.path = path_of(device);
  try {
    const std::string problem = grower_.room_problem(device);
    if (!problem.empty()) return problem;
    const std::vector<u32> chunks = grower_.chunks_on(device);
    report.chunk_total = chunks.size();
    for (const ChunkUsage& usage : grower_.usage()) {
      if (std::find(chunks.begin(), chunks.end(), usage.chunk) != chunks.end()) report.page_total += usage.pages_taken;
    }
  } catch (const pool::PoolError& error) {
    return error.what();
  }
  return job_.start(rate_limit, [&] { report_ = std::move(report); });
}

std::string Reshaper::start_balance(u64 rate_limit) {
  return job_.start(rate_limit, [this] {
    report_ = {};
    report_.kind = ReshapeKind::balance;
  });
}

std::string Reshaper::path_of(u32 device) const {
  const std::shared_lock lock(mounted_.tables);
  return mounted_.pool.devices[device].file.path();
}

ReshapeReport Reshaper::report() const {
  return job_.locked([this] { return report_; });
}

JobOutcome Reshaper::run() {
  const bool is_removal = report().kind == ReshapeKind::removal;
  log(LogLevel::info, is_removal ? "removal of a device begins" : "balance begins");
  return is_removal ? remove() : balance();
}

bool Reshaper::goes_on(const RelocationProgress& progress) {
  const u64 moved = progress.moved_count - std::min(progress.moved_count, seen_.moved_count);
  job_.locked(
      [&] { report_.stayed_count += progress.stayed_count - std::min(progress.stayed_count, seen_.stayed_count); });
  seen_ = progress;
  return job_.goes_on(moved);
}

void Reshaper::count_chunk() {
  job_.locked([this] {
    ++report_.chunk_count;
    report_.chunk_total = std::max(report_.chunk_total, report_.chunk_count);
    report_.page_total = std::max(report_.page_total, report_.page_count);
  });
}

// Afterwards the chunk is deleted, or used as before.
std::string Reshaper::move_chunk(const ChunkUsage& chunk) {
  if (chunk.pages_taken == 0) {
    try {
      grower_.erase_chunks({chunk.chunk});
      count_chunk();
      return "";
    } catch (const pool::PoolError& error) {
      // A command allocated pages in it meanwhile: it is emptied like the others.
      if (error.status() != Status::busy) throw;
    }
  }
  seen_ = {};
  const auto goes_on_too = [this](const RelocationProgress& progress) { return goes_on(progress); };
  RelocationResult emptied;
  try {
    emptied = relocator_.empty_chunks({chunk.chunk}, goes_on_too);
    if (emptied.status == Status::no_space && grower_.replace_chunk(chunk.chunk) != 0) {
      emptied = relocator_.empty_chunks({chunk.chunk}, goes_on_too);
    }
    if (emptied.status == Status::ok && emptied.not_empty.empty()) {
      grower_.erase_chunks({chunk.chunk});
      count_chunk();
      return "";
    }
  } catch (const pool::PoolError&) {
    grower_.thaw_chunks({chunk.chunk});
    throw;
  }
  grower_.thaw_chunks({chunk.chunk});
  if (emptied.status == Status::cancelled) return "";
  if (emptied.status != Status::ok)
    return fmt::format("chunk {} cannot be emptied: {}", chunk.chunk, status_text(emptied.status));
  return fmt::format("{} pages of chunk {} cannot be read and stay where they are", emptied.progress.stayed_count,
                     chunk.chunk);
}

JobOutcome Reshaper::remove() {
  const u32 device = report().device;
  struct Avoiding {
    PoolGrower& grower;
    u32 device;
    Avoiding(PoolGrower& g, u32 d) : grower(g), device(d) { grower.avoid_device(device, true); }
    ~Avoiding() { grower.avoid_device(device, false); }
  } const avoiding(grower_, device);
  for (;;) {
    if (!job_.goes_on(0)) return {};
    const std::vector<u32> chunks = grower_.chunks_on(device);
    if (chunks.empty()) break;
    const std::vector<ChunkUsage> usage = grower_.usage();
    // Empty ones first: their space becomes room for others.
    auto next = usage.end();
    for (auto one = usage.begin(); one != usage.end(); ++one) {
      if (std::find(chunks.begin(), chunks.end(), one->chunk) == chunks.end()) continue;
      if (next == usage.end() || one->pages_taken < next->pages_taken) next = one;
    }
    if (next == usage.end()) return {false, fmt::format("there is no chunk {}", chunks.front())};
    const bool is_last = std::none_of(usage.begin(), usage.end(), [&](const ChunkUsage& one) {
      return one.chunk != next->chunk && one.page_class == next->page_class;
    });
    if (is_last && grower_.replace_chunk(next->chunk) == 0)
      return {false, "the other devices have no room for a chunk more"};
    std::string problem = move_chunk(*next);
    if (!problem.empty()) return {false, problem};
  }
  grower_.remove_device(device);
  return {true, ""};
}

// Deletes empty chunks except for one of each class.
std::string Reshaper::drop_surplus() {
  std::vector<bool> has_spare(format::profile_max);
  for (const ChunkUsage& chunk : grower_.usage()) {
    if (chunk.pages_taken != 0) continue;
    if (!has_spare[chunk.page_class]) {
      has_spare[chunk.page_class] = true;
      continue;
    }
    if (!job_.goes_on(0)) return "";
    try {
      grower_.erase_chunks({chunk.chunk});
      count_chunk();
    } catch (const pool::PoolError& error) {
      // It is in use meanwhile, or its class needs it.
      const bool stays = error.status() == Status::busy || error.status() == Status::no_space ||
                         error.status() == Status::invalid_argument;
      if (!stays) return error.what();
    }
  }
  return "";
}

JobOutcome Reshaper::balance() {
  const std::string dropped = drop_surplus();
  if (!dropped.empty()) return {false, dropped};
  for (u64 moves = 0; moves < balance_moves_max; ++moves) {
    if (!job_.goes_on(0)) return {};
    const std::optional<ChunkUsage> next = grower_.find_unbalanced();
    if (!next) break;
    job_.locked([&] {
      report_.chunk_total = report_.chunk_count + 1;
      report_.page_total = report_.page_count + next->pages_taken;
    });
    if (grower_.replace_chunk(next->chunk) == 0) break;
    const std::string problem = move_chunk(*next);
    if (!problem.empty()) return {false, problem};
  }
  const bool is_done = job_.goes_on(0);
  return {is_done, drop_surplus()};
}

}  // namespace gpu4fs::maintenance
