// Devices in the view of the engine. A Device is plain data in engine memory. A switch over its kind selects its
// operations, because a host function pointer has no meaning in a kernel.
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs::device {

enum class DeviceKind : u32 {
  memory = 1,     // a region mapped into the engine's address space: load and store
  scattered = 2,  // the same, but neighbouring pages are not neighbours in memory (device/memory/scattered_pages.hpp)
};

class DeviceStack;  // device/stack/device_stack.hpp

enum DeviceUse : u32 {
  device_in_use = 0,
  device_failed_for_good = 1,  // missing or given up: it is neither read nor written; base may be null
  device_rebuilding = 2,       // all writes go to it too, but its content is not read
};

struct Device {
  DeviceKind kind;
  u32 index;  // in the pool
  u64 size_bytes;
  u8* base;         // start of the mapping, in the engine's address space
  u32 needs_flush;  // 1: durable only after a flush upcall (msync or fdatasync); 0: memory is the medium
  u32 read_only;
  DeviceStack* stack = nullptr;  // sees every access (device/device_access.hpp); never with a GPU engine
  u32 failed = 0;                // atomic, DeviceUse
  u32 reserved = 0;
};

}  // namespace gpu4fs::device
