// Where the nodes of a chunk tree lie: a page of the tree area on each replica. Host only.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "format/chunk_format.hpp"
#include "format/superblock_format.hpp"
#include "pool/pool_device_file.hpp"

namespace gpu4fs::pool {

// Node pages by replica and number. Numbers that are passed are below page_count().
class TreeNodeStore {
 public:
  virtual ~TreeNodeStore() = default;
  virtual u32 replica_count() const = 0;
  // False: it is passed over.
  virtual bool is_here(u32 replica) const = 0;
  // Damaged pages may be written again.
  virtual bool is_writable() const = 0;
  // Numbers that a replica has a page for.
  virtual u64 page_count(u32 replica) const = 0;
  virtual std::string name(u32 replica) const = 0;
  // PoolError.
  virtual void read(u32 replica, u32 number, format::ChunkTreeNode& page) = 0;
  virtual void write(u32 replica, u32 number, const format::ChunkTreeNode& page) = 0;
};

// What a tree's reader needs to know of a member.
struct TreeDevice {
  DeviceFile* file;  // absent(): it is passed over
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

// What was found wrong while nodes were read.
struct TreeReport {
  u64 pages_damaged = 0;           // of replicas: unreadable or not valid
  u64 pages_old = 0;               // valid, but another replica's is newer or differs
  u64 pages_repaired = 0;          // of both kinds
  std::vector<std::string> lines;  // for people, at most tree_report_lines_max
};
inline constexpr std::size_t tree_report_lines_max = 16;

// The valid page of node `number` with the greatest epoch; of several the first replica's. Replicas that hold anything
// else are written again, if the store is writable. PoolError: no replica has a valid one.
format::ChunkTreeNode read_newest_page(TreeNodeStore& store, u32 number, u32 level, u64 epoch_max, TreeReport& report);

}  // namespace gpu4fs::pool
