// Small helpers that the CUDA sources of the engine share. Host only, for nvcc.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace gpu4fs::engine {

// Throws with CUDA's error text. For calls that cannot fail in a working installation.
inline void require_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Makes `device` current for the calling thread, and restores the previous one.
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
