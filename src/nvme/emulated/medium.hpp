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

  // Any thread. Blocks are inside of the medium.
  void read(u64 first_block, u8* bytes, u64 count) const;
  void write(u64 first_block, const u8* bytes, u64 count, bool is_durable);
  void write_zeroes(u64 first_block, u64 count);
  void flush();
  void lose_power(PowerLoss how, u32 seed);
  u64 cached_blocks() const;

 private:
  void store_block(u64 block, const u8* bytes, bool is_durable);

  u64 block_count_;
  u32 block_bytes_;
  bool has_cache_;
  mutable std::mutex mutex_;
  std::vector<u8> bytes_;
  std::map<u64, std::vector<u8>> cache_;
};

}  // namespace gpu4fs::nvme
