// Devices that wait to replace a lost one (mount option `spare=`, `gpu4fs device spare`).
//
//   SpareDevices spares(mounted, exchange, rebuilder);
//   spares.add(path, force);      // checked and locked; nothing is written to it
//   spares.device_lost();         // any thread, returns at once: the first spare that is large enough replaces it
//   spares.stop();                // before the exchange is destroyed
//
// Only this mount knows the spares: the medium does not name them. All functions except the constructor are for any
// thread. Host only.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/types.hpp"
#include "maintenance/device_exchange.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/rebuilder.hpp"
#include "pool/pool_device_file.hpp"

namespace gpu4fs::maintenance {

enum class SpareState {
  waiting,
  taken,    // it is replacing a device
  refused,  // the last attempt to use it failed
};

const char* spare_state_name(SpareState state);

struct SpareReport {
  std::string path;
  u64 size_bytes = 0;
  SpareState state = SpareState::waiting;
};

class SpareDevices {
 public:
  // Everything outlives it.
  SpareDevices(MountedPool& mounted, DeviceExchange& exchange, Rebuilder& rebuilder);
  ~SpareDevices();
  SpareDevices(const SpareDevices&) = delete;
  SpareDevices& operator=(const SpareDevices&) = delete;

  // Returns "" or why not. `force`: also a file that holds something.
  std::string add(const std::string& path, bool force);
  std::string remove(const std::string& path);
  [[nodiscard]] std::vector<SpareReport> list() const;

  // Also if a spare that replaced a device is lost itself: then the next spare is used.
  void device_lost();
  void stop();

 private:
  struct Spare {
    std::string path;       // with its layers
    pool::DeviceFile file;  // absent while it is taken
    u64 size_bytes = 0;
    SpareState state = SpareState::waiting;
  };

  void run();
  [[nodiscard]] u64 bytes_least() const;
  [[nodiscard]] bool is_member(const pool::DeviceFile& file) const;
  u64 lost_devices(std::unique_lock<std::mutex>& lock);
  void replace_lost(std::unique_lock<std::mutex>& lock);
  bool find_replacement(std::unique_lock<std::mutex>& lock, u32 device);
  bool try_spare(std::unique_lock<std::mutex>& lock, std::list<Spare>::iterator spare, u32 device);

  MountedPool& mounted_;
  DeviceExchange& exchange_;
  Rebuilder& rebuilder_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex:
  std::list<Spare> spares_;
  bool is_look_due_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace gpu4fs::maintenance
