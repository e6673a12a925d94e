// The place of the nodes of a chunk tree: a page of the tree area on each replica. Host only.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "format/chunk_format.hpp"
#include "format/superblock_format.hpp"
#include "pool/pool_device_file.hpp"

namespace gpu4fs::pool {

// Node pages by replica and number. Callers pass only numbers below page_count().
class TreeNodeStore {
 public:
  virtual ~TreeNodeStore() = default;
  virtual u32 replica_count() const = 0;
  // False: the replica is skipped.
  virtual bool is_here(u32 replica) const = 0;
  // Damaged pages may be written again.
  virtual bool is_writable() const = 0;
  // The number of nodes for which a replica has a page.
  virtual u64 page_count(u32 replica) const = 0;
  virtual std::string name(u32 replica) const = 0;
  // PoolError.
  virtual void read(u32 replica, u32 number, format::ChunkTreeNode& page) = 0;
  virtual void write(u32 replica, u32 number, const format::ChunkTreeNode& page) = 0;
};

// What a reader of the tree needs of a member.
struct TreeDevice {
  DeviceFile* file;  // absent(): it is skipped
  format::DevicePart part;
};

// On the first `replica_count` of `devices`, which outlive it.
class DeviceNodeStore final : public TreeNodeStore {
 public:
  DeviceNodeStore(const std::vector<TreeDevice>& devices, u32 replica_count, bool writable)
      : devices_(devices), replica_count_(replica_count), writable_(writable) {}
  u32 replica_count() const override { return replica_count_; }
  bool is_here(u32 replica) const override { return devices_[replica].file->fd() >= 0; }
  bool is_writable() const override { return writable_; }
  u64 page_count(u32 replica) const override { return devices_[replica].part.tree_pages; }
  std::string name(u32 replica) const override { return devices_[replica].file->path(); }
  void read(u32 replica, u32 number, format::ChunkTreeNode& page) override;
  void write(u32 replica, u32 number, const format::ChunkTreeNode& page) override;

 private:
  const std::vector<TreeDevice>& devices_;
  u32 replica_count_;
  bool writable_;
};

// Faults that were found while nodes were read.
struct TreeReport {
  u64 pages_damaged = 0;           // of replicas: unreadable or not valid
  u64 pages_old = 0;               // valid, but another replica is newer or differs
  u64 pages_repaired = 0;          // of both kinds
  std::vector<std::string> lines;  // for users, at most tree_report_lines_max
};
inline constexpr std::size_t tree_report_lines_max = 16;

// The valid page of node `number` with the greatest epoch; if several have it, that of the first replica. Replicas with
// other content are rewritten if the store is writable. PoolError: no replica has a valid page.
format::ChunkTreeNode read_newest_page(TreeNodeStore& store, u32 number, u32 level, u64 epoch_max, TreeReport& report);

}  // namespace gpu4fs::pool
