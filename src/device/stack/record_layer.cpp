#include "device/stack/record_layer.hpp"

#include <utility>

namespace gpu4fs::device {

RecordLayer::RecordLayer(std::shared_ptr<WriteLog> log, std::string name)
    : log_(std::move(log)), name_(std::move(name)) {}

Status RecordLayer::begin() {
  const std::lock_guard guard(mutex_);
  if (device_ == no_device) device_ = log_->add_device(name_, size_bytes_);
  return log_->has_failed() ? Status::device_failed : Status::ok;
}

Status RecordLayer::may_write(u64 offset, u64 length) {
  (void)offset, (void)length;
  return begin();
}

Status RecordLayer::may_flush() {
  GPU4FS_TRY(begin());
  log_->add(WriteLogKind::flush_begin, device_, 0, nullptr, 0);
  return Status::ok;
}

void RecordLayer::flushed() {
  log_->add(WriteLogKind::flush_end, device_, 0, nullptr, 0);
}

void RecordLayer::write(std::vector<StackWrite>& writes) {
  for (const StackWrite& write : writes) {
    log_->add(WriteLogKind::write, device_, write.offset, write.bytes.data(), write.bytes.size());
  }
}

}  // namespace gpu4fs::device
