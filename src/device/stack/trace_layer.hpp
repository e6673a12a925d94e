// The layer `trace`: lists every access in a trace (device/stack/access_trace.hpp), without its bytes.
//
// A read is listed when it is tried, so it may still fail in a layer below. A write is listed when its bytes have
// passed the layers above, a flush when it is done.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "device/stack/access_trace.hpp"
#include "device/stack/device_stack.hpp"

namespace gpu4fs::device {

class TraceLayer : public StackLayer {
 public:
  // `name`: that of the device, for the trace.
  TraceLayer(std::shared_ptr<AccessTrace> trace, std::string name) : trace_(std::move(trace)), name_(std::move(name)) {}

  Status may_read(u64 offset, u64 length) override {
    trace_->add(AccessKind::read, offset, length, name_);
    return Status::ok;
  }
  void write(std::vector<StackWrite>& writes) override {
    for (const StackWrite& write : writes) trace_->add(AccessKind::write, write.offset, write.bytes.size(), name_);
  }
  // What a process that is killed has flushed is in the file.
  void flushed() override {
    trace_->add(AccessKind::flush, 0, 0, name_);
    trace_->write_out();
  }

 private:
  std::shared_ptr<AccessTrace> trace_;
  std::string name_;
};

}  // namespace gpu4fs::device
