// Host side of the GPU engine: starts and watches the service kernel; sessions, registered memory.
#include <sys/prctl.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/access.hpp"
#include "engine/cuda_support.cuh"
#include "engine/engine_cuda.hpp"
#include "engine/service_cuda.cuh"
#include "ring/wait_policy.hpp"

namespace gpu4fs::engine {

namespace {

using Clock = std::chrono::steady_clock;

u64 realtime_now_ns() {
  return static_cast<u64>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

// By default Linux may add 50 us to a thread's sleeps, which is longer than most commands.
void want_exact_sleeps() {
  thread_local bool is_set = false;
  if (is_set) return;
  is_set = true;
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

void sleep_ns(u64 duration_ns) {
  const timespec duration{static_cast<time_t>(duration_ns / 1000000000u), static_cast<long>(duration_ns % 1000000000u)};
  nanosleep(&duration, nullptr);
}

}  // namespace

EngineConfig cuda_engine_config(const CudaOptions& options) {
  const CurrentDevice current(options.device);
  EngineConfig config{};
  config.command_count = 2048;
  config.worker_count = options.block_count * service_workers_per_block();
  config.inline_transfer_pages = 4;
  config.task_pages = 32;
  config.caches_slots = 1;
  // Each worker runs the commands that it takes, because all workers contend for the run queue's head, which serves a
  // million items per second.
  config.batch_max = 1;
  config.realtime_offset_ns = realtime_now_ns() - read_device_clock_ns();
  return config;
}

class CudaEngine::Implementation {
 public:
  Implementation(Engine* engine, ring::UpcallRing* upcalls, CudaAllocator& allocator, const CudaOptions& options);
  ~Implementation();

  void start();
  void stop();
  u32 open_session(const SessionRequest& request);
  void close_session(u32 index);
  Status add_buffer(u32 session, u32 buffer, void* base, u64 length);
  void remove_buffer(u32 session, u32 buffer);
  ring::EnginePort& port(u32 session);
  bool wait_upcall(ring::Upcall* upcall, u64 timeout_ns);
  Status map_memory(void* base, u64 length);
  void unmap_memory(void* base, u64 length);
  void while_paused(const std::function<void()>& work);

  bool has_died() const { return died_.load(); }
  std::string fault_text() const;
  void request_death();
  std::string description() const;
  bool is_asleep() const { return asleep_.load(); }
  u64 launch_count() const { return launches_.load(); }
  void ring_doorbell();

  // Copies a word or structure of engine memory out and in, even while the kernel runs.
  template <class T>
  T peek(const T* engine_address) const;
  // The same for any bytes; nothing is copied if the engine has died.
  void peek_bytes(void* copy, const void* from, u64 bytes) const;
  template <class T>
  void poke(T* engine_address, const T& value);

  EngineCounters counters() const;
  device::PageCacheCounters page_cache() const;
  device::PageTierCounters page_tier() const;
  Engine* engine() const { return engine_; }

 private:
  class Port;
  struct HostSession {
    SessionRequest request;
    SessionGroups groups;
    std::unique_ptr<Port> port;
    u64 stuck_position = ~u64{0};
    bool is_open = false;
  };

  u32 fill_place(const SessionRequest& request, SessionGroups& groups);
  void supervise();
  void start_kernel();
  void finish_kernel();
  bool work_is_left();
  void set_asleep(bool asleep);
  void die(const std::string& reason);
  void fail_pending_commands();
  void request_exit();
  // No kernel runs between the two. Pairs may be nested.
  void pause();
  void resume();
  Status register_memory(void* base, u64 length);
  Status register_gap(u8* base, u64 length);
  void unregister_memory(void* base, u64 length);

  Engine* engine_;
  ring::UpcallRing* upcalls_;
  CudaOptions options_;
  FaultRecord* fault_;
  const WorkerMemory* worker_memory_;  // in engine memory
  u32 worker_count_;
  // Pinned, for counters(). control_mutex_ protects them.
  WorkerCounters* worker_counters_;  // of each worker
  SharedCounters* shared_counters_;
  cudaStream_t service_stream_ = nullptr;
  cudaStream_t control_stream_ = nullptr;
  cudaEvent_t ended_ = nullptr;
  ServiceLimits limits_{};
  mutable std::mutex control_mutex_;  // the control stream
  std::mutex sessions_mutex_;
  std::array<HostSession, session_max> sessions_;
  std::mutex registered_mutex_;
  std::map<u8*, u64> registered_;  // lengths of disjoint ranges
  ring::UpcallReader upcall_reader_{};
  // The supervisor's state.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread supervisor_;
  bool work_announced_ = false;
  bool supervisor_waits_ = false;
  bool kernel_runs_ = false;
  cudaError_t launch_error_ = cudaSuccess;
  bool stopping_ = false;
  u32 pause_count_ = 0;
  std::string death_reason_;
  std::atomic<bool> asleep_{true};
  std::atomic<bool> died_{false};
  std::atomic<bool> stopped_{true};
  std::atomic<u64> launches_{0};
};

class CudaEngine::Implementation::Port final : public ring::EnginePort {
 public:
  Port(Implementation& host, ring::RingControl& control) : host_(host), control_(control) {}

  void doorbell() override {
    fence<Order::seq_cst, Scope::system>();
    if (load<Order::relaxed, Scope::system>(&control_.engine_asleep) != 0) host_.ring_doorbell();
  }

  bool wait(u64 /*end_position*/, ring::Predicate done) override {
    if (done()) return true;
    doorbell();
    const u64 begin_ns = now_monotonic_ns();
    for (;;) {
      for (u32 i = 0; i < 32; ++i) {
        if (done()) {
          policy_.note_wait(now_monotonic_ns() - begin_ns);
          return true;
        }
        cpu_relax();
      }
      if (host_.has_died() || host_.stopped_.load()) return done();
      const u64 pause_ns = policy_.pause_ns(now_monotonic_ns() - begin_ns);
      if (pause_ns == 0) continue;
      want_exact_sleeps();
      sleep_ns(pause_ns);
      doorbell();
    }
  }

 private:
  Implementation& host_;
  ring::RingControl& control_;
  ring::WaitPolicy policy_;
};

CudaEngine::Implementation::Implementation(Engine* engine, ring::UpcallRing* upcalls, CudaAllocator& allocator,
                                           const CudaOptions& options)
    : engine_(engine), upcalls_(upcalls), options_(options) {
  GPU4FS_CHECK(engine != nullptr && upcalls != nullptr);
  GPU4FS_CHECK_EQ(service_memory_layout(), engine_memory_layout());
  GPU4FS_CHECK_GE(options.block_count, 1u);
  GPU4FS_CHECK_LE(options.block_count, 8u);
  const CurrentDevice current(options.device);
  fault_ = static_cast<FaultRecord*>(allocator.allocate_shared(sizeof(FaultRecord)));
  require_cuda(arm_fault_record(fault_), "the fault record");
  require_cuda(prepare_service(), "the service kernel");
  require_cuda(cudaStreamCreateWithFlags(&service_stream_, cudaStreamNonBlocking), "a stream");
  require_cuda(cudaStreamCreateWithFlags(&control_stream_, cudaStreamNonBlocking), "a stream");
  require_cuda(cudaEventCreateWithFlags(&ended_, cudaEventBlockingSync | cudaEventDisableTiming), "an event");
  limits_.idle_exit_ns = u64{options.idle_exit_us} * 1000;
  limits_.time_slice_ns = u64{options.time_slice_ms} * 1000000;
  limits_.poller_count = options.block_count * options.pollers_per_block;
  limits_.sleep_max_ns = 1000;
  upcall_reader_.ring = upcalls;
  worker_memory_ = peek(&engine->worker_memory);
  // Threads of clients do not work for this engine, so the entries of sessions stay zero.
  worker_count_ = peek(&engine->config.worker_count);
  worker_counters_ = static_cast<WorkerCounters*>(allocator.allocate_shared(worker_count_ * sizeof(WorkerCounters)));
  shared_counters_ = static_cast<SharedCounters*>(allocator.allocate_shared(sizeof(SharedCounters)));
}

CudaEngine::Implementation::~Implementation() {
  stop();
  for (const auto& [base, length] : registered_) cudaHostUnregister(base);
  cudaEventDestroy(ended_);
  cudaStreamDestroy(service_stream_);
  cudaStreamDestroy(control_stream_);
}

template <class T>
T CudaEngine::Implementation::peek(const T* engine_address) const {
  T value{};
  const std::lock_guard<std::mutex> guard(control_mutex_);
  if (has_died()) return value;
  cudaMemcpyAsync(&value, engine_address, sizeof(T), cudaMemcpyDeviceToHost, control_stream_);
  cudaStreamSynchronize(control_stream_);
  return value;
}

template <class T>
void CudaEngine::Implementation::poke(T* engine_address, const T& value) {
  const std::lock_guard<std::mutex> guard(control_mutex_);
  if (has_died()) return;
  cudaMemcpyAsync(engine_address, &value, sizeof(T), cudaMemcpyHostToDevice, control_stream_);
  cudaStreamSynchronize(control_stream_);
}

// The copies' rows are the workers' lines, so a call costs little more than a peek.
EngineCounters CudaEngine::Implementation::counters() const {
  EngineCounters sums{};
  const std::lock_guard<std::mutex> guard(control_mutex_);
  if (has_died()) return sums;
  cudaMemcpy2DAsync(worker_counters_, sizeof(WorkerCounters), &worker_memory_->counters, sizeof(WorkerMemory),
                    sizeof(WorkerCounters), worker_count_, cudaMemcpyDeviceToHost, control_stream_);
  cudaMemcpyAsync(shared_counters_, &engine_->counters, sizeof(SharedCounters), cudaMemcpyDeviceToHost,
                  control_stream_);
  cudaStreamSynchronize(control_stream_);
  static_cast<SharedCounters&>(sums) = *shared_counters_;
  for (u32 i = 0; i < worker_count_; ++i) add_counters_of(worker_counters_[i], sums);
  return sums;
}

device::PageCacheCounters CudaEngine::Implementation::page_cache() const {
  const device::StagedDevices* const address = peek(&engine_->fs.space.staged);
  if (address == nullptr) return {};
  const device::StagedDevices staged = peek(address);
  return device::page_cache_counters(staged,
                                     [&](void* copy, const void* from, u64 bytes) { peek_bytes(copy, from, bytes); });
}

device::PageTierCounters CudaEngine::Implementation::page_tier() const {
  return device::page_tier_counters(peek(&engine_->fs.space.tier),
                                    [&](void* copy, const void* from, u64 bytes) { peek_bytes(copy, from, bytes); });
}

void CudaEngine::Implementation::peek_bytes(void* copy, const void* from, u64 bytes) const {
  const std::lock_guard<std::mutex> guard(control_mutex_);
  if (has_died()) return;
  cudaMemcpyAsync(copy, from, bytes, cudaMemcpyDeviceToHost, control_stream_);
  cudaStreamSynchronize(control_stream_);
}

void CudaEngine::Implementation::start() {
  GPU4FS_CHECK(!supervisor_.joinable());
  poke(&engine_->stop_requested, 0u);
  poke(&engine_->service.exit_requested, 0u);
  stopping_ = false;
  stopped_ = false;
  work_announced_ = true;
  supervisor_ = std::thread([this] { supervise(); });
}

void CudaEngine::Implementation::stop() {
  if (!supervisor_.joinable()) return;
  poke(&engine_->stop_requested, 1u);
  // The commands taken must complete. This needs the kernel and the answers to its upcalls.
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(options_.exit_timeout_ms + 30000);
  while (!has_died() && Clock::now() < limit) {
    const bool busy = peek(&engine_->commands_active) != 0 || peek(&engine_->epochs.checkpoint_running) != 0;
    if (!busy) break;
    ring_doorbell();
    sleep_ns(200000);
  }
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  request_exit();
  supervisor_.join();
  stopped_ = true;
}

void CudaEngine::Implementation::request_exit() {
  poke(&engine_->service.exit_requested, 1u);
}

// The caller starts the kernel if the supervisor waits for work, because it would take the supervisor longer to wake up
// than the start takes.
void CudaEngine::Implementation::ring_doorbell() {
  const std::lock_guard<std::mutex> guard(mutex_);
  work_announced_ = true;
  if (supervisor_waits_ && !stopping_ && !has_died() && pause_count_ == 0) start_kernel();
  changed_.notify_all();
}

void CudaEngine::Implementation::supervise() {
  cudaSetDevice(options_.device);
  std::unique_lock<std::mutex> guard(mutex_);
  for (;;) {
    supervisor_waits_ = true;
    changed_.wait(guard, [this] { return kernel_runs_ || stopping_ || (work_announced_ && pause_count_ == 0); });
    supervisor_waits_ = false;
    if (!kernel_runs_) {
      if (stopping_ || has_died()) break;
      start_kernel();
    }
    guard.unlock();
    finish_kernel();
    const bool more = !has_died() && work_is_left();
    guard.lock();
    kernel_runs_ = false;
    if (more) work_announced_ = true;
    changed_.notify_all();
  }
  guard.unlock();
  set_asleep(true);
}

// With mutex_, when no kernel runs, nobody pauses, and the engine is not to stop. For any thread, whose current device
// stays. An error is that of the kernel.
void CudaEngine::Implementation::start_kernel() {
  work_announced_ = false;
  supervisor_waits_ = false;
  kernel_runs_ = true;
  set_asleep(false);
  launches_.fetch_add(1);
  int device_before = 0;
  launch_error_ = cudaGetDevice(&device_before);
  if (launch_error_ == cudaSuccess) launch_error_ = cudaSetDevice(options_.device);
  if (launch_error_ == cudaSuccess) {
    launch_error_ = launch_service(engine_, limits_, options_.block_count, service_stream_);
  }
  if (launch_error_ == cudaSuccess) launch_error_ = cudaEventRecord(ended_, service_stream_);
  cudaSetDevice(device_before);
  // For the server's thread, which waits for a kernel before it polls for upcalls.
  changed_.notify_all();
}

// Waits for the end of the kernel that was started.
void CudaEngine::Implementation::finish_kernel() {
  cudaError_t error = launch_error_;
  if (error == cudaSuccess) error = cudaEventSynchronize(ended_);
  if (error != cudaSuccess) die(cudaGetErrorString(error));
  // Done here, because when the next kernel starts a command is already waiting.
  poke(&engine_->service.exit_requested, 0u);
  set_asleep(true);
}

void CudaEngine::Implementation::set_asleep(bool asleep) {
  if (options_.on_running) options_.on_running(!asleep);
  const std::lock_guard<std::mutex> guard(sessions_mutex_);
  asleep_ = asleep;
  for (HostSession& session : sessions_) {
    if (!session.is_open) continue;
    auto* control = reinterpret_cast<ring::RingControl*>(session.request.memory);
    store<Order::relaxed, Scope::system>(&control->engine_asleep, asleep ? 1u : 0u);
  }
  fence<Order::seq_cst, Scope::system>();
}

// Called after the kernel's end. If a ring's next descriptor was there the last time too and was not taken, it is the
// beginning of a chain. Its producer will ring the doorbell.
bool CudaEngine::Implementation::work_is_left() {
  if (peek(&engine_->commands_active) != 0 || peek(&engine_->epochs.checkpoint_running) != 0) return true;
  if (peek(&engine_->run_queue.head) != peek(&engine_->run_queue.tail)) return true;
  const std::lock_guard<std::mutex> guard(sessions_mutex_);
  bool left = false;
  for (u32 i = 0; i < session_max; ++i) {
    HostSession& session = sessions_[i];
    if (!session.is_open) continue;
    const u64 position = peek(&engine_->sessions[i].poll_word) >> 1;
    const ring::SessionLayout& layout = session.request.layout;
    ring::EngineRing view{};
    view.descriptors = reinterpret_cast<wire::RingDescriptor*>(session.request.memory + layout.descriptor_offset);
    view.depth_log2 = layout.depth_log2;
    const bool published = ring::peek_descriptor(view, position);
    if (published && session.stuck_position != position) left = true;
    session.stuck_position = published ? position : ~u64{0};
  }
  return left;
}

void CudaEngine::Implementation::pause() {
  std::unique_lock<std::mutex> guard(mutex_);
  ++pause_count_;
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(options_.exit_timeout_ms);
  while (kernel_runs_ && !has_died()) {
    guard.unlock();
    request_exit();
    guard.lock();
    changed_.wait_for(guard, std::chrono::milliseconds(1), [this] { return !kernel_runs_; });
    if (kernel_runs_ && Clock::now() > limit) {
      guard.unlock();
      die("the service kernel does not end");
      guard.lock();
    }
  }
}

void CudaEngine::Implementation::resume() {
  // The exit request of pause() may have been stored when no kernel was running. No kernel can start before the count
  // is decremented.
  poke(&engine_->service.exit_requested, 0u);
  const std::lock_guard<std::mutex> guard(mutex_);
  GPU4FS_CHECK_GT(pause_count_, 0u);
  --pause_count_;
  work_announced_ = true;
  changed_.notify_all();
}

void CudaEngine::Implementation::die(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (died_.load()) return;
    death_reason_ = reason;
    died_ = true;
    changed_.notify_all();
  }
  fail_pending_commands();
}

// Writes a completion for every descriptor without one. Producers in this process see has_died() as well.
void CudaEngine::Implementation::fail_pending_commands() {
  const std::lock_guard<std::mutex> guard(sessions_mutex_);
  for (HostSession& session : sessions_) {
    if (!session.is_open) continue;
    const ring::SessionLayout& layout = session.request.layout;
    const auto* descriptors =
        reinterpret_cast<const wire::RingDescriptor*>(session.request.memory + layout.descriptor_offset);
    auto* completions = reinterpret_cast<wire::RingCompletion*>(session.request.memory + layout.completion_offset);
    for (u32 i = 0; i < layout.depth(); ++i) {
      const u32 sequence = ring::vector_sequence(load_shared_16(&descriptors[i].units[0]));
      if (sequence == 0 || ring::vector_sequence(load_shared_16(&completions[i])) == sequence) continue;
      const wire::RingUnit unit{0, static_cast<u32>(Status::engine_died), sequence};
      store_shared_16(&completions[i], ring::unit_to_vector(unit));
    }
  }
}

// The kernel may be about to end, or none may be running. So the request is repeated until it takes effect.
void CudaEngine::Implementation::request_death() {
  while (!has_died() && !stopped_.load()) {
    ring_doorbell();
    poke(&engine_->service.exit_requested, service_fault_requested);
    sleep_ns(1000000);
  }
}

std::string CudaEngine::Implementation::fault_text() const {
  if (!has_died()) return {};
  if (fault_->state == 0) return death_reason_;
  return death_reason_ + "; " + fault_->file + ":" + std::to_string(fault_->line) + ": " + fault_->expression + " (" +
         std::to_string(fault_->left) + ", " + std::to_string(fault_->right) + "), block " +
         std::to_string(fault_->block) + ", thread " + std::to_string(fault_->thread);
}

std::string CudaEngine::Implementation::description() const {
  const ServiceResources resources = service_resources();
  return cuda_availability(options_.device).reason + ", " + std::to_string(options_.block_count) + " blocks of " +
         std::to_string(service_workers_per_block()) + " workers, " + std::to_string(resources.registers) +
         " registers, " + std::to_string(resources.stack_bytes) + " bytes of stack";
}

// Registers the parts of the range that are not registered yet, because a chunk's header area is registered before the
// chunk.
Status CudaEngine::Implementation::register_memory(void* base, u64 length) {
  const CurrentDevice current(options_.device);
  const std::lock_guard<std::mutex> guard(registered_mutex_);
  u8* at = static_cast<u8*>(base);
  u8* const end = at + length;
  while (at < end) {
    auto next = registered_.upper_bound(at);
    if (next != registered_.begin()) {
      const auto& [start, size] = *std::prev(next);
      if (at < start + size) {
        at = start + size;
        continue;
      }
    }
    u8* const gap_end = next == registered_.end() ? end : std::min(end, next->first);
    const u64 gap = static_cast<u64>(gap_end - at);
    GPU4FS_TRY(register_gap(at, gap));
    registered_[at] = gap;
    at = gap_end;
  }
  return Status::ok;
}

Status CudaEngine::Implementation::register_gap(u8* base, u64 length) {
  constexpr unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable;
  if (options_.pause_to_register) pause();
  cudaError_t error = cudaHostRegister(base, length, flags);
  // A mapping without write access: the pool is mounted read-only.
  if (error != cudaSuccess && error != cudaErrorHostMemoryAlreadyRegistered) {
    error = cudaHostRegister(base, length, flags | cudaHostRegisterReadOnly);
  }
  cudaGetLastError();
  if (options_.pause_to_register) resume();
  // Memory that its allocator has already registered (pinned memory) is usable too.
  const bool usable = error == cudaSuccess || error == cudaErrorHostMemoryAlreadyRegistered;
  return usable ? Status::ok : Status::gpu_error;
}

// No kernel may run.
void CudaEngine::Implementation::unregister_memory(void* base, u64 length) {
  const std::lock_guard<std::mutex> guard(registered_mutex_);
  auto at = registered_.lower_bound(static_cast<u8*>(base));
  while (at != registered_.end() && at->first < static_cast<u8*>(base) + length) {
    if (!has_died()) cudaHostUnregister(at->first);
    cudaGetLastError();
    at = registered_.erase(at);
  }
}

// Memory outside the range that was registered together with it is registered again.
void CudaEngine::Implementation::unmap_memory(void* base, u64 length) {
  const CurrentDevice current(options_.device);
  u8* const begin = static_cast<u8*>(base);
  u8* const end = begin + length;
  std::vector<std::pair<u8*, u8*>> rests;
  const std::lock_guard<std::mutex> guard(registered_mutex_);
  auto at = registered_.upper_bound(begin);
  if (at != registered_.begin() && std::prev(at)->first + std::prev(at)->second > begin) --at;
  while (at != registered_.end() && at->first < end) {
    u8* const stop = at->first + at->second;
    if (at->first < begin) rests.emplace_back(at->first, begin);
    if (stop > end) rests.emplace_back(end, stop);
    if (!has_died()) cudaHostUnregister(at->first);
    cudaGetLastError();
    at = registered_.erase(at);
  }
  for (const auto& [first, last] : rests) {
    if (!has_died() && register_gap(first, static_cast<u64>(last - first)) != Status::ok) {
      die("memory of a device could not be registered again");
    }
    registered_[first] = static_cast<u64>(last - first);
  }
}

Status CudaEngine::Implementation::map_memory(void* base, u64 length) {
  return register_memory(base, length);
}

void CudaEngine::Implementation::while_paused(const std::function<void()>& work) {
  pause();
  try {
    work();
  } catch (...) {
    resume();
    throw;
  }
  resume();
}

u32 CudaEngine::Implementation::open_session(const SessionRequest& request) {
  SessionGroups groups(request.groups);
  u32 index = session_max;
  if (register_memory(request.memory, request.layout.total_length) == Status::ok &&
      register_memory(groups.begin(), groups.memory_bytes()) == Status::ok) {
    index = fill_place(request, groups);
  }
  if (index != session_max) return index;
  // The memory will be freed. At the same address there may be other memory later.
  pause();
  unregister_memory(request.memory, request.layout.total_length);
  unregister_memory(groups.begin(), groups.memory_bytes());
  resume();
  return session_max;
}

// Moves `groups` into a free place of the table. Returns its index, or session_max.
u32 CudaEngine::Implementation::fill_place(const SessionRequest& request, SessionGroups& groups) {
  const std::lock_guard<std::mutex> guard(sessions_mutex_);
  for (u32 i = 0; i < session_max; ++i) {
    HostSession& session = sessions_[i];
    if (session.is_open) continue;
    auto image = std::make_unique<Session>();
    std::memset(static_cast<void*>(image.get()), 0, sizeof(Session));
    fill_session(*image, request, groups);
    session.request = request;
    session.groups = std::move(groups);
    auto* control = reinterpret_cast<ring::RingControl*>(request.memory);
    session.port = std::make_unique<Port>(*this, *control);
    session.stuck_position = ~u64{0};
    session.is_open = true;
    store<Order::relaxed, Scope::system>(&control->engine_asleep, asleep_.load() ? 1u : 0u);
    poke(&engine_->sessions[i], *image);
    if (peek(&engine_->session_end) < i + 1) poke(&engine_->session_end, i + 1);
    poke(&engine_->sessions[i].phase, static_cast<u32>(SessionPhase::open));
    return i;
  }
  return session_max;
}

void CudaEngine::Implementation::close_session(u32 index) {
  GPU4FS_CHECK_LT(index, session_max);
  poke(&engine_->sessions[index].phase, static_cast<u32>(SessionPhase::closing));
  for (;;) {
    while (!has_died() && !stopped_.load() && peek(&engine_->sessions[index].in_flight) != 0) sleep_ns(100000);
    // Without a kernel nobody is at the ring or writes to the session's memory.
    pause();
    // Workers that had seen the session open may have taken commands in between.
    if (has_died() || stopped_.load() || peek(&engine_->sessions[index].in_flight) == 0) break;
    resume();
  }
  // Others may open sessions meanwhile. Nobody takes this one's place before it is free.
  HostSession& session = sessions_[index];
  unregister_memory(session.request.memory, session.request.layout.total_length);
  unregister_memory(session.groups.begin(), session.groups.memory_bytes());
  poke(&engine_->sessions[index].phase, static_cast<u32>(SessionPhase::free));
  {
    const std::lock_guard<std::mutex> guard(sessions_mutex_);
    session.groups = SessionGroups();
    session.port.reset();
    session.is_open = false;
  }
  resume();
}

Status CudaEngine::Implementation::add_buffer(u32 session, u32 buffer, void* base, u64 length) {
  if (session >= session_max || buffer == 0 || buffer >= session_buffer_max) return Status::invalid_argument;
  cudaPointerAttributes attributes{};
  const bool is_known = cudaPointerGetAttributes(&attributes, base) == cudaSuccess;
  const bool is_device = is_known && attributes.type == cudaMemoryTypeDevice;
  if (!is_device) GPU4FS_TRY(register_memory(base, length));
  const bool pauses = is_device && options_.pause_to_register;
  if (pauses) pause();
  poke(&engine_->sessions[session].buffers[buffer], SessionBuffer{static_cast<u8*>(base), length});
  if (pauses) resume();
  return Status::ok;
}

void CudaEngine::Implementation::remove_buffer(u32 session, u32 buffer) {
  GPU4FS_CHECK_LT(session, session_max);
  GPU4FS_CHECK_LT(buffer, session_buffer_max);
  pause();
  const SessionBuffer old = peek(&engine_->sessions[session].buffers[buffer]);
  poke(&engine_->sessions[session].buffers[buffer], SessionBuffer{});
  if (old.base != nullptr) unregister_memory(old.base, old.length);
  resume();
}

ring::EnginePort& CudaEngine::Implementation::port(u32 session) {
  GPU4FS_CHECK_LT(session, session_max);
  GPU4FS_CHECK(sessions_[session].port != nullptr);
  return *sessions_[session].port;
}

// The kernel cannot wake anybody, so the ring is polled at intervals while it runs.
bool CudaEngine::Implementation::wait_upcall(ring::Upcall* upcall, u64 timeout_ns) {
  const Clock::time_point limit = Clock::now() + std::chrono::nanoseconds(timeout_ns);
  constexpr u64 look_interval_ns = 50000;
  for (;;) {
    if (upcall_reader_.read(upcall)) return true;
    if (has_died() || Clock::now() >= limit) return false;
    if (!asleep_.load()) {
      sleep_ns(look_interval_ns);
      continue;
    }
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait_until(guard, limit, [this] { return kernel_runs_ || died_.load(); });
  }
}

CudaEngine::CudaEngine(Engine* engine, ring::UpcallRing* upcalls, CudaAllocator& allocator, const CudaOptions& options)
    : implementation_(std::make_unique<Implementation>(engine, upcalls, allocator, options)) {}
CudaEngine::~CudaEngine() = default;
void CudaEngine::start() {
  implementation_->start();
}
void CudaEngine::stop() {
  implementation_->stop();
}
u32 CudaEngine::open_session(const SessionRequest& request) {
  return implementation_->open_session(request);
}
void CudaEngine::close_session(u32 session) {
  implementation_->close_session(session);
}
Status CudaEngine::add_buffer(u32 session, u32 buffer, void* base, u64 length) {
  return implementation_->add_buffer(session, buffer, base, length);
}
void CudaEngine::remove_buffer(u32 session, u32 buffer) {
  implementation_->remove_buffer(session, buffer);
}
ring::EnginePort& CudaEngine::port(u32 session) {
  return implementation_->port(session);
}
bool CudaEngine::wait_upcall(ring::Upcall* upcall, u64 timeout_ns) {
  return implementation_->wait_upcall(upcall, timeout_ns);
}
Status CudaEngine::map_memory(void* base, u64 length) {
  return implementation_->map_memory(base, length);
}
void CudaEngine::unmap_memory(void* base, u64 length) {
  implementation_->unmap_memory(base, length);
}
void CudaEngine::while_paused(const std::function<void()>& work) {
  implementation_->while_paused(work);
}
bool CudaEngine::has_died() const {
  return implementation_->has_died();
}
std::string CudaEngine::fault_text() const {
  return implementation_->fault_text();
}
void CudaEngine::request_death() {
  implementation_->request_death();
}
std::string CudaEngine::description() const {
  return implementation_->description();
}
EngineCounters CudaEngine::counters() const {
  return implementation_->counters();
}
device::PageCacheCounters CudaEngine::page_cache() const {
  return implementation_->page_cache();
}

device::PageTierCounters CudaEngine::page_tier() const {
  return implementation_->page_tier();
}
TraceTotals CudaEngine::trace() const {
  return implementation_->peek(&implementation_->engine()->trace);
}
u64 CudaEngine::durable_epoch() const {
  return implementation_->peek(&implementation_->engine()->fs.epoch_durable);
}
bool CudaEngine::is_asleep() const {
  return implementation_->is_asleep();
}
u64 CudaEngine::launch_count() const {
  return implementation_->launch_count();
}

}  // namespace gpu4fs::engine
