// The bus of an emulated controller: one piece of memory that begins at a made-up bus address, and others that are
// mapped for a while. Addresses outside of them are found out, as by an IOMMU.
#pragma once

#include <sys/mman.h>

#include <mutex>
#include <stdexcept>
#include <vector>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "nvme/dma_memory.hpp"

namespace gpu4fs::nvme {

class EmulatedBus : public DmaMemory {
 public:
  // Not an address of this process, so that a mix-up is noticed.
  static constexpr u64 bus_base = u64{0x7500} << 32;

  explicit EmulatedBus(u64 bytes) : bytes_(align_up(bytes, page_size)) {
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory for an emulated bus");
    memory_ = static_cast<u8*>(memory);
  }
  ~EmulatedBus() override { ::munmap(memory_, bytes_); }
  EmulatedBus(const EmulatedBus&) = delete;
  EmulatedBus& operator=(const EmulatedBus&) = delete;

  DmaBlock allocate(u64 bytes) override {
    const std::lock_guard<std::mutex> guard(mutex_);
    const u64 length = align_up(bytes, page_size);
    if (length > bytes_ - used_) throw std::runtime_error("the emulated bus has no memory left");
    const DmaBlock block{memory_ + used_, bus_base + used_, length};
    used_ += length;
    return block;
  }

  // Other memory, at an address below bus_base.
  void map(u8* pages, u64 bytes, u64 bus_address) {
    const std::lock_guard<std::mutex> guard(mutex_);
    mapped_.push_back({pages, bus_address, bytes});
  }
  void unmap(u64 bus_address) {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::erase_if(mapped_, [&](const DmaBlock& block) { return block.bus_address == bus_address; });
  }
  u64 mapped_count() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return mapped_.size();
  }

  // Null: the range is not on this bus.
  u8* at(u64 bus_address, u64 bytes) const {
    if (u8* const found = inside({memory_, bus_base, bytes_}, bus_address, bytes)) return found;
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const DmaBlock& block : mapped_) {
      if (u8* const found = inside(block, bus_address, bytes)) return found;
    }
    return nullptr;
  }

 private:
  static u8* inside(const DmaBlock& block, u64 bus_address, u64 bytes) {
    const u64 offset = bus_address - block.bus_address;
    return offset <= block.bytes && bytes <= block.bytes - offset ? block.memory + offset : nullptr;
  }

  u64 bytes_;
  u8* memory_;
  mutable std::mutex mutex_;
  u64 used_ = 0;
  std::vector<DmaBlock> mapped_;
};

}  // namespace gpu4fs::nvme
