// A controller of threads that wait for each operation (preadv, pwritev): where io_uring is not allowed. Host only.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "block/controller.hpp"

namespace gpu4fs::block {

class ThreadController final : public Controller {
 public:
  // `reason`: why it is this controller. DeviceError: there are no threads.
  ThreadController(device::IoQueueShared& shared, const std::vector<const BlockMedium*>& mediums,
                   ControllerOptions options, std::string reason);
  ~ThreadController() override;

  std::string describe() const override;
  void stop() override;

 private:
  void run(u32 number);
  bool take_group(RequestGroup* group);
  bool has_work() const;
  void wait(u32 number);
  void wait_for_kernels();

  std::string reason_;
  std::mutex mutex_;  // of batch_
  RequestBatch batch_;
  std::atomic<u64> batch_size_{0};
  std::atomic<bool> has_poller_{false};
  std::vector<std::thread> threads_;
};

}  // namespace gpu4fs::block
