// Small commands, one at a time, for the measurement of latencies and for the trace. Host only.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "bench/client.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::bench {

inline constexpr u64 small_file_bytes = 32ull << 20;

struct SmallCommand {
  const char* name;               // of its rows
  const char* what;               // for users
  std::function<void(u32)> call;  // the i-th call; throws if it fails
  std::function<void()> check;    // checks the answer, outside of the measured time; empty: only the status
};

// A session with a file of small_file_bytes and some directories, which are removed at the end.
class SmallCommands {
 public:
  explicit SmallCommands(server::PoolServer& server);
  ~SmallCommands();
  SmallCommands(const SmallCommands&) = delete;
  SmallCommands& operator=(const SmallCommands&) = delete;

  const SmallCommand& noop() const { return commands_[0]; }
  // noop, memcopy, reads of 4, 128 and 132 KiB, getattr, lookup, stat of a path, create, append with fsync.
  const std::vector<SmallCommand>& all() const { return commands_; }

  // Removes the files of create() and of the appends.
  void remove_created();

 private:
  void read_pages(u32 count);
  void append_page();
  void check_attributes();

  BenchClient client_;
  std::mt19937_64 random_{1};
  u64 file_ = 0;        // of small_file_bytes
  u64 outer_ = 0;       // directory
  u64 inner_ = 0;       // directory in it
  u64 named_ = 0;       // file in that
  u64 many_ = 0;        // directory of created files
  u64 appended_ = 0;    // file
  u64 page_count_ = 0;  // of it
  u32 page_ = 0;        // that was read last
  std::vector<std::string> created_;
  std::vector<SmallCommand> commands_;
};

}  // namespace gpu4fs::bench
