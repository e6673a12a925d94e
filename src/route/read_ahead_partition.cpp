#include "route/read_ahead_partition.hpp"

#include <iterator>

#include "base/mutant.hpp"

namespace gpu4fs::route {

namespace {

// Appends a page; one behind the last range makes it longer.
void append_page(std::vector<FilePages>& list, u64 file, u64 page) {
  if (!list.empty() && list.back().file == file && list.back().pages.end_page() == page) {
    ++list.back().pages.page_count;
  } else {
    list.push_back({file, {page, 1}});
  }
}

}  // namespace

template <class Visit>
void ReadAheadPartition::for_each(const FilePages& pages, Visit&& visit) {
  auto at = places_.lower_bound({pages.file, pages.pages.first_page});
  const auto end = places_.lower_bound({pages.file, pages.pages.end_page()});
  while (at != end) visit(at++);
}

std::vector<FilePages> ReadAheadPartition::add(const FilePages& pages) {
  std::vector<FilePages> leaving;
  if (page_count_max_ == 0) return leaving;
  for (u64 page = pages.pages.first_page; page < pages.pages.end_page(); ++page) {
    const Key key = {pages.file, page};
    if (const auto known = places_.find(key); known != places_.end()) {
      recent_.splice(recent_.begin(), recent_, known->second);
      continue;
    }
    if (GPU4FS_MUTANT(route_partition_grows, recent_.size() == page_count_max_, false)) {
      const Key last = recent_.back();
      append_page(leaving, last.first, last.second);
      places_.erase(last);
      recent_.pop_back();
    }
    recent_.push_front(key);
    places_[key] = recent_.begin();
  }
  return leaving;
}

void ReadAheadPartition::use(const FilePages& pages) {
  for_each(pages, [this](auto entry) { recent_.splice(recent_.begin(), recent_, entry->second); });
}

void ReadAheadPartition::release(const FilePages& pages) {
  for_each(pages, [this](auto entry) {
    recent_.erase(entry->second);
    places_.erase(entry);
  });
}

std::vector<FilePages> ReadAheadPartition::remove_file(u64 file) {
  std::vector<FilePages> leaving;
  const auto end = places_.upper_bound({file, ~u64{0}});
  for (auto at = places_.lower_bound({file, 0}); at != end;) {
    append_page(leaving, file, at->first.second);
    recent_.erase(at->second);
    at = places_.erase(at);
  }
  return leaving;
}

}  // namespace gpu4fs::route
