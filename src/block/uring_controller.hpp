// A controller whose threads have their operations in flight through io_uring. Host only.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "block/blocking_worker.hpp"
#include "block/controller.hpp"

namespace gpu4fs::block {

class UringWorker;

class UringController final : public Controller {
 public:
  // DeviceError: io_uring is not allowed or not there; the message says why and what to change.
  UringController(device::IoQueueShared& shared, const std::vector<const BlockMedium*>& mediums,
                  ControllerOptions options);
  ~UringController() override;

  std::string describe() const override;
  void stop() override;
  bool forget_medium(u32 device) override;

 private:
  friend class UringWorker;

  BlockingWorker& blocking(u32 device) { return blocking_[device]; }

  std::deque<BlockingWorker> blocking_;  // by device: nobody waits for the errors of another one
  std::vector<std::unique_ptr<UringWorker>> workers_;
};

}  // namespace gpu4fs::block
