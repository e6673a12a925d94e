// The layer `record`: stores every write, with its bytes, and every flush in a log (device/stack/write_log.hpp).
//
// If the log has failed, writes and flushes fail, because they cannot be recorded.
#pragma once

#include <memory>
#include <string>

#include "device/stack/device_stack.hpp"
#include "device/stack/write_log.hpp"

namespace gpu4fs::device {

class RecordLayer : public StackLayer {
 public:
  // `name`: that of the device, for the log.
  RecordLayer(std::shared_ptr<WriteLog> log, std::string name);

  Status may_write(u64 offset, u64 length) override;
  Status may_flush() override;
  void flushed() override;
  void write(std::vector<StackWrite>& writes) override;
  void attach(u64 size_bytes) override { size_bytes_ = size_bytes; }

 private:
  static constexpr u32 no_device = ~u32{0};
  // A device is entered into the log by its first write or flush, so a device that is only read leaves no log.
  Status begin();

  std::shared_ptr<WriteLog> log_;
  std::string name_;
  u64 size_bytes_ = 0;
  std::mutex mutex_;
  u32 device_ = no_device;  // under mutex_
};

}  // namespace gpu4fs::device
