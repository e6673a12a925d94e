// Threads that serve an I/O queue (device/queue/io_queue_types.hpp) from files and block devices. Host only.
//
// Requests that follow each other on a medium are carried out together. Each completes with a status:
//
//   ok               carried out as a whole
//   medium_error     read: the medium cannot read the range, or has become shorter than it
//   device_failed    there is no such medium, or it is gone; write, flush: the medium did not accept or keep the bytes
//   not_supported    discard: the medium cannot
//   read_only        a change of a medium that is open for reading
//   out_of_range     the range reaches beyond the end of the medium
//   no_space         write: what is below the medium has no block for it
//   io_error         the system refused for a reason of its own, for example a lack of memory
//
// Short transfers are continued, and a call that was interrupted is made again. If requests that were carried out
// together fail, each is tried once alone: one bad sector is the error of its own request. After the first write that
// has failed alone, those behind it are tried together. A medium that fails these too gets no second tries of writes
// before it has done one. A flush covers what had completed before it was submitted. Requests that are in flight
// together have no order.
//
// Idle threads sleep, unless kernels produce (device::set_must_poll()). The end of the object waits until all requests
// that were submitted have completed; nobody submits or rings meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "block/block_medium.hpp"
#include "block/io_statistics.hpp"
#include "block/request_batch.hpp"
#include "block/request_faults.hpp"
#include "block/thread_times.hpp"
#include "device/queue/io_queue_types.hpp"

namespace gpu4fs::block {

struct MemoryRange {
  void* begin;
  u64 length;
};

enum class ControllerKind {
  automatic,  // io_uring where it is allowed, threads otherwise
  uring,
  threads,
};

struct ControllerOptions {
  ControllerKind kind = ControllerKind::automatic;
  u32 thread_count = 0;                   // 0: 1 with io_uring, otherwise 16
  u32 depth = 128;                        // operations in flight of each thread with io_uring
  u32 background_depth = 32;              // those of them that write back frames for which nobody waits
  u64 merge_bytes_max = 256 * page_size;  // of one operation
  u64 transfer_bytes_max = u64{1} << 30;  // of one call of the system
  std::function<void()> on_reports;       // called after requests were reported (device::take_reports()); any thread
  std::vector<MemoryRange> memory;        // most requests have their memory here: it is registered with the kernel
  RequestFaults* faults = nullptr;        // for tests
};

class Controller {
 public:
  // `mediums`: by index of the device, null: none; they outlive the controller.
  Controller(device::IoQueueShared& shared, const std::vector<const BlockMedium*>& mediums, ControllerOptions options);
  virtual ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // What serves the queue and why, for people: one line.
  virtual std::string describe() const = 0;

  // Waits until all requests that were submitted have completed; later ones are not carried out. The rest of the object
  // can be used. Again: does nothing.
  virtual void stop() = 0;

  // Whether requests may pass the queue. Not with faults, which are of requests in slots.
  bool carries_out_now() const { return options_.faults == nullptr; }
  // Carries out a request that is in no slot, in the calling thread. Returns the status that its completion would have.
  // Any thread.
  Status carry_out_now(const device::IoRequest& request);

  // Null: none; its requests fail. No request for the device is in flight. Any thread.
  void set_medium(u32 device, const BlockMedium* medium);
  // The same with none. Afterwards the medium can be closed, and nothing of the controller has its file. False: the
  // system keeps the file open until the end.
  virtual bool forget_medium(u32 device) {
    set_medium(device, nullptr);
    return true;
  }

  // Whether the device's medium can forget ranges. False also after the system has refused it (EOPNOTSUPP). Any
  // thread.
  bool can_discard(u32 device) const;
  // Outside of the queue: the medium may forget the range, as far as it can (BlockMedium::discardable()). The caller's
  // thread waits for the medium. No other request for the range is in flight. Status as above; `bytes`: of what was
  // forgotten. Any thread.
  struct Discarded {
    Status status;
    u64 bytes;
  };
  Discarded discard(u32 device, u64 offset, u64 length);

  IoStatistics statistics() const { return counters_.snapshot(); }
  // CPU time of all threads of the controller. Any thread.
  double cpu_seconds() const { return thread_times_.seconds(); }
  // The first error of a device: what was tried where, and why it failed; "" if there was none. Any thread.
  std::string first_error(u32 device) const;

 protected:
  static constexpr u64 batch_max = 256;     // requests that are taken together
  static constexpr u32 short_looks = 1000;  // of a thread that polls, before it takes rests of 20 us
  static constexpr int error_of_end = -1;   // in place of an errno: the medium ends before the range

  // A write-back of a frame that is written behind.
  static bool is_background(const device::IoRequest& request) {
    return request.operation == device::IoOperation::write && request.reports != 0;
  }

  device::IoQueueShared& shared() const { return shared_; }
  const ControllerOptions& options() const { return options_; }
  const BlockMedium* medium(u32 device) const { return mediums_[device].load(std::memory_order_acquire); }

  // Makes eventfds for consumers 0 to count - 1. DeviceError.
  void open_doorbells(u32 count);
  // Called first by the destructors of derived classes: the threads end when nothing is left to do.
  void begin_stop();
  ThreadTimes& thread_times() { return thread_times_; }
  bool is_stopping() const { return is_stopping_.load(std::memory_order_acquire); }

  // Takes up to `count` requests into the batch, or into `background` if it exists and nobody waits for the request
  // alone (is_background()). Requests that cannot be carried out are completed.
  void take_requests(RequestBatch* batch, u64 count, RequestBatch* background = nullptr);
  bool has_requests() const;
  // As device::may_sleep(), and nothing was released by the faults.
  bool may_sleep(u32 consumer, bool polls) const;
  // After finish(), once for several operations.
  void announce();
  // Of an operation that was carried out; `error`: 0, an errno or error_of_end. The caller announces the completions.
  void finish(const RequestGroup& group, int error);
  // The operation failed as a whole, and its requests are to be tried alone. Flushes of several requests are one.
  bool is_tried_apart(const RequestGroup& group, int error) const;
  // Carries out the requests of the group one by one, and finishes them. After a write that has failed, those that are
  // left are one operation.
  void carry_out_apart(const RequestGroup& group);
  // Carries out the operation by calls of the system, and finishes its requests.
  void serve(RequestGroup* group);
  i32 seen_result(const RequestGroup& group, i32 result) const;
  // Removes `done` bytes from the front of the parts.
  static void advance(RequestGroup* group, u64 done, u64* first_part);
  // How many parts one call of the system takes from the first on; the length of the only one may be cut.
  u32 parts_of_call(const RequestGroup& group, u64 first_part, u64* bytes) const;

 private:
  Status unusable(const device::IoRequest& request) const;
  // Counts `request_count` requests that were carried out together, and notes their error. Returns their status.
  Status account(const RequestGroup& group, u64 request_count, int error);
  void take_one(RequestBatch* batch, RequestBatch* background, u32 slot, bool is_released);
  void complete(u32 slot, Status status);
  // Returns as for finish().
  int carry_out(RequestGroup* group);
  bool try_alone(RequestGroup* group);
  void note_error(const RequestGroup& group, int error);
  void note_text(u32 device, const std::string& text);
  int transfer(RequestGroup* group, const BlockMedium& medium);
  static int transfer_by_drive(const RequestGroup& group, device::HostDrive& drive);

  device::IoQueueShared& shared_;
  ControllerOptions options_;
  std::array<std::atomic<const BlockMedium*>, device_count_max> mediums_;
  std::array<std::atomic<bool>, device_count_max> refuses_discards_{};
  std::array<std::atomic<bool>, device_count_max> refuses_writes_{};  // of several places, and has done none since
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> has_reports_{false};
  u32 doorbell_count_ = 0;
  IoCounters counters_;
  ThreadTimes thread_times_;
  mutable std::mutex error_mutex_;
  std::array<std::string, device_count_max> first_errors_;
};

// Starts threads that serve the queue. DeviceError: there is no way, or not the one that was asked for; the message
// says why.
std::unique_ptr<Controller> start_controller(device::IoQueueShared& shared,
                                             const std::vector<const BlockMedium*>& mediums,
                                             ControllerOptions options = {});

}  // namespace gpu4fs::block
