// Devices in the view of the engine. A Device is plain data in engine memory. A switch over its kind selects its
// operations, because a host function pointer has no meaning in a kernel.
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs::device {

enum class DeviceKind : u32 {
  memory = 1,     // a region mapped into the engine's address space: load and store
  scattered = 2,  // the same, but neighbouring pages are not neighbours in memory (device/memory/scattered_pages.hpp)
  staged = 3,     // pages pass through frames of a page cache (device/staged/staged_types.hpp)
};

class DeviceStack;     // device/stack/device_stack.hpp
struct StagedDevices;  // device/staged/staged_types.hpp
struct PageTier;       // device/tier/page_tier.hpp

enum DeviceUse : u32 {
  device_in_use = 0,
  device_failed_for_good = 1,  // missing or given up: it is neither read nor written; base may be null
  device_rebuilding = 2,       // all writes go to it too, but its content is not read
};

struct Device {
  DeviceKind kind;
  u32 index;  // in the pool
  u64 size_bytes;
  u8* base;         // start of the mapping, in the engine's address space; of a staged device: of the medium
  u32 needs_flush;  // 1: durable only after a flush upcall (msync or fdatasync); 0: memory is the medium
  u32 read_only;
  DeviceStack* stack = nullptr;  // sees every access (device/device_access.hpp); never with a GPU engine
  u32 failed = 0;                // atomic, DeviceUse
  u32 reserved = 0;
  StagedDevices* staged = nullptr;  // of a staged device; all of a pool have the same
  PageTier* tier = nullptr;         // copies of its pages; all of a pool have the same, or none has one
};

}  // namespace gpu4fs::device
