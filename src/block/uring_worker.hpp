// A thread of a UringController. Host only.
//
// It takes requests, groups those that follow each other, and has up to `depth` operations in flight. Write-backs that
// nobody waits for alone come in any order of single pages. While `background_depth` operations of them are in flight,
// the others are collected, so that neighbours become one operation and the medium is busy all the same.
//
// It sleeps in one call of the system for completions and for its doorbell, whose eventfd is read by an operation of
// the ring. With `depth` operations in flight it takes no requests, so it does not announce that sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "block/controller.hpp"
#include "block/request_batch.hpp"
#include "block/uring.hpp"
#include "block/uring_controller.hpp"

namespace gpu4fs::block {

class UringWorker {
 public:
  // Returns when the thread runs. DeviceError: it cannot.
  UringWorker(UringController& controller, u32 number, std::vector<int> files);
  ~UringWorker();  // after begin_stop() of the controller
  void join();     // the same
  // Returns when the ring uses no file of the device; another one may get its descriptor. False: the kernel does not
  // release the file as long as the ring is there. Any thread but the worker's.
  bool unregister_file(u32 device);
  UringWorker(const UringWorker&) = delete;
  UringWorker& operator=(const UringWorker&) = delete;

  const std::string& remarks() const { return remarks_; }

 private:
  struct Operation {
    RequestGroup group;
    u64 done = 0;
    u64 first_part = 0;  // of those that are left
    bool is_background = false;
  };

  void serve(Uring& ring);
  void issue_all(Uring& ring);
  void issue_from(Uring& ring, RequestBatch* batch, bool is_background);
  bool needs_thread(const RequestGroup& group) const;
  void issue(Uring& ring, u32 index);
  void prepare_transfer(Uring& ring, io_uring_sqe* entry, Operation& operation);
  void wait(Uring& ring);
  void wait_for_kernels(Uring& ring);
  void read_doorbell(Uring& ring);
  void reap(Uring& ring);
  void handle(Uring& ring, u32 index, i32 result);
  void end_operation(u32 index, int error);
  void unregister_files(Uring& ring);
  u32 in_flight() const { return static_cast<u32>(operations_.size() - free_.size()); }

  UringController& controller_;
  u32 number_;
  RequestBatch batch_;
  RequestBatch background_;
  u32 background_in_flight_ = 0;
  std::vector<Operation> operations_;
  std::vector<u32> free_;  // indices of operations
  bool is_reading_doorbell_ = false;
  u64 doorbell_value_ = 0;
  u32 empty_looks_ = 0;
  std::string remarks_;
  std::mutex unregister_mutex_;
  std::condition_variable unregistered_;
  std::atomic<u64> unregister_{0};  // one bit for each device; changed under the mutex
  u64 kept_files_ = 0;              // of them, those that the kernel did not release
  bool has_ended_ = false;
  std::thread thread_;
};

}  // namespace gpu4fs::block
