// Small things that the CUDA sources of the engine share. Host only, for nvcc.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace gpu4fs::engine {

// Throws with CUDA's words. For what cannot go wrong in a working installation.
inline void require_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Makes `device` current for the calling thread and restores the one before.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    require_cuda(cudaGetDevice(&previous_), "cudaGetDevice");
    require_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() { cudaSetDevice(previous_); }

 private:
  int previous_ = 0;
};

}  // namespace gpu4fs::engine
