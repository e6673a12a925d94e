#include "block/uring_controller.hpp"

#include <utility>

#include "base/check.hpp"
#include "block/uring_worker.hpp"
#include "device/queue/io_consumer.hpp"

namespace gpu4fs::block {

UringController::UringController(device::IoQueueShared& shared, const std::vector<const BlockMedium*>& mediums,
                                 ControllerOptions options)
    : Controller(shared, mediums, std::move(options)) {
  for (u32 i = 0; i < device_count_max; ++i) blocking_.emplace_back(thread_times());
  GPU4FS_CHECK_GT(this->options().depth, 0u);
  const u32 count = this->options().thread_count == 0 ? 1 : this->options().thread_count;
  open_doorbells(count);
  std::vector<int> files;
  for (const BlockMedium* const medium : mediums) files.push_back(medium == nullptr ? -1 : medium->descriptor());
  try {
    for (u32 i = 0; i < count; ++i) workers_.push_back(std::make_unique<UringWorker>(*this, i, files));
  } catch (...) {
    UringController::stop();
    throw;
  }
}

UringController::~UringController() {
  UringController::stop();
}

void UringController::stop() {
  begin_stop();
  for (const auto& worker : workers_) worker->join();
  for (BlockingWorker& worker : blocking_) worker.finish();
}

bool UringController::forget_medium(u32 device) {
  bool is_released = Controller::forget_medium(device);
  for (const auto& worker : workers_) is_released &= worker->unregister_file(device);
  return is_released;
}

std::string UringController::describe() const {
  const u64 count = workers_.size();
  return "io_uring, " + std::to_string(count) + (count == 1 ? " thread" : " threads") + " with up to " +
         std::to_string(options().depth) + " operations in flight" + workers_.front()->remarks();
}

}  // namespace gpu4fs::block
