// Small commands: latency one at a time, rate with many in flight; and what the engine costs when
// idle.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/limits.hpp"
#include "bench/parts.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double noop_us_max = 3;
constexpr double read_us_max = 8;
constexpr double create_us_max = 30;
constexpr double small_reads_per_s_min = 5e6;
constexpr double processors_max = 8;
constexpr u64 small_file_bytes = 32ull << 20;
constexpr u32 wake_calls = 20;

void add_latency(BenchContext& context, const char* name, const char* what, const std::vector<double>& samples_us,
                 std::optional<double> required_us) {
  for (const double fraction : {0.5, 0.99}) {
    BenchRow row;
    row.name = fmt::format("{}-p{:.0f}", name, fraction * 100);
    row.what = fmt::format("{}, p{:.0f}", what, fraction * 100);
    row.unit = "us";
    set_samples(row, samples_us);
    row.value = percentile(samples_us, fraction);
    if (context.on_gpu && fraction == 0.5 && required_us.has_value()) {
      row.requirement = Requirement::at_most;
      row.required = *required_us;
    }
    context.result.rows.push_back(std::move(row));
  }
}

// Calls `step` `count` times after a tenth of it for warming up.
template <class Step>
std::vector<double> time_calls(u32 count, Step step) {
  std::vector<double> samples_us;
  samples_us.reserve(count);
  for (u32 i = 0; i < count / 10; ++i) step(i);
  for (u32 i = 0; i < count; ++i) {
    const double began = now_seconds();
    step(count / 10 + i);
    samples_us.push_back((now_seconds() - began) * 1e6);
  }
  return samples_us;
}

u64 write_small_file(BenchClient& client, const std::string& name, u64 file, u64 length) {
  const u64 inode = client.create(format::inode_number_root, name);
  fill_pattern(client.buffer(), file, 0, length / page_size);
  client.stream(wire::Opcode::write, inode, length, length, 1, client.buffer_address(0));
  return inode;
}

// One thread of the rate measurement. Each read of a batch has its own place in the data area, so
// that every byte is compared after the clock has stopped.
class SmallReader {
 public:
  SmallReader(BenchContext& context, u64 inode, u64 file, u64 seed)
      : client_(frontend::open_local_session(context.server, batch_bytes + BenchClient::control_bytes)),
        inode_(inode),
        file_(file),
        random_(seed) {}

  static constexpr u64 batch_pages = 8192;
  static constexpr u64 batch_bytes = batch_pages * page_size;

  void choose_pages() {
    pages_.resize(batch_pages);
    for (u64& page : pages_) page = random_() % (small_file_bytes / page_size);
    std::fill_n(client_.buffer(), batch_bytes, u8{0});
  }

  void read_batch() {
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

void read_side_by_side(std::vector<std::unique_ptr<SmallReader>>& readers, u32 repeats, std::vector<double>* rates) {
  double began = 0;
  const auto count = static_cast<std::ptrdiff_t>(readers.size());
  std::barrier before(count, [&]() noexcept { began = now_seconds(); });
  std::barrier after(count, [&]() noexcept {
    rates->push_back(static_cast<double>(readers.size() * SmallReader::batch_pages) / (now_seconds() - began));
  });
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (auto& reader : readers) {
    threads.emplace_back([&, own = reader.get()] {
      for (u32 repeat = 0; repeat <= repeats; ++repeat) {
        try {
          own->choose_pages();
          before.arrive_and_wait();
          own->read_batch();
          after.arrive_and_wait();
          own->check_batch();
        } catch (...) {
          const std::lock_guard guard(mutex);
          failure = std::current_exception();
          before.arrive_and_drop();
          after.arrive_and_drop();
          return;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void bench_latency(BenchContext& context) {
  BenchClient client(frontend::open_local_session(context.server, small_file_bytes + BenchClient::control_bytes));
  wire::Command noop{};
  noop.opcode = wire::Opcode::noop;
  add_latency(context, "noop", "no-op",
              time_calls(context.scale.latency_calls, [&](u32) { client.call(noop, "noop"); }), noop_us_max);

  // The clock does not run during the pauses.
  std::vector<double> woken_us;
  for (u32 i = 0; i < wake_calls; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    const double began = now_seconds();
    client.call(noop, "noop");
    woken_us.push_back((now_seconds() - began) * 1e6);
  }
  add_latency(context, "noop-asleep", "no-op that wakes the engine", woken_us, std::nullopt);

  const u64 inode = write_small_file(client, "latency", 0, small_file_bytes);
  std::mt19937_64 random(1);
  add_latency(context, "read-4k", "read of 4 KiB",
              time_calls(context.scale.latency_calls,
                         [&](u32) {
                           const u64 page = random() % (small_file_bytes / page_size);
                           client.call(BenchClient::transfer(wire::Opcode::read, inode, page * page_size, page_size,
                                                             client.buffer_address(0)),
                                       "read");
                           check_pattern(client.buffer(), 0, page, 1);
                         }),
              read_us_max);

  const u64 directory = client.make_directory(format::inode_number_root, "many");
  add_latency(
      context, "create", "create of an empty file",
      time_calls(context.scale.create_calls, [&](u32 i) { client.create(directory, fmt::format("file{}", i)); }),
      create_us_max);
  for (u32 i = 0; i < context.scale.create_calls + context.scale.create_calls / 10; ++i) {
    client.unlink(directory, fmt::format("file{}", i));
  }
  client.unlink(format::inode_number_root, "latency");
  client.sync();
}

void bench_small_reads(BenchContext& context) {
  u64 inode = 0;
  {
    BenchClient writer(frontend::open_local_session(context.server, small_file_bytes + BenchClient::control_bytes));
    inode = write_small_file(writer, "rate", 1, small_file_bytes);
  }
  std::vector<std::unique_ptr<SmallReader>> readers;
  for (u32 i = 0; i < context.scale.ring_count; ++i) {
    readers.push_back(std::make_unique<SmallReader>(context, inode, 1, i + 1));
  }
  std::vector<double> rates;
  read_side_by_side(readers, 4 * context.scale.repeats, &rates);
  rates.erase(rates.begin());
  BenchRow row;
  row.name = "read-4k-rate";
  row.what = fmt::format("4 KiB reads, {} rings", context.scale.ring_count);
  row.unit = "1/s";
  set_samples(row, rates);
  if (context.on_gpu) {
    row.requirement = Requirement::at_least;
    row.required = small_reads_per_s_min;
  }
  context.result.rows.push_back(std::move(row));
}

void bench_idle(BenchContext& context) {
  BenchClient client(frontend::open_local_session(context.server, BenchClient::control_bytes + page_size));
  if (context.on_gpu) {
    // Busy: a thread keeps the engine at work while the probe looks for free multiprocessors.
    std::atomic<bool> stop{false};
    std::thread worker([&] {
      wire::Command noop{};
      noop.opcode = wire::Opcode::noop;
      while (!stop) (void)client.session().call(noop);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const ProcessorCount busy = count_free_processors();
    stop = true;
    worker.join();
    BenchRow row;
    row.name = "processors-busy";
    row.what = "multiprocessors of the engine at work";
    row.unit = "SMs";
    set_samples(row, {static_cast<double>(busy.total - busy.free)});
    row.requirement = Requirement::at_most;
    row.required = processors_max;
    context.result.rows.push_back(row);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const ProcessorCount idle = count_free_processors();
    row.name = "processors-idle";
    row.what = "multiprocessors of the engine, idle for a second";
    set_samples(row, {static_cast<double>(idle.total - idle.free)});
    row.required = 0;
    context.result.rows.push_back(row);
  }
  timespec begin{};
  timespec end{};
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  BenchRow row;
  row.name = "cpu-idle";
  row.what = "CPU time of the process, idle for two seconds";
  row.unit = "ms/s";
  const double seconds =
      static_cast<double>(end.tv_sec - begin.tv_sec) + static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-9;
  set_samples(row, {seconds / 2 * 1e3});
  context.result.rows.push_back(std::move(row));
}

}  // namespace gpu4fs::bench
