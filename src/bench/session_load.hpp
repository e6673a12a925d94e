// What one session reaches, measured in the same way in the server's process and in another one. Host only.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "bench/client.hpp"

namespace gpu4fs::bench {

struct SessionLoadOptions {
  u64 small_inode = 0;  // small_file_bytes of pattern `small_file`
  u64 small_file = 0;
  u64 large_inode = 0;  // a file for transfers, of this session alone
  u64 large_file = 0;   // the pattern that is written to it
  u64 large_bytes = 0;  // a multiple of session_transfer_bytes
  u32 calls = 0;        // of small commands
  u32 repeats = 0;      // of transfers of the large file
};

struct SessionFigures {
  std::vector<double> noop_us;
  std::vector<double> read_us;  // of 4 KiB
  std::vector<double> read_gb_per_s;
  std::vector<double> write_gb_per_s;
};

// Transfers of 1 MiB, 8 in flight.
inline constexpr u64 session_transfer_bytes = u64{1} << 20;
inline constexpr u32 session_transfers_in_flight = 8;
inline constexpr u64 session_load_data_bytes =
    session_transfer_bytes * session_transfers_in_flight + BenchClient::control_bytes;

// Compares every byte that is read. std::runtime_error.
SessionFigures measure_session(BenchClient& client, const SessionLoadOptions& options);

// 4 KiB reads with many in flight for `seconds`, compared at random. Returns how many there were.
u64 read_small(BenchClient& client, const SessionLoadOptions& options, double seconds, u64 seed);

}  // namespace gpu4fs::bench
