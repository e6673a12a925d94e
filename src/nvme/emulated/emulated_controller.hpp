// An NVMe controller in a thread of this process.
//
// It has registers, doorbells, queues and commands as the specification has them, over memory that it shares with the
// driver, and shares no code with the driver but the structures of device/nvme/spec. Its I/O commands are those of
// device/nvme/drive. It watches the driver: what a controller could object to is noted as a complaint, and the first
// one stays. It can fail in many ways, and lie.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/nvme/spec/commands.hpp"
#include "device/nvme/spec/identify.hpp"
#include "device/nvme/spec/queue_entries.hpp"
#include "nvme/emulated/bus.hpp"
#include "nvme/emulated/medium.hpp"
#include "nvme/emulated/profile.hpp"
#include "nvme/register_access.hpp"

namespace gpu4fs::nvme {

// What a hostile controller may do in place of a right completion.
enum class Misbehaviour : u32 {
  none,
  unknown_id,       // completes a command that there is not
  twice,            // completes a command twice
  wrong_phase,      // leaves the phase as it was
  impossible_head,  // reports a head beyond the queue
  head_beyond_tail,
  wrong_queue,
  silence,       // never completes the command
  random_entry,  // sixteen random bytes
  fatal,         // CSTS.CFS, and stops working
  vanishes,      // its registers read as ones
};
inline constexpr u32 misbehaviour_count = 11;

struct EmulatedNamespace {
  u32 id = 1;
  std::shared_ptr<Medium> medium;
};

struct EmulatedOptions {
  std::vector<EmulatedNamespace> namespaces;
  u32 queue_entries_max = 256;
  u32 queues_max = 8;
  u32 doorbell_stride_shift = 0;  // CAP.DSTRD
  u8 transfer_shift = 5;          // MDTS
  bool has_zeroes = true;
  bool has_deallocate = true;
  bool has_abort = true;  // otherwise no command is aborted
  bool has_weighted_arbitration = false;
  bool in_random_order = false;
  u32 seed = 1;
  DriveProfile profile = profile_unlimited;
  // Called for each I/O command, in the controller's thread. Not success: the command fails with this status.
  std::function<StatusCode(const SubmissionEntry&)> inject;
  // Called for each I/O command that is to be completed.
  std::function<Misbehaviour(const SubmissionEntry&)> misbehave;
  // Called with the data of each Identify command before it is given out.
  std::function<void(IdentifySelect, u8*)> falsify;
  u64 capabilities_flipped = 0;  // bits of CAP that are inverted
};

class EmulatedController : public RegisterAccess {
 public:
  // `bus` outlives this.
  EmulatedController(EmulatedBus& bus, EmulatedOptions options);
  ~EmulatedController() override;

  u32 read_32(u32 offset) override;
  void write_32(u32 offset, u32 value) override;
  u32* doorbell(u32 offset) override;
  void stop_dma() override;
  void allow_dma() override;

  // As a drive that is pulled out: registers read as ones, and nothing is touched any more.
  void remove();
  // Stops at once, and loses what was only in the volatile caches. Works again after a reset by the driver.
  void lose_power(PowerLoss how, u32 seed);

  // What the driver did wrong; empty: nothing.
  std::string complaint() const;
  bool is_dma_allowed() const;
  u64 completed_count() const { return completed_count_.load(); }
  // Abort commands that it has received.
  u64 abort_count() const { return abort_count_.load(); }

 private:
  class HostDrive;
  struct Queue {
    bool exists = false;
    u64 bus_address = 0;
    u32 depth = 0;
    u32 position = 0;                                // submissions: the head; completions: the tail
    u32 phase = 1;                                   // completions
    u32 other = 0;                                   // submissions: their completion queue
    QueuePriority priority = QueuePriority::medium;  // submissions
  };
  struct Pending {
    u32 queue;
    SubmissionEntry entry;
    u64 due_ns;
  };

  void work();
  bool work_once();
  bool fetch(u32 queue);
  bool fetch_of_priority(QueuePriority priority, u32 count);
  bool complete_due();
  void post(u32 queue, const SubmissionEntry& entry, StatusCode status, u32 result);
  bool has_room(u32 completion_queue);
  void put_completion(u32 completion_queue, const CompletionEntry& entry, bool keeps_phase);
  u64 due_of(const SubmissionEntry& entry, u32 queue);

  void reset();
  void enable();
  void complain(const std::string& text);
  u32 doorbell_value(u32 queue, bool is_completion);

  StatusCode carry_out(const SubmissionEntry& entry);
  StatusCode carry_out_admin(const SubmissionEntry& entry, u32& result);
  StatusCode identify(const SubmissionEntry& entry);
  StatusCode create_completions(const SubmissionEntry& entry);
  StatusCode create_submissions(const SubmissionEntry& entry);
  StatusCode abort(const SubmissionEntry& entry, u32& result);
  StatusCode give(const SubmissionEntry& entry, const u8* data);
  void misbehave(Misbehaviour how, const Pending& done);
  Medium* medium_of(u32 namespace_id) const;
  u64 capabilities() const;

  EmulatedBus& bus_;
  EmulatedOptions options_;
  u32 doorbell_count_;
  u32* doorbells_;  // on the bus, so that a GPU that reaches its memory reaches them too

  mutable std::mutex mutex_;  // all that follows
  u32 cc_ = 0;
  u32 csts_ = 0;
  u32 aqa_ = 0;
  u64 asq_ = 0;
  u64 acq_ = 0;
  std::vector<Queue> submissions_;
  std::vector<Queue> completions_;
  u32 arbitration_ = 0;  // dword 11 of the feature
  u32 turn_ = 0;         // among queues of a priority
  std::vector<Pending> pending_;
  std::vector<Pending> silent_;  // never completed, but by an Abort
  std::mt19937 random_;
  u64 bandwidth_free_ns_ = 0;
  bool has_dma_ = true;
  bool is_gone_ = false;
  std::string complaint_;

  std::atomic<u64> completed_count_{0};
  std::atomic<u64> abort_count_{0};
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace gpu4fs::nvme
