// The chunk tree of a pool in memory: look-up, insert, erase; copy-on-write. Host only.
//
// A change copies the nodes from the leaf to the root to free numbers. The nodes of the durable tree stay unchanged.
// Changes since the last commit() are in memory until write() writes their nodes to all replicas. A superblock with the
// new root(), height(), node_count() and chunk_count() makes all of them valid at once. Until it is durable, both trees
// are complete. commit() says that it is durable and releases the numbers that only the old tree used; roll_back()
// returns to the durable tree. So no number is written twice in one epoch, and of replicas that differ the newer one is
// right.
//
// All nodes except the last one of each level are at least a third full, in bytes. If the last node of the key space
// overflows, it gets an empty neighbour instead of giving away half of its entries, so ascending keys fill the nodes.
// Trees that mkfs built of chunks of very different widths may have nodes that are less full until they are changed.
//
// Not thread-safe. Structures on the medium are untrusted: an invalid one is a PoolError. A change that fails in
// another way than its comment says reverts all changes since the last commit().
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "format/superblock_format.hpp"
#include "pool/chunk_tree/tree_node.hpp"
#include "pool/chunk_tree/tree_store.hpp"

namespace gpu4fs::pool {

// The fields of a superblock that describe a tree.
struct TreeRoot {
  u32 root = 0;
  u32 height = 0;  // 0: no node, no chunk
  u64 node_count = 0;
  u64 chunk_count = 0;
  friend bool operator==(const TreeRoot&, const TreeRoot&) = default;
};

TreeRoot tree_root_of(const format::Superblock& superblock);

inline constexpr u32 tree_height_max = 8;

class ChunkTree {
 public:
  // The tree of a superblock of `epoch`. Reads all nodes except the leaves; at most `cache_node_max` clean nodes stay
  // in memory. `store` outlives it. PoolError.
  ChunkTree(TreeNodeStore& store, const TreeRoot& root, u64 epoch, std::size_t cache_node_max = 256);
  ChunkTree(const ChunkTree&) = delete;
  ChunkTree& operator=(const ChunkTree&) = delete;

  // The chunk that covers the logical address.
  std::optional<OpenedChunk> find(u64 address);
  // In ascending order; the visitor does not change the tree.
  void for_each(const std::function<void(const OpenedChunk& chunk)>& visit);

  // PoolError: exists (it overlaps another chunk in logical space), no_space (too few free nodes).
  void insert(const OpenedChunk& chunk);
  // Returns false if no chunk begins there. PoolError: no_space.
  bool erase(u64 base_address);

  const TreeRoot& root() const { return root_; }
  bool has_changes() const { return !dirty_.empty() || root_ != durable_; }

  // Writes the changed nodes to all replicas, for a superblock of `epoch`, which is greater than that of the last one.
  // The caller flushes. No changes are allowed until commit() or roll_back(). PoolError.
  void write(u64 epoch);
  // Writes all nodes of the tree, changed or not, to a replica of `store` that has none; after write(). PoolError.
  void write_all_to(TreeNodeStore& store, u32 replica, u64 epoch);
  void commit();
  void roll_back();

  u64 free_node_count() const { return free_count_; }
  std::size_t cached_node_count() const { return cache_.size(); }
  const TreeReport& report() const { return report_; }

 private:
  using NodePointer = std::shared_ptr<TreeNode>;
  struct Cached {
    NodePointer node;
    std::list<u32>::iterator used;
  };
  // The nodes that replace one node: none, one, or two after a split.
  using Replacement = std::vector<format::ChunkTreeBranch>;

  NodePointer node(u32 number, u32 level, u64 first_key);
  NodePointer read(u32 number, u32 level, u64 first_key);
  NodePointer begin_change(u32 number, u32 level, u64 first_key);
  void remember(u32 number, NodePointer node);
  u32 allocate();
  void release(u32 number);
  format::ChunkTreeBranch place(NodePointer node);
  Replacement place_or_split(const NodePointer& node, bool is_last);
  void learn_numbers(u32 number, u32 level, u64 first_key);
  void take(u32 number);
  void require_room() const;
  void require_apart(const OpenedChunk& chunk);
  const OpenedChunk* floor_in(u64 address, NodePointer& leaf);
  std::optional<u64> first_key_from(u32 number, u32 level, u64 first_key, u64 address);
  Replacement insert_below(u32 number, u32 level, u64 first_key, const OpenedChunk& chunk, bool is_last);
  Replacement erase_below(u32 number, u32 level, u64 first_key, u64 base_address, bool is_last);
  void fill_up(TreeNode& parent, std::size_t index, bool is_last);
  void set_root(const Replacement& replacement);
  void visit_below(u32 number, u32 level, u64 first_key, const std::function<void(const OpenedChunk&)>& visit);
  void copy_below(u32 number, u32 level, u64 first_key, TreeNodeStore& store, u32 replica, u64 epoch);

  TreeNodeStore& store_;
  std::size_t cache_node_max_;
  u64 epoch_;      // the greatest that a node can have
  TreeRoot root_;  // including the changes
  TreeRoot durable_;
  std::vector<bool> used_;  // by number: of the durable tree, or of the changed one
  u64 free_count_ = 0;
  u32 next_number_ = 0;               // where the search for a free one continues
  std::map<u32, NodePointer> dirty_;  // nodes of the changed tree that the durable one does not have
  std::vector<u32> released_;         // of the durable tree alone
  bool written_ = false;              // since the last commit
  std::unordered_map<u32, Cached> cache_;
  std::list<u32> least_used_;  // numbers in the cache, least recently used first
  TreeReport report_;
};

}  // namespace gpu4fs::pool
