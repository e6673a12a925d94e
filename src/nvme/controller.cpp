#include "nvme/controller.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/access.hpp"
#include "base/mutant.hpp"
#include "device/nvme/queue_build.hpp"
#include "device/nvme/submit.hpp"

namespace gpu4fs::nvme {
namespace {

constexpr u32 admin_depth = 16;
constexpr u64 ns_per_ms = 1000000;

u32 offset_of(Register name) {
  return static_cast<u32>(name);
}

SubmissionEntry admin_command(AdminOpcode opcode) {
  SubmissionEntry command{};
  command.opcode = static_cast<u8>(opcode);
  return command;
}

}  // namespace

Controller::QueuePair::QueuePair(RegisterAccess& registers, DmaMemory& memory, u32 stride_bytes, u32 depth, u16 id,
                                 ControllerState* state)
    : submissions(memory.allocate(depth * sizeof(SubmissionEntry))),
      completions(memory.allocate(depth * sizeof(CompletionEntry))),
      table(std::make_unique<u8[]>(queue_table_bytes(depth))) {
  const QueueEntries entries{reinterpret_cast<SubmissionEntry*>(submissions.memory),
                             reinterpret_cast<CompletionEntry*>(completions.memory),
                             registers.doorbell(submission_doorbell_offset(id, stride_bytes)),
                             registers.doorbell(completion_doorbell_offset(id, stride_bytes))};
  place_queue(queue, entries, table.get(), depth, id, state);
}

Controller::Controller(RegisterAccess& registers, DmaMemory& memory, const ControllerOptions& options)
    : registers_(registers), memory_(memory), options_(options) {
  states_.push_back(std::make_unique<ControllerState>());
  state_ = states_.back().get();
  capabilities_ = {registers_.read_64(offset_of(Register::cap))};
  read_capabilities(capabilities_, info_);
  const u32 depth = std::min(options_.queue_depth, std::bit_floor(info_.queue_entries_max));
  if (!is_queue_depth(depth)) throw ControllerError(Failure::refused, "NVMe controller: impossible depth of queues");
  options_.queue_depth = depth;
  page_ = memory_.allocate(page_size);
  admin_ = std::make_unique<QueuePair>(registers_, memory_, info_.doorbell_stride_bytes, admin_depth, u16{0}, state_);
  try {
    bring_up();
    identify();
    grant_queues(true);
    create_queues();
  } catch (...) {
    quiesce();
    throw;
  }
}

Controller::~Controller() {
  shut_down();
}

void Controller::shut_down() {
  if (failure_of(state()) == Failure::none) {
    const u32 cc = registers_.read_32(offset_of(Register::cc));
    registers_.write_32(offset_of(Register::cc), (cc & ~cc_shutdown_mask) | cc_shutdown_normal);
    const u64 end_ns = now_monotonic_ns() + options_.admin_timeout_ns;
    while (now_monotonic_ns() < end_ns) {
      const u32 csts = registers_.read_32(offset_of(Register::csts));
      if (csts == register_of_absent || (csts & csts_shutdown_mask) == csts_shutdown_complete) break;
      backoff(1000);
    }
  }
  // Whoever gets the controller next finds it disabled.
  const bool is_quiet = load<Order::acquire, Scope::engine>(&state().is_quiet) != 0;
  if (GPU4FS_MUTANT(nvme_left_enabled, !is_quiet, false)) quiesce();
}

void Controller::fail_with(Failure failure, const std::string& text) {
  fail(state(), failure);
  throw ControllerError(failure, "NVMe controller: " + text);
}

Failure Controller::look_at_status() {
  const u32 csts = registers_.read_32(offset_of(Register::csts));
  if (csts == register_of_absent) return Failure::absent;
  return (csts & csts_fatal) != 0 ? Failure::fatal_status : Failure::none;
}

bool Controller::is_ready() {
  return (registers_.read_32(offset_of(Register::csts)) & csts_ready) != 0;
}

// CC.EN, and waits until CSTS.RDY follows (NVM Express Base Specification 2.0, clause 3.5).
void Controller::set_enabled(bool is_enabled) {
  const u32 enabled = cc_enable | submission_entry_shift << cc_submission_shift |
                      completion_entry_shift << cc_completion_shift | (is_weighted() ? cc_arbitration_weighted : 0);
  registers_.write_32(offset_of(Register::cc), is_enabled ? enabled : 0);
  const u64 limit_ns = std::min(info_.ready_timeout_ms * ns_per_ms, options_.ready_timeout_ns_max);
  const u64 end_ns = now_monotonic_ns() + limit_ns;
  for (;;) {
    const u32 csts = registers_.read_32(offset_of(Register::csts));
    if (csts == register_of_absent) fail_with(Failure::absent, "its registers are gone");
    if (is_enabled && (csts & csts_fatal) != 0) fail_with(Failure::fatal_status, "fatal status when it is enabled");
    if (((csts & csts_ready) != 0) == is_enabled) return;
    if (now_monotonic_ns() >= end_ns) {
      fail_with(Failure::timed_out, is_enabled ? "it does not become ready" : "it does not stop");
    }
    backoff(1000);
  }
}

void Controller::bring_up() {
  registers_.allow_dma();
  set_enabled(false);
  reset_queue(admin_->queue);
  registers_.write_32(offset_of(Register::aqa), admin_queue_attributes(admin_depth, admin_depth));
  registers_.write_64(offset_of(Register::asq), admin_->submissions.bus_address);
  registers_.write_64(offset_of(Register::acq), admin_->completions.bus_address);
  set_enabled(true);
}

Outcome Controller::admin_outcome(const SubmissionEntry& command, const char* what, u64 timeout_ns) {
  const std::lock_guard<std::mutex> guard(admin_mutex_);
  VirtualQueue& queue = admin_->queue;
  const u64 end_ns = now_monotonic_ns() + timeout_ns;
  u32 waits = 0;
  if (try_submit(Lane{}, queue, {command, 0}) != SubmitResult::submitted) {
    fail_with(Failure::timed_out, std::string(what) + ": no room in the admin queue");
  }
  Outcome found{};
  bool has_outcome = false;
  while (!has_outcome) {
    poll(Lane{}, queue, [&](const Outcome& outcome) {
      found = outcome;
      has_outcome = true;
    });
    if (has_outcome) break;
    const Failure failure = failure_of(state());
    if (failure != Failure::none) fail_with(failure, std::string(what) + ": an answer that cannot be");
    // A controller that has stopped working does not answer either.
    const Failure shown = ++waits % 64 == 0 ? look_at_status() : Failure::none;
    if (shown != Failure::none) fail_with(shown, std::string(what) + ": the controller has stopped");
    if (now_monotonic_ns() >= end_ns) fail_with(Failure::timed_out, std::string(what) + ": no answer");
    backoff(1000);
  }
  return found;
}

u32 Controller::admin(const SubmissionEntry& command, const char* what) {
  const Outcome outcome = admin_outcome(command, what, options_.admin_timeout_ns);
  if (outcome.status != 0) {
    fail_with(Failure::refused, std::string(what) + ": status " + std::to_string(outcome.status));
  }
  return outcome.result;
}

void Controller::identify_data(IdentifySelect select, u32 namespace_id, void* data) {
  std::memset(page_.memory, 0, page_size);
  SubmissionEntry command = admin_command(AdminOpcode::identify);
  command.namespace_id = namespace_id;
  command.data.prp = {page_.bus_address, 0};
  command.dword10 = static_cast<u32>(select);
  admin(command, "Identify");
  // Copied once, and judged afterwards.
  std::memcpy(data, page_.memory, page_size);
}

void Controller::identify() {
  IdentifyController controller;
  identify_data(IdentifySelect::controller, 0, &controller);
  read_identify(controller, capabilities_, info_);
  // Identifiers in ascending order, then zeros (clause 5.17.2.2).
  u32 ids[page_size / sizeof(u32)];
  identify_data(IdentifySelect::active_namespaces, 0, ids);
  u32 before = 0;
  for (const u32 id : ids) {
    if (id == 0) break;
    if (id <= before || id > info_.namespace_id_max) fail_with(Failure::refused, "its list of namespaces cannot be");
    before = id;
    IdentifyNamespace data;
    identify_data(IdentifySelect::namespace_data, id, &data);
    namespaces_.push_back(read_namespace(id, data));
  }
}

void Controller::grant_queues(bool is_first) {
  // Number of Queues, clause 5.27.1.5: both numbers are 0's based.
  SubmissionEntry command = admin_command(AdminOpcode::set_features);
  command.dword10 = static_cast<u32>(FeatureId::number_of_queues);
  const u32 wanted = is_first ? options_.queue_count : queue_count();
  command.dword11 = (wanted - 1) << 16 | (wanted - 1);
  const u32 answer = admin(command, "Set Features");
  const u32 granted = std::min((answer & 0xffff) + 1, (answer >> 16) + 1);
  if (!is_first && granted < wanted) fail_with(Failure::refused, "it grants fewer queues than before");
  if (!is_first) return;
  for (u32 i = 0; i < std::min(granted, wanted); ++i) {
    queues_.push_back(std::make_unique<QueuePair>(registers_, memory_, info_.doorbell_stride_bytes,
                                                  options_.queue_depth, static_cast<u16>(i + 1), state_));
    places_.push_back(&queues_.back()->queue);
  }
}

void Controller::set_arbitration() {
  if (!is_weighted()) return;
  SubmissionEntry command = admin_command(AdminOpcode::set_features);
  command.dword10 = static_cast<u32>(FeatureId::arbitration);
  command.dword11 = arbitration_of(0, options_.weights[0], options_.weights[1], options_.weights[2]);
  admin(command, "Set Features, arbitration");
}

void Controller::create_queues() {
  set_arbitration();
  for (const auto& pair : queues_) {
    reset_queue(pair->queue);
    const u32 id = pair->queue.queue_id;
    SubmissionEntry command = admin_command(AdminOpcode::create_completion_queue);
    command.data.prp = {pair->completions.bus_address, 0};
    command.dword10 = (pair->queue.depth - 1) << 16 | id;
    command.dword11 = queue_is_contiguous;
    admin(command, "Create I/O Completion Queue");
    command = admin_command(AdminOpcode::create_submission_queue);
    command.data.prp = {pair->submissions.bus_address, 0};
    command.dword10 = (pair->queue.depth - 1) << 16 | id;
    command.dword11 = id << queue_completion_shift | queue_is_contiguous;
    if (is_weighted()) {
      const QueuePriority priority =
          id <= options_.priorities.size() ? options_.priorities[id - 1] : QueuePriority::medium;
      command.dword11 |= static_cast<u32>(priority) << queue_priority_shift;
    }
    admin(command, "Create I/O Submission Queue");
  }
}

void Controller::quiesce() {
  fail(state(), Failure::resetting);
  try {
    set_enabled(false);
  } catch (const ControllerError&) {
    // It does not stop by itself.
  }
  registers_.stop_dma();
  ControllerState& quiet = state();
  store<Order::relaxed, Scope::engine>(&quiet.is_renewed, load<Order::relaxed, Scope::engine>(&quiet.may_return));
  store<Order::release, Scope::engine>(&quiet.is_quiet, 1);
}

void Controller::restart_queues() {
  try {
    bring_up();
    grant_queues(false);
    create_queues();
  } catch (const ControllerError&) {
    quiesce();
    throw;
  }
}

void Controller::restart() {
  *state_ = {};
  restart_queues();
}

void Controller::restart_anew() {
  states_.push_back(std::make_unique<ControllerState>());
  ControllerState* const fresh = states_.back().get();
  std::vector<std::unique_ptr<QueuePair>> queues;
  for (const auto& former : queues_) {
    queues.push_back(std::make_unique<QueuePair>(registers_, memory_, info_.doorbell_stride_bytes, options_.queue_depth,
                                                 former->queue.queue_id, fresh));
  }
  for (auto& former : queues_) former_queues_.push_back(std::move(former));
  queues_ = std::move(queues);
  admin_->queue.controller = fresh;
  store<Order::release, Scope::engine>(&state_, fresh);
  restart_queues();
  for (u32 i = 0; i < queue_count(); ++i) store<Order::release, Scope::engine>(&places_[i], &queues_[i]->queue);
}

bool Controller::abort(u16 queue_id, u16 command_id) {
  SubmissionEntry command = admin_command(AdminOpcode::abort);
  command.dword10 = u32{command_id} << abort_command_shift | queue_id;
  try {
    const Outcome outcome = admin_outcome(command, "Abort", options_.abort_timeout_ns);
    return outcome.status == 0 && (outcome.result & abort_has_failed) == 0;
  } catch (const ControllerError&) {
    return false;
  }
}

bool Controller::set_write_cache(bool is_on) {
  SubmissionEntry command = admin_command(AdminOpcode::set_features);
  command.dword10 = static_cast<u32>(FeatureId::volatile_write_cache);
  command.dword11 = is_on ? 1 : 0;
  return admin_outcome(command, "Set Features", options_.admin_timeout_ns).status == 0;
}

}  // namespace gpu4fs::nvme
