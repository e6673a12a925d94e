// A GPU as both ends of NVMe queues: one kernel is the drive, another one uses it. All kernels end by themselves, the
// drive when its users are done, and all at a deadline.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "base/group.hpp"
#include "bench/nvme_cache_build.hpp"
#include "bench/nvme_cache_kernels.hpp"
#include "bench/nvme_load.hpp"
#include "bench/nvme_machine.hpp"
#include "bench/nvme_raw.hpp"
#include "bench/result.hpp"
#include "device/nvme/drive/connected_queues.hpp"
#include "device/nvme/drive/service.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u32 threads = 128;
constexpr u32 warps_per_block = threads / warp_size;
constexpr u64 medium_bytes = u64{256} << 20;
constexpr u64 buffer_bytes = u64{256} << 20;
constexpr u64 list_bytes = u64{32} << 20;
constexpr u32 lanes_max = 32768;
constexpr u32 latencies_max = 4u << 20;
constexpr u32 queues_max = 64;
constexpr u32 depth_max = 1024;
constexpr u64 limit_ns = 5000000000;
constexpr u32 namespace_id = 1;
// Not addresses of this process, so that a mix-up is noticed.
constexpr u64 buffers_address = u64{0x7500} << 32;
constexpr u64 lists_address = u64{0x7600} << 32;

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

__device__ u32 warp_number() {
  return blockIdx.x * warps_per_block + threadIdx.x / warp_size;
}

// What the uses of queues need besides them.
struct Extras {
  nvme::QueueMapper mapper;
  nvme::ClassQueue classes[queues_max];
  u32 mapper_table[queues_max * (1 + mapper_slots_per_queue)];
};

__global__ void place_kernel(nvme::ConnectedQueues set, nvme::MemoryDrive drive, Extras* extras) {
  for (u32 i = threadIdx.x; i < set.queue_count; i += blockDim.x) {
    nvme::connect_queue(set, i);
    // Shallow queues have no room for shares.
    if (set.depth > nvme::service_class_count) {
      nvme::place_classes(extras->classes[i], &set.queues[i], nvme::class_weights_default());
    }
  }
  if (threadIdx.x != 0) return;
  nvme::place_drive(set, drive);
  nvme::place_mapper(extras->mapper, set.queues, set.queue_count, extras->mapper_table,
                     {set.queue_count * mapper_slots_per_queue, mapper_threshold, nvme::MapperPolicy::two_choices});
}

__global__ void __launch_bounds__(threads) drive_kernel(nvme::MemoryDrive* drive, u32 worker_count) {
  const u64 end_ns = now_monotonic_ns() + limit_ns;
  if (warp_number() < worker_count) nvme::run_drive(Warp{}, *drive, warp_number(), worker_count, end_ns);
}

__global__ void __launch_bounds__(threads) shared_kernel(NvmeLoad load) {
  if (warp_number() >= load.worker_count) return;
  run_shared(Warp{}, load, warp_number(), FixedQueues{load, warp_number()});
}
__global__ void __launch_bounds__(threads) mapped_kernel(NvmeLoad load) {
  if (warp_number() < load.worker_count) run_shared(Warp{}, load, warp_number(), MappedQueues{{load, warp_number()}});
}
__global__ void __launch_bounds__(threads) classes_kernel(NvmeLoad load) {
  if (warp_number() < load.worker_count) run_shared(Warp{}, load, warp_number(), ClassQueues{{load, warp_number()}});
}
__global__ void __launch_bounds__(threads) raw_kernel(NvmeLoad load) {
  if (warp_number() < load.worker_count) run_raw(Warp{}, load, warp_number());
}
__global__ void shared_lane_kernel(NvmeLoad load) {
  run_shared(Lane{}, load, 0, FixedQueues{load, 0});
}
__global__ void raw_lane_kernel(NvmeLoad load) {
  run_raw(Lane{}, load, 0);
}
__global__ void __launch_bounds__(threads) bare_kernel(NvmeLoad load) {
  if (warp_number() < load.worker_count) run_bare(Warp{}, load, warp_number());
}
__global__ void __launch_bounds__(threads) fill_kernel(NvmeLoad load) {
  fill_medium(Warp{}, load, warp_number(), gridDim.x * warps_per_block);
}
__global__ void __launch_bounds__(threads) check_kernel(NvmeLoad load) {
  check_medium(Warp{}, load, warp_number(), gridDim.x * warps_per_block);
}
__global__ void clock_kernel(u64* step_ns) {
  u64 least = ~u64{0};
  u64 before = now_monotonic_ns();
  for (u32 i = 0; i < 20000; ++i) {
    const u64 now = now_monotonic_ns();
    if (now != before) least = minimum(least, now - before);
    before = now;
  }
  *step_ns = least;
}

u32 blocks_for(u32 warps) {
  return (warps + warps_per_block - 1) / warps_per_block;
}

class GpuMachine : public NvmeMachine {
 public:
  GpuMachine() {
    require(cudaHostAlloc(reinterpret_cast<void**>(&host_medium_), medium_bytes, cudaHostAllocMapped), "cudaHostAlloc");
    allocate(device_medium_, medium_bytes);
    allocate(buffers_, buffer_bytes);
    allocate(lists_, list_bytes);
    allocate(versions_, medium_bytes / 512 * sizeof(u32));
    allocate(outcomes_, lanes_max * sizeof(u32));
    allocate(latencies_, u64{latencies_max} * sizeof(u32));
    allocate(counts_, sizeof(NvmeCounts) + sizeof(u64));
    allocate(extras_, sizeof(Extras));
    allocate(queues_, nvme::lay_out_queues(nullptr, queues_max, depth_max).bytes);
    require(cudaStreamCreateWithFlags(&drive_stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    require(cudaStreamCreateWithFlags(&user_stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    load_kernels();
    (void)read_counts();  // zeroes them
  }
  ~GpuMachine() override {
    (void)cudaStreamDestroy(drive_stream_);
    (void)cudaStreamDestroy(user_stream_);
    for (void* const memory :
         {static_cast<void*>(device_medium_), static_cast<void*>(buffers_), static_cast<void*>(lists_),
          static_cast<void*>(versions_), static_cast<void*>(outcomes_), static_cast<void*>(latencies_),
          static_cast<void*>(counts_), static_cast<void*>(queues_), static_cast<void*>(extras_)}) {
      (void)cudaFree(memory);
    }
    (void)cudaFreeHost(host_medium_);
  }

  NvmeMeasured run(const NvmePoint& point) override {
    prepare_medium(point);
    const Filled content = filled_;
    // Until the check nobody knows what the medium has.
    if (point.writes) filled_ = {};
    NvmeLoad load = load_of(point);
    if (load.latencies_ns != nullptr) {
      require(cudaMemsetAsync(latencies_, 0, u64{latencies_max} * sizeof(u32), user_stream_), "cudaMemset");
    }
    const nvme::ConnectedQueues set = start_drive(point, load);
    const NvmeMeasured measured = execute(point, load);
    check(load, set);
    filled_ = content;
    return measured;
  }

  NvmeMeasured bare(const NvmePoint& point) override {
    NvmeMeasured best;
    for (const u32 warps : {128u, 256u, 1024u}) {
      prepare_medium(point);
      NvmeLoad load = load_of(point);
      load.worker_count = warps;
      load.lane_count = warps * warp_size;
      load.stop = reinterpret_cast<u32*>(counts_ + 1);
      const double began = now_seconds();
      bare_kernel<<<blocks_for(warps), threads, 0, user_stream_>>>(load);
      const NvmeMeasured measured = finish(load, began);
      if (best.seconds == 0 || measured.millions_per_s() > best.millions_per_s()) best = measured;
      if (point.writes) filled_ = {};
    }
    return best;
  }

  NvmeCacheMeasured cache(const NvmeCachePoint& point) override {
    prepare_medium(point.load);
    const Filled content = filled_;
    filled_ = {};
    const DeviceMemory memory(cache_bytes(point));
    const u32 noted_max = std::min(point.latencies_max, latencies_max / point.load.lane_count / cache_kind_count);
    std::vector<u32> latencies_ns(u64{noted_max} * point.load.lane_count * cache_kind_count);
    require(cudaMemsetAsync(latencies_, 0, latencies_ns.size() * sizeof(u32), user_stream_), "cudaMemset");
    CacheLoad load = cache_load(point, load_of(point.load), memory.begin(), latencies_, noted_max);
    require_room(u64{point.frame_count} * page_size <= buffer_bytes && point.page_count <= medium_bytes / page_size);
    for (const CachePhase phase : cache_phases) {
      load.phase = phase;
      const nvme::ConnectedQueues set = start_drive(point.load, load.io);
      const double began = now_seconds();
      require(launch_cache(load, user_stream_), "the cache's kernel");
      (void)finish(load.io, began);
      require(launch_cache_check(load, user_stream_), "the cache's kernel");
      if (read_counts().faults != 0) throw std::runtime_error("the table counts otherwise");
      check(load.io, set);
    }
    check_written(load.io);
    filled_ = content;
    CacheCounts counts{};
    copy_to_host(&counts, load.counts, sizeof(counts));
    copy_to_host(latencies_ns.data(), latencies_, latencies_ns.size() * sizeof(u32));
    return cache_measured(counts, latencies_ns);
  }

  double clock_step_ns() override {
    u64 step_ns = 0;
    clock_kernel<<<1, 1, 0, user_stream_>>>(reinterpret_cast<u64*>(counts_ + 1));
    copy_to_host(&step_ns, counts_ + 1, sizeof(step_ns));
    return static_cast<double>(step_ns);
  }

 private:
  struct Filled {
    u8* medium = nullptr;
    u32 block_bytes = 0;
    friend bool operator==(const Filled&, const Filled&) = default;
  };

  // Zeroed.
  class DeviceMemory {
   public:
    explicit DeviceMemory(u64 bytes) {
      allocate(begin_, bytes);
      require(cudaMemset(begin_, 0, bytes), "cudaMemset");
      require(cudaStreamSynchronize(nullptr), "cudaMemset");
    }
    ~DeviceMemory() { (void)cudaFree(begin_); }
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    u8* begin() const { return begin_; }

   private:
    u8* begin_ = nullptr;
  };

  template <class T>
  static void allocate(T*& memory, u64 bytes) {
    require(cudaMalloc(reinterpret_cast<void**>(&memory), bytes), "cudaMalloc");
  }
  // A kernel's code is loaded at its first use, which may wait for kernels that run.
  static void load_kernels() {
    cudaFuncAttributes attributes{};
    require(cudaFuncGetAttributes(&attributes, place_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, drive_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, shared_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, mapped_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, classes_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, raw_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, shared_lane_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, raw_lane_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, bare_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, fill_kernel), "kernel");
    require(cudaFuncGetAttributes(&attributes, check_kernel), "kernel");
    require(load_cache_kernels(), "kernel");
  }

  u8* medium_of(const NvmePoint& point) const {
    return point.medium == NvmeMedium::host ? host_medium_ : device_medium_;
  }
  // Several warps hide the time of an access to host memory, and of the queue's own words. One lane has one command,
  // and the lanes of a single queue as much work as those of many. A warp moves large commands page by page, each after
  // an entry of the list.
  static u32 drive_warps_per_queue(const NvmePoint& point) {
    if (point.use == NvmeUse::shared_lane || point.use == NvmeUse::raw_lane) return 1;
    const u32 warps = point.block_bytes <= nvme::memory_page_bytes ? 4 : 16;
    return point.queue_count < 4 ? 16 * warps : warps;
  }

  NvmeLoad load_of(const NvmePoint& point) const {
    NvmeLoad load{};
    load.queue_count = point.queue_count;
    const bool is_lane = point.use == NvmeUse::shared_lane || point.use == NvmeUse::raw_lane;
    const bool is_raw = point.use == NvmeUse::raw || point.use == NvmeUse::raw_lane;
    load.lane_count = is_lane ? 1 : point.lane_count;
    load.worker_count = is_lane ? 1 : is_raw ? point.queue_count : point.lane_count / warp_size;
    load.window = is_lane ? 1 : point.lane_count / point.queue_count / warp_size * warp_size;
    if (is_log(point.use)) load.log_workers = point.queue_count;
    if (point.use == NvmeUse::log_alone) load.worker_count = point.queue_count;
    if (is_raw && !is_lane) load.lane_count = load.window * point.queue_count;
    load.outcomes = outcomes_;
    load.buffers = buffers_;
    load.buffers_address = buffers_address;
    load.medium = medium_of(point);
    load.versions = versions_;
    load.lists = needs_list(point.block_bytes) ? lists_ : nullptr;
    load.lists_address = lists_address;
    load.block_bytes = point.block_bytes;
    load.logical_block_bytes = point.namespace_block_bytes();
    load.is_sequential = point.is_sequential;
    load.namespace_id = namespace_id;
    load.block_count = medium_bytes / point.block_bytes;
    load.writes = point.writes;
    load.compare_every = point.compare_every;
    load.run_ns = point.run_ns;
    load.limit_ns = limit_ns / 2;
    load.latencies_max = std::min(point.latencies_max, latencies_max / load.lane_count);
    load.latencies_ns = point.latencies_max != 0 ? latencies_ : nullptr;
    load.counts = counts_;
    require_room(load.lane_count <= lanes_max && u64{load.lane_count} * load.block_bytes <= buffer_bytes &&
                 load.window != 0 &&
                 (load.lists == nullptr || load.lane_count * nvme::memory_page_bytes <= list_bytes) &&
                 (!is_raw || load.window < point.queue_depth));
    return load;
  }
  static void require_room(bool is_enough) {
    if (!is_enough) throw std::runtime_error("too many lanes");
  }
  nvme::MemoryDrive drive_of(const NvmePoint& point, const NvmeLoad& load) const {
    nvme::MemoryDrive drive{};
    drive.memory.windows[0] = {buffers_address, buffer_bytes, buffers_};
    drive.memory.windows[1] = {lists_address, list_bytes, lists_};
    drive.memory.window_count = 2;
    drive.namespaces[0] = {{namespace_id, load.logical_block_bytes, medium_bytes / load.logical_block_bytes},
                           load.medium};
    drive.namespace_count = 1;
    drive.io_limits = {nvme_transfer_bytes_max, true, true};
    drive.batch_max = nvme_batch_max(load.block_bytes);
    drive.latency_ns = point.latency_ns;
    drive.reverses_batches = point.reverses_batches;
    return drive;
  }

  void prepare_medium(const NvmePoint& point) {
    const Filled wanted{medium_of(point), point.block_bytes};
    if (filled_ == wanted) return;
    filled_ = wanted;
    fill_kernel<<<512, threads, 0, user_stream_>>>(load_of(point));
    require(cudaStreamSynchronize(user_stream_), "filling the medium");
  }

  // Gives the load new queues, and starts the kernel that serves them.
  nvme::ConnectedQueues start_drive(const NvmePoint& point, NvmeLoad& load) {
    const nvme::ConnectedQueues set = nvme::lay_out_queues(queues_, point.queue_count, point.queue_depth);
    load.queues = set.queues;
    load.stop = &set.drive->is_stopping;
    load.mapper = &extras_->mapper;
    load.classes = extras_->classes;
    require(cudaMemsetAsync(queues_, 0, set.bytes, user_stream_), "cudaMemset");
    require(cudaMemsetAsync(outcomes_, 0, lanes_max * sizeof(u32), user_stream_), "cudaMemset");
    place_kernel<<<1, 64, 0, user_stream_>>>(set, drive_of(point, load), extras_);
    require(cudaStreamSynchronize(user_stream_), "placing queues");
    const u32 drive_warps = point.queue_count * drive_warps_per_queue(point);
    drive_kernel<<<blocks_for(drive_warps), threads, 0, drive_stream_>>>(set.drive, drive_warps);
    require(cudaGetLastError(), "the drive's kernel");
    return set;
  }

  NvmeMeasured execute(const NvmePoint& point, const NvmeLoad& load) {
    const double began = now_seconds();
    switch (point.use) {
      case NvmeUse::raw:
        raw_kernel<<<blocks_for(load.worker_count), threads, 0, user_stream_>>>(load);
        break;
      case NvmeUse::mapped:
        mapped_kernel<<<blocks_for(load.worker_count), threads, 0, user_stream_>>>(load);
        break;
      case NvmeUse::log_classes:
        classes_kernel<<<blocks_for(load.worker_count), threads, 0, user_stream_>>>(load);
        break;
      case NvmeUse::shared_lane:
        shared_lane_kernel<<<1, 1, 0, user_stream_>>>(load);
        break;
      case NvmeUse::raw_lane:
        raw_lane_kernel<<<1, 1, 0, user_stream_>>>(load);
        break;
      default:
        shared_kernel<<<blocks_for(load.worker_count), threads, 0, user_stream_>>>(load);
        break;
    }
    return finish(load, began);
  }

  // Waits for the user's kernel, and reads what it has counted.
  NvmeMeasured finish(const NvmeLoad& load, double began) {
    require(cudaGetLastError(), "the user's kernel");
    require(cudaStreamSynchronize(user_stream_), "the user's kernel");
    NvmeMeasured measured;
    measured.seconds = now_seconds() - began;
    require(cudaStreamSynchronize(drive_stream_), "the drive's kernel");
    const NvmeCounts counts = read_counts();
    measured.commands = counts.commands;
    if (counts.faults != 0) throw std::runtime_error(std::to_string(counts.faults) + " lanes saw a fault");
    if (counts.commands == 0) throw std::runtime_error("no command was completed");
    if (load.latencies_ns != nullptr) read_latencies(load, measured);
    return measured;
  }
  // Zeros are rounds that a lane has not reached.
  void read_latencies(const NvmeLoad& load, NvmeMeasured& measured) {
    std::vector<u32> found(u64{load.latencies_max} * load.lane_count);
    copy_to_host(found.data(), latencies_, found.size() * sizeof(u32));
    for (const u32 latency_ns : found) {
      if (latency_ns != 0) measured.latencies_us.push_back(latency_ns / 1e3);
    }
    if (measured.latencies_us.empty()) throw std::runtime_error("no latencies");
  }
  NvmeCounts read_counts() {
    NvmeCounts counts{};
    require(cudaMemcpyAsync(&counts, counts_, sizeof(counts), cudaMemcpyDeviceToHost, user_stream_), "counts");
    require(cudaMemsetAsync(counts_, 0, sizeof(counts) + sizeof(u64), user_stream_), "counts");
    require(cudaStreamSynchronize(user_stream_), "counts");
    return counts;
  }

  void copy_to_host(void* to, const void* from, u64 bytes) {
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, user_stream_), "a copy to the host");
    require(cudaStreamSynchronize(user_stream_), "a copy to the host");
  }

  void check_written(const NvmeLoad& load) {
    check_kernel<<<512, threads, 0, user_stream_>>>(load);
    if (read_counts().faults != 0) throw std::runtime_error("the medium has wrong content");
  }
  void check(const NvmeLoad& load, const nvme::ConnectedQueues& set) {
    if (load.writes) check_written(load);
    nvme::MemoryDrive drive{};
    nvme::ControllerState controller{};
    copy_to_host(&drive, set.drive, sizeof(drive));
    copy_to_host(&controller, set.controller, sizeof(controller));
    if (drive.complaint != 0) throw std::runtime_error("the drive complains: " + std::to_string(drive.complaint));
    if (controller.failure != 0) {
      throw std::runtime_error("the driver gave the drive up: " + std::to_string(controller.failure));
    }
  }

  u8* host_medium_ = nullptr;
  u8* device_medium_ = nullptr;
  u8* buffers_ = nullptr;
  u8* lists_ = nullptr;
  u8* queues_ = nullptr;
  Extras* extras_ = nullptr;
  u32* versions_ = nullptr;
  u32* outcomes_ = nullptr;
  u32* latencies_ = nullptr;
  NvmeCounts* counts_ = nullptr;
  cudaStream_t drive_stream_ = nullptr;
  cudaStream_t user_stream_ = nullptr;
  Filled filled_;
};

}  // namespace

std::unique_ptr<NvmeMachine> new_gpu_machine() {
  return std::make_unique<GpuMachine>();
}

}  // namespace gpu4fs::bench
