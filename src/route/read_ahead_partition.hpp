// The part of the page cache that read-ahead for the GPU may fill (SPIN, section 4.3.2, "GPU read-ahead cache", and
// section 5.1, which has 512 pages). Host only.
//
// The pages are the kernel's. This only remembers which of them read-ahead has brought in, least recently used last,
// and names those that have to leave the page cache again. So data that only the GPU reads does not drive out other
// data. A page that a CPU program reads too leaves the partition and stays in the page cache.
#pragma once

#include <list>
#include <map>
#include <utility>
#include <vector>

#include "route/page_run.hpp"

namespace gpu4fs::route {

struct FilePages {
  u64 file = 0;  // what the caller names open files by
  PageRange pages;

  friend bool operator==(const FilePages&, const FilePages&) = default;
};

// Callers serialise. A partition of no pages remembers nothing: then nothing may be read ahead.
class ReadAheadPartition {
 public:
  explicit ReadAheadPartition(u64 page_count_max) : page_count_max_(page_count_max) {}

  u64 page_count_max() const { return page_count_max_; }
  u64 page_count() const { return recent_.size(); }
  bool has(u64 file, u64 page) const { return places_.contains({file, page}); }

  // Read-ahead has brought in these pages. Returns the pages that leave the page cache for them.
  std::vector<FilePages> add(const FilePages& pages);

  // The GPU has read these pages: those in the partition become the most recently used.
  void use(const FilePages& pages);

  // A CPU program has read or written these pages: they belong to the page cache alone.
  void release(const FilePages& pages);

  // The file is closed. Returns its pages, which leave the page cache.
  std::vector<FilePages> remove_file(u64 file);

 private:
  using Key = std::pair<u64, u64>;  // file and page

  // Calls `visit` with each entry of the pages in the partition; it may erase the entry.
  template <class Visit>
  void for_each(const FilePages& pages, Visit&& visit);

  u64 page_count_max_;
  std::list<Key> recent_;  // most recently used first
  std::map<Key, std::list<Key>::iterator> places_;
};

}  // namespace gpu4fs::route
