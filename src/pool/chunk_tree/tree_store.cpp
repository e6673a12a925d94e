#include "pool/chunk_tree/tree_store.hpp"

#include <fmt/format.h>

#include <cstring>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "pool/chunk_tree/tree_node.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::pool {

namespace {

using format::ChunkTreeNode;

// "", or why the replica's page is not valid.
std::string read_replica(TreeNodeStore& store, u32 replica, u32 number, u32 level, u64 epoch_max, ChunkTreeNode& page) {
  if (number >= store.page_count(replica)) return "outside the tree area";
  try {
    store.read(replica, number, page);
  } catch (const PoolError& error) {
    if (error.status() != Status::io_error) throw;
    return error.what();
  }
  return find_node_problem(page, number, level, epoch_max);
}

void add_line(TreeReport& report, std::string line) {
  if (report.lines.size() < tree_report_lines_max) report.lines.push_back(std::move(line));
}

// The page may not keep its content; the next mount tries again.
bool write_again(TreeNodeStore& store, u32 replica, u32 number, const ChunkTreeNode& page) {
  if (!store.is_writable() || number >= store.page_count(replica)) return false;
  try {
    store.write(replica, number, page);
  } catch (const PoolError&) {
    return false;
  }
  return true;
}

}  // namespace

void DeviceNodeStore::read(u32 replica, u32 number, ChunkTreeNode& page) {
  const TreeDevice& device = devices_[replica];
  device.file->read_at(device.part.tree_offset + u64{number} * page_size, &page, page_size);
}

void DeviceNodeStore::write(u32 replica, u32 number, const ChunkTreeNode& page) {
  GPU4FS_CHECK_LT(u64{number}, devices_[replica].part.tree_pages);
  const TreeDevice& device = devices_[replica];
  device.file->write_at(device.part.tree_offset + u64{number} * page_size, &page, page_size);
}

ChunkTreeNode read_newest_page(TreeNodeStore& store, u32 number, u32 level, u64 epoch_max, TreeReport& report) {
  struct Found {
    u32 replica;
    std::string problem;
    ChunkTreeNode page;
  };
  std::vector<Found> found;
  const Found* best = nullptr;
  for (u32 replica = 0; replica < store.replica_count(); ++replica) {
    if (!store.is_here(replica)) continue;
    found.push_back({replica, "", {}});
    found.back().problem = read_replica(store, replica, number, level, epoch_max, found.back().page);
  }
  for (const Found& one : found) {
    if (!one.problem.empty()) continue;
    const bool is_newer = best == nullptr || GPU4FS_MUTANT(older_tree_replica_counts, one.page.epoch > best->page.epoch,
                                                           one.page.epoch < best->page.epoch);
    if (is_newer) best = &one;
  }
  std::string problems;
  for (Found& one : found) {
    const bool is_old = one.problem.empty() && std::memcmp(&one.page, &best->page, page_size) != 0;
    if (is_old) one.problem = fmt::format("epoch {}, another replica has epoch {}", one.page.epoch, best->page.epoch);
    if (one.problem.empty()) continue;
    problems += fmt::format("{}{}: chunk tree node {}: {}", problems.empty() ? "" : "; ", store.name(one.replica),
                            number, one.problem);
    if (best == nullptr) continue;
    ++(is_old ? report.pages_old : report.pages_damaged);
    if (write_again(store, one.replica, number, best->page)) ++report.pages_repaired;
  }
  if (best == nullptr) throw PoolError(Status::corrupt_structure, problems);
  if (!problems.empty()) add_line(report, problems + "; another replica is good");
  return best->page;
}

}  // namespace gpu4fs::pool
