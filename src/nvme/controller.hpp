// A controller of this process: bring-up, queues, reset.
//
// The admin queue is a virtual queue too, so the answers to admin commands are checked as all others. Everything that
// waits has a time-out. All memory is taken in the constructor; a reset uses it again.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/atomics.hpp"
#include "device/nvme/queue_types.hpp"
#include "device/nvme/spec/commands.hpp"
#include "nvme/controller_info.hpp"
#include "nvme/dma_memory.hpp"
#include "nvme/register_access.hpp"

namespace gpu4fs::nvme {

struct ControllerOptions {
  u32 queue_count = 1;   // fewer if the controller grants fewer
  u32 queue_depth = 64;  // a power of two; less if the controller has less
  u64 command_timeout_ns = 5000000000;
  // How long a command that is late waits for its Abort before the reset.
  u64 abort_timeout_ns = 1000000000;
  u64 admin_timeout_ns = 5000000000;
  u64 ready_timeout_ns_max = ~u64{0};  // bounds what CAP.TO says
  // By queue, those that are left out are medium. Without effect if the controller has no weighted round robin.
  std::vector<QueuePriority> priorities;
  u32 weights[3] = {8, 4, 1};  // of high, medium and low, 1 to 256: commands in turn
};

class Controller {
 public:
  // Resets and enables the controller, identifies it and its namespaces, and creates the queues. Throws
  // ControllerError. Both references outlive this object.
  Controller(RegisterAccess& registers, DmaMemory& memory, const ControllerOptions& options);
  // Shuts the controller down if it still answers, disables it and ends its DMA.
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  const ControllerInfo& info() const { return info_; }
  const std::vector<NamespaceInfo>& namespaces() const { return namespaces_; }
  const ControllerOptions& options() const { return options_; }
  // Whether queues have priorities.
  bool is_weighted() const { return info_.has_weighted_arbitration && !options_.priorities.empty(); }
  u32 queue_count() const { return static_cast<u32>(places_.size()); }
  // Of the present life. Any thread.
  VirtualQueue& queue(u32 index) { return *load<Order::acquire, Scope::engine>(&places_[index]); }
  ControllerState& state() { return *load<Order::acquire, Scope::engine>(&state_); }

  // Shuts the drive down if it still answers, so that it writes its cache, and quiesces it. Nothing is outstanding.
  void shut_down();
  // Ends all DMA and makes the controller quiet, after a failure. Lanes may poll meanwhile: they get the outcomes of
  // what was left; `returned` if the state says that the controller may return.
  void quiesce();
  // Brings the quiet controller up again, with empty queues. Nobody uses the queues, and nothing is outstanding. Throws
  // ControllerError; the controller is then failed and quiet.
  void restart();
  // The same, with other queues and another state. Those before stay as they are, failed and quiet, as long as this
  // object, because somebody may be looking at them.
  void restart_anew();
  // The queues of former lives: visit(VirtualQueue&).
  template <class Visit>
  void for_each_former(Visit&& visit) {
    for (const auto& pair : former_queues_) visit(pair->queue);
  }

  // Sends an Abort command and waits for its answer. True: the controller says that the command ends or has ended by
  // it. Any thread. False also if the controller does not answer in time; it has then failed.
  bool abort(u16 queue_id, u16 command_id);
  // Turns the volatile write cache on or off. False: the controller refuses.
  bool set_write_cache(bool is_on);
  // CSTS: the failure that the registers show, none if all is well. A controller that was reset by others does not
  // show one: it is not ready (is_ready()).
  Failure look_at_status();
  bool is_ready();

 private:
  struct QueuePair {
    QueuePair(RegisterAccess& registers, DmaMemory& memory, u32 stride_bytes, u32 depth, u16 id,
              ControllerState* state);
    VirtualQueue queue;
    DmaBlock submissions;
    DmaBlock completions;
    std::unique_ptr<u8[]> table;
  };

  void restart_queues();
  void bring_up();
  void set_enabled(bool is_enabled);
  void identify();
  void grant_queues(bool is_first);
  void set_arbitration();
  void create_queues();
  // Throws ControllerError unless the command succeeds. Returns dword 0 of the completion.
  u32 admin(const SubmissionEntry& command, const char* what);
  Outcome admin_outcome(const SubmissionEntry& command, const char* what, u64 timeout_ns);
  void identify_data(IdentifySelect select, u32 namespace_id, void* data);
  [[noreturn]] void fail_with(Failure failure, const std::string& text);

  RegisterAccess& registers_;
  DmaMemory& memory_;
  ControllerOptions options_;
  ControllerInfo info_;
  Capabilities capabilities_{};
  std::vector<std::unique_ptr<ControllerState>> states_;  // by life
  ControllerState* state_;                                // atomic: the last one
  std::vector<NamespaceInfo> namespaces_;
  std::mutex admin_mutex_;  // one admin command at a time
  std::unique_ptr<QueuePair> admin_;
  std::vector<std::unique_ptr<QueuePair>> queues_;
  std::vector<VirtualQueue*> places_;  // atomic: those of `queues_`
  std::vector<std::unique_ptr<QueuePair>> former_queues_;
  DmaBlock page_;  // data of admin commands
};

}  // namespace gpu4fs::nvme
