#include "block/request_faults.hpp"

#include <utility>

#include "base/check.hpp"

namespace gpu4fs::block {

using device::IoRequest;

void RequestFaults::fail(Predicate chooses, Status status) {
  const std::lock_guard lock(mutex_);
  rules_.push_back({std::move(chooses), {Fate::fails, status}});
}

void RequestFaults::hold(Predicate chooses) {
  const std::lock_guard lock(mutex_);
  rules_.push_back({std::move(chooses), {Fate::held, Status::ok}});
}

void RequestFaults::replace_results(Predicate chooses, i32 result, u32 count) {
  const std::lock_guard lock(mutex_);
  replacements_.push_back({std::move(chooses), result, count});
}

void RequestFaults::wait_until_held(u32 count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return held_.size() >= count; });
}

void RequestFaults::release_oldest() {
  {
    const std::lock_guard lock(mutex_);
    GPU4FS_CHECK(!held_.empty());
    released_.push_back(held_.front());
    held_.pop_front();
  }
  wake();
}

void RequestFaults::release_latest() {
  {
    const std::lock_guard lock(mutex_);
    GPU4FS_CHECK(!held_.empty());
    released_.push_back(held_.back());
    held_.pop_back();
  }
  wake();
}

void RequestFaults::release_all() {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(rules_, [](const Rule& rule) { return rule.verdict.fate == Fate::held; });
    released_.insert(released_.end(), held_.begin(), held_.end());
    held_.clear();
  }
  wake();
}

void RequestFaults::wake() {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    wake = wake_;
  }
  if (wake) wake();
}

void RequestFaults::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

RequestFaults::Verdict RequestFaults::judge(u32 slot, const IoRequest& request) {
  const std::lock_guard lock(mutex_);
  for (const Rule& rule : rules_) {
    if (!rule.chooses(request)) continue;
    if (rule.verdict.fate == Fate::held) {
      held_.push_back(slot);
      changed_.notify_all();
    }
    return rule.verdict;
  }
  return {Fate::passes, Status::ok};
}

bool RequestFaults::has_released() const {
  const std::lock_guard lock(mutex_);
  return !released_.empty();
}

bool RequestFaults::take_released(u32* slot) {
  const std::lock_guard lock(mutex_);
  if (released_.empty()) return false;
  *slot = released_.front();
  released_.pop_front();
  return true;
}

i32 RequestFaults::result_of(const IoRequest& first, i32 result) {
  const std::lock_guard lock(mutex_);
  for (Replacement& replacement : replacements_) {
    if (replacement.count == 0 || !replacement.chooses(first)) continue;
    --replacement.count;
    return replacement.result;
  }
  return result;
}

}  // namespace gpu4fs::block
