// Thousands of small files in a tree of directories, and pairs of linked commands for them. Host only. Errors are
// std::runtime_error.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"
#include "bench/client.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::bench {

inline constexpr u32 path_file_count = 10000;
inline constexpr u32 path_directory_count = 100;

// Below the root of the file system. File i has one page, with pattern i.
std::string path_directory(u32 file);
std::string path_of_file(u32 file);

// The second command has the inode that the first one answers.
struct Pair {
  wire::Command first;
  wire::Command second;
};

// A client with `slot_count` slots, each with room for the content and the path of a file. It runs pairs of commands.
class PairClient {
 public:
  // The ring has room for `depth` commands, rounded down to a power of two.
  PairClient(server::PoolServer& server, u32 slot_count, u32 depth);

  BenchClient& client() { return client_; }
  u8* content(u32 slot) { return client_.buffer() + slot * page_size; }
  u64 content_address(u32 slot) { return client_.buffer_address(slot * page_size); }
  // Puts the name or path into the slot. The command refers to it.
  void set_name(u32 slot, const std::string& name, wire::Command* command);

  // Runs all pairs, as many at a time as the ring has room for. Each second command must answer `result`.
  void run(const std::vector<Pair>& pairs, u64 result);

 private:
  void submit(wire::Command command, u16 flag, u64* position);

  BenchClient client_;
  u64 slot_count_;
  std::vector<std::array<u64, 2>> positions_;
};

// Makes all files. The client has a slot for each. Returns the inodes of the directories.
std::vector<u64> make_path_files(PairClient& client);
void remove_path_files(PairClient& client, const std::vector<u64>& directories);

}  // namespace gpu4fs::bench
