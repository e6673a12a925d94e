// CudaAllocator, and the capabilities of the machine.
#include <cstring>
#include <vector>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "engine/cuda_support.cuh"
#include "engine/engine_cuda.hpp"

namespace gpu4fs::engine {

struct CudaAllocator::State {
  int device = 0;
  std::vector<void*> device_blocks;
  std::vector<void*> host_blocks;
};

CudaAllocator::CudaAllocator(int device) : state_(std::make_unique<State>()) {
  state_->device = device;
}

CudaAllocator::~CudaAllocator() {
  // After the death of a kernel these calls fail too, and nothing is left to free.
  for (void* block : state_->device_blocks) cudaFree(block);
  for (void* block : state_->host_blocks) cudaFreeHost(block);
}

void* CudaAllocator::allocate(u64 bytes, u64 alignment) {
  const CurrentDevice current(state_->device);
  constexpr u64 native_alignment = 256;
  GPU4FS_CHECK(is_power_of_two(alignment));
  const u64 slack = alignment > native_alignment ? alignment : 0;
  void* block = nullptr;
  require_cuda(cudaMalloc(&block, bytes + slack), "GPU memory for the engine");
  state_->device_blocks.push_back(block);
  return reinterpret_cast<void*>(align_up(reinterpret_cast<std::uintptr_t>(block), alignment));
}

void CudaAllocator::copy_in(void* engine_destination, const void* host_source, u64 bytes) {
  const CurrentDevice current(state_->device);
  require_cuda(cudaMemcpy(engine_destination, host_source, bytes, cudaMemcpyHostToDevice), "copy to GPU memory");
}

void CudaAllocator::zero(void* engine_destination, u64 bytes) {
  const CurrentDevice current(state_->device);
  require_cuda(cudaMemset(engine_destination, 0, bytes), "clearing GPU memory");
  require_cuda(cudaDeviceSynchronize(), "clearing GPU memory");
}

bool CudaAllocator::copy_out(void* host_destination, const void* engine_source, u64 bytes) {
  const CurrentDevice current(state_->device);
  // Not on the default stream, which might wait for the service kernel.
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return false;
  const bool is_copied =
      cudaMemcpyAsync(host_destination, engine_source, bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
      cudaStreamSynchronize(stream) == cudaSuccess;
  (void)cudaStreamDestroy(stream);
  return is_copied;
}

void* CudaAllocator::allocate_shared(u64 bytes) {
  const CurrentDevice current(state_->device);
  void* block = nullptr;
  require_cuda(cudaHostAlloc(&block, align_up(bytes, page_size), cudaHostAllocMapped | cudaHostAllocPortable),
               "pinned host memory");
  state_->host_blocks.push_back(block);
  std::memset(block, 0, align_up(bytes, page_size));
  return block;
}

CudaAvailability cuda_availability(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return {false, cudaGetErrorString(error)};
  if (device >= count) return {false, "no GPU with this number"};
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return {false, "the GPU does not answer"};
  const std::string name = properties.name;
  if (properties.major < 9) return {false, name + " is too old: compute capability 9.0 is needed"};
  int same_address = 0;
  cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device);
  if (same_address == 0) return {false, name + " cannot use registered host memory under its host address"};
  if (properties.canMapHostMemory == 0) return {false, name + " cannot map host memory"};
  return {true, name};
}

}  // namespace gpu4fs::engine
