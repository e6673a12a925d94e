#include "replay/ideal_caches.hpp"

#include <algorithm>
#include <queue>
#include <set>

namespace gpu4fs::replay {

namespace {

constexpr u32 never = ~u32{0};

// Marks at times, with their number from a time on. Fenwick, Software: Practice and Experience 1994.
class MarkedTimes {
 public:
  explicit MarkedTimes(u64 time_count) : sums_(time_count + 1) {}

  void mark(u32 time) {
    change(time, 1);
    ++count_;
  }
  void unmark(u32 time) {
    change(time, ~u32{0});
    --count_;
  }
  // Marks at `time` and later.
  u32 count_from(u32 time) const {
    u32 before = 0;
    for (u64 i = time; i != 0; i &= i - 1) before += sums_[i];
    return count_ - before;
  }

 private:
  void change(u32 time, u32 difference) {
    for (u64 i = u64{time} + 1; i < sums_.size(); i += i & (~i + 1)) sums_[i] += difference;
  }

  std::vector<u32> sums_;
  u32 count_ = 0;
};

// The stack of a cache that replaces the least recently used page: its first n places are the cache of n pages. A page
// has the place of its last access among the marked times.
//
// A discard leaves a hole at the page's place: room in every cache that had the page. An access to a page below fills
// the topmost hole, because a cache that has the hole and not the page removes nothing. Caches that had the page too
// keep their room, so the hole moves to the page's old place.
class LruStack {
 public:
  explicit LruStack(const PageTrace& trace) : times_(trace.access_count), last_uses_(trace.pages.size(), never) {}

  // Returns the place of the page, from 1, or 0 if it has none, and puts it on the top.
  u32 access(u32 page, u32 time) {
    const u32 last = last_uses_[page];
    const u32 place = last == never ? 0 : times_.count_from(last);
    const auto topmost = holes_.empty() ? holes_.end() : std::prev(holes_.end());
    if (topmost != holes_.end() && (last == never || *topmost > last)) {
      times_.unmark(*topmost);
      holes_.erase(topmost);
      if (last != never) holes_.insert(last);
    } else if (last != never) {
      times_.unmark(last);
    }
    times_.mark(time);
    last_uses_[page] = time;
    return place;
  }

  void discard(u32 page) {
    if (last_uses_[page] == never) return;
    holes_.insert(last_uses_[page]);
    last_uses_[page] = never;
  }

 private:
  MarkedTimes times_;
  std::vector<u32> last_uses_;  // of pages; `never`: it is in no cache
  std::set<u32> holes_;         // times, which stay marked
};

void sum_up(std::vector<u64>& counts) {
  for (std::size_t i = 1; i < counts.size(); ++i) counts[i] += counts[i - 1];
}

}  // namespace

LruHits::LruHits(const PageTrace& trace) : reads_(trace.pages.size() + 1), writes_(trace.pages.size() + 1) {
  LruStack stack(trace);
  u32 time = 0;
  walk(
      trace,
      [&](const PageRequest& request, u32 page, u32) {
        const u32 place = stack.access(page, time++);
        if (place != 0) ++(request.kind == AccessKind::read ? reads_ : writes_)[place];
      },
      [&](u32 page) { stack.discard(page); }, [](u32) {});
  sum_up(reads_);
  sum_up(writes_);
}

IdealHits LruHits::with(u32 line_count) const {
  const std::size_t at = std::min<std::size_t>(line_count, reads_.size() - 1);
  return {reads_[at], writes_[at]};
}

OptimalHits::OptimalHits(const PageTrace& trace) : trace_(trace), next_uses_(trace.access_count, never) {
  std::vector<u32> last_uses(trace.pages.size(), never);
  u32 time = 0;
  walk(
      trace,
      [&](const PageRequest&, u32 page, u32) {
        if (last_uses[page] != never) next_uses_[last_uses[page]] = time;
        last_uses[page] = time++;
      },
      [&](u32 page) { last_uses[page] = never; }, [](u32) {});
}

// A page in the cache is represented by the time of its next use. Pages that are never used again count as room, since
// they can go at any time.
IdealHits OptimalHits::with(u32 line_count) const {
  std::vector<bool> is_cached(next_uses_.size());  // [time]: the page that is used then
  // Times in the past stay at the bottom: as long as some page is cached, the last one is in the future.
  std::priority_queue<u32> last;
  u32 count = 0;
  u32 time = 0;
  IdealHits hits;
  walk(
      trace_,
      [&](const PageRequest& request, u32, u32) {
        if (is_cached[time]) {
          ++(request.kind == AccessKind::read ? hits.reads : hits.writes);
          --count;
        } else if (count == line_count) {
          is_cached[last.top()] = false;
          last.pop();
          --count;
        }
        const u32 next = next_uses_[time++];
        if (next == never) return;
        is_cached[next] = true;
        last.push(next);
        ++count;
      },
      [](u32) {}, [](u32) {});
  return hits;
}

}  // namespace gpu4fs::replay
