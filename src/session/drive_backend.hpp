// The controller behind emulated drives: it has threads and doorbells, but no requests come through the I/O queue.
// Private to the layer.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "block/controller.hpp"
#include "device/medium_file.hpp"
#include "session/emulated_drives.hpp"

namespace gpu4fs::session {

class DriveBackend final : public block::Controller {
 public:
  // DeviceError: a thread or what wakes it cannot be had.
  DriveBackend(device::IoQueueShared& shared, const std::vector<const block::BlockMedium*>& mediums,
               EmulatedDrives& drives, EngineWatch watch)
      : Controller(shared, mediums, {}), drives_(drives) {
    open_doorbells(drives.thread_count());
    drives.start(shared, *this, std::move(watch));
    try {
      for (u32 i = 0; i < drives.thread_count(); ++i) {
        threads_.emplace_back([this, i] {
          const block::ThreadTimes::Scope counted(thread_times());
          drives_.serve(i);
        });
      }
    } catch (const std::system_error& error) {
      DriveBackend::stop();
      throw device::DeviceError(std::string("cannot start a thread for emulated drives: ") + error.what(),
                                error.code().value());
    }
  }
  ~DriveBackend() override { DriveBackend::stop(); }

  void stop() override {
    drives_.begin_stop();
    begin_stop();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  std::string describe() const override { return drives_.describe(); }

 private:
  EmulatedDrives& drives_;
  std::vector<std::thread> threads_;
};

}  // namespace gpu4fs::session
