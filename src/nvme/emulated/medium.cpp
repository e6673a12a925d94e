#include "nvme/emulated/medium.hpp"

#include <algorithm>
#include <cstring>

namespace gpu4fs::nvme {

Medium::Medium(u64 block_count, u32 block_bytes, bool has_cache)
    : block_count_(block_count), block_bytes_(block_bytes), has_cache_(has_cache), bytes_(block_count * block_bytes) {}

template <class Part>
void Medium::for_blocks(u64 offset, u64 length, Part&& part) const {
  for (u64 done = 0; done < length;) {
    const u64 inside = (offset + done) % block_bytes_;
    const u64 bytes = std::min(length - done, block_bytes_ - inside);
    part((offset + done) / block_bytes_, inside, done, bytes);
    done += bytes;
  }
}

std::vector<u8>& Medium::cached(u64 block) {
  std::vector<u8>& place = cache_[block];
  if (place.empty()) {
    const u8* const durable = &bytes_[block * block_bytes_];
    place.assign(durable, durable + block_bytes_);
  }
  return place;
}

void Medium::read(u64 offset, u8* bytes, u64 length) const {
  const std::lock_guard<std::mutex> guard(mutex_);
  for_blocks(offset, length, [&](u64 block, u64 inside, u64 done, u64 part) {
    const auto found = cache_.find(block);
    const u8* const from = found != cache_.end() ? found->second.data() : &bytes_[block * block_bytes_];
    std::memcpy(bytes + done, from + inside, part);
  });
}

void Medium::write(u64 offset, const u8* bytes, u64 length, bool is_durable) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for_blocks(offset, length, [&](u64 block, u64 inside, u64 done, u64 part) {
    const bool is_cached = has_cache_ && (!is_durable || (part < block_bytes_ && cache_.count(block) != 0));
    if (is_cached) {
      std::vector<u8>& place = cached(block);
      std::memcpy(place.data() + inside, bytes + done, part);
      if (is_durable) std::memcpy(&bytes_[block * block_bytes_], place.data(), block_bytes_);
      return;
    }
    if (has_cache_) cache_.erase(block);
    std::memcpy(&bytes_[block * block_bytes_ + inside], bytes + done, part);
  });
}

void Medium::write_zeroes(u64 offset, u64 length) {
  const std::vector<u8> zeros(block_bytes_);
  for (u64 done = 0; done < length; done += block_bytes_) {
    write(offset + done, zeros.data(), std::min<u64>(block_bytes_, length - done), false);
  }
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
