// NVMe queues of which both ends are threads of this process: for machines without a GPU, and for tests of the load.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#include "bench/nvme_cache_build.hpp"
#include "bench/nvme_load.hpp"
#include "bench/nvme_machine.hpp"
#include "bench/nvme_raw.hpp"
#include "bench/result.hpp"
#include "device/nvme/drive/connected_queues.hpp"
#include "device/nvme/drive/service.hpp"
#include "nvme/controller.hpp"
#include "nvme/emulated/emulated_controller.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 medium_bytes = u64{32} << 20;
constexpr u64 limit_ns = 20000000000;
constexpr u32 namespace_id = 1;
constexpr u32 depth_max = 256;

struct FreeMemory {
  void operator()(u8* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<u8, FreeMemory>;
Memory zeroed(u64 bytes) {
  u8* const memory = static_cast<u8*>(std::aligned_alloc(page_size, align_up(bytes, page_size)));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return Memory(memory);
}

bool is_one_lane(NvmeUse use) {
  return use == NvmeUse::shared_lane || use == NvmeUse::raw_lane;
}

// What all runs have in common: the load, its memory, its threads.
class ThreadLoad {
 public:
  explicit ThreadLoad(const NvmePoint& point)
      : use_(point.use), is_raw_(use_ == NvmeUse::raw || use_ == NvmeUse::raw_lane) {
    const u32 lanes = is_one_lane(point.use) ? 1 : point.lane_count;
    load.queue_count = point.queue_count;
    load.lane_count = lanes;
    load.window = is_one_lane(point.use) ? 1 : std::max(1u, lanes / point.queue_count);
    load.worker_count = is_raw_ ? std::min(point.queue_count, lanes) : lanes;
    if (is_log(use_)) load.log_workers = point.queue_count;
    if (use_ == NvmeUse::log_alone) load.worker_count = point.queue_count;
    load.block_bytes = point.block_bytes;
    load.logical_block_bytes = point.namespace_block_bytes();
    load.is_sequential = point.is_sequential;
    load.namespace_id = namespace_id;
    load.block_count = medium_bytes / point.block_bytes;
    load.writes = point.writes;
    load.compare_every = point.compare_every;
    load.run_ns = point.run_ns;
    load.limit_ns = limit_ns;
    load.latencies_max = point.latencies_max;
    versions_.assign(load.block_count, 0);
    outcomes_.assign(lanes, 0);
    latencies_.assign(u64{lanes} * point.latencies_max, 0);
    load.versions = versions_.data();
    load.outcomes = outcomes_.data();
    load.latencies_ns = latencies_.empty() ? nullptr : latencies_.data();
    load.counts = &counts_;
    load.stop = &stop_;
  }

  NvmeMeasured execute(const std::function<void(u32)>& worker) {
    counts_ = {};
    const double began = now_seconds();
    std::vector<std::thread> users;
    for (u32 i = 0; i < load.worker_count; ++i) users.emplace_back(worker, i);
    for (std::thread& user : users) user.join();
    NvmeMeasured measured;
    measured.seconds = now_seconds() - began;
    measured.commands = counts_.commands;
    if (counts_.faults != 0) throw std::runtime_error(std::to_string(counts_.faults) + " threads saw a fault");
    if (counts_.commands == 0) throw std::runtime_error("no command was completed");
    for (const u32 latency_ns : latencies_) {
      if (latency_ns != 0) measured.latencies_us.push_back(latency_ns / 1e3);
    }
    return measured;
  }
  // Each worker uses the queues as the point says.
  NvmeMeasured execute_on_queues() {
    return execute_on_queues([this](u32 worker) {
      const FixedQueues fixed{load, worker};
      if (is_raw_) {
        run_raw(Lane{}, load, worker);
      } else if (use_ == NvmeUse::mapped) {
        run_shared(Lane{}, load, worker, MappedQueues{fixed});
      } else if (use_ == NvmeUse::log_classes) {
        run_shared(Lane{}, load, worker, ClassQueues{fixed});
      } else {
        run_shared(Lane{}, load, worker, fixed);
      }
    });
  }
  NvmeMeasured execute_on_queues(const std::function<void(u32)>& worker) {
    std::vector<u32> table(nvme::mapper_table_bytes(load.queue_count, slot_count()) / sizeof(u32));
    nvme::QueueMapper mapper;
    nvme::place_mapper(mapper, load.queues, load.queue_count, table.data(),
                       {slot_count(), 1, nvme::MapperPolicy::two_choices});
    std::vector<nvme::ClassQueue> classes(load.queue_count);
    for (u32 i = 0; i < load.queue_count; ++i) {
      nvme::place_classes(classes[i], &load.queues[i], nvme::class_weights_default());
    }
    load.mapper = &mapper;
    load.classes = classes.data();
    return execute(worker);
  }
  // `medium` has what was written.
  void check(u8* medium) {
    load.medium = medium;
    check_medium(Lane{}, load, 0, 1);
    require_good("the medium has wrong content");
  }
  void require_good(const char* fault) const {
    if (counts_.faults != 0) throw std::runtime_error(fault);
  }

  NvmeLoad load{};

 private:
  u32 slot_count() const { return load.queue_count * mapper_slots_per_queue; }

  NvmeUse use_;
  bool is_raw_;
  std::vector<u32> versions_;
  std::vector<u32> outcomes_;
  std::vector<u32> latencies_;
  NvmeCounts counts_{};
  u32 stop_ = 0;
};

// The drive that is executed on a GPU otherwise, served by a thread, with the memory that a load shares with it.
class ThreadDrive {
 public:
  // `load` gets queues, buffers and lists, and the medium the first content.
  ThreadDrive(const NvmePoint& point, NvmeLoad& load, u64 buffer_bytes)
      : medium_(zeroed(medium_bytes)),
        buffers_(zeroed(buffer_bytes)),
        lists_(zeroed(list_bytes(load))),
        queues_(zeroed(lay_out(nullptr, point).bytes)),
        set_(lay_out(queues_.get(), point)) {
    load.buffers_address = u64{0x7500} << 32;
    load.lists_address = u64{0x7600} << 32;
    drive_.memory.windows[0] = {load.buffers_address, buffer_bytes, buffers_.get()};
    drive_.memory.windows[1] = {load.lists_address, list_bytes(load), lists_.get()};
    drive_.memory.window_count = 2;
    drive_.namespaces[0] = {{namespace_id, load.logical_block_bytes, medium_bytes / load.logical_block_bytes},
                            medium_.get()};
    drive_.namespace_count = 1;
    drive_.io_limits = {nvme_transfer_bytes_max, true, true};
    drive_.batch_max = nvme_batch_max(load.block_bytes);
    drive_.latency_ns = point.latency_ns;
    drive_.reverses_batches = point.reverses_batches;
    load.queues = set_.queues;
    load.buffers = buffers_.get();
    if (list_bytes(load) != 0) load.lists = lists_.get();
    load.medium = medium_.get();
    load.stop = &set_.drive->is_stopping;
    fill_medium(Lane{}, load, 0, 1);
  }

  // Calls use() while the drive has new queues and serves them. use() returns when the load has ended.
  template <class Use>
  NvmeMeasured serve(Use&& use) {
    std::memset(queues_.get(), 0, set_.bytes);
    nvme::place_drive(set_, drive_);
    for (u32 i = 0; i < set_.queue_count; ++i) nvme::connect_queue(set_, i);
    std::thread host([this] { nvme::run_drive(Lane{}, *set_.drive, 0, 1, now_monotonic_ns() + 2 * limit_ns); });
    NvmeMeasured measured;
    try {
      measured = use();
    } catch (...) {
      store<Order::release, Scope::engine>(&set_.drive->is_stopping, 1);
      host.join();
      throw;
    }
    host.join();
    if (set_.drive->complaint != 0) throw std::runtime_error("the drive complains");
    return measured;
  }
  u8* medium() { return medium_.get(); }

 private:
  static u64 list_bytes(const NvmeLoad& load) {
    return needs_list(load.block_bytes) ? load.lane_count * nvme::memory_page_bytes : 0;
  }
  static nvme::ConnectedQueues lay_out(u8* memory, const NvmePoint& point) {
    return nvme::lay_out_queues(memory, point.queue_count, std::min(point.queue_depth, depth_max));
  }

  Memory medium_;
  Memory buffers_;
  Memory lists_;
  Memory queues_;
  nvme::ConnectedQueues set_;
  nvme::MemoryDrive drive_{};
};

class ThreadMachine : public NvmeMachine {
 public:
  NvmeMeasured run(const NvmePoint& point) override {
    return point.medium == NvmeMedium::host ? run_on_controller(point) : run_on_drive(point);
  }

  NvmeMeasured bare(const NvmePoint& point) override {
    ThreadLoad users(point);
    const Memory medium = zeroed(medium_bytes);
    const Memory buffers = zeroed(u64{users.load.lane_count} * point.block_bytes);
    users.load.medium = medium.get();
    users.load.buffers = buffers.get();
    fill_medium(Lane{}, users.load, 0, 1);
    users.load.worker_count = users.load.lane_count;
    return users.execute([&](u32 worker) { run_bare(Lane{}, users.load, worker); });
  }

  // The drive is the one that groups execute, on any medium.
  NvmeCacheMeasured cache(const NvmeCachePoint& point) override {
    ThreadLoad users(point.load);
    ThreadDrive drive(point.load, users.load, u64{point.frame_count} * page_size);
    const Memory memory = zeroed(cache_bytes(point));
    std::vector<u32> latencies_ns(u64{cache_kind_count} * point.latencies_max * users.load.lane_count);
    // The queues are known while they are served.
    const auto load_of = [&](CachePhase phase) {
      CacheLoad load = cache_load(point, users.load, memory.get(), latencies_ns.data(), point.latencies_max);
      load.phase = phase;
      return load;
    };
    for (const CachePhase phase : cache_phases) {
      drive.serve([&] { return users.execute_on_queues([&](u32 lane) { run_cache(load_of(phase), lane); }); });
      check_cache(Lane{}, load_of(phase));
      users.require_good("the table counts otherwise");
    }
    users.check(drive.medium());
    return cache_measured(*load_of(CachePhase::flush).counts, latencies_ns);
  }

  double clock_step_ns() override { return 1; }

 private:
  static NvmeMeasured run_on_drive(const NvmePoint& point) {
    ThreadLoad users(point);
    ThreadDrive drive(point, users.load, u64{users.load.lane_count} * point.block_bytes);
    const NvmeMeasured measured = drive.serve([&] { return users.execute_on_queues(); });
    users.check(drive.medium());
    return measured;
  }

  // An emulated controller with registers and bring-up, as for tests.
  static NvmeMeasured run_on_controller(const NvmePoint& point) {
    ThreadLoad users(point);
    NvmeLoad& load = users.load;
    const auto medium =
        std::make_shared<nvme::Medium>(medium_bytes / load.logical_block_bytes, load.logical_block_bytes, false);
    Memory content = zeroed(medium_bytes);
    load.medium = content.get();
    fill_medium(Lane{}, load, 0, 1);
    medium->write(0, content.get(), medium_bytes, true);
    nvme::EmulatedBus bus(u64{16} << 20);
    nvme::EmulatedOptions emulated_options;
    emulated_options.namespaces = {{namespace_id, medium}};
    emulated_options.transfer_shift = log2_floor(nvme_transfer_bytes_max / page_size);
    emulated_options.queues_max = std::max(emulated_options.queues_max, point.queue_count);
    emulated_options.profile.read_latency_ns = emulated_options.profile.write_latency_ns = point.latency_ns;
    nvme::EmulatedController emulated(bus, emulated_options);
    nvme::ControllerOptions options;
    options.queue_count = point.queue_count;
    options.queue_depth = std::min(point.queue_depth, depth_max);
    nvme::Controller controller(emulated, bus, options);
    const nvme::DmaBlock buffers = bus.allocate(u64{load.lane_count} * point.block_bytes);
    // The queues in a row, as the load wants them. The controller's own objects stay unused.
    std::vector<nvme::VirtualQueue> queues;
    for (u32 i = 0; i < controller.queue_count(); ++i) queues.push_back(controller.queue(i));
    load.queues = queues.data();
    load.queue_count = controller.queue_count();
    load.buffers = buffers.memory;
    load.buffers_address = buffers.bus_address;
    if (needs_list(load.block_bytes)) {
      const nvme::DmaBlock lists = bus.allocate(load.lane_count * nvme::memory_page_bytes);
      load.lists = lists.memory;
      load.lists_address = lists.bus_address;
    }
    const NvmeMeasured measured = users.execute_on_queues();
    if (!emulated.complaint().empty()) throw std::runtime_error("the controller complains: " + emulated.complaint());
    medium->read(0, content.get(), medium_bytes);
    users.check(content.get());
    return measured;
  }
};

}  // namespace

std::unique_ptr<NvmeMachine> new_thread_machine() {
  return std::make_unique<ThreadMachine>();
}

#if !GPU4FS_WITH_CUDA
std::unique_ptr<NvmeMachine> new_gpu_machine() {
  throw std::runtime_error("built without CUDA");
}
#endif

}  // namespace gpu4fs::bench
