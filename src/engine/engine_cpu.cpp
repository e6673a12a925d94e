#include "engine/engine_cpu.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/racy_access.hpp"
#include "device/staged/worker.hpp"
#include "engine/wake.hpp"
#include "engine/worker.hpp"

namespace gpu4fs::engine {

template bool worker_step(Lane g, Engine& engine, WorkerState& worker);
template void worker_sweep(Lane g, Engine& engine);
template void worker_release(Lane g, Engine& engine, WorkerState& worker);

HeapAllocator::~HeapAllocator() {
  for (const Block& block : blocks_) munmap(block.memory, block.length);
}

void* HeapAllocator::allocate(u64 bytes, u64 alignment) {
  const u64 length = align_up(std::max<u64>(bytes, 1), page_size);
  GPU4FS_CHECK_LE(alignment, page_size);
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  blocks_.push_back({memory, length});
  return memory;
}

void HeapAllocator::copy_in(void* engine_destination, const void* host_source, u64 bytes) {
  if (bytes != 0) std::memcpy(engine_destination, host_source, bytes);
}

// Fresh anonymous pages are zero, and touching them would make them resident.
void HeapAllocator::zero(void* engine_destination, u64 bytes) {
  for (const Block& block : blocks_) {
    if (block.memory == engine_destination && bytes <= block.length) return;
  }
  std::memset(engine_destination, 0, bytes);
}

namespace {
constexpr auto never_done = [] { return false; };
}  // namespace

// A dead engine takes no step. Its sessions are closed with unfinished commands, and close_session() waits for steps
// that had begun. Either close_session() sees the mark, or the step sees the death.
template <class IsDone>
bool CpuEngine::marked_step(Engine& engine, WorkerState& worker, StepMark& mark, const std::atomic<bool>& died,
                            IsDone&& is_done) {
  const u64 before = exchange<Order::seq_cst, Scope::engine>(&mark.value, mark.value + 1);
  const device::StagedStep step(engine.fs.space.staged, worker.index, [&] { return died.load() || is_done(); });
  const bool worked = step.has_begun() && !died.load() && worker_step(Lane{}, engine, worker);
  store<Order::release, Scope::engine>(&mark.value, before + 2);
  return worked;
}

void CpuEngine::wait_for_steps() {
  for (StepMark& mark : marks_) {
    const u64 seen = load<Order::seq_cst, Scope::engine>(&mark.value);
    if (seen % 2 == 0) continue;
    while (load<Order::acquire, Scope::engine>(&mark.value) == seen) backoff(1000);
  }
}

// A session's thread and the engine in one process.
class CpuEngine::Port final : public ring::EnginePort {
 public:
  Port(Engine& engine, u32 session, StepMark& mark, const std::atomic<bool>& died)
      : engine_(engine),
        died_(died),
        session_(session),
        mark_(mark),
        worker_(WorkerState::make(engine.config.worker_count + GPU4FS_MUTANT(sessions_share_memory, session, 0u))) {
    worker_.rings_first = 1;
  }

  void doorbell() override { wake_workers(engine_, 1); }

  bool wait(u64 end_position, ring::Predicate done) override {
    u64 idle_since_ns = 0;
    for (;;) {
      if (done()) return true;
      if (died_.load()) return false;
      worker_.session_cursor = session_;
      if (marked_step(engine_, worker_, mark_, died_, done)) {
        idle_since_ns = 0;
        continue;
      }
      const u64 now_ns = now_monotonic_ns();
      if (idle_since_ns == 0) idle_since_ns = now_ns;
      if (now_ns - idle_since_ns < engine_.config.spin_ns) {
        cpu_relax();
        continue;
      }
      if (is_abandoned(end_position)) return done();
      sleep(end_position, done);
      worker_sweep(Lane{}, engine_);
    }
  }

 private:
  Session& session() { return engine_.sessions[session_]; }

  bool is_taken(u64 end_position) {
    return (load<Order::acquire, Scope::engine>(&session().poll_word) >> 1) >= end_position;
  }

  // A stopping engine takes no more commands from clients.
  bool is_abandoned(u64 end_position) {
    return load<Order::acquire, Scope::system>(&engine_.stop_requested) != 0 && !is_taken(end_position);
  }

  // Sleeps until the engine writes a completion of this session, see wake_client().
  void sleep(u64 end_position, ring::Predicate done) {
    ring::RingControl& control = *session().control;
    if (!is_taken(end_position)) wake_workers(engine_, 1);
    store<Order::relaxed, Scope::system>(&control.client_sleeping, 1u);
    fence<Order::seq_cst, Scope::system>();
    const u32 sequence = load<Order::acquire, Scope::system>(&control.wake_sequence);
    if (!done()) {
      futex_wait(&control.wake_sequence, sequence, u64{engine_.config.sweep_interval_ms} * 1000000u);
    }
    store<Order::relaxed, Scope::system>(&control.client_sleeping, 0u);
  }

  Engine& engine_;
  const std::atomic<bool>& died_;
  u32 session_;
  StepMark& mark_;
  WorkerState worker_;
};

CpuEngine::CpuEngine(Engine* engine, u32 worker_count)
    : engine_(engine), worker_count_(worker_count), ports_(session_max), marks_(session_max + worker_count) {
  GPU4FS_CHECK(engine != nullptr);
  GPU4FS_CHECK_GE(worker_count, 1u);
  GPU4FS_CHECK_LE(worker_count, engine->config.worker_count);
  upcall_reader_.ring = engine->upcalls;
}

CpuEngine::~CpuEngine() {
  stop();
}

void CpuEngine::start() {
  GPU4FS_CHECK(threads_.empty());
  store<Order::release, Scope::system>(&engine_->stop_requested, 0u);
  for (u32 i = 0; i < worker_count_; ++i) {
    threads_.emplace_back([this, i] { work(i); });
  }
}

void CpuEngine::stop() {
  if (threads_.empty()) return;
  store<Order::seq_cst, Scope::system>(&engine_->stop_requested, 1u);
  // A worker may announce its sleep after one wake-up and before it sees the request.
  for (std::thread& thread : threads_) {
    wake_workers(*engine_, UINT32_MAX);
    thread.join();
  }
  threads_.clear();
}

bool CpuEngine::is_drained() const {
  return load<Order::acquire, Scope::engine>(&engine_->commands_active) == 0 &&
         load<Order::acquire, Scope::engine>(&engine_->epochs.checkpoint_running) == 0;
}

void CpuEngine::work(u32 index) {
  WorkerState worker = WorkerState::make(index);
  StepMark& mark = marks_[session_max + index];
  u64 idle_since_ns = 0;
  for (u32 turn = 0;; ++turn) {
    if (turn % 256 == 0) worker_sweep(Lane{}, *engine_);
    if (marked_step(*engine_, worker, mark, died_, never_done)) {
      idle_since_ns = 0;
      continue;
    }
    if (died_.load()) break;
    if (load<Order::acquire, Scope::system>(&engine_->stop_requested) != 0 && is_drained()) break;
    const u64 now_ns = now_monotonic_ns();
    if (idle_since_ns == 0) idle_since_ns = now_ns;
    if (now_ns - idle_since_ns < engine_->config.spin_ns) {
      backoff(now_ns - idle_since_ns < 2000 ? 40 : 1000);
      continue;
    }
    sleep(worker, mark);
    idle_since_ns = 0;
  }
  // The first worker that sees the engine drained wakes the others.
  wake_workers(*engine_, UINT32_MAX);
}

// While commands are in flight, deadlines have to be checked. An idle engine sleeps without a limit.
u64 CpuEngine::sleep_limit_ns() const {
  const bool stopping = load<Order::acquire, Scope::system>(&engine_->stop_requested) != 0;
  if (is_drained() && !stopping) return 0;
  return u64{engine_->config.sweep_interval_ms} * 1000000u;
}

// The check for work before sleeping, after the worker has announced its sleep. Each failed look at a ring advances the
// cursor, so all rings are checked. If another worker has a ring's token, this counts as work, because that worker may
// have looked too early.
bool CpuEngine::find_work(WorkerState& worker, StepMark& mark) {
  const u32 rounds = load<Order::acquire, Scope::system>(&engine_->session_end) + 1;
  for (u32 i = 0; i < rounds; ++i) {
    if (marked_step(*engine_, worker, mark, died_, never_done) || worker.missed_token != 0) return true;
    if (worker.saw_descriptor == 0) return false;
  }
  return false;
}

void CpuEngine::sleep(WorkerState& worker, StepMark& mark) {
  Parking& parking = engine_->parking;
  const u32 sequence = load<Order::acquire, Scope::engine>(&parking.sequence);
  fetch_add<Order::acq_rel, Scope::engine>(&parking.sleepers, 1u);
  tell_whether_asleep();
  fence<Order::seq_cst, Scope::engine>();
  const bool stopping = load<Order::acquire, Scope::system>(&engine_->stop_requested) != 0;
  if (!died_.load() && !find_work(worker, mark) && !(stopping && is_drained())) {
    futex_wait(&parking.sequence, sequence, sleep_limit_ns());
  }
  fetch_sub<Order::acq_rel, Scope::engine>(&parking.sleepers, 1u);
  tell_whether_asleep();
  worker_sweep(Lane{}, *engine_);
}

// A client in another process rings its doorbell only if all workers sleep, or have announced it. It publishes first
// and then reads the word. A worker writes the word first and then looks at the rings. So at least one of them sees the
// other. Whoever has changed the number of sleepers writes the words after that, so the last number counts.
//
// A session that gets its doorbell at this moment is either counted here, or its add_doorbell() sees the number of
// sleepers that the caller has changed.
void CpuEngine::tell_whether_asleep() {
  fence<Order::seq_cst, Scope::engine>();
  if (doorbell_count_.load() == 0) return;
  const std::lock_guard<std::mutex> guard(doorbells_mutex_);
  const bool all_sleep = load<Order::acquire, Scope::engine>(&engine_->parking.sleepers) >= worker_count_;
  const u32 word = GPU4FS_MUTANT(sleep_not_told, all_sleep, false) ? 1 : 0;
  for (ring::RingControl* control : doorbells_) store<Order::relaxed, Scope::system>(&control->engine_asleep, word);
}

void CpuEngine::add_doorbell(ring::RingControl* control) {
  {
    const std::lock_guard<std::mutex> guard(doorbells_mutex_);
    doorbells_.push_back(control);
    ++doorbell_count_;
  }
  tell_whether_asleep();
}

void CpuEngine::remove_doorbell(ring::RingControl* control) {
  const std::lock_guard<std::mutex> guard(doorbells_mutex_);
  if (std::erase(doorbells_, control) != 0) --doorbell_count_;
}

u32 CpuEngine::open_session(const SessionRequest& request) {
  const std::lock_guard<std::mutex> guard(sessions_mutex_);
  for (u32 i = 0; i < session_max; ++i) {
    Session& session = engine_->sessions[i];
    if (load<Order::acquire, Scope::system>(&session.phase) != static_cast<u32>(SessionPhase::free)) continue;
    groups_[i] = SessionGroups(request.groups);
    fill_session(session, request, groups_[i]);
    ports_[i] = std::make_unique<Port>(*engine_, i, marks_[i], died_);
    store<Order::release, Scope::system>(&session.phase, static_cast<u32>(SessionPhase::open));
    const u32 end = load<Order::relaxed, Scope::system>(&engine_->session_end);
    if (end < i + 1) store<Order::release, Scope::system>(&engine_->session_end, i + 1);
    if (request.has_doorbell) add_doorbell(session.control);
    return i;
  }
  return session_max;
}

// Others open and close sessions while this one waits. Nobody takes its place before it is free.
void CpuEngine::close_session(u32 session_index) {
  GPU4FS_CHECK_LT(session_index, session_max);
  Session& session = engine_->sessions[session_index];
  remove_doorbell(session.control);
  store<Order::seq_cst, Scope::system>(&session.phase, static_cast<u32>(SessionPhase::closing));
  // First, workers that saw the session open may still take commands. Then the commands taken complete. Then the last
  // workers that completed some stop using the session's memory.
  wait_for_steps();
  while (!died_.load() && load<Order::acquire, Scope::engine>(&session.in_flight) != 0) backoff(1000);
  wait_for_steps();
  const std::lock_guard<std::mutex> guard(sessions_mutex_);
  ports_[session_index].reset();
  GPU4FS_CHECK_EQ((load<Order::acquire, Scope::engine>(&session.poll_word)) & 1, u64{0});
  store<Order::release, Scope::system>(&session.phase, static_cast<u32>(SessionPhase::free));
}

Status CpuEngine::add_buffer(u32 session, u32 buffer, void* base, u64 length) {
  if (session >= session_max || buffer == 0 || buffer >= session_buffer_max) return Status::invalid_argument;
  engine_->sessions[session].buffers[buffer] = SessionBuffer{static_cast<u8*>(base), length};
  return Status::ok;
}

void CpuEngine::remove_buffer(u32 session, u32 buffer) {
  GPU4FS_CHECK_LT(session, session_max);
  GPU4FS_CHECK_LT(buffer, session_buffer_max);
  engine_->sessions[session].buffers[buffer] = SessionBuffer{};
}

ring::EnginePort& CpuEngine::port(u32 session) {
  GPU4FS_CHECK_LT(session, session_max);
  GPU4FS_CHECK(ports_[session] != nullptr);
  return *ports_[session];
}

std::string CpuEngine::fault_text() const {
  return has_died() ? "the engine was told to end as by a fault" : std::string();
}

void CpuEngine::request_death() {
  died_ = true;
  wake_workers(*engine_, UINT32_MAX);
  wake_server(*engine_->upcalls);
}

bool CpuEngine::wait_upcall(ring::Upcall* upcall, u64 timeout_ns) {
  if (died_.load()) return false;
  if (upcall_reader_.read(upcall)) return true;
  ring::UpcallRing& ring = *engine_->upcalls;
  store<Order::relaxed, Scope::system>(&ring.server_sleeping, 1u);
  fence<Order::seq_cst, Scope::system>();
  const u32 sequence = load<Order::acquire, Scope::system>(&ring.wake_sequence);
  bool found = upcall_reader_.read(upcall);
  if (!found && !died_.load()) {
    futex_wait(&ring.wake_sequence, sequence, timeout_ns);
    found = upcall_reader_.read(upcall);
  }
  store<Order::relaxed, Scope::system>(&ring.server_sleeping, 0u);
  return found;
}

// Memory of this process is already accessible.
Status CpuEngine::map_memory(void* /*base*/, u64 /*length*/) {
  return Status::ok;
}

std::string CpuEngine::description() const {
  return "CPU, " + std::to_string(worker_count_) + (worker_count_ == 1 ? " worker" : " workers");
}

TraceTotals CpuEngine::trace() const {
  TraceTotals copy{};
  for (u32 i = 0; i < trace_phase_count; ++i) {
    copy.cycles[i] = load<Order::relaxed, Scope::engine>(&engine_->trace.cycles[i]);
    copy.points[i] = load<Order::relaxed, Scope::engine>(&engine_->trace.points[i]);
  }
  return copy;
}

namespace {

// Words that others change.
void copy_changing_words(void* copy, const void* from, u64 bytes) {
  GPU4FS_CHECK_EQ(bytes % sizeof(u64), 0u);
  for (u64 i = 0; i < bytes / sizeof(u64); ++i) {
    static_cast<u64*>(copy)[i] = load_racy_8(static_cast<const u64*>(from) + i);
  }
}

}  // namespace

device::PageCacheCounters CpuEngine::page_cache() const {
  const device::StagedDevices* const staged = engine_->fs.space.staged;
  if (staged == nullptr) return {};
  return device::page_cache_counters(*staged, copy_changing_words);
}

device::PageTierCounters CpuEngine::page_tier() const {
  return device::page_tier_counters(engine_->fs.space.tier, copy_changing_words);
}

EngineCounters CpuEngine::counters() const {
  const SharedCounters& shared = engine_->counters;
  EngineCounters sums{};
  sums.deadlines_exceeded = load<Order::relaxed, Scope::engine>(&shared.deadlines_exceeded);
  sums.upcalls_dropped = load<Order::relaxed, Scope::engine>(&shared.upcalls_dropped);
  sums.checkpoint_pause_last_ns = load<Order::relaxed, Scope::engine>(&shared.checkpoint_pause_last_ns);
  sums.checkpoint_pause_max_ns = load<Order::relaxed, Scope::engine>(&shared.checkpoint_pause_max_ns);
  const u32 worker_count = worker_memory_count(engine_->config);
  const u32 counted = GPU4FS_MUTANT(sessions_not_counted, worker_count, worker_count - session_max);
  for (u32 i = 0; i < counted; ++i) add_counters_of(engine_->worker_memory[i].counters, sums);
  return sums;
}

u64 CpuEngine::durable_epoch() const {
  return load<Order::acquire, Scope::engine>(&engine_->fs.epoch_durable);
}

u32 CpuEngine::sleeping_worker_count() const {
  return load<Order::acquire, Scope::engine>(&engine_->parking.sleepers);
}

}  // namespace gpu4fs::engine
