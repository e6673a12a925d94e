// Reads and writes of host code on a namespace, one at a time for each calling thread.
//
// Bytes pass through buffers that the controller reaches, in pieces of at most transfer_bytes_max(). A command without
// an answer in time is aborted, and submitted once more if the controller ends it so. There is one reset if the Abort
// does not help, if the command is late again, or for a controller with a fatal status: the controller is quiesced and
// brought up again, and every command that was left is submitted once more. Reads, writes, zeroes, deallocation and
// flushes may be repeated without harm. A command that is left a second time, or an answer that cannot be, makes the
// device lost: from then on every call answers Status::device_failed. The process goes on.
//
// A flush is of no use if writes in front of it were lost by the reset, so a reset of a controller with a volatile
// write cache makes the next flush of the namespace fail with Status::io_error, once. A reset keeps the cache's content
// by the specification, but not every controller is known to.
#pragma once

#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "base/atomics.hpp"
#include "base/status.hpp"
#include "nvme/controller.hpp"

namespace gpu4fs::nvme {

// Resets of one controller, shared by all its namespaces.
class ControllerSession {
 public:
  // `controller` outlives this. `queue_count`: the first ones, which are used; 0: all.
  explicit ControllerSession(Controller& controller, u32 queue_count = 0)
      : controller_(controller), queue_count_(queue_count != 0 ? queue_count : controller.queue_count()) {}

  Controller& controller() { return controller_; }
  u32 queue_count() const { return queue_count_; }

  // While others use the controller's other queues, a reset makes new queues and leaves those before as they are. Each
  // takes memory, so there are few. Any thread.
  void share_queues(bool are_shared);
  // Resets the controller, which has failed, unless somebody has since there were `seen` resets. False: the device is
  // lost. Any thread.
  bool reset(u64 seen) { return recover(seen, true); }
  // As those of the controller, but never while it is reset. Any thread.
  void abort(u16 queue_id, u16 command_id);
  void look();
  // The queues of others in former lives, which are quiet: visit(VirtualQueue&). Any thread.
  template <class Visit>
  void for_each_former(Visit&& visit) {
    const std::shared_lock<std::shared_mutex> guard(in_use_, std::try_to_lock);
    if (!guard.owns_lock()) return;
    controller_.for_each_former([&](VirtualQueue& queue) {
      if (queue.queue_id > queue_count_) visit(queue);
    });
  }
  // Ends the controller's DMA if nobody has, after a failure. Any thread.
  void quiesce() { quiesce_once(); }

  // Submits the command, waits for its outcome, and repeats it once after a reset. Any thread.
  Status execute(u32 queue_index, const SubmissionEntry& command);
  // Resets that have happened.
  u64 reset_count() const { return load<Order::acquire, Scope::engine>(&reset_count_); }
  // Commands that were late and that an Abort has ended.
  u64 abort_count() const { return load<Order::relaxed, Scope::engine>(&abort_count_); }
  // Why the device is lost; none: it is not.
  Failure lost_because() const { return static_cast<Failure>(load<Order::acquire, Scope::engine>(&lost_because_)); }

 private:
  bool execute_once(u32 queue_index, const SubmissionEntry& command, Outcome& outcome);
  void look_for_late_commands(VirtualQueue& queue);
  void quiesce_once();
  // After an attempt that began when there had been `seen` resets. False: the device is lost.
  bool recover(u64 seen, bool may_reset);
  bool restart(bool may_reset);
  void tell_return();

  Controller& controller_;
  u32 queue_count_;
  u32 are_shared_ = 0;        // atomic
  u32 anew_count_ = 0;        // resets that have made new queues
  std::shared_mutex in_use_;  // exclusive: the queues are made new
  std::mutex quiescing_;
  u64 reset_count_ = 0;
  u64 abort_count_ = 0;
  u32 lost_because_ = 0;
};

class BlockIo {
 public:
  // One of controller().namespaces(), which is usable. Takes buffers from `memory`. Throws ControllerError.
  BlockIo(ControllerSession& session, DmaMemory& memory, u32 namespace_id, u32 buffer_count = 4);

  const NamespaceInfo& info() const { return info_; }
  u64 size_bytes() const { return info_.block_count * info_.block_bytes; }

  // Offsets and lengths in bytes, multiples of a block, inside of the namespace; otherwise out_of_range or unaligned.
  Status read(u64 offset, std::span<u8> bytes);
  Status write(u64 offset, std::span<const u8> bytes, bool force_unit_access = false);
  // not_supported if the controller has no such command.
  Status write_zeroes(u64 offset, u64 length, bool may_deallocate);
  // Ranges of a device that were given back; what they read as afterwards depends on info().
  struct Range {
    u64 offset;
    u64 length;
  };
  Status deallocate(std::span<const Range> ranges);
  Status flush();

 private:
  struct Buffer {
    DmaBlock data;
    DmaBlock list;
  };
  class Borrowed;

  Status check_range(u64 offset, u64 length) const;
  SubmissionEntry command(IoOpcode opcode, u64 offset, u64 length) const;
  Status transfer(IoOpcode opcode, const Buffer& buffer, u64 offset, u64 length, u32 flags);
  u32 next_queue();

  ControllerSession& session_;
  NamespaceInfo info_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<Buffer> free_;
  u32 turn_ = 0;
  u64 flushed_resets_ = 0;  // atomic
};

}  // namespace gpu4fs::nvme
