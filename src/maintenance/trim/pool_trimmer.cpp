#include "maintenance/trim/pool_trimmer.hpp"

#include <algorithm>
#include <vector>

#include "base/limits.hpp"
#include "maintenance/trim/region_ranges.hpp"
#include "pool/chunk_reach.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u64 looks_per_punch = 16;

}  // namespace

// Under `tables`, while the reach is held. The engine does not access the run before it is told that its memory is
// back.
void PoolTrimmer::punch(const wire::TrimResult& run, TrimReport& report) {
  struct Piece {
    const device::MappedFile* file;
    u64 offset;
    u64 length;
  };
  // The engine may know a new chunk before the server has it in its table.
  if (run.chunk >= mounted_.pool.chunks.size()) return;
  const pool::OpenedChunk& chunk = mounted_.pool.chunks[run.chunk];
  const u64 header = pool::header_area_bytes(chunk.descriptor);
  std::vector<Piece> pieces;
  for (const ColumnRange& range : ranges_of_regions(chunk.descriptor, run.next - run.count, run.count)) {
    const format::ColumnAddress column = chunk.columns[range.column];
    const device::MappedFile& file = mounted_.setup.files[column.device_index()];
    const u64 offset = column.offset_bytes() + header + range.offset;
    if (file.grows_with_use() && !file.is_hole(offset, range.length)) pieces.push_back({&file, offset, range.length});
  }
  mapper_.mark_thin(run.chunk);
  if (mounted_.setup.gpu != nullptr && !pieces.empty()) {
    mounted_.setup.host->while_paused([&] {
      for (const Piece& piece : pieces)
        mounted_.setup.host->unmap_memory(piece.file->base() + piece.offset, piece.length);
    });
  }
  for (const Piece& piece : pieces) {
    piece.file->release_range(piece.offset, piece.length);
    report.byte_count += piece.length;
  }
  report.region_count += run.count;
  report.punch_count += pieces.empty() ? 0 : 1;
}

// Free regions of each profile that stay, for the next writes.
u64 PoolTrimmer::kept_regions() const {
  constexpr u64 most = 32;
  return std::clamp(mounted_.pool.superblock.page_total / pages_per_block_2m / 64, u64{1}, most);
}

Status PoolTrimmer::ask(wire::GrowMask mask, u64 chunk, u64 region, u32 mode, u64* result, TrimReport& report) {
  wire::Command request{};
  request.opcode = wire::Opcode::grow;
  request.mask = mask;
  request.inode = chunk;
  request.offset = region;
  request.mode = mode;
  request.aux = kept_regions();
  ++report.command_count;
  const ring::Completion done = host_.call(request);
  *result = done.result;
  return done.status;
}

bool PoolTrimmer::has_memory_to_give() {
  const std::shared_lock lock(mounted_.tables);
  const std::vector<device::MappedFile>& files = mounted_.setup.files;
  return std::any_of(files.begin(), files.end(), [](const auto& file) { return file.grows_with_use(); });
}

// False: the engine has no more runs, or none at this time.
bool PoolTrimmer::trim_run(TrimReport& report, bool now) {
  u64 result = 0;
  const u32 mode = now ? u32{wire::trim_now} : 0u;
  const Status found = ask(wire::grow_trim, next_chunk_, next_region_, mode, &result, report);
  report.status = found;
  if (found != Status::ok || result == 0) return false;
  const wire::TrimResult run = wire::unpack_trim(result);
  next_chunk_ = run.chunk;
  next_region_ = run.next;
  ++report.run_count;
  if (run.count == 0) return true;
  {
    const std::shared_lock lock(mounted_.tables);
    const std::unique_lock reaching = mapper_.hold_reach();
    punch(run, report);
  }
  report.status = ask(wire::grow_trimmed, run.chunk, 0, 0, &result, report);
  return report.status == Status::ok;
}

TrimReport PoolTrimmer::trim_from_here(u64 runs_max, bool now) {
  TrimReport report;
  while (report.punch_count < runs_max && report.run_count / looks_per_punch < runs_max) {
    if (has_memory_to_give() && trim_run(report, now)) continue;
    report.is_complete = true;
    next_chunk_ = next_region_ = 0;
    break;
  }
  return report;
}

TrimReport PoolTrimmer::trim(u64 runs_max) {
  const std::unique_lock guard(one_at_a_time_, std::try_to_lock);
  return guard ? trim_from_here(runs_max, false) : TrimReport{};
}

TrimReport PoolTrimmer::trim_all() {
  const std::lock_guard guard(one_at_a_time_);
  TrimReport report;
  report.status = host_.command(wire::Opcode::checkpoint, 0).status;
  if (report.status != Status::ok) return report;
  next_chunk_ = next_region_ = 0;
  return trim_from_here(~u64{0}, true);
}

}  // namespace gpu4fs::maintenance
