#include "server/trim/pool_trimmer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/limits.hpp"
#include "raid/levels/levels.hpp"
#include "server/chunk_reach.hpp"
#include "server/log.hpp"
#include "server/trim/region_ranges.hpp"

namespace gpu4fs::server {

// No kernel runs meanwhile, and none uses the chunk before the engine has heard that its memory is back. A checkpoint
// may write its descriptors.
Status PoolTrimmer::take_from_gpu(const OpenedChunk& chunk) {
  Status status = Status::ok;
  const u64 front = header_front_bytes(chunk.descriptor);
  const u64 header = header_area_bytes(chunk.descriptor);
  context_.setup.host->while_paused([&] {
    for (const format::ColumnAddress column : chunk.columns) {
      const device::MappedFile& file = context_.setup.files[column.device_index()];
      if (file.is_absent()) continue;
      u8* const base = file.base() + column.offset_bytes();
      context_.setup.host->unmap_memory(base + front, raid::column_length(chunk.descriptor) - front);
      const Status mapped = context_.setup.host->map_memory(base + front, header - front);
      if (mapped != Status::ok) status = mapped;
    }
  });
  return status;
}

// Under `tables` and `reach`.
void PoolTrimmer::punch(const format::TrimResult& run, TrimReport& report) {
  const OpenedChunk& chunk = context_.pool.chunks[run.chunk];
  const u64 first = run.next - run.count;
  const bool is_whole = run.count == chunk.descriptor.size_bytes / block_size_2m;
  if (context_.setup.gpu != nullptr && context_.is_mapped(run.chunk)) {
    if (!is_whole) return;
    context_.mark_thin(run.chunk);
    if (take_from_gpu(chunk) != Status::ok) {
      log(LogLevel::error, fmt::format("the descriptors of chunk {} could not be registered with the GPU again", run.chunk));
      return;
    }
  }
  context_.mark_thin(run.chunk);
  const u64 header = header_area_bytes(chunk.descriptor);
  for (const ColumnRange& range : ranges_of_regions(chunk.descriptor, first, run.count)) {
    const format::ColumnAddress column = chunk.columns[range.column];
    const device::MappedFile& file = context_.setup.files[column.device_index()];
    const u64 offset = column.offset_bytes() + header + range.offset;
    if (!file.grows_with_use() || file.is_hole(offset, range.length)) continue;
    file.release_range(offset, range.length);
    report.byte_count += range.length;
  }
  report.region_count += run.count;
}

// Free ones of each profile that stay, for what is written next.
u64 PoolTrimmer::kept_regions() const {
  constexpr u64 most = 32;
  return std::clamp(context_.pool.superblock.page_total / pages_per_block_2m / 64, u64{1}, most);
}

Status PoolTrimmer::ask(format::GrowMask mask, u64 chunk, u64 region, u32 mode, u64* result, TrimReport& report) {
  format::Command request{};
  request.opcode = format::Opcode::grow;
  request.mask = mask;
  request.inode = chunk;
  request.offset = region;
  request.mode = mode;
  request.aux = kept_regions();
  ++report.command_count;
  const ring::Completion done = context_.call(request);
  *result = done.result;
  return done.status;
}

bool PoolTrimmer::has_memory_to_give() {
  const std::shared_lock lock(context_.tables);
  const std::vector<device::MappedFile>& files = context_.setup.files;
  return std::any_of(files.begin(), files.end(), [](const auto& file) { return file.grows_with_use(); });
}

// False: the engine has nothing more, or not now.
bool PoolTrimmer::trim_run(TrimReport& report, bool now) {
  u64 result = 0;
  const u32 mode = (now ? u32{format::trim_now} : 0u) | (context_.setup.gpu != nullptr ? u32{format::trim_whole_chunks} : 0u);
  const Status found = ask(format::grow_trim, next_chunk_, next_region_, mode, &result, report);
  report.status = found;
  if (found != Status::ok || result == 0) return false;
  const format::TrimResult run = format::unpack_trim(result);
  next_chunk_ = run.chunk;
  next_region_ = run.next;
  ++report.run_count;
  if (run.count == 0) return true;
  {
    const std::shared_lock lock(context_.tables);
    const std::lock_guard reaching(context_.reach);
    punch(run, report);
  }
  report.status = ask(format::grow_trimmed, run.chunk, 0, 0, &result, report);
  return report.status == Status::ok;
}

TrimReport PoolTrimmer::trim_from_here(u64 runs_max, bool now) {
  TrimReport report;
  while (report.run_count < runs_max) {
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
  format::Command checkpoint{};
  checkpoint.opcode = format::Opcode::checkpoint;
  TrimReport report;
  report.status = context_.call(checkpoint).status;
  if (report.status != Status::ok) return report;
  next_chunk_ = next_region_ = 0;
  return trim_from_here(~u64{0}, true);
}

}  // namespace gpu4fs::server
