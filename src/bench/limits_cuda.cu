#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "bench/limits.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

namespace {

constexpr unsigned block_count = 8;
constexpr unsigned thread_count = 1024;
constexpr unsigned loads_in_flight = 4;

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

__global__ void __launch_bounds__(thread_count) copy_kernel(uint4* to, const uint4* from, u64 unit_count) {
  const u64 stride = u64{gridDim.x} * blockDim.x;
  const u64 first = u64{blockIdx.x} * blockDim.x + threadIdx.x;
  u64 unit = first;
  for (; unit + (loads_in_flight - 1) * stride < unit_count; unit += loads_in_flight * stride) {
    uint4 values[loads_in_flight];
#pragma unroll
    for (unsigned i = 0; i < loads_in_flight; ++i) values[i] = __ldcs(&from[unit + i * stride]);
#pragma unroll
    for (unsigned i = 0; i < loads_in_flight; ++i) __stcs(&to[unit + i * stride], values[i]);
  }
  for (; unit < unit_count; unit += stride) __stcs(&to[unit], __ldcs(&from[unit]));
}

__global__ void __launch_bounds__(thread_count)
    row_kernel(u8* to, u8* extra, const u8* from, u64 page_count, RowShape shape) {
  const u64 warps_per_block = blockDim.x / warp_size;
  const u64 first = blockIdx.x * warps_per_block + threadIdx.x / warp_size;
  copy_rows(Warp{}, from, to, extra, first, gridDim.x * warps_per_block, page_count, shape);
}

// Blocks that need a whole multiprocessor announce themselves and wait for a while, so no two of them run on the same
// one.
__global__ void __launch_bounds__(thread_count) probe_kernel(unsigned* arrived, u64 wait_ns) {
  extern __shared__ u8 whole[];
  if (threadIdx.x != 0) return;
  whole[0] = 1;
  u64 begin = 0;
  u64 now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  u64 first = atomicCAS(reinterpret_cast<unsigned long long*>(arrived), 0ull, static_cast<unsigned long long>(begin));
  if (first == 0) first = begin;
  // Blocks that start after the first ones have ended found no free multiprocessor.
  if (begin < first + wait_ns / 2) atomicAdd(&arrived[2], 1u);
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now < first + wait_ns);
}

class SharedBuffer {
 public:
  explicit SharedBuffer(u64 length) : length_(length) {
    const int file = ::memfd_create("gpu4fs-limit", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(length)) != 0) throw std::runtime_error("memfd_create");
    memory_ = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    ::close(file);
    if (memory_ == MAP_FAILED) throw std::runtime_error("mmap");
    require(cudaHostRegister(memory_, length, cudaHostRegisterMapped | cudaHostRegisterPortable), "cudaHostRegister");
  }
  ~SharedBuffer() {
    (void)cudaHostUnregister(memory_);
    ::munmap(memory_, length_);
  }
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
  u64 length_;
};

__global__ void answer_kernel(volatile unsigned* answer, unsigned value) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *answer = value;
}

}  // namespace

struct GpuLimits::Buffers {
  explicit Buffers(u64 length_bytes) : length(length_bytes), source(length_bytes), destination(length_bytes) {
    auto* words = static_cast<u64*>(source.get());
    for (u64 i = 0; i < length / 8; ++i) words[i] = (i + 1) * 0x9e3779b97f4a7c15ull;
    require(cudaMalloc(&device, length), "cudaMalloc");
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Buffers() {
    (void)cudaStreamDestroy(stream);
    (void)cudaFree(device);
    (void)cudaFree(second_device);
  }
  // Not on the default stream, which might wait for the service kernel.
  void transfer(void* to, const void* from) {
    require(cudaMemcpyAsync(to, from, length, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    require(cudaStreamSynchronize(stream), "cudaMemcpyAsync");
  }

  u64 length;
  SharedBuffer source;
  SharedBuffer destination;
  std::unique_ptr<SharedBuffer> extra;  // second copies and parities, when they are needed
  void* device = nullptr;
  void* second_device = nullptr;  // when it is needed
  cudaStream_t stream = nullptr;
};

namespace {

bool reads_host(CopyPath path) {
  return path == CopyPath::host_to_host || path == CopyPath::host_to_device;
}
bool writes_host(CopyPath path) {
  return path == CopyPath::host_to_host || path == CopyPath::device_to_host;
}

}  // namespace

std::string gpu_problem() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no GPU" : "";
}

GpuLimits::GpuLimits(u64 length_bytes) : buffers_(std::make_unique<Buffers>(length_bytes)) {}
GpuLimits::~GpuLimits() = default;

double GpuLimits::copy_seconds(CopyPath path) {
  Buffers& b = *buffers_;
  if (path == CopyPath::device_to_device && b.second_device == nullptr) {
    require(cudaMalloc(&b.second_device, b.length), "cudaMalloc");
  }
  void* const from = reads_host(path) ? b.source.get() : b.device;
  void* const device = path == CopyPath::device_to_device ? b.second_device : b.device;
  void* const to = writes_host(path) ? b.destination.get() : device;
  if (writes_host(path)) std::memset(b.destination.get(), 0, b.length);
  if (!reads_host(path)) b.transfer(b.device, b.source.get());
  if (!writes_host(path)) zero_device(device, b.length);
  const auto began = std::chrono::steady_clock::now();
  copy_kernel<<<block_count, thread_count, 0, b.stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(from),
                                                          b.length / sizeof(uint4));
  require(cudaStreamSynchronize(b.stream), "copy kernel");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (!writes_host(path)) b.transfer(b.destination.get(), device);
  if (std::memcmp(b.destination.get(), b.source.get(), b.length) != 0) {
    throw std::runtime_error("the bare copy kernel did not copy");
  }
  return seconds;
}

const u8* GpuLimits::source() const {
  return static_cast<const u8*>(buffers_->source.get());
}

double GpuLimits::row_seconds(const RowShape& shape, const u8* extra, u64 extra_bytes) {
  Buffers& b = *buffers_;
  if (extra_bytes > b.length) throw std::runtime_error("more parities than pages");
  if (!b.extra) b.extra = std::make_unique<SharedBuffer>(b.length);
  std::memset(b.destination.get(), 0, b.length);
  std::memset(b.extra->get(), 0, b.length);
  const auto began = std::chrono::steady_clock::now();
  row_kernel<<<block_count, thread_count, 0, b.stream>>>(
      static_cast<u8*>(b.destination.get()), static_cast<u8*>(b.extra->get()), static_cast<const u8*>(b.source.get()),
      b.length / page_size, shape);
  require(cudaGetLastError(), "row kernel");
  require(cudaStreamSynchronize(b.stream), "row kernel");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (std::memcmp(b.destination.get(), b.source.get(), b.length) != 0 ||
      std::memcmp(b.extra->get(), extra, extra_bytes) != 0) {
    throw std::runtime_error("the bare kernel of rows did not do its work");
  }
  return seconds;
}

void* allocate_device(u64 length_bytes) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, length_bytes), "cudaMalloc");
  return memory;
}

void free_device(void* memory) {
  (void)cudaFree(memory);
}

void copy_from_device(void* host, const void* device, u64 length_bytes) {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  require(cudaMemcpyAsync(host, device, length_bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  require(cudaStreamSynchronize(stream), "cudaMemcpyAsync");
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

void zero_device(void* device, u64 length_bytes) {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  require(cudaMemsetAsync(device, 0, length_bytes, stream), "cudaMemsetAsync");
  require(cudaStreamSynchronize(stream), "cudaMemsetAsync");
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

ProcessorCount count_free_processors() {
  constexpr u64 wait_ns = 20'000'000;
  int processors = 0;
  int shared_bytes = 0;
  require(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  require(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "cudaDeviceGetAttribute");
  require(cudaFuncSetAttribute(probe_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
          "probe kernel");
  cudaStream_t stream = nullptr;
  // Never freed: a free would wait for the service kernel.
  static unsigned* state = nullptr;
  unsigned result[3] = {};
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  if (state == nullptr) require(cudaMalloc(&state, 4 * sizeof(unsigned)), "cudaMalloc");
  require(cudaMemsetAsync(state, 0, 4 * sizeof(unsigned), stream), "cudaMemsetAsync");
  probe_kernel<<<static_cast<unsigned>(processors), thread_count, static_cast<size_t>(shared_bytes), stream>>>(state,
                                                                                                               wait_ns);
  require(cudaMemcpyAsync(result, state, sizeof(result), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  require(cudaStreamSynchronize(stream), "probe kernel");
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return {static_cast<u32>(processors), result[2]};
}

double time_launch_s() {
  constexpr unsigned threads = 512;
  static volatile unsigned* answer = nullptr;
  static unsigned value = 0;
  static cudaStream_t stream = nullptr;
  if (answer == nullptr) {
    void* memory = nullptr;
    require(cudaHostAlloc(&memory, sizeof(unsigned), cudaHostAllocMapped), "cudaHostAlloc");
    *static_cast<unsigned*>(memory) = 0;
    answer = static_cast<volatile unsigned*>(memory);
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ++value;
  const double began = now_seconds();
  answer_kernel<<<block_count, threads, 0, stream>>>(answer, value);
  require(cudaGetLastError(), "a kernel's launch");
  while (*answer != value && now_seconds() - began < 1) {
  }
  const double took_s = now_seconds() - began;
  require(cudaStreamSynchronize(stream), "a kernel");
  if (*answer != value) throw std::runtime_error("the bare kernel did not answer");
  return took_s;
}

}  // namespace gpu4fs::bench
