#include "pool/prefault.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

namespace gpu4fs::pool {
namespace {

constexpr u64 piece_bytes = u64{8} << 20;

std::vector<FileRange> cut(const std::vector<FileRange>& ranges) {
  std::vector<FileRange> pieces;
  for (const FileRange& range : ranges) {
    for (u64 done = 0; done < range.length; done += piece_bytes) {
      pieces.push_back({range.offset + done, std::min(piece_bytes, range.length - done)});
    }
  }
  return pieces;
}

// Takes pieces until none is left or one has failed.
class Preparation {
 public:
  Preparation(const device::MappedFile& file, std::vector<FileRange> pieces, bool populates)
      : file_(file), pieces_(std::move(pieces)), populates_(populates) {}

  std::size_t piece_count() const { return pieces_.size(); }
  void work() noexcept {
    for (std::size_t i = next_++; i < pieces_.size() && !has_failed_; i = next_++) {
      try {
        // Threads reserve blocks of one file in turn, but touch its pages concurrently. If that fails, the reservation
        // finds out whether there was no room or another error.
        if (populates_ && file_.populate_range(pieces_[i].offset, pieces_[i].length)) continue;
        file_.reserve_range(pieces_[i].offset, pieces_[i].length);
      } catch (...) {
        const std::lock_guard guard(mutex_);
        if (!failure_) failure_ = std::current_exception();
        has_failed_ = true;
      }
    }
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const device::MappedFile& file_;
  const std::vector<FileRange> pieces_;
  const bool populates_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;  // under mutex_: the first
};

}  // namespace

void prefault_ranges(const device::MappedFile& file, const std::vector<FileRange>& ranges, bool populates,
                     u32 thread_count) {
  Preparation preparation(file, cut(ranges), populates);
  std::vector<std::thread> helpers;
  helpers.reserve(thread_count);
  try {
    while (helpers.size() + 1 < std::min<std::size_t>(thread_count, preparation.piece_count())) {
      helpers.emplace_back([&preparation] { preparation.work(); });
    }
  } catch (const std::exception&) {
    // Fewer threads suffice.
  }
  preparation.work();
  for (std::thread& helper : helpers) helper.join();
  preparation.rethrow();
}

void take_range(const device::MappedFile& file, FileRange range, bool is_in_use, u32 thread_count) {
  const bool is_new = !is_in_use && file.room_bytes() > range.length && file.is_hole(range.offset, range.length);
  if (!is_new) {
    file.reserve_range(range.offset, range.length);
    return;
  }
  try {
    prefault_ranges(file, {range}, true, thread_count);
  } catch (...) {
    // Others took the space meanwhile.
    file.release_range(range.offset, range.length);
    throw;
  }
}

}  // namespace gpu4fs::pool
