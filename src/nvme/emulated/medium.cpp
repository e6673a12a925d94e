#include "nvme/emulated/medium.hpp"

#include <cstring>

namespace gpu4fs::nvme {

Medium::Medium(u64 block_count, u32 block_bytes, bool has_cache)
    : block_count_(block_count), block_bytes_(block_bytes), has_cache_(has_cache), bytes_(block_count * block_bytes) {}

void Medium::read(u64 first_block, u8* bytes, u64 count) const {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (u64 i = 0; i < count; ++i) {
    const auto cached = cache_.find(first_block + i);
    const u8* const from = cached != cache_.end() ? cached->second.data() : &bytes_[(first_block + i) * block_bytes_];
    std::memcpy(bytes + i * block_bytes_, from, block_bytes_);
  }
}

void Medium::store_block(u64 block, const u8* bytes, bool is_durable) {
  if (has_cache_ && !is_durable) {
    cache_[block].assign(bytes, bytes + block_bytes_);
    return;
  }
  cache_.erase(block);
  std::memcpy(&bytes_[block * block_bytes_], bytes, block_bytes_);
}

void Medium::write(u64 first_block, const u8* bytes, u64 count, bool is_durable) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (u64 i = 0; i < count; ++i) store_block(first_block + i, bytes + i * block_bytes_, is_durable);
}

void Medium::write_zeroes(u64 first_block, u64 count) {
  const std::vector<u8> zeros(block_bytes_);
  const std::lock_guard<std::mutex> guard(mutex_);
  for (u64 i = 0; i < count; ++i) store_block(first_block + i, zeros.data(), false);
}

void Medium::flush() {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& [block, bytes] : cache_) std::memcpy(&bytes_[block * block_bytes_], bytes.data(), block_bytes_);
  cache_.clear();
}

void Medium::lose_power(PowerLoss how, u32 seed) {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::mt19937 random(seed);
  for (const auto& [block, bytes] : cache_) {
    if (how == PowerLoss::tears && random() % 2 == 0) {
      std::memcpy(&bytes_[block * block_bytes_], bytes.data(), block_bytes_);
    }
  }
  cache_.clear();
}

u64 Medium::cached_blocks() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return cache_.size();
}

}  // namespace gpu4fs::nvme
