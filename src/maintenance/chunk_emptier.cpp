#include "maintenance/chunk_emptier.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "format/inode_format.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u32 pass_max = 100;
constexpr u32 room_attempts_max = 16;  // each behind a checkpoint
constexpr u32 idle_pass_max = 20;        // number of passes that move nothing before the rest counts as immovable
constexpr auto idle_pass_wait =
    std::chrono::milliseconds(20);  // for commands that have allocated pages and not committed them

u64 occupied_pages(const std::vector<wire::ChunkUsage>& usage, const std::vector<u32>& chunks) {
  u64 sum = 0;
  for (const u32 chunk : chunks) sum += usage[chunk].occupied;
  return sum;
}

// Freezes chunks and moves their pages.
class ChunkEmptier {
 public:
  ChunkEmptier(PageMover& mover, const std::vector<u32>& chunks, const RelocationGoesOn& goes_on, PoolHost& host)
      : mover_(mover), chunks_(chunks), goes_on_(goes_on), host_(host) {}

  RelocationResult run() {
    result_.status = look();
    if (result_.status == Status::ok) result_.status = freeze();
    if (result_.status == Status::ok) {
      result_.progress.page_total = occupied_pages(usage_, chunks_);
      result_.status = move_all();
    }
    const Status looked = look();
    if (result_.status == Status::ok) result_.status = looked;
    for (const u32 chunk : chunks_) {
      const bool is_empty = looked == Status::ok && usage_[chunk].is_frozen != 0 && usage_[chunk].occupied == 0;
      (is_empty ? result_.empty : result_.not_empty).push_back(chunk);
    }
    return std::move(result_);
  }

 private:
  Status look() {
    const Status status = mover_.chunk_usage(&usage_);
    if (status != Status::ok) return status;
    const auto exists = [&](u32 chunk) { return chunk < usage_.size(); };
    return std::all_of(chunks_.begin(), chunks_.end(), exists) ? Status::ok : Status::out_of_range;
  }

  // Space that was freed since the last checkpoints is available after the next ones. Somebody who writes may take it
  // first, so there are several attempts.
  Status freeze_one(u32 chunk) {
    Status status = mover_.freeze(chunk);
    for (u32 attempt = 0; status == Status::no_space && attempt < room_attempts_max; ++attempt) {
      const Status written = host_.checkpoint();
      if (written != Status::ok) return written;
      status = mover_.freeze(chunk);
    }
    return status;
  }

  Status freeze() {
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      const Status status = freeze_one(chunks_[i]);
      if (status == Status::ok) continue;
      for (std::size_t k = 0; k < i; ++k) {
        if (usage_[chunks_[k]].is_frozen == 0) (void)mover_.unfreeze(chunks_[k]);
      }
      return status;
    }
    return Status::ok;
  }

  Status move_all() {
    u64 left = occupied_pages(usage_, chunks_);
    u32 idle_passes = 0;
    for (u32 pass = 0; pass < pass_max && left != 0; ++pass) {
      result_.progress.stayed_count = 0;
      const u64 moved_before = result_.progress.moved_count;
      Status status = move_once();
      if (status == Status::ok) status = host_.checkpoint();
      if (status == Status::ok) status = look();
      if (status != Status::ok) return status;
      left = occupied_pages(usage_, chunks_);
      if (result_.progress.moved_count != moved_before) continue;
      if (left <= result_.progress.stayed_count || ++idle_passes == idle_pass_max) break;
      std::this_thread::sleep_for(idle_pass_wait);
    }
    return Status::ok;
  }

  // All inodes, including those without a name and the files that hold the tree itself.
  Status move_once() {
    for (u64 inode = format::inode_number_root;;) {
      u64 found = 0;
      Status status = mover_.next_inode(inode, &found);
      if (status != Status::ok) return status;
      if (found == wire::relocate_end) break;
      if (found == format::inode_number_root || found >= format::inode_number_first_free) status = move_inode(found);
      if (status != Status::ok) return status;
      inode = found + 1;
    }
    for (const u64 inode :
         {format::inode_number_inode_bitmap, format::inode_number_orphan_bitmap, format::inode_number_inode_file}) {
      const Status status = move([&](const PageMover::GoesOn& counts, PageMover::Moved* moved) {
        return mover_.move_metadata(inode, counts, moved);
      });
      if (status != Status::ok) return status;
    }
    return Status::ok;
  }

  Status move_inode(u64 inode) {
    return move([&](const PageMover::GoesOn& counts, PageMover::Moved* moved) {
      const Status status = mover_.move_file(inode, wire::relocate_frozen, counts, moved);
      return status == Status::ok ? mover_.move_metadata(inode, counts, moved) : status;
    });
  }

  template <class Move>
  Status move(Move&& act) {
    PageMover::Moved moved;
    const auto counts = [&](u64 page_count) {
      result_.progress.moved_count += page_count;
      return !goes_on_ || goes_on_(result_.progress);
    };
    const Status status = act(counts, &moved);
    result_.progress.stayed_count += moved.stayed_count;
    return status;
  }

  PageMover& mover_;
  const std::vector<u32>& chunks_;
  const RelocationGoesOn& goes_on_;
  PoolHost& host_;
  std::vector<wire::ChunkUsage> usage_;
  RelocationResult result_;
};

}  // namespace

RelocationResult empty_chunks(PageMover& mover, const std::vector<u32>& chunks, const RelocationGoesOn& goes_on,
                              PoolHost& host) {
  return ChunkEmptier(mover, chunks, goes_on, host).run();
}

}  // namespace gpu4fs::maintenance
