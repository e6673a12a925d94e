#include "device/stack/fault_layer.hpp"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/limits.hpp"

namespace gpu4fs::device {

namespace {

constexpr u64 sector_bytes = 512;

}  // namespace

FaultLayer::FaultLayer(FaultRules rules) : rules_(std::move(rules)), random_state_(rules_.seed) {}

u64 FaultLayer::fault_count() const {
  const std::lock_guard guard(mutex_);
  return fault_count_;
}

// splitmix64 (Steele, Lea, Flood 2014).
u64 FaultLayer::random() {
  random_state_ += 0x9e3779b97f4a7c15ull;
  u64 value = random_state_;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

bool FaultLayer::strikes(FaultKind kind, u64 offset, u64 length) {
  const std::lock_guard guard(mutex_);
  return strikes_locked(kind, offset, length);
}

bool FaultLayer::strikes_locked(FaultKind kind, u64 offset, u64 length) {
  bool hit = false;
  for (FaultRule& rule : rules_.rules) {
    const bool touches = length == 0 ? rule.end == ~u64{0} : offset < rule.end && offset + length > rule.begin;
    if (rule.kind != kind || !touches) continue;
    ++rule.seen;
    if (rule.nth != 0 && rule.seen != rule.nth) continue;
    hit |= rule.probability >= 1 || static_cast<double>(random() >> 11) * 0x1p-53 < rule.probability;
  }
  if (hit && kind != FaultKind::delay) ++fault_count_;
  return hit;
}

Status FaultLayer::may(FaultKind error, Status status, u64 offset, u64 length) {
  if (strikes(FaultKind::delay, offset, length)) {
    std::this_thread::sleep_for(std::chrono::microseconds(rules_.delay_us));
  }
  const std::lock_guard guard(mutex_);
  gone_ = gone_ || strikes_locked(FaultKind::gone, offset, length);
  if (gone_) return Status::device_failed;
  return strikes_locked(error, offset, length) ? status : Status::ok;
}

Status FaultLayer::may_read(u64 offset, u64 length) {
  return may(FaultKind::read_error, Status::medium_error, offset, length);
}

Status FaultLayer::may_write(u64 offset, u64 length) {
  return may(FaultKind::write_error, Status::device_failed, offset, length);
}

Status FaultLayer::may_flush() {
  return may(FaultKind::flush_error, Status::device_failed, 0, 0);
}

void FaultLayer::flip_bit(std::span<u8> bytes) {
  const u64 bit = random_below(bytes.size() * 8);
  bytes[bit / 8] = static_cast<u8>(bytes[bit / 8] ^ (1u << (bit % 8)));
}

bool FaultLayer::read(u64 offset, std::span<u8> bytes) {
  const std::lock_guard guard(mutex_);
  if (bytes.empty() || !strikes_locked(FaultKind::decay, offset, bytes.size())) return false;
  flip_bit(bytes);
  return true;
}

void FaultLayer::write(std::vector<StackWrite>& writes) {
  const std::lock_guard guard(mutex_);
  std::vector<StackWrite> stored;
  for (StackWrite& write : writes) {
    const u64 offset = write.offset;
    const u64 length = write.bytes.size();
    if (length == 0 || strikes_locked(FaultKind::lost, offset, length)) continue;
    if (strikes_locked(FaultKind::flip, offset, length)) flip_bit(write.bytes);
    if (strikes_locked(FaultKind::torn, offset, length)) {
      write.bytes.resize(random_below((length + sector_bytes - 1) / sector_bytes) * sector_bytes);
    }
    if (strikes_locked(FaultKind::misdirect, offset, length) && size_bytes_ > length) {
      const u64 page_count = (size_bytes_ - length) / page_size + 1;
      const u64 elsewhere = random_below(page_count) * page_size + offset % page_size;
      if (elsewhere + length <= size_bytes_) write.offset = elsewhere;
    }
    if (!write.bytes.empty()) stored.push_back(std::move(write));
  }
  writes = std::move(stored);
}

}  // namespace gpu4fs::device
