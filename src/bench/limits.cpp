// For builds without CUDA; otherwise bench_limits_cuda.cu has these functions.
#include "bench/limits.hpp"

#if !GPU4FS_WITH_CUDA
#include <stdexcept>

namespace gpu4fs::bench {

std::string gpu_problem() {
  return "built without CUDA";
}

struct GpuLimits::Buffers {};
GpuLimits::GpuLimits(u64) {
  throw std::runtime_error(gpu_problem());
}
GpuLimits::~GpuLimits() = default;
double GpuLimits::copy_seconds(CopyPath) {
  return 0;
}
double GpuLimits::row_seconds(const RowShape&, const u8*, u64) {
  return 0;
}
const u8* GpuLimits::source() const {
  return nullptr;
}

void* allocate_device(u64) {
  throw std::runtime_error(gpu_problem());
}
void free_device(void*) {}
void copy_from_device(void*, const void*, u64) {
  throw std::runtime_error(gpu_problem());
}
void zero_device(void*, u64) {
  throw std::runtime_error(gpu_problem());
}
ProcessorCount count_free_processors() {
  return {0, 0};
}
double time_launch_s() {
  throw std::runtime_error(gpu_problem());
}

}  // namespace gpu4fs::bench
#endif
