#include "bench/crashed_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"
#include "pool/pool_make.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 device_bytes = u64{2} << 30;
constexpr u64 file_bytes_max = u64{64} << 20;
constexpr u64 sync_bytes = u64{2} << 20;
constexpr u64 pattern = 1;
constexpr const char* file_name = "log";
// The log has the bytes of such writes. Those of whole pages it only refers to.
constexpr u64 write_bytes = page_size - 1;

}  // namespace

CrashedPool::CrashedPool(const std::string& folder, u64 log_bytes, session::ServerOptions server)
    : folder_(folder), log_bytes_(log_bytes), options_(std::move(server)) {
  pool::MakePoolOptions make;
  make.device_paths = {folder_.path() + "/device"};
  make.size_bytes = device_bytes;
  // A checkpoint is requested when half of it is in use.
  make.log_bytes = 5 * log_bytes / 2;
  pool::make_pool(make);
  options_.device_paths = make.device_paths;
  options_.commit_interval_s = 0;
  fill();
}

void CrashedPool::fill() {
  server::PoolServer server(options_);
  server.start();
  {
    BenchClient client(frontend::open_local_session(server, page_size + BenchClient::control_bytes));
    const u64 file = client.create(format::inode_number_root, file_name);
    fill_pattern(client.buffer(), pattern, 0, 1);
    for (u64 written = 0; written < log_bytes_; written += page_size) {
      client.call(BenchClient::transfer(wire::Opcode::write, file, written % file_bytes_max, write_bytes,
                                        client.buffer_address(0)),
                  "write");
      if (written % sync_bytes == 0) client.sync();
    }
    client.sync();
  }
  server.abandon();
}

void CrashedPool::check(server::PoolServer& server) const {
  BenchClient client(frontend::open_local_session(server, 2 * page_size + BenchClient::control_bytes));
  const u64 file =
      client.call(client.named(wire::Opcode::lookup, format::inode_number_root, file_name), "lookup").result;
  u8* const wanted = client.buffer() + page_size;
  fill_pattern(wanted, pattern, 0, 1);
  for (u64 offset = 0; offset < std::min(log_bytes_, file_bytes_max); offset += page_size) {
    const client::Reply reply = client.call(
        BenchClient::transfer(wire::Opcode::read, file, offset, write_bytes, client.buffer_address(0)), "read");
    if (reply.result != write_bytes || std::memcmp(client.buffer(), wanted, write_bytes) != 0) {
      throw std::runtime_error(fmt::format("the recovered file has wrong bytes at {}", offset));
    }
  }
}

}  // namespace gpu4fs::bench
