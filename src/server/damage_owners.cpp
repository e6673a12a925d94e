#include "server/damage_owners.hpp"

#include <dirent.h>

#include <algorithm>
#include <unordered_set>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "format/inode_format.hpp"
#include "server/tree_walk.hpp"

namespace gpu4fs::server {
namespace {

class OwnerSearch {
 public:
  OwnerSearch(const DamageSearch& search, PageRuns suspects) : search_(search), suspects_(std::move(suspects)) {}

  OwnedDamage run() {
    // Where no checkpoint can be written nothing has been freed or relocated since the last one either.
    if (search_.may_checkpoint) (void)search_.inspector.checkpoint();
    verify_again();
    if (suspects_.empty()) return std::move(result_);
    for (const u64 inode : {format::inode_number_inode_file, format::inode_number_inode_bitmap,
                            format::inode_number_orphan_bitmap}) {
      look_at({special_inode_name(inode), inode, DT_UNKNOWN, 1});
    }
    std::unordered_set<u64> linked;
    const WalkResult walked = walk_tree(search_.inspector, true, [&](const WalkedFile& file) {
      if (search_.is_stopped()) return false;
      const bool is_new = file.type == DT_DIR || file.link_count < 2 || linked.insert(file.inode).second;
      if (is_new) look_at(file);
      return !suspects_.empty();
    });
    result_.unreadable = walked.unreadable;
    result_.was_stopped = search_.is_stopped();
    if (!result_.was_stopped) record_ownerless();
    return std::move(result_);
  }

 private:
  // Calls act(chunk, first page, count) for the pieces of a run that one command can verify.
  template <class Act>
  void for_pieces(PageRun run, Act&& act) {
    while (run.page_count > 0) {
      auto chunk = std::upper_bound(search_.chunks.begin(), search_.chunks.end(), run.address,
                                    [](u64 address, const ChunkRange& range) { return address < range.base_address; });
      GPU4FS_CHECK(chunk != search_.chunks.begin());
      --chunk;
      const u64 first = (run.address - chunk->base_address) / page_size;
      GPU4FS_CHECK_LT(first, chunk->page_count);
      const u64 count = std::min({run.page_count, chunk->page_count - first, PoolInspector::verify_page_max});
      act(static_cast<u32>(chunk - search_.chunks.begin()), first, count);
      run = {run.address + count * page_size, run.page_count - count};
    }
  }

  void verify_again() {
    for (const PageRun& run : suspects_.all()) {
      u64 address = run.address;
      for_pieces(run, [&](u32 chunk, u64 first, u64 count) {
        const PoolInspector::Verified verified = search_.inspector.verify(chunk, first, count);
        for (u64 i = 0; i < count; ++i) {
          const bool stays = verified.status == Status::ok && search_.inspector.is_damaged(i);
          if (!stays) suspects_.remove(address + i * page_size, 1);
        }
        address += count * page_size;
      });
    }
  }

  // Damaged pages of the run; the engine takes them over.
  u64 record(const PageRun& run, u64 owner, format::DamageKind kind) {
    u64 damaged = 0;
    for_pieces(run, [&](u32 chunk, u64 first, u64 count) {
      damaged += search_.inspector.verify_and_record(chunk, first, count, owner, kind).damaged_count;
    });
    result_.page_count += damaged;
    return damaged;
  }

  void look_at(const WalkedFile& file) {
    // The directory may have come to nothing meanwhile, or the inode be unreadable; its pages are ownerless then.
    bool is_complete = true;
    std::vector<format::BlockRecord> met;
    (void)search_.inspector.list_blocks(file.inode, [&](const format::BlockRecord& block) {
      if (!suspects_.within(block.address, block.page_count).empty()) met.push_back(block);
    }, &is_complete);
    u64 damaged = 0;
    for (const format::BlockRecord& block : met) {
      const bool is_content = block.kind == format::BlockKind::content;
      const bool is_data = is_content && file.type == DT_REG;
      const bool counts = block.kind != format::BlockKind::unwritten && (!is_data || search_.data_has_checksums);
      for (const PageRun& run : suspects_.within(block.address, block.page_count)) {
        if (counts) {
          damaged += record(run, file.inode, is_data ? format::DamageKind::data : format::DamageKind::metadata);
        }
        suspects_.remove(run.address, run.page_count);
      }
    }
    if (damaged != 0) result_.files.push_back({file.path, file.inode, damaged});
  }

  void record_ownerless() {
    for (const PageRun& run : suspects_.all()) {
      result_.ownerless_page_count += record(run, format::damage_inode_unknown, format::DamageKind::unknown);
    }
  }

  const DamageSearch& search_;
  PageRuns suspects_;
  OwnedDamage result_;
};

}  // namespace

OwnedDamage find_damage_owners(const DamageSearch& search, PageRuns suspects) {
  return OwnerSearch(search, std::move(suspects)).run();
}

}  // namespace gpu4fs::server
