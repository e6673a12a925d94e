// Reads of single pages with many in flight, by one ring and by several.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/parts.hpp"
#include "bench/side_by_side.hpp"
#include "bench/small_commands.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double rate_of_rings_min = 10e6;
constexpr double rate_of_one_ring_min = 1.5e6;

u64 write_small_file(BenchClient& client, const std::string& name, u64 file) {
  const u64 inode = client.create(format::inode_number_root, name);
  fill_pattern(client.buffer(), file, 0, small_file_bytes / page_size);
  client.stream(wire::Opcode::write, inode, small_file_bytes, small_file_bytes, 1, client.buffer_address(0));
  return inode;
}

// One thread of the rate measurement. Each read of a batch has its own place in the data area, so every byte can be
// compared after the clock has stopped.
class SmallReader {
 public:
  SmallReader(BenchContext& context, u64 inode, u64 file, u64 seed)
      : client_(frontend::open_local_session(context.server, batch_bytes + BenchClient::control_bytes)),
        inode_(inode),
        file_(file),
        random_(seed) {}

  static constexpr u64 batch_pages = 8192;
  static constexpr u64 batch_bytes = batch_pages * page_size;

  void prepare_batch() {
    pages_.resize(batch_pages);
    for (u64& page : pages_) page = random_() % (small_file_bytes / page_size);
    std::fill_n(client_.buffer(), batch_bytes, u8{0});
  }

  void run_batch() {
    const u64 depth = client_.session().depth();
    std::vector<u64> positions(batch_pages);
    for (u64 submitted = 0, finished = 0; finished < batch_pages;) {
      if (submitted < batch_pages && submitted - finished < depth) {
        const auto command = BenchClient::transfer(wire::Opcode::read, inode_, pages_[submitted] * page_size, page_size,
                                                   client_.buffer_address(submitted * page_size));
        if (client_.session().submit(command, &positions[submitted]) != Status::ok) {
          throw std::runtime_error("a ring with room took no command");
        }
        ++submitted;
        continue;
      }
      const client::Reply reply = client_.session().finish(positions[finished]);
      if (reply.status != Status::ok || reply.result != page_size) {
        throw std::runtime_error(fmt::format("4 KiB read: {}", status_text(reply.status)));
      }
      ++finished;
    }
  }

  void check_batch() {
    for (u64 i = 0; i < batch_pages; ++i) {
      check_pattern(client_.buffer() + i * page_size, file_, pages_[i], 1);
    }
  }

 private:
  BenchClient client_;
  u64 inode_;
  u64 file_;
  std::mt19937_64 random_;
  std::vector<u64> pages_;
};

struct ReadRate {
  const char* name;
  std::string what;
  u32 ring_count;
  double required;
};

// The files are distributed over the rings; file i has pattern i.
void measure_rate(BenchContext& context, const std::vector<u64>& inodes, const ReadRate& rate) {
  std::vector<std::unique_ptr<SmallReader>> readers;
  for (u32 i = 0; i < rate.ring_count; ++i) {
    const u64 file = i % inodes.size();
    readers.push_back(std::make_unique<SmallReader>(context, inodes[file], file, i + 1));
  }
  std::vector<double> rates;
  for (const double seconds : time_batches(readers, 4 * context.scale.repeats)) {
    rates.push_back(static_cast<double>(readers.size() * SmallReader::batch_pages) / seconds);
  }
  BenchRow row;
  row.name = rate.name;
  row.what = rate.what;
  row.unit = "1/s";
  set_samples(row, rates);
  if (context.on_gpu) {
    row.requirement = Requirement::at_least;
    row.required = rate.required;
  }
  context.result.rows.push_back(std::move(row));
}

}  // namespace

void bench_small_reads(BenchContext& context) {
  const u32 ring_count = context.scale.ring_count;
  std::vector<u64> inodes;
  {
    BenchClient writer(frontend::open_local_session(context.server, small_file_bytes + BenchClient::control_bytes));
    for (u32 i = 0; i < ring_count; ++i) inodes.push_back(write_small_file(writer, fmt::format("rate{}", i), i));
  }
  measure_rate(
      context, {inodes[0]},
      {"read-4k-rate", fmt::format("4 KiB reads, {} rings, one file", ring_count), ring_count, rate_of_rings_min});
  measure_rate(context, inodes,
               {"read-4k-rate-files", fmt::format("4 KiB reads, {} rings, a file each", ring_count), ring_count,
                rate_of_rings_min});
  measure_rate(context, {inodes[0]}, {"read-4k-rate-ring", "4 KiB reads, one ring", 1, rate_of_one_ring_min});
  BenchClient remover(frontend::open_local_session(context.server, BenchClient::control_bytes + page_size));
  for (u32 i = 0; i < ring_count; ++i) remover.unlink(format::inode_number_root, fmt::format("rate{}", i));
  remover.sync();
}

}  // namespace gpu4fs::bench
