// Removes all files of a full pool, compared with removing the same number of files from a pool that they fill half.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/client.hpp"
#include "bench/parts.hpp"
#include "bench/pool.hpp"
#include "bench/side_by_side.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 full_pool_bytes = u64{64} << 20;  // some 188,000 empty files
constexpr double emptying_ratio_min = 0.5;
constexpr u32 client_count = 8;
constexpr u32 no_limit = ~u32{0};

std::string empty_file_name(u32 client, u32 i) {
  return fmt::format("empty{}.{}", client, i);
}

// Creates empty files of client `number` until there is no space, or `wanted` of them.
u32 fill_with_empty_files(BenchClient& client, u32 number, u32 wanted) {
  u32 count = 0;
  while (count < wanted) {
    wire::Command command =
        client.named(wire::Opcode::create, format::inode_number_root, empty_file_name(number, count));
    command.mode = 0100644;
    const client::Reply reply = client.session().call(command);
    if (reply.status == Status::no_space && wanted == no_limit) return count;
    if (reply.status != Status::ok) throw std::runtime_error(fmt::format("create: {}", status_text(reply.status)));
    ++count;
  }
  return count;
}

using FileCounts = std::array<u32, client_count>;

u32 sum_of(const FileCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), u32{0});
}

struct Emptied {
  FileCounts file_counts;  // by client
  double removed_per_s;
};

// Makes, fills and empties a pool.
Emptied empty_pool(session::ServerOptions options, u64 pool_bytes, const FileCounts& wanted) {
  const MemoryPool pool({.device_bytes = pool_bytes, .device_count = 1});
  options.device_paths = pool.paths();
  server::PoolServer server(options);
  server.start();
  Emptied result{};
  {
    std::vector<std::unique_ptr<BenchClient>> clients;
    for (u32 i = 0; i < client_count; ++i) {
      clients.push_back(
          std::make_unique<BenchClient>(frontend::open_local_session(server, 2 * BenchClient::control_bytes)));
    }
    run_side_by_side(client_count, [&](u32 number) {
      result.file_counts[number] = fill_with_empty_files(*clients[number], number, wanted[number]);
    });
    const double began = now_seconds();
    run_side_by_side(client_count, [&](u32 number) {
      for (u32 i = 0; i < result.file_counts[number]; ++i) {
        clients[number]->unlink(format::inode_number_root, empty_file_name(number, i));
      }
    });
    result.removed_per_s = sum_of(result.file_counts) / (now_seconds() - began);
  }
  if (!server.stop()) throw std::runtime_error("the last checkpoint failed");
  return result;
}

}  // namespace

void bench_emptying(const BenchScale& scale, session::ServerOptions options, BenchResult& result) {
  options.commit_interval_s = session::ServerOptions{}.commit_interval_s;  // the default of a mount
  std::vector<double> full;
  std::vector<double> half;
  u32 file_count = 0;
  FileCounts unlimited;
  unlimited.fill(no_limit);
  for (u32 round = 0; round < scale.repeats; ++round) {
    const Emptied emptied = empty_pool(options, full_pool_bytes, unlimited);
    file_count = sum_of(emptied.file_counts);
    full.push_back(emptied.removed_per_s);
    half.push_back(empty_pool(options, 2 * full_pool_bytes, emptied.file_counts).removed_per_s);
  }
  BenchRow row;
  row.name = "emptying-full";
  row.what = fmt::format("remove all {} empty files of a full pool, {} clients", file_count, client_count);
  row.unit = "1/s";
  set_samples(row, full);
  BenchRow limit;
  set_samples(limit, half);
  row.limit = limit.value;
  row.limit_what = "as many of a pool half full";
  row.requirement = Requirement::at_least;
  row.required = emptying_ratio_min;
  result.rows.push_back(std::move(row));
}

}  // namespace gpu4fs::bench
