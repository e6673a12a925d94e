// Compares the accesses to a scattered device with their announcements (device/device_access.hpp).
//
// It is a layer of the device's stack. From one finish() to the next, the time of one call into raid, it notes
//   - look-ups of pages that were not announced before,
//   - announcements of other ranges than one page,
//   - pages that changed without an announced write, or after its end,
//   - writes that were announced and not ended, or ended and not announced.
// A page whose write is announced loses its content unless a read of it was announced, or it was written, before: a
// device may provide an empty page for it. It has its content again if the write is cancelled. Chosen pages refuse
// reads or writes.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "base/xxh3.hpp"
#include "device/device_access.hpp"
#include "device/memory/scattered_pages.hpp"
#include "device/stack/device_stack.hpp"

namespace gpu4fs::test {

class AnnouncedPages : public device::StackLayer {
 public:
  // `base` and `size_bytes` are those of the device.
  AnnouncedPages(u8* base, u64 size_bytes) : base_(base), page_count_(size_bytes / page_size) {}

  Status may_read(u64 offset, u64 length) override {
    const std::lock_guard guard(mutex_);
    State* page = announce(offset, length, "read");
    if (page == nullptr || refused_reads.count(offset) != 0) return Status::medium_error;
    page->is_read = true;
    return Status::ok;
  }
  Status may_write(u64 offset, u64 length) override {
    const std::lock_guard guard(mutex_);
    State* page = announce(offset, length, "write");
    if (page == nullptr || refused_writes.count(offset) != 0) return Status::medium_error;
    if (!page->is_read && page->begun == 0) {
      page->content.assign(memory(offset), memory(offset) + page_size);
      std::memset(memory(offset), 0xd7, page_size);
    }
    ++page->begun;
    return Status::ok;
  }
  void write_cancelled(u64 offset) override {
    const std::lock_guard guard(mutex_);
    const auto found = pages_.find(offset);
    if (found == pages_.end() || found->second.begun == 0) return;
    State& page = found->second;
    --page.begun;
    if (!page.is_read && page.begun == 0) std::memcpy(memory(offset), page.content.data(), page_size);
  }
  void write(std::vector<device::StackWrite>& writes) override {
    const std::lock_guard guard(mutex_);
    const auto found = pages_.find(writes[0].offset);
    if (found == pages_.end() || found->second.begun == 0 || writes[0].bytes.size() != page_size) {
      note("ended and not announced", writes[0].offset);
      return;
    }
    --found->second.begun;
    found->second.is_read = true;
    found->second.hash = hash(writes[0].offset);
  }
  void looked_up(u64 offset) override {
    const std::lock_guard guard(mutex_);
    const auto found = pages_.find(offset / page_size * page_size);
    const bool is_known = found != pages_.end() && (found->second.is_read || found->second.begun != 0);
    if (!is_known) note("looked up and not announced", offset);
  }

  // The end of a call. `is_lost`: the device was given up, so writes need no end.
  void finish(bool is_lost) {
    const std::lock_guard guard(mutex_);
    for (const auto& [offset, page] : pages_) {
      if (is_lost) continue;
      if (page.begun != 0) note("announced and not ended", offset);
      if (page.begun == 0 && hash(offset) != page.hash) note("changed and not announced", offset);
    }
    pages_.clear();
  }
  std::vector<std::string> take_problems() {
    const std::lock_guard guard(mutex_);
    return std::exchange(problems_, {});
  }

  u8* memory(u64 offset) const {
    return base_ + device::scattered_page(offset / page_size, page_count_) * page_size + offset % page_size;
  }

  std::set<u64> refused_reads;  // offsets
  std::set<u64> refused_writes;

 private:
  struct State {
    bool is_read = false;     // it has its content
    u32 begun = 0;            // writes
    std::vector<u8> content;  // of a page that has lost it
    u64 hash = 0;             // of the content before the first access or at the end of the last write
  };

  u64 hash(u64 offset) const { return xxh3_64(memory(offset), page_size, 0); }
  void note(const char* what, u64 offset) {
    if (problems_.size() < 20) problems_.push_back(std::string(what) + ": page " + std::to_string(offset / page_size));
  }
  State* announce(u64 offset, u64 length, const char* what) {
    if (length != page_size || offset % page_size != 0 || offset / page_size >= page_count_) {
      note((std::string("not one page: ") + what).c_str(), offset);
      return nullptr;
    }
    const auto [found, is_new] = pages_.try_emplace(offset);
    if (is_new) found->second.hash = hash(offset);
    return &found->second;
  }

  u8* base_;
  u64 page_count_;
  std::mutex mutex_;            // ranks announce their pages independently; protects everything below
  std::map<u64, State> pages_;  // by offset
  std::vector<std::string> problems_;
};

}  // namespace gpu4fs::test
