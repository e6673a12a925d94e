// Devices as the engine sees them. A Device is plain data in engine memory; what it can do is decided by
// a switch over its kind, because a host function pointer means nothing in a kernel.
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs::device {

enum class DeviceKind : u32 {
  memory = 1,  // a region mapped into the engine's address space: load and store
};

class DeviceStack;  // device/stack/device_stack.hpp

struct Device {
  DeviceKind kind;
  u32 index;        // in the pool
  u64 size_bytes;
  u8* base;         // memory: start of the mapping, in the engine's address space
  u32 needs_flush;  // 1: durable only after a flush upcall (msync or fdatasync); 0: memory is the medium
  u32 read_only;
  DeviceStack* stack = nullptr;  // sees every access (device/device_access.hpp); never with a GPU engine
};

}  // namespace gpu4fs::device
