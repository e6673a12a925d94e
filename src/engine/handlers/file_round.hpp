// A round: new pages of a file, which write, copy_range and relocate plan, fill and commit.
//
// plan    reserves what the commit needs and allocates the new pages (c.extents, from 0 on). The old pages that the
//         round copies are runs of c.extents too, from round_runs_base on. If a plan does not succeed, the command
//         keeps nothing and plans again, whatever the status
// fill    in the step or by tasks. A write that borrows a row has another way (file_write_rows.hpp)
// commit  enters the gate; the new pages become pages of the file. It reserves again, because a checkpoint may have run
//         since the plan
// The command's stage says which of the three is next, so a restart continues there.
#pragma once

#include "engine/handlers/file_common.hpp"

namespace gpu4fs::engine {
namespace detail {

enum class RoundStage : u32 { plan = 0, fill, commit, committed };

// Part of the command's state in scratch memory.
struct Round {
  u64 first_page;         // of the file
  u32 page_count;         // 0: there is nothing to do
  u32 run_count;          // of old pages
  u64 old_first_address;  // old content of a partial first page, no_address: zeros
  u64 old_last_address;   // old content of a partial last page

  GPU4FS_FN constexpr fs::PageRange pages() const { return {first_page, first_page + page_count}; }
  // The old content that page `page` of the round keeps a part of.
  GPU4FS_FN constexpr u64 old_address(u32 page) const {
    if (page == 0) return old_first_address;
    return page + 1 == page_count ? old_last_address : u64{raid::no_address};
  }
};

inline constexpr u32 round_runs_base = command_extent_capacity / 2;
inline constexpr u32 round_runs_max = command_extent_capacity - round_runs_base;

GPU4FS_FN inline bool is_at(const CommandState& c, RoundStage stage) {
  return c.stage == static_cast<u32>(stage);
}
template <class Group>
GPU4FS_FN void go_to(Group g, CommandState& c, RoundStage stage) {
  go_to_stage(g, c, static_cast<u32>(stage));
}

// Plan and commit: frames, dirty pages and space for a change of the file's map in these pages, and of its inode.
template <class Group>
GPU4FS_FN Status reserve_map_change(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                    fs::PageRange pages) {
  fs::MapCost cost{};
  GPU4FS_TRY(fs::map_prepare(g, engine.fs, c.operation, ref, pages, &cost));
  GPU4FS_TRACE_POINT(map);
  return fs::reserve_metadata(g, engine.fs, c.operation, {1, cost.changed, cost.fresh});
}

// Runs a round up to its commit. `plan` plans it and fills what the step fills; it returns a status and sets the number
// of tasks that fill the rest. *tasks != 0: fan out, then call again.
template <class Group, class Plan>
GPU4FS_FN Status prepare_round(Group g, Engine& engine, CommandState& c, u32* tasks, Plan plan) {
  *tasks = 0;
  if (is_at(c, RoundStage::plan)) {
    const Status status = plan(tasks);
    if (status != Status::ok) {
      abandon_extents(g, engine, c);
      return status;
    }
    go_to(g, c, *tasks != 0 ? RoundStage::fill : RoundStage::commit);
  } else if (is_at(c, RoundStage::fill)) {
    GPU4FS_TRY(task_result(g, c));
    go_to(g, c, RoundStage::commit);
  }
  return Status::ok;
}

// Address of old page `page` of the round; no_address: zeros.
GPU4FS_FN inline u64 old_page(const CommandState& c, const Round& round, u32 page) {
  const u32 run = find_extent(c, round_runs_base, round.run_count, page);
  return c.extents[run].address == raid::no_address ? u64{raid::no_address} : extent_page(c, run, page);
}

// Address of new page `page` of the round.
GPU4FS_FN inline u64 new_page(const CommandState& c, u32 page) {
  return extent_page(c, find_extent(c, c.extent_count, page), page);
}

}  // namespace detail
}  // namespace gpu4fs::engine
