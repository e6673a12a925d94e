// The limits of the GPU: bare kernels and allocations with which the benchmark compares the engine. Host only. In a
// build without CUDA gpu_problem() says so, and nothing else may be called.
#pragma once

#include <memory>
#include <string>

#include "base/types.hpp"
#include "bench/rows.hpp"

namespace gpu4fs::bench {

// Why GPU limits cannot be measured, "" if they can.
std::string gpu_problem();

enum class CopyPath { host_to_host, host_to_device, device_to_host, device_to_device };

// Zero-copy kernels: the GPU's threads load from one registered buffer and store to another, with four 16-byte loads in
// flight for each thread and 8 blocks of 1024 threads, as many as the engine may use. Buffers are shared memory
// (memfd), registered and touched beforehand, or VRAM. Throws std::runtime_error.
class GpuLimits {
 public:
  explicit GpuLimits(u64 length_bytes);
  ~GpuLimits();
  GpuLimits(const GpuLimits&) = delete;
  GpuLimits& operator=(const GpuLimits&) = delete;

  // Seconds for one pass over the buffer, measured on the host around launch and completion. Then the result is
  // compared byte by byte with the source.
  double copy_seconds(CopyPath path);
  // The same for writing rows from host memory to host memory. `extra` are the expected second copies and parities,
  // `extra_bytes` their size.
  double row_seconds(const RowShape& shape, const u8* extra, u64 extra_bytes);
  // The source, from which the caller computes them.
  const u8* source() const;

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
};

// VRAM for a session.
void* allocate_device(u64 length_bytes);
void free_device(void* memory);
void copy_from_device(void* host, const void* device, u64 length_bytes);
void zero_device(void* device, u64 length_bytes);

struct ProcessorCount {
  u32 total;
  u32 free;  // those that ran a whole block of a probe kernel at once
};
// Multiprocessors of the GPU on which no other kernel has a block: a block of the probe needs a whole one.
ProcessorCount count_free_processors();

// Seconds from a launch by the calling thread until the host sees a word that the kernel, of 8 blocks of 512 threads,
// has stored.
double time_launch_s();

}  // namespace gpu4fs::bench
