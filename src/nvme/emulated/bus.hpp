// The bus of an emulated controller: one piece of memory that begins at a made-up bus address. Addresses outside of it
// are found out, as by an IOMMU.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "nvme/dma_memory.hpp"

namespace gpu4fs::nvme {

class EmulatedBus : public DmaMemory {
 public:
  // Not an address of this process, so that a mix-up is noticed.
  static constexpr u64 bus_base = u64{0x7500} << 32;

  explicit EmulatedBus(u64 bytes)
      : bytes_(align_up(bytes, page_size)), memory_(static_cast<u8*>(std::aligned_alloc(page_size, bytes_))) {
    if (memory_ == nullptr) throw std::runtime_error("no memory for an emulated bus");
    std::memset(memory_.get(), 0, bytes_);
  }

  DmaBlock allocate(u64 bytes) override {
    const std::lock_guard<std::mutex> guard(mutex_);
    const u64 length = align_up(bytes, page_size);
    if (length > bytes_ - used_) throw std::runtime_error("the emulated bus has no memory left");
    const DmaBlock block{memory_.get() + used_, bus_base + used_, length};
    used_ += length;
    return block;
  }

  // Null: the range is not on this bus.
  u8* at(u64 bus_address, u64 bytes) const {
    const u64 offset = bus_address - bus_base;
    return offset <= bytes_ && bytes <= bytes_ - offset ? memory_.get() + offset : nullptr;
  }

 private:
  struct Free {
    void operator()(u8* memory) const { std::free(memory); }
  };
  u64 bytes_;
  std::unique_ptr<u8, Free> memory_;
  std::mutex mutex_;
  u64 used_ = 0;
};

}  // namespace gpu4fs::nvme
