// What `gpu4fs doctor` asks the CUDA driver, through dlopen. Works in programs that are built without CUDA. Host only.
#pragma once

#include <string>

#include "base/types.hpp"

namespace gpu4fs {

struct CudaDriverReport {
  bool library_found = false;  // libcuda.so.1 loads
  std::string problem;         // why no GPU can be used, "" if one can
  u32 driver_version = 0;      // 1000 * major + 10 * minor of the newest CUDA it serves
  u32 device_count = 0;
  std::string device_name;     // of device 0
  u32 compute_capability = 0;  // 10 * major + minor
  u64 memory_bytes = 0;
  u32 processor_count = 0;
  bool can_register_host_memory = false;
  std::string registration_problem;  // why shared memory could not be registered
};

// With `touch_device` it creates a context on device 0 and registers a page of shared memory for a moment.
CudaDriverReport ask_cuda_driver(bool touch_device);

}  // namespace gpu4fs
