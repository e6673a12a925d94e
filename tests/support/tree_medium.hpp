// Replicas of a chunk tree in memory, and a checker of trees that shares no code with the tree's own.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "base/xxh3_serial.hpp"
#include "pool/chunk_tree/chunk_tree.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::test {

using TreeModel = std::map<u64, pool::OpenedChunk>;  // by base address

struct TreeWrite {
  u32 replica;
  u32 number;
  format::ChunkTreeNode page;
};

class TreeMedium final : public pool::TreeNodeStore {
 public:
  TreeMedium(u32 replicas, u64 page_count) : pages_(replicas, std::vector<format::ChunkTreeNode>(page_count)) {}

  u32 replica_count() const override { return static_cast<u32>(pages_.size()); }
  bool is_here(u32 replica) const override { return !absent_.contains(replica); }
  bool is_writable() const override { return writable; }
  u64 page_count(u32 replica) const override { return pages_[replica].size(); }
  std::string name(u32 replica) const override { return fmt::format("replica {}", replica); }
  void read(u32 replica, u32 number, format::ChunkTreeNode& page) override {
    if (unreadable.contains({replica, number})) throw pool::PoolError(Status::io_error, "bad place");
    page = pages_[replica].at(number);
  }
  void write(u32 replica, u32 number, const format::ChunkTreeNode& page) override {
    if (keeps_log) log.push_back({replica, number, page});
    pages_[replica].at(number) = page;
  }

  format::ChunkTreeNode& page(u32 replica, u32 number) { return pages_[replica].at(number); }
  const format::ChunkTreeNode& page(u32 replica, u32 number) const { return pages_[replica].at(number); }
  void remove(u32 replica) { absent_.insert(replica); }

  bool writable = true;
  bool keeps_log = false;
  std::vector<TreeWrite> log;
  std::set<std::pair<u32, u32>> unreadable;

 private:
  std::vector<std::vector<format::ChunkTreeNode>> pages_;
  std::set<u32> absent_;
};

inline bool is_equal(const pool::OpenedChunk& a, const pool::OpenedChunk& b) {
  return std::memcmp(&a.descriptor, &b.descriptor, sizeof(a.descriptor)) == 0 && a.columns.size() == b.columns.size() &&
         std::memcmp(a.columns.data(), b.columns.data(), a.columns.size() * 8) == 0;
}

// Reads a tree from the bytes of one replica, according to docs/internals/format.md.
class TreeChecker {
 public:
  TreeChecker(const TreeMedium& medium, u32 replica, const pool::TreeRoot& root, u64 epoch)
      : medium_(medium), replica_(replica), root_(root), epoch_(epoch) {}

  // "" or the fault; `model`: the expected content of the tree.
  std::string check(const TreeModel& model) {
    if (root_.height != 0) walk(root_.root, root_.height - 1, 0, true);
    if (problem_.empty() && numbers_.size() != root_.node_count) {
      note(fmt::format("{} nodes, the root counts {}", numbers_.size(), root_.node_count));
    }
    if (problem_.empty() && (found_.size() != model.size() || root_.chunk_count != model.size())) {
      note(fmt::format("{} chunks, the root counts {}, there are {}", found_.size(), root_.chunk_count, model.size()));
    }
    auto expected = model.begin();
    for (std::size_t i = 0; problem_.empty() && i < found_.size(); ++i, ++expected) {
      if (!is_equal(found_[i], expected->second)) note(fmt::format("chunk {}", i));
    }
    return problem_;
  }

 private:
  void note(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  template <class T>
  static T value_at(const u8* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  }

  void walk(u32 number, u32 level, u64 key, bool is_last) {
    if (!numbers_.insert(number).second) return note(fmt::format("node {} twice", number));
    if (number >= medium_.page_count(replica_)) return note(fmt::format("node {} outside", number));
    u8 page[page_size];
    std::memcpy(page, &medium_.page(replica_, number), page_size);
    const u64 checksum = value_at<u64>(page + 8);
    std::memset(page + 8, 0, 8);
    if (std::memcmp(page, "G4CT", 4) != 0 || checksum != xxh3_64(page, page_size, number)) {
      return note(fmt::format("node {} is no node", number));
    }
    const u32 count = value_at<u32>(page + 24);
    const u32 used = value_at<u32>(page + 28);
    const u64 epoch = value_at<u64>(page + 16);
    if (value_at<u16>(page + 4) != 1 || page[6] != level || page[7] != 0)
      return note(fmt::format("head of {}", number));
    if (epoch == 0 || epoch > epoch_) return note(fmt::format("epoch {} of node {}", epoch, number));
    if (count == 0 || used > 4064) return note(fmt::format("node {}: {} entries in {}", number, count, used));
    if (!is_last && used < 4064 / 3) note(fmt::format("node {}: only {} bytes", number, used));
    for (u32 i = used; i < 4064; ++i) {
      if (page[32 + i] != 0) note(fmt::format("node {}: bytes behind the entries", number));
    }
    if (level == 0) return walk_leaf(page + 32, number, count, used, key);
    if (count * 16 != used) return note(fmt::format("node {}: {} branches in {}", number, count, used));
    if (level + 1 == root_.height && count < 2) note("a root with one child");
    for (u32 i = 0; i < count; ++i) {
      const u8* entry = page + 32 + 16 * i;
      const u64 base = value_at<u64>(entry);
      if (i == 0 && key != 0 && base != key) note(fmt::format("node {}: key {:#x}", number, base));
      if (value_at<u32>(entry + 12) != 0) note("reserved");
      walk(value_at<u32>(entry + 8), level - 1, base, is_last && i + 1 == count);
    }
  }

  void walk_leaf(const u8* entries, u32 number, u32 count, u32 used, u64 key) {
    u32 at = 0;
    for (u32 i = 0; i < count; ++i) {
      if (at + 40 > used) return note(fmt::format("node {}: entries too long", number));
      pool::OpenedChunk chunk;
      std::memcpy(&chunk.descriptor, entries + at, 40);
      chunk.columns.resize(chunk.descriptor.column_count);
      at += 40 + 8 * chunk.descriptor.column_count;
      if (at > used) return note(fmt::format("node {}: columns too long", number));
      std::memcpy(chunk.columns.data(), entries + at - 8 * chunk.columns.size(), 8 * chunk.columns.size());
      const u64 base = chunk.descriptor.base_address;
      if (i == 0 && key != 0 && base != key) note(fmt::format("leaf {}: key {:#x}", number, base));
      if (base < end_) note(fmt::format("leaf {}: chunk at {:#x} out of order", number, base));
      end_ = base + chunk.descriptor.size_bytes;
      found_.push_back(std::move(chunk));
    }
    if (at != used) note(fmt::format("leaf {}: {} bytes of {}", number, at, used));
  }

  const TreeMedium& medium_;
  u32 replica_;
  pool::TreeRoot root_;
  u64 epoch_;
  std::set<u32> numbers_;
  std::vector<pool::OpenedChunk> found_;
  u64 end_ = 1;
  std::string problem_;
};

// A chunk of one granule of 8 MiB or more.
inline pool::OpenedChunk make_tree_chunk(u64 granule, u64 granules, u32 columns, u64 salt = 0) {
  constexpr u64 granule_bytes = u64{8} << 20;
  pool::OpenedChunk chunk{};
  chunk.descriptor.base_address = granule * granule_bytes;
  chunk.descriptor.size_bytes = granules * granule_bytes;
  chunk.descriptor.level = columns == 1 ? format::RaidLevel::single : format::RaidLevel::raid0;
  chunk.descriptor.column_count = static_cast<u16>(columns);
  chunk.descriptor.flags = format::chunk_flag_data;
  chunk.descriptor.epoch_created = 1 + salt % 1000;
  for (u32 i = 0; i < columns; ++i) {
    chunk.columns.push_back(format::ColumnAddress::make(i, (granule * 64 + salt % 64 + 1) * 65536));
  }
  return chunk;
}

}  // namespace gpu4fs::test
