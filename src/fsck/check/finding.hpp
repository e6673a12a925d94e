// The findings of a check of a pool. Host only.
//
// Every kind of finding has an id that never changes its meaning, so scripts can match it. `error`: data or structure
// is damaged or inconsistent. `note`: a notable state that this version produces by design, for example after a crash.
//
// X(name, id, severity, sentence)
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"

#define GPU4FS_FINDING_LIST(X)                                                                                         \
  X(pool_unusable, "pool-unusable", error, "The pool cannot be opened.")                                               \
  X(pool_not_clean, "pool-not-clean", note,                                                                            \
    "The pool was not unmounted; a mount continues from its last checkpoint and its log.")                             \
  X(device_missing, "device-missing", error, "A device is missing or stale; what is checked is the rest of the pool.") \
  X(superblock_damaged, "superblock-damaged", error, "A superblock slot is wrong or missing.")                         \
  X(superblock_torn, "superblock-torn", error,                                                                         \
    "A superblock slot is damaged, or was being written at a crash; another one counts, of the epoch before maybe.")   \
  X(superblock_behind, "superblock-behind", note, "A device holds the epoch before the newest one.")                   \
  X(superblock_count, "superblock-count", error, "A count in the superblock is wrong.")                                \
  X(tree_node_damaged, "tree-node-damaged", error, "A replica of a chunk tree node is damaged.")                       \
  X(chunk_header_damaged, "chunk-header-damaged", error, "A chunk header is damaged.")                                 \
  X(chunk_map_damaged, "chunk-map-damaged", error, "A device's chunk map is damaged or wrong.")                        \
  X(bitmap_damaged, "bitmap-damaged", error, "No bitmap slot of a chunk is usable.")                                   \
  X(bitmap_slot_stale, "bitmap-slot-stale", note, "A bitmap slot that is not in use is damaged.")                      \
  X(bitmap_count, "bitmap-count", error, "A bitmap's counts do not agree with its bits.")                              \
  X(log_waiting, "log-waiting", note,                                                                                  \
    "Operations behind the checkpoint wait in the log; the next mount carries them out.")                              \
  X(log_damaged, "log-damaged", error, "The operation log lacks operations that had been acknowledged.")               \
  X(page_unreadable, "page-unreadable", error, "A page cannot be read from its device.")                               \
  X(page_checksum, "page-checksum", error, "A page's content does not match its checksum.")                            \
  X(copy_damaged, "copy-damaged", error, "A copy is damaged; a good one replaces it when it is read.")                 \
  X(header_copy_damaged, "header-copy-damaged", error,                                                                 \
    "A copy of a chunk's header area is damaged or old; a mount for writing replaces it.")                             \
  X(descriptors_damaged, "descriptors-damaged", error,                                                                 \
    "Page descriptors are damaged in all copies; pages that do not match them are lost.")                              \
  X(page_epoch, "page-epoch", error, "A page claims to be younger than the pool's state.")                             \
  X(page_outside, "page-outside", error, "A pointer leads outside all chunks.")                                        \
  X(page_used_twice, "page-used-twice", error, "Two pointers lead to the same page.")                                  \
  X(page_not_allocated, "page-not-allocated", error, "A page in use is free in its bitmap.")                           \
  X(page_leaked, "page-leaked", error, "Allocated pages belong to nothing.")                                           \
  X(pointer_malformed, "pointer-malformed", error, "A block pointer is malformed for its place.")                      \
  X(inode_field, "inode-field", error, "A field of an inode has an impossible value.")                                 \
  X(inode_reserved, "inode-reserved", error, "Reserved bytes of an inode are not zero.")                               \
  X(inode_page_count, "inode-page-count", error, "An inode's page count is wrong.")                                    \
  X(inode_size, "inode-size", error, "An inode's size does not fit its content.")                                      \
  X(inode_bitmap, "inode-bitmap", error, "The inode bitmap does not agree with the inodes.")                           \
  X(inode_lost, "inode-lost", error, "An inode in use has no name and is no orphan.")                                  \
  X(orphan_bitmap, "orphan-bitmap", error, "The orphan bitmap does not agree with the inodes.")                        \
  X(orphan_waiting, "orphan-waiting", note, "Files without a name are freed by the next mount.")                       \
  X(link_count, "link-count", error, "An inode's link count differs from its names.")                                  \
  X(attribute_page, "attribute-page", error, "A page of extended attributes is damaged.")                              \
  X(directory_page, "directory-page", error, "A directory page is damaged.")                                           \
  X(directory_order, "directory-order", error, "Names in a directory are out of order or twice.")                      \
  X(directory_hash, "directory-hash", error, "A name's hash is wrong or leads elsewhere.")                             \
  X(directory_name, "directory-name", error, "A name is not allowed.")                                                 \
  X(directory_target, "directory-target", error, "A name leads to an inode that is not in use.")                       \
  X(directory_type, "directory-type", error, "A name's type differs from its inode's.")                                \
  X(directory_count, "directory-count", error, "A directory's count of names is wrong.")                               \
  X(directory_parent, "directory-parent", error, "A directory's parent is not where its name is.")                     \
  X(directory_loop, "directory-loop", error, "A directory cannot be reached from the root.")

namespace gpu4fs::fsck {

enum class Severity : u8 { note, error };

enum class FindingId : u8 {
#define GPU4FS_FINDING_ENUM(name, id, severity, sentence) name,
  GPU4FS_FINDING_LIST(GPU4FS_FINDING_ENUM)
#undef GPU4FS_FINDING_ENUM
};
#define GPU4FS_FINDING_COUNT(name, id, severity, sentence) +1
inline constexpr u32 finding_id_count = 0 GPU4FS_FINDING_LIST(GPU4FS_FINDING_COUNT);
#undef GPU4FS_FINDING_COUNT

struct FindingKind {
  std::string_view id;
  Severity severity;
  std::string_view sentence;
};

constexpr FindingKind finding_kind(FindingId id) {
  constexpr FindingKind kinds[] = {
#define GPU4FS_FINDING_KIND(name, id, severity, sentence) {id, Severity::severity, sentence},
      GPU4FS_FINDING_LIST(GPU4FS_FINDING_KIND)
#undef GPU4FS_FINDING_KIND
  };
  return kinds[static_cast<u32>(id)];
}

struct Finding {
  FindingId id;
  std::string place;  // device and offset, or inode
  std::string text;   // the actual and the expected state
};

// Collects findings. The first `kept_max` of each kind are kept and passed to `on_finding`; all are counted.
class Findings {
 public:
  static constexpr u64 kept_max = 100;

  explicit Findings(std::function<void(const Finding&)> on_finding = {}) : on_finding_(std::move(on_finding)) {}

  void add(FindingId id, std::string place, std::string text) {
    u64& count = counts_[static_cast<u32>(id)];
    if (finding_kind(id).severity == Severity::error) ++error_count_;
    if (++count > kept_max) return;
    kept_.push_back({id, std::move(place), std::move(text)});
    if (on_finding_) on_finding_(kept_.back());
  }

  u64 count(FindingId id) const { return counts_[static_cast<u32>(id)]; }
  u64 error_count() const { return error_count_; }
  const std::vector<Finding>& kept() const { return kept_; }

 private:
  std::function<void(const Finding&)> on_finding_;
  std::array<u64, finding_id_count> counts_{};
  std::vector<Finding> kept_;
  u64 error_count_ = 0;
};

}  // namespace gpu4fs::fsck
