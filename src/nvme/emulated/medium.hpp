// The medium of an emulated namespace: bytes that survive a power loss, and a volatile cache of blocks over them.
#pragma once

#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::nvme {

enum class PowerLoss {
  drops,  // the whole cache
  tears,  // a random part of its blocks reaches the medium; each block whole or not at all, as AWUPF 0 promises
};

class Medium {
 public:
  Medium(u64 block_count, u32 block_bytes, bool has_cache);

  u64 block_count() const { return block_count_; }
  u32 block_bytes() const { return block_bytes_; }
  bool has_cache() const { return has_cache_; }

  // Any thread. Offsets and lengths in bytes, inside of the medium. The parts of a block that one command writes with
  // several calls are one block of the cache.
  void read(u64 offset, u8* bytes, u64 length) const;
  void write(u64 offset, const u8* bytes, u64 length, bool is_durable);
  void write_zeroes(u64 offset, u64 length);
  void flush();
  void lose_power(PowerLoss how, u32 seed);
  u64 cached_blocks() const;

 private:
  // Calls part(block, offset in it, offset in the range, length) for each block of a range.
  template <class Part>
  void for_blocks(u64 offset, u64 length, Part&& part) const;
  std::vector<u8>& cached(u64 block);

  u64 block_count_;
  u32 block_bytes_;
  bool has_cache_;
  mutable std::mutex mutex_;
  std::vector<u8> bytes_;
  std::map<u64, std::vector<u8>> cache_;
};

}  // namespace gpu4fs::nvme
