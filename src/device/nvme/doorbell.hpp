// Doorbells: words in the registers of a controller, or in memory that an emulated controller reads.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs::nvme {

// What this thread did before, and what others did that it has acquired, is in place for the controller when it sees
// the value. On x86-64 a store to uncached memory follows all earlier stores. ARM needs a barrier between normal and
// device memory. On the GPU the fence covers the scope of the system, and st.mmio (PTX ISA 8.2) is never merged,
// repeated or delayed behind later doorbells.
GPU4FS_FN inline void ring_doorbell(u32* doorbell, u32 value) {
#if GPU4FS_DEVICE_CODE
  fence<Order::release, Scope::system>();
  asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(doorbell)), "r"(value)
               : "memory");
#else
#if defined(__aarch64__)
  asm volatile("dmb osh" ::: "memory");
#endif
  store<Order::release, Scope::system>(doorbell, value);
#endif
}

}  // namespace gpu4fs::nvme
