// An emulated drive that has I/O queues and no registers, served by a thread of the host. What commands do is the
// caller's; when they complete is the profile's.
//
// Several functions of one object do not run at the same time, except stop(), set_carry_out() and the questions.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/types.hpp"
#include "device/nvme/spec/commands.hpp"
#include "device/nvme/spec/queue_entries.hpp"
#include "nvme/emulated/profile.hpp"

namespace gpu4fs::nvme {

// Memory that the host of the drive accesses too; zeroed.
struct ServedQueue {
  const SubmissionEntry* submissions;
  CompletionEntry* completions;
  const u32* submission_doorbell;
  const u32* completion_doorbell;
  u32 depth;  // of both queues, a power of two
  u16 id;
};

class ServedDrive {
 public:
  // Carries out a command. No answer: the command never completes. Null: none completes.
  using CarryOut = std::function<std::optional<StatusCode>(const SubmissionEntry&)>;

  // `order_seed`: 0: commands of equal kind complete in the order of their arrival; otherwise in random order.
  ServedDrive(const std::vector<ServedQueue>& queues, const DriveProfile& profile, CarryOut carry_out,
              u32 order_seed = 0);
  ServedDrive(const ServedDrive&) = delete;
  ServedDrive& operator=(const ServedDrive&) = delete;

  // When this returns, the function before does not run any more. Any thread.
  void set_carry_out(CarryOut carry_out);

  struct Step {
    u32 taken = 0;
    u32 completed = 0;
  };
  // Takes commands, carries them out, and posts completions that are due. Never waits. If commands take long, it is one
  // of each queue.
  Step step();

  // Whether there is nothing to do until a doorbell rings, or for ever after stop(). Any thread.
  bool is_idle() const;
  // Whether a command was shown whose completion the host has not taken, before stop(). Any thread.
  bool is_in_use() const;

  // A command of a queue, counted from 0, that was taken and has no completion ends as aborted. False: there is none.
  // Any thread.
  bool abort(u32 queue, u16 command_id);

  // When this returns, the drive touches no memory of the host any more. Any thread.
  void stop();

 private:
  struct Queue {
    ServedQueue memory;
    u32 fetched = 0;
    u32 posted = 0;
  };
  struct Pending {
    u64 due_ns;
    u64 number;
    u32 queue;
    u16 command_id;
    StatusCode status;
    bool operator>(const Pending& other) const {
      return due_ns != other.due_ns ? due_ns > other.due_ns : number > other.number;
    }
  };

  u32 take(u32 index);
  u32 post(u64 now_ns);
  u64 due_ns(const SubmissionEntry& entry, u64 now_ns);

  std::vector<Queue> queues_;
  DriveProfile profile_;
  CarryOut carry_out_;
  bool is_random_;
  std::mt19937 random_;
  std::mutex mutex_;
  std::atomic<bool> is_stopped_{false};
  u64 number_ = 0;
  u64 bandwidth_free_ns_ = 0;
  std::priority_queue<Pending, std::vector<Pending>, std::greater<>> pending_;
  std::vector<Pending> waiting_;  // of step()
  // Commands that are never answered: queue, identifier.
  std::set<std::pair<u32, u16>> unanswered_;
  std::atomic<u64> pending_count_{0};
  std::vector<std::atomic<u32>> fetched_;  // by queue
};

}  // namespace gpu4fs::nvme
