// A set of pages of the logical space, kept as runs. Host only.
#pragma once

#include <map>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::pool {

struct PageRun {
  u64 address;  // logical, of the first page
  u64 page_count;
  friend bool operator==(const PageRun&, const PageRun&) = default;
};

class PageRuns {
 public:
  void add(u64 address, u64 page_count);
  void remove(u64 address, u64 page_count);
  // The runs of the set in [address, address + page_count pages), in order.
  [[nodiscard]] std::vector<PageRun> within(u64 address, u64 page_count) const;
  [[nodiscard]] std::vector<PageRun> all() const;
  [[nodiscard]] bool empty() const { return ends_.empty(); }
  [[nodiscard]] u64 run_count() const { return ends_.size(); }
  [[nodiscard]] u64 page_count() const;
  // The lowest address. The set must not be empty.
  [[nodiscard]] u64 first() const { return ends_.begin()->first; }
  void clear() { ends_.clear(); }

 private:
  std::map<u64, u64> ends_;  // begin -> end, in bytes; disjoint, not adjacent
};

}  // namespace gpu4fs::pool
