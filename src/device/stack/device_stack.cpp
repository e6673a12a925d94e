#include "device/stack/device_stack.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "device/device_access.hpp"
#include "device/memory/scattered_pages.hpp"

namespace gpu4fs::device {

namespace detail {

Status begin_stacked_read(DeviceStack& stack, u64 offset, u64 length) {
  return stack.begin_read(offset, length);
}

Status begin_stacked_write(DeviceStack& stack, u64 offset, u64 length) {
  return stack.begin_write(offset, length);
}

void end_stacked_write(DeviceStack& stack, u64 offset, u64 length) {
  stack.end_write(offset, length);
}

void cancel_stacked_write(DeviceStack& stack, u64 offset) {
  stack.cancel_write(offset);
}

void note_look_up(DeviceStack& stack, u64 offset) {
  stack.note_look_up(offset);
}

}  // namespace detail

DeviceStack::DeviceStack(std::vector<std::unique_ptr<StackLayer>> layers) : layers_(std::move(layers)) {
  changes_writes_ =
      std::any_of(layers_.begin(), layers_.end(), [](const auto& layer) { return layer->changes_writes(); });
}

void DeviceStack::attach(u64 size_bytes) {
  if (size_bytes_ == size_bytes) return;
  size_bytes_ = size_bytes;
  for (const auto& layer : layers_) layer->attach(size_bytes);
}

void DeviceStack::map(u8* base, bool writable) {
  const std::lock_guard guard(mutex_);
  GPU4FS_CHECK(old_bytes_.empty());
  base_ = base;
  writable_ = writable;
}

Status DeviceStack::begin_read(u64 offset, u64 length) {
  for (const auto& layer : layers_) GPU4FS_TRY(layer->may_read(offset, length));
  const std::lock_guard guard(mutex_);
  GPU4FS_CHECK(base_ != nullptr);
  GPU4FS_CHECK_LE(offset + length, size_bytes_);
  if (!writable_) return Status::ok;
  for (const auto& layer : layers_) layer->read(offset, {base_ + offset, length});
  return Status::ok;
}

Status DeviceStack::may_write(u64 offset, u64 length) {
  for (const auto& layer : layers_) GPU4FS_TRY(layer->may_write(offset, length));
  return Status::ok;
}

// The writes that arrive at the bottom.
std::vector<StackWrite> DeviceStack::pass(u64 offset, const u8* bytes, u64 length) {
  std::vector<StackWrite> writes;
  writes.push_back({offset, std::vector<u8>(bytes, bytes + length)});
  for (const auto& layer : layers_) layer->write(writes);
  return writes;
}

Status DeviceStack::begin_write(u64 offset, u64 length) {
  GPU4FS_TRY(may_write(offset, length));
  const std::lock_guard guard(mutex_);
  GPU4FS_CHECK(base_ != nullptr);
  GPU4FS_CHECK(writable_);
  GPU4FS_CHECK_LE(offset + length, size_bytes_);
  if (changes_writes_) old_bytes_[offset] = std::vector<u8>(base_ + offset, base_ + offset + length);
  return Status::ok;
}

void DeviceStack::end_write(u64 offset, u64 length) {
  const std::lock_guard guard(mutex_);
  GPU4FS_CHECK(base_ != nullptr);
  const std::vector<StackWrite> arrived = pass(offset, base_ + offset, length);
  if (!changes_writes_) return;
  const auto old = old_bytes_.find(offset);
  GPU4FS_CHECK(old != old_bytes_.end());
  GPU4FS_CHECK_EQ(old->second.size(), length);
  std::memcpy(base_ + offset, old->second.data(), length);
  old_bytes_.erase(old);
  for (const StackWrite& write : arrived) {
    GPU4FS_CHECK_LE(write.offset + write.bytes.size(), size_bytes_);
    std::memcpy(base_ + write.offset, write.bytes.data(), write.bytes.size());
  }
}

void DeviceStack::cancel_write(u64 offset) {
  for (const auto& layer : layers_) layer->write_cancelled(offset);
  const std::lock_guard guard(mutex_);
  old_bytes_.erase(offset);
}

void DeviceStack::note_look_up(u64 offset) {
  for (const auto& layer : layers_) layer->looked_up(offset);
}

Status DeviceStack::read(u64 offset, u8* bytes, u64 length) {
  for (const auto& layer : layers_) GPU4FS_TRY(layer->may_read(offset, length));
  const std::lock_guard guard(mutex_);
  for (const auto& layer : layers_) layer->read(offset, {bytes, length});
  return Status::ok;
}

Status DeviceStack::write(u64 offset, const u8* bytes, u64 length, const Store& store) {
  GPU4FS_TRY(may_write(offset, length));
  const std::lock_guard guard(mutex_);
  for (const StackWrite& write : pass(offset, bytes, length)) {
    store(write.offset, write.bytes.data(), write.bytes.size());
  }
  return Status::ok;
}

Status DeviceStack::begin_flush() {
  for (const auto& layer : layers_) GPU4FS_TRY(layer->may_flush());
  return Status::ok;
}

void DeviceStack::end_flush() {
  for (const auto& layer : layers_) layer->flushed();
}

}  // namespace gpu4fs::device
