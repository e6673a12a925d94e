// The layer `record`: every write with its bytes and every flush goes into a log
// (device/stack/write_log.hpp).
//
// What cannot be recorded is not done: with a log that has failed, writes and flushes fail.
#pragma once

#include <memory>
#include <string>

#include "device/stack/device_stack.hpp"
#include "device/stack/write_log.hpp"

namespace gpu4fs::device {

class RecordLayer : public StackLayer {
 public:
  // `name`: the device's, for the log.
  RecordLayer(std::shared_ptr<WriteLog> log, std::string name);

  Status may_write(u64 offset, u64 length) override;
  Status may_flush() override;
  void flushed() override;
  void write(std::vector<StackWrite>& writes) override;
  void attach(u64 size_bytes) override { size_bytes_ = size_bytes; }

 private:
  static constexpr u32 no_device = ~u32{0};
  // A device enters the log with what is done to it first, so that one that is only read leaves no
  // log.
  Status begin();

  std::shared_ptr<WriteLog> log_;
  std::string name_;
  u64 size_bytes_ = 0;
  std::mutex mutex_;
  u32 device_ = no_device;  // under mutex_
};

}  // namespace gpu4fs::device
