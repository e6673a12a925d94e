// Pools on files and block devices of a disk, and the transfers of `gpu4fs bench drives`. Private to the tools.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"
#include "bench/client.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::bench {

struct DrivePoolOptions {
  std::vector<std::string> paths;  // their content is replaced
  std::string profile = "single";
  session::EngineChoice engine = session::EngineChoice::cpu;
  session::DeviceAccess access = session::DeviceAccess::direct;
  session::EmulatedDriveOptions drives = {};  // with emulated access
  u64 page_cache_bytes = u64{64} << 20;
  u64 page_readahead_bytes = session::ServerOptions{}.page_readahead_bytes;
  unsigned commit_interval_s = 0;  // 0: checkpoints happen only when a sync requests them
};

// A new pool and its engine.
class DrivePool {
 public:
  explicit DrivePool(const DrivePoolOptions& options);
  ~DrivePool();
  DrivePool(const DrivePool&) = delete;
  DrivePool& operator=(const DrivePool&) = delete;

  server::PoolServer& server() { return *server_; }
  // The clean end. std::runtime_error.
  void stop();

 private:
  std::unique_ptr<server::PoolServer> server_;
};

struct DriveTime {
  double seconds = 0;
  double cpu_seconds = 0;        // of the process
  double media_cpu_seconds = 0;  // of the threads that serve the devices
};

// One file of a pool, whose content is a pattern, and memory for all its bytes. Commands move bytes between a place of
// the file and the same place of the memory. The times are of the transfer alone, without filling and comparing memory.
class DriveFile {
 public:
  DriveFile(server::PoolServer& server, u64 length_bytes);

  // A new file in place of the old one, in commands of `step_bytes`, `depth` at a time; with an fsync.
  DriveTime write_whole(u64 step_bytes, u32 depth);
  DriveTime read_whole(u64 step_bytes, u32 depth);
  // One command a page, in this order.
  DriveTime read_pages(const std::vector<u32>& pages, u32 depth);
  // With other bytes than before, and an fsync.
  DriveTime write_pages(const std::vector<u32>& pages, u32 depth);
  void remove();

 private:
  void clear(u64 page) { std::memset(memory(page), 0, page_size); }
  u8* memory(u64 page) { return client_.buffer() + page * page_size; }
  // Throws if the memory of the page has other bytes than the file should have.
  void check(u64 page) { check_pattern(memory(page), versions_[page], page, 1); }
  void transfer_pages(wire::Opcode opcode, const std::vector<u32>& pages, u32 depth);
  void fsync();

  template <class Work>
  DriveTime time_of(const Work& work);

  server::PoolServer& server_;
  BenchClient client_;
  u64 inode_ = 0;              // 0: there is none
  u64 newest_ = 0;             // pattern
  std::vector<u64> versions_;  // by page: its pattern
};

}  // namespace gpu4fs::bench
