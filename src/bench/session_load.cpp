#include "bench/session_load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include "base/limits.hpp"
#include "bench/result.hpp"
#include "bench/small_commands.hpp"

namespace gpu4fs::bench {
namespace {

template <class Call>
std::vector<double> time_each(u32 count, Call&& call) {
  std::vector<double> samples_us;
  for (u32 i = 0; i < count + count / 10; ++i) {
    const double began = now_seconds();
    call();
    if (i >= count / 10) samples_us.push_back((now_seconds() - began) * 1e6);
  }
  return samples_us;
}

// Transfer i has the pattern of its place in the data area, so writes need no preparation. Before a read one word of
// each page is cleared: a page that does not arrive is noticed.
class LargeTransfers {
 public:
  LargeTransfers(BenchClient& client, const SessionLoadOptions& options, wire::Opcode opcode)
      : client_(client), options_(options), opcode_(opcode) {}

  double gb_per_s() {
    const u64 count = options_.large_bytes / session_transfer_bytes;
    std::vector<u64> positions(count);
    double checking_s = 0;
    for (u64 i = 0; i < session_transfers_in_flight; ++i)
      fill_pattern(place(i), options_.large_file, first_page(i), pages);
    const double began = now_seconds();
    for (u64 submitted = 0, finished = 0; finished < count;) {
      if (submitted < count && submitted - finished < session_transfers_in_flight) {
        submit(submitted, &positions[submitted]);
        ++submitted;
        continue;
      }
      const client::Reply reply = client_.session().finish(positions[finished]);
      if (reply.status != Status::ok || reply.result != session_transfer_bytes) {
        throw std::runtime_error(fmt::format("a transfer of 1 MiB: {}", status_text(reply.status)));
      }
      const double checked_from = now_seconds();
      if (opcode_ == wire::Opcode::read)
        check_pattern(place(finished), options_.large_file, first_page(finished), pages);
      checking_s += now_seconds() - checked_from;
      ++finished;
    }
    return static_cast<double>(options_.large_bytes) / 1e9 / (now_seconds() - began - checking_s);
  }

 private:
  static constexpr u64 pages = session_transfer_bytes / page_size;
  static u64 first_page(u64 i) { return i % session_transfers_in_flight * pages; }
  u8* place(u64 i) { return client_.buffer() + i % session_transfers_in_flight * session_transfer_bytes; }

  void submit(u64 i, u64* position) {
    for (u64 page = 0; opcode_ == wire::Opcode::read && page < pages; ++page) {
      std::memset(place(i) + page * page_size, 0, sizeof(u64));
    }
    const wire::Command command = BenchClient::transfer(opcode_, options_.large_inode, i * session_transfer_bytes,
                                                        session_transfer_bytes, client_.session().address_of(place(i)));
    if (client_.session().submit(command, position) != Status::ok) throw std::runtime_error("a ring with room is full");
    client_.session().wake_engine();
  }

  BenchClient& client_;
  const SessionLoadOptions& options_;
  wire::Opcode opcode_;
};

std::vector<double> transfer_rates(BenchClient& client, const SessionLoadOptions& options, wire::Opcode opcode) {
  LargeTransfers transfers(client, options, opcode);
  transfers.gb_per_s();
  std::vector<double> rates;
  for (u32 i = 0; i < options.repeats; ++i) rates.push_back(transfers.gb_per_s());
  return rates;
}

}  // namespace

SessionFigures measure_session(BenchClient& client, const SessionLoadOptions& options) {
  std::mt19937_64 random(1);
  SessionFigures figures;
  figures.noop_us = time_each(options.calls, [&] {
    wire::Command command{};
    command.opcode = wire::Opcode::noop;
    client.call(command, "noop");
  });
  figures.read_us = time_each(options.calls, [&] {
    const u64 page = random() % (small_file_bytes / page_size);
    client.call(BenchClient::transfer(wire::Opcode::read, options.small_inode, page * page_size, page_size,
                                      client.buffer_address(0)),
                "read");
    check_pattern(client.buffer(), options.small_file, page, 1);
  });
  figures.write_gb_per_s = transfer_rates(client, options, wire::Opcode::write);
  figures.read_gb_per_s = transfer_rates(client, options, wire::Opcode::read);
  return figures;
}

u64 read_small(BenchClient& client, const SessionLoadOptions& options, double seconds, u64 seed) {
  std::mt19937_64 random(seed);
  const u64 depth = std::min<u64>(client.session().depth(), client.buffer_bytes() / page_size);
  std::vector<u64> positions(depth);
  std::vector<u64> pages(depth);
  const double end = now_seconds() + seconds;
  u64 submitted = 0;
  u64 finished = 0;
  for (bool goes_on = true; goes_on || finished < submitted;) {
    if (goes_on && submitted - finished < depth) {
      const u64 slot = submitted % depth;
      pages[slot] = random() % (small_file_bytes / page_size);
      const wire::Command command =
          BenchClient::transfer(wire::Opcode::read, options.small_inode, pages[slot] * page_size, page_size,
                                client.buffer_address(slot * page_size));
      if (client.session().submit(command, &positions[slot]) != Status::ok) {
        throw std::runtime_error("a ring with room is full");
      }
      ++submitted;
      continue;
    }
    const u64 slot = finished % depth;
    const client::Reply reply = client.session().finish(positions[slot]);
    if (reply.status != Status::ok || reply.result != page_size) {
      throw std::runtime_error(fmt::format("4 KiB read: {}", status_text(reply.status)));
    }
    if (finished % 64 == 0) check_pattern(client.buffer() + slot * page_size, options.small_file, pages[slot], 1);
    ++finished;
    if (finished % 16 == 0) goes_on = now_seconds() < end;
  }
  return finished;
}

}  // namespace gpu4fs::bench
