#include "maintenance/trim/pool_trimmer.hpp"

#include <algorithm>
#include <vector>

#include "base/bits.hpp"
#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"
#include "pool/chunk_reach.hpp"
#include "pool/region_ranges.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u64 looks_per_punch = 16;
// Of a device, from a multiple of it on: whole units of what disks discard.
constexpr u64 discard_unit_bytes = u64{16} << 20;

// Its blocks are no file's, which would get them one by one.
bool is_disk(const device::MappedFile& file) {
  return file.medium() == device::MediumKind::block || file.medium() == device::MediumKind::drive;
}

}  // namespace

using session::DiscardScope;

// Under `tables`. Memory takes part always, and what is accessed directly if it is to be told and can be.
bool PoolTrimmer::takes_part(u32 device, DiscardScope scope) const {
  const device::MappedFile& file = mounted_.setup.files[device];
  if (file.is_absent() || file.read_only()) return false;
  if (file.is_mapped()) return file.grows_with_use();
  const bool is_told = scope == DiscardScope::all || file.medium() == device::MediumKind::tmpfs;
  return is_told && mounted_.setup.direct->can_discard(device);
}

std::vector<PoolTrimmer::Piece> PoolTrimmer::pieces_of(const wire::TrimResult& run, DiscardScope scope) const {
  std::vector<Piece> pieces;
  const pool::OpenedChunk& chunk = mounted_.pool.chunks[run.chunk];
  const u64 header = pool::header_area_bytes(chunk.descriptor);
  for (const pool::ColumnRange& range : pool::ranges_of_regions(chunk.descriptor, run.next - run.count, run.count)) {
    const format::ColumnAddress column = chunk.columns[range.column];
    const u32 device = column.device_index();
    if (!takes_part(device, scope)) continue;
    const device::MappedFile& file = mounted_.setup.files[device];
    const u64 offset = column.offset_bytes() + header + range.offset;
    // A file on disk has blocks also where it has no data.
    const bool tells_holes = file.medium() == device::MediumKind::tmpfs;
    if (!tells_holes || !file.is_hole(offset, range.length)) {
      pieces.push_back({device, offset, range.length, mounted_.setup.file_numbers[device]});
    }
  }
  return pieces;
}

// Under `tables`, while the reach is held. The engine does not access the run before it is told that its memory is
// back. What is not mapped is discarded later. False: nothing has to be allocated again.
bool PoolTrimmer::punch(const wire::TrimResult& run, const std::vector<Piece>& pieces, DiscardScope scope,
                        TrimReport& report) {
  bool makes_holes = mapper_.is_thin(run.chunk);
  for (const format::ColumnAddress column : mounted_.pool.chunks[run.chunk].columns) {
    device::MappedFile& file = mounted_.setup.files[column.device_index()];
    if (!takes_part(column.device_index(), scope) || is_disk(file)) continue;
    if (file.medium() == device::MediumKind::file) file.make_thin();
    makes_holes = true;
  }
  if (makes_holes) mapper_.mark_thin(run.chunk);
  release_memory(pieces, report);
  return makes_holes;
}

// Each unit finds again what it was for: the chunk may have been deleted and its device exchanged since the last one.
void PoolTrimmer::discard_units(const wire::TrimResult& run, const std::vector<Piece>& pieces, TrimReport& report) {
  for (const Piece& piece : pieces) {
    for (u64 at = piece.offset; at < piece.offset + piece.length;) {
      const u64 end = std::min(align_down(at, discard_unit_bytes) + discard_unit_bytes, piece.offset + piece.length);
      if (before_unit_) before_unit_();
      if (is_stopped_ || mapper_.is_wanted(run.chunk)) return;
      const std::shared_lock lock(mounted_.tables);
      const session::EngineSetup& setup = mounted_.setup;
      if (!mapper_.discards(run.chunk)) return;
      const bool is_same = setup.file_numbers[piece.device] == piece.file_number &&
                           !setup.files[piece.device].is_absent() && !setup.files[piece.device].is_mapped();
      if (is_same) discard({piece.device, at, end - at, piece.file_number}, report);
      at = end;
    }
  }
}

void PoolTrimmer::release_memory(const std::vector<Piece>& pieces, TrimReport& report) {
  const std::vector<device::MappedFile>& files = mounted_.setup.files;
  const auto is_memory = [&](const Piece& piece) { return files[piece.device].is_mapped(); };
  if (std::none_of(pieces.begin(), pieces.end(), is_memory)) return;
  if (mounted_.setup.gpu != nullptr) {
    mounted_.setup.host->while_paused([&] {
      for (const Piece& piece : pieces) {
        if (!is_memory(piece)) continue;
        mounted_.setup.host->unmap_memory(files[piece.device].base() + piece.offset, piece.length);
      }
    });
  }
  for (const Piece& piece : pieces) {
    if (!is_memory(piece)) continue;
    files[piece.device].release_range(piece.offset, piece.length);
    report.byte_count += piece.length;
  }
}

// The first failure of each device is logged.
void PoolTrimmer::discard(const Piece& piece, TrimReport& report) {
  const device::MappedFile& file = mounted_.setup.files[piece.device];
  const u64 allocated = file.allocated_bytes();
  const block::Controller::Discarded done = mounted_.setup.direct->discard(piece.device, piece.offset, piece.length);
  if (done.status == Status::ok) {
    // Of a file only what it had counts.
    const u64 left = file.allocated_bytes();
    report.byte_count += is_disk(file) ? done.bytes : allocated - std::min(left, allocated);
    return;
  }
  ++report.failed_count;
  const u64 bit = u64{1} << piece.device;
  if ((failed_devices_ & bit) != 0) return;
  failed_devices_ |= bit;
  log(LogLevel::warning, fmt::format("{}: free space was not discarded: {}", file.path(), status_text(done.status)));
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
  ++command_count_;
  const ring::Completion done = host_.call(request);
  *result = done.result;
  return done.status;
}

bool PoolTrimmer::has_space_to_give(DiscardScope scope) {
  const std::shared_lock lock(mounted_.tables);
  for (u32 i = 0; i < mounted_.setup.files.size(); ++i)
    if (takes_part(i, scope)) return true;
  return false;
}

std::vector<std::string> PoolTrimmer::obstacles() {
  const std::shared_lock lock(mounted_.tables);
  return session::discard_obstacles(mounted_.setup);
}

// False: the engine has no more runs, or none at this time.
bool PoolTrimmer::trim_run(TrimReport& report, DiscardScope scope, bool now) {
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
  bool makes_holes = true;
  std::vector<Piece> pieces;
  const u64 bytes_before = report.byte_count;
  {
    const std::shared_lock lock(mounted_.tables);
    const std::unique_lock reaching = mapper_.hold_reach();
    // The engine may know a new chunk before the server has it in its table.
    if (run.chunk < mounted_.pool.chunks.size()) {
      pieces = pieces_of(run, scope);
      makes_holes = punch(run, pieces, scope, report);
      report.region_count += run.count;
      std::erase_if(pieces, [&](const Piece& piece) { return mounted_.setup.files[piece.device].is_mapped(); });
      if (!pieces.empty()) mapper_.begin_discards(run.chunk);
    }
  }
  if (!pieces.empty()) {
    discard_units(run, pieces, report);
    mapper_.end_discards();
  }
  report.punch_count += report.byte_count == bytes_before ? 0 : 1;
  const u32 trimmed = makes_holes ? 0u : u32{wire::trimmed_has_memory};
  report.status = ask(wire::grow_trimmed, run.chunk, 0, trimmed, &result, report);
  return report.status == Status::ok;
}

TrimReport PoolTrimmer::trim_from_here(u64 runs_max, DiscardScope scope, bool now) {
  TrimReport report;
  while (report.punch_count < runs_max && report.run_count / looks_per_punch < runs_max) {
    if (is_stopped_) {
      report.status = Status::cancelled;
      return report;
    }
    if (has_space_to_give(scope) && trim_run(report, scope, now)) continue;
    report.is_complete = true;
    next_chunk_ = next_region_ = 0;
    break;
  }
  return report;
}

TrimReport PoolTrimmer::trim(u64 runs_max) {
  const std::unique_lock guard(one_at_a_time_, std::try_to_lock);
  return guard ? trim_from_here(runs_max, scope_, false) : TrimReport{};
}

TrimReport PoolTrimmer::trim_all() {
  const std::lock_guard guard(one_at_a_time_);
  TrimReport report;
  report.status = host_.command(wire::Opcode::checkpoint, 0).status;
  if (report.status != Status::ok) return report;
  next_chunk_ = next_region_ = 0;
  return trim_from_here(~u64{0}, DiscardScope::all, true);
}

}  // namespace gpu4fs::maintenance
