#include "maintenance/damage_owners.hpp"

#include <dirent.h>

#include <algorithm>
#include <unordered_set>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "format/inode_format.hpp"
#include "session/tree_walk.hpp"

namespace gpu4fs::maintenance {
namespace {

class OwnerSearch {
 public:
  OwnerSearch(const DamageSearch& search, pool::PageRuns suspects) : search_(search), suspects_(std::move(suspects)) {}

  OwnedDamage run() {
    checkpoint();
    verify_again();
    if (suspects_.empty()) return std::move(result_);
    for (const u64 inode :
         {format::inode_number_inode_file, format::inode_number_inode_bitmap, format::inode_number_orphan_bitmap}) {
      look_at({session::special_inode_name(inode), inode, DT_UNKNOWN, 1});
    }
    std::unordered_set<u64> linked;
    const session::WalkResult walked =
        session::walk_tree(search_.inspector, true, [&](const session::WalkedFile& file) {
          if (search_.is_stopped()) return false;
          const bool is_new = file.type == DT_DIR || file.link_count < 2 || linked.insert(file.inode).second;
          if (is_new) look_at(file);
          return !suspects_.empty();
        });
    result_.unreadable = walked.unreadable;
    result_.was_stopped = search_.is_stopped();
    if (result_.was_stopped) return std::move(result_);
    checkpoint();
    record_named();
    if (!all_is_readable_ || !result_.unreadable.empty()) record_ownerless();
    return std::move(result_);
  }

 private:
  // Pages of a file that may be damaged.
  struct Named {
    session::WalkedFile file;
    pool::PageRun run;
    wire::DamageKind kind;
  };

  // If none can be written, nothing has been freed or moved since the last one either.
  void checkpoint() {
    if (search_.may_checkpoint) (void)search_.inspector.checkpoint();
  }

  // Calls act(chunk, first page, count) for the pieces of a run that one command can verify.
  template <class Act>
  void for_pieces(pool::PageRun run, Act&& act) {
    while (run.page_count > 0) {
      auto chunk =
          std::upper_bound(search_.chunks.begin(), search_.chunks.end(), run.address,
                           [](u64 address, const session::ChunkRange& range) { return address < range.base_address; });
      GPU4FS_CHECK(chunk != search_.chunks.begin());
      --chunk;
      const u64 first = (run.address - chunk->base_address) / page_size;
      GPU4FS_CHECK_LT(first, chunk->page_count);
      const u64 count = std::min({run.page_count, chunk->page_count - first, session::PoolInspector::verify_page_max});
      act(static_cast<u32>(chunk - search_.chunks.begin()), first, count);
      run = {run.address + count * page_size, run.page_count - count};
    }
  }

  void verify_again() {
    for (const pool::PageRun& run : suspects_.all()) {
      u64 address = run.address;
      for_pieces(run, [&](u32 chunk, u64 first, u64 count) {
        const session::PoolInspector::Verified verified = search_.inspector.verify(chunk, first, count);
        for (u64 i = 0; i < count; ++i) {
          const bool stays = verified.status == Status::ok && search_.inspector.is_damaged(i);
          if (!stays) suspects_.remove(address + i * page_size, 1);
        }
        address += count * page_size;
      });
    }
  }

  // Records damaged pages of the run in the engine's table.
  u64 record(const pool::PageRun& run, u64 owner, wire::DamageKind kind) {
    u64 damaged = 0;
    for_pieces(run, [&](u32 chunk, u64 first, u64 count) {
      damaged += search_.inspector.verify_and_record(chunk, first, count, owner, kind).damaged_count;
    });
    result_.page_count += damaged;
    return damaged;
  }

  void look_at(const session::WalkedFile& file) {
    bool is_complete = true;
    const auto strike_off = [&](const wire::BlockRecord& block) {
      const bool is_content = block.kind == wire::BlockKind::content;
      const bool is_data = is_content && file.type == DT_REG;
      const bool counts = block.kind != wire::BlockKind::unwritten && (!is_data || search_.data_has_checksums);
      for (const pool::PageRun& run : suspects_.within(block.address, block.page_count)) {
        if (counts) named_.push_back({file, run, is_data ? wire::DamageKind::data : wire::DamageKind::metadata});
        suspects_.remove(run.address, run.page_count);
      }
    };
    const Status status = search_.inspector.list_blocks(file.inode, strike_off, &is_complete);
    // Stale: the file was removed meanwhile.
    if (!is_complete || (status != Status::ok && status != Status::stale)) all_is_readable_ = false;
  }

  void record_named() {
    for (const Named& named : named_) {
      const u64 damaged = record(named.run, named.file.inode, named.kind);
      if (damaged == 0) continue;
      if (!result_.files.empty() && result_.files.back().inode == named.file.inode) {
        result_.files.back().page_count += damaged;
      } else {
        result_.files.push_back({named.file.path, named.file.inode, damaged});
      }
    }
  }

  void record_ownerless() {
    for (const pool::PageRun& run : suspects_.all()) {
      result_.ownerless_page_count += record(run, wire::damage_inode_unknown, wire::DamageKind::unknown);
    }
  }

  const DamageSearch& search_;
  pool::PageRuns suspects_;
  std::vector<Named> named_;
  bool all_is_readable_ = true;
  OwnedDamage result_;
};

}  // namespace

OwnedDamage find_damage_owners(const DamageSearch& search, pool::PageRuns suspects) {
  return OwnerSearch(search, std::move(suspects)).run();
}

}  // namespace gpu4fs::maintenance
