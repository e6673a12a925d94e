// scrub: verifies the pages in use of a range of a chunk in place, and the part of the chunk's header areas that
// describes them.
//
// The range is divided into tasks of 64 pages. Each task writes one word of the result with one bit for each page. The
// word is only stored if it is not zero. The command holds no lock, and pages may be written meanwhile.
// raid/verify_pages.hpp describes the meaning of a bit.
#pragma once

#include "base/bits.hpp"
#include "base/mutant.hpp"
#include "engine/engine.hpp"
#include "raid/damage.hpp"
#include "raid/repair_pages.hpp"
#include "space/header_scrub.hpp"
#include "space/space.hpp"

namespace gpu4fs::engine {
namespace detail {

inline constexpr u64 scrub_task_pages = raid::verify_page_max;

GPU4FS_FN inline Status check_scrub_range(const Engine& engine, const wire::Command& command) {
  if ((command.mask & ~u32{wire::scrub_mask_record}) != 0) return Status::invalid_argument;
  if (command.mode > static_cast<u32>(wire::DamageKind::metadata)) return Status::invalid_argument;
  if (command.inode >= raid::chunk_count_of(engine.fs.space)) return Status::out_of_range;
  // A deleted chunk has nothing to verify.
  if (raid::is_erased(engine.fs.space.chunks[command.inode])) return Status::not_found;
  const u64 page_count = engine.fs.space.chunks[command.inode].page_count;
  if (command.offset >= page_count || command.length > page_count - command.offset) return Status::out_of_range;
  return command.length == 0 ? Status::invalid_argument : Status::ok;
}

// Whether any page of the range is in use. Collective.
template <class Group>
GPU4FS_FN bool has_pages_in_use(Group g, const raid::ChunkState& chunk, u64 first, u64 count) {
  u64 found = 0;
  for (u64 at = u64{g.rank()} * 64; at < count; at += u64{Group::size()} * 64) {
    found |= raid::bitmap_bits_64(chunk, chunk.bitmaps.committed, first + at);
  }
  return g.any(found != 0);
}

// Returns those of the pages in `wanted` that have a damaged copy.
template <class Group>
GPU4FS_FN u64 find_damaged_copies(Group g, const raid::LogicalSpace& space, u32 index, u64 page, u64 wanted) {
  const raid::ChunkState& chunk = space.chunks[index];
  u64 bad = 0;
  for (u32 copy = 0; copy < GPU4FS_MUTANT(scrub_of_one_copy, chunk.copy_count, minimum(chunk.copy_count, 1u)); ++copy) {
    u64 damaged = raid::find_mismatches(g, space, index, copy, page, wanted);
    if (damaged != 0) damaged = raid::confirm_mismatches(g, space, index, copy, page, damaged);
    bad |= damaged;
  }
  return bad;
}

// Repairs the pages in `damaged` where possible and returns the rest.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 repair_damaged(Group g, const raid::LogicalSpace& space, u32 index, u64 page,
                                             u64 damaged) {
  u64 left = damaged;
  for (u64 bits = damaged; bits != 0; bits &= bits - 1) {
    const raid::PageLocation location{index, 0, page + count_trailing_zeros(bits)};
    const u32 counter = on_leader(g, [&] { return raid::begin_repairs(space); });
    const bool settled = on_leader(g, [&] { return raid::page_is_settled(space, location); });
    if (settled && raid::repair_page(g, space, location)) left &= ~(bits & (~bits + 1));
    g.sync();
    on_leader(g, [&] { raid::end_repairs(space, counter); });
  }
  return left;
}

// Whether the row has a page that is in the durable checkpoint and in the row's parities.
GPU4FS_FN inline bool has_durable_page(const raid::LogicalSpace& space, const raid::RowView& view) {
  const raid::ChunkState& chunk = space.chunks[view.chunk];
  for (u32 slot = 0; slot < view.slot_count; ++slot) {
    const u64 page = raid::row_page(view, slot);
    if (raid::page_is_settled(space, {view.chunk, 0, page}) && raid::is_in_parity(chunk, page)) return true;
  }
  return false;
}

// Verifies the parities of the rows whose first page is one of [page, page + count).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void scrub_rows(Group g, const raid::LogicalSpace& space, u32 index, u64 page, u64 count) {
  const raid::ChunkState& chunk = space.chunks[index];
  for (u64 first = page; first < page + count; ++first) {
    const raid::RowPlace place = on_leader(g, [&] { return raid::row_place(chunk, first); });
    if (GPU4FS_MUTANT(scrub_without_parities, place.slot != 0, true)) continue;
    const raid::RowView view = on_leader(g, [&] { return raid::row_view(space, index, place.row); });
    const u32 counter = on_leader(g, [&] { return raid::begin_repairs(space); });
    if (on_leader(g, [&] { return has_durable_page(space, view); })) (void)raid::repair_row(g, space, view);
    g.sync();
    on_leader(g, [&] { raid::end_repairs(space, counter); });
  }
}

// Enters the result for the pages into the table of damage.
GPU4FS_FN inline void record_scrub(const Engine& engine, const wire::Command& command, u64 address, u64 count,
                                   u64 damaged) {
  const auto kind = static_cast<wire::DamageKind>(command.mode);
  for (u64 i = 0; i < count; ++i) {
    const u64 page = address + i * page_size;
    if ((damaged >> i & 1) == 0) {
      raid::forget_damage(engine.fs.space, page);
      continue;
    }
    raid::note_damage(engine.fs.space, page);
    raid::name_damage(engine.fs.space, page, 1, command.second_inode, kind);
  }
}

}  // namespace detail

// Internal. inode: chunk; offset, length: pages of it; data: one bit for each page, in words that are zero before;
// mask, mode, second_inode: wire::ScrubMask. Result: wire::scrub_pages_verified(). Status: chunk_not_mapped and the
// errors of mapping the chunk, device_failed, out_of_range.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_scrub(Group g, Engine& engine, CommandState& c) {
  const wire::Command& command = c.command;
  if (on_leader(g, [&] { return c.stage == 1; })) {
    GPU4FS_STEP_TRY(task_result(g, c));
    return Step::complete(on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&c.result); }));
  }
  const Status checked = on_leader(g, [&] { return detail::check_scrub_range(engine, command); });
  if (checked == Status::not_found) return Step::complete(0);
  if (checked != Status::ok) return Step::end(checked);
  const u64 words = divide_up(command.length, detail::scrub_task_pages);
  u8* output = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, command.data, words * sizeof(u64), &output));
  if (!is_aligned(output, alignof(u64))) return Step::end(Status::unaligned);
  const u32 index = static_cast<u32>(command.inode);
  const bool records = (command.mask & wire::scrub_mask_record) != 0;
  if (!records) {
    space::HeaderScrub ignored{};
    const Status looked = space::scrub_header_area(g, engine.fs, index, command.offset, command.length, &ignored);
    if (looked != Status::ok) return Step::end(looked);
  }
  const Status reached = on_leader(g, [&] { return raid::chunk_state(engine.fs.space, index); });
  if (reached == Status::device_failed) return Step::end(reached);
  // A chunk that was not used since the mount is only mapped if there are pages to verify.
  const raid::ChunkState& chunk = engine.fs.space.chunks[index];
  const bool in_use = detail::has_pages_in_use(g, chunk, command.offset, command.length);
  // Free pages are removed from the table of damage.
  if (!in_use && !records) return Step::complete(0);
  if (in_use && reached != Status::ok) {
    return Step::end(on_leader(g, [&] { return space::want_chunk(c.operation, index, reached); }));
  }
  on_leader(g, [&] { c.stage = 1; });
  return Step::fan_out(static_cast<u32>(words));
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void task_scrub(Group g, Engine& engine, CommandState& c, u32 task) {
  const wire::Command& command = c.command;
  const u32 index = static_cast<u32>(command.inode);
  const raid::ChunkState& chunk = engine.fs.space.chunks[index];
  const u64 begin = u64{task} * detail::scrub_task_pages;
  GPU4FS_CHECK_LT(begin, command.length);
  const u64 page = command.offset + begin;
  const u64 count = minimum(detail::scrub_task_pages, command.length - begin);
  const u64 wanted = on_leader(g, [&] {
    const u64 mask = count == 64 ? ~u64{0} : (u64{1} << count) - 1;
    return raid::bitmap_bits_64(chunk, chunk.bitmaps.committed, page) & mask;
  });
  const bool records = (command.mask & wire::scrub_mask_record) != 0;
  if (wanted == 0 && !records) return;
  // A page is not damaged if it has a good copy or a row that restores it.
  u64 damaged = detail::find_damaged_copies(g, engine.fs.space, index, page, wanted);
  if (damaged != 0) damaged = detail::repair_damaged(g, engine.fs.space, index, page, damaged);
  if (chunk.parity_count != 0 && !records && engine.fs.space.data_checksums != 0) {
    detail::scrub_rows(g, engine.fs.space, index, page, count);
  }
  // Pages that are not in a checkpoint yet are rewritten in place, so their damage is not recorded.
  if (records) damaged &= on_leader(g, [&] { return raid::bitmap_bits_64(chunk, chunk.bitmaps.stable, page); });
  u8* output = nullptr;
  GPU4FS_CHECK_OK(resolve(g, engine, c, command.data, divide_up(command.length, u64{64}) * sizeof(u64), &output));
  on_leader(g, [&] {
    // Each task adds to the result. Neither half can overflow.
    const u64 counts = u64{popcount(wanted)} | u64{popcount(damaged)} << 32;
    add<Scope::engine>(&c.result, counts);
    if (records) detail::record_scrub(engine, command, chunk.base_address + page * page_size, count, damaged);
    if (damaged == 0) return;
    store<Order::relaxed, Scope::system>(reinterpret_cast<u64*>(output) + task, damaged);
  });
}

}  // namespace gpu4fs::engine
