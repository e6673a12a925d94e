// Reads of files into GPU memory.
#pragma once

#include <optional>
#include <vector>

#include "base/types.hpp"
#include "bench/client.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::bench {

// A client whose buffer is GPU memory, which is freed with the process: a free would wait for the service kernel.
class DeviceReader {
 public:
  // For files of this length. Throws std::runtime_error.
  DeviceReader(server::PoolServer& server, u64 length_bytes);

  // Reads a whole file by commands of this size, and compares it with pattern 0 afterwards. Throws std::runtime_error.
  double read_seconds(u64 inode, u64 command_bytes);

 private:
  static constexpr u32 buffer = 1;
  void* memory_;
  std::vector<u8> copy_;
  std::optional<BenchClient> client_;
};

}  // namespace gpu4fs::bench
