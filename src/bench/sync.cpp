// Durability: small appends that are made durable one by one, by one client and by many; and the duration of a
// recovery.
#include <fmt/format.h>

#include <barrier>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/crashed_pool.hpp"
#include "bench/parts.hpp"
#include "format/inode_format.hpp"
#include "format/log_format.hpp"
#include "frontend/local_session.hpp"
#include "server/recovery/recovery.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double append_us_max_gpu = 40;
constexpr double append_us_max_cpu = 30;
constexpr double group_gain_min = 8;
constexpr u32 ring_count = 16;
constexpr u32 clients_per_ring = 4;
constexpr u64 recovered_log_bytes = u64{256} << 20;
constexpr double recovery_s_max = 2;

// One file that grows by pages; each append is followed by an fsync and submitted together with it.
struct Appender {
  u64 inode = 0;
  u64 file = 0;   // of the pattern
  u64 pages = 0;  // durable
  u64 positions[2] = {};
};

class AppendClient {
 public:
  AppendClient(server::PoolServer& server, u64 first_file, u32 count)
      : client_(frontend::open_local_session(server, count * page_size + BenchClient::control_bytes)), files_(count) {
    for (u32 i = 0; i < count; ++i) {
      files_[i].file = first_file + i;
      files_[i].inode = client_.create(format::inode_number_root, name_of(files_[i]));
    }
    client_.sync();
  }

  // Each file gets `steps` pages; all files of this client are in progress at the same time.
  void append(u64 steps) {
    for (u32 i = 0; i < files_.size(); ++i) submit(i);
    for (u64 step = 1; step <= steps; ++step) {
      for (u32 i = 0; i < files_.size(); ++i) {
        finish(i);
        if (step < steps) submit(i);
      }
    }
  }

  void check_and_remove() {
    for (Appender& file : files_) {
      for (u64 page = 0; page < file.pages; ++page) {
        client_.call(BenchClient::transfer(wire::Opcode::read, file.inode, page * page_size, page_size,
                                           client_.buffer_address(0)),
                     "read");
        check_pattern(client_.buffer(), file.file, page, 1);
      }
      client_.unlink(format::inode_number_root, name_of(file));
    }
    client_.sync();
  }

 private:
  static std::string name_of(const Appender& file) { return fmt::format("append{}", file.file); }

  void submit(u32 i) {
    Appender& file = files_[i];
    const u64 place = u64{i} * page_size;
    fill_pattern(client_.buffer() + place, file.file, file.pages, 1);
    wire::Command write =
        BenchClient::transfer(wire::Opcode::write, file.inode, 0, page_size, client_.buffer_address(place));
    write.flags = wire::command_flag_append | wire::command_flag_link;
    wire::Command sync{};
    sync.opcode = wire::Opcode::fsync;
    sync.inode = file.inode;
    if (client_.session().submit(write, &file.positions[0]) != Status::ok ||
        client_.session().submit(sync, &file.positions[1]) != Status::ok) {
      throw std::runtime_error("a ring with room took no command");
    }
  }

  void finish(u32 i) {
    Appender& file = files_[i];
    for (const u64 position : file.positions) {
      const client::Reply reply = client_.session().finish(position);
      if (reply.status != Status::ok) throw std::runtime_error(fmt::format("append: {}", status_text(reply.status)));
    }
    ++file.pages;
  }

  BenchClient client_;
  std::vector<Appender> files_;
};

double append_alone(BenchContext& context) {
  AppendClient client(context.server, 1000, 1);
  const u32 calls = context.scale.create_calls;
  client.append(calls / 10);
  std::vector<double> samples_us;
  for (u32 i = 0; i < calls; ++i) {
    const double began = now_seconds();
    client.append(1);
    samples_us.push_back((now_seconds() - began) * 1e6);
  }
  client.check_and_remove();
  for (const double fraction : {0.5, 0.99}) {
    BenchRow row;
    row.name = fmt::format("append-fsync-p{:.0f}", fraction * 100);
    row.what = fmt::format("append of 4 KiB and fsync, p{:.0f}", fraction * 100);
    row.unit = "us";
    set_samples(row, samples_us);
    row.value = percentile(samples_us, fraction);
    if (fraction == 0.5) {
      row.requirement = Requirement::at_most;
      row.required = context.on_gpu ? append_us_max_gpu : append_us_max_cpu;
    }
    context.result.rows.push_back(std::move(row));
  }
  double sum_us = 0;
  for (const double sample : samples_us) sum_us += sample;
  return 1e6 * calls / sum_us;
}

std::vector<double> append_together(BenchContext& context) {
  std::vector<std::unique_ptr<AppendClient>> clients;
  for (u32 i = 0; i < ring_count; ++i) {
    clients.push_back(std::make_unique<AppendClient>(context.server, 2000 + i * clients_per_ring, clients_per_ring));
  }
  const u64 steps = context.scale.create_calls / 20;
  double began = 0;
  std::vector<double> rates;
  std::barrier before(ring_count, [&]() noexcept { began = now_seconds(); });
  std::barrier after(ring_count, [&]() noexcept {
    rates.push_back(static_cast<double>(steps * ring_count * clients_per_ring) / (now_seconds() - began));
  });
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (auto& client : clients) {
    threads.emplace_back([&, own = client.get()] {
      for (u32 repeat = 0; repeat <= context.scale.repeats; ++repeat) {
        before.arrive_and_wait();
        try {
          if (!failure) own->append(steps);
        } catch (...) {
          const std::lock_guard guard(mutex);
          failure = std::current_exception();
        }
        after.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  for (auto& client : clients) client->check_and_remove();
  rates.erase(rates.begin());
  return rates;
}

}  // namespace

void bench_sync(BenchContext& context) {
  const double alone = append_alone(context);
  BenchRow row;
  row.name = "append-fsync-rate";
  row.what = fmt::format("appends of 4 KiB with fsync, {} clients", ring_count * clients_per_ring);
  row.unit = "1/s";
  set_samples(row, append_together(context));
  row.limit = alone;
  row.limit_what = "one client";
  if (context.on_gpu) {
    row.requirement = Requirement::at_least;
    row.required = group_gain_min;
  }
  context.result.rows.push_back(std::move(row));
}

void bench_recovery(BenchContext& context) {
  std::vector<double> seconds;
  u64 records = 0;
  for (u32 repeat = 0; repeat < 3; ++repeat) {
    session::ServerOptions options;
    options.engine = session::EngineChoice::cpu;
    const CrashedPool pool("/dev/shm", recovered_log_bytes, options);
    const double began = now_seconds();
    records = server::recover_pool(pool.options()).records_replayed;
    seconds.push_back(now_seconds() - began);
  }
  if (records < recovered_log_bytes / page_size) throw std::runtime_error("the recovery found too little in the log");
  BenchRow row;
  row.name = "recovery-256m";
  row.what = fmt::format("recovery with {} MiB of log, {} records", recovered_log_bytes >> 20, records);
  row.unit = "s";
  set_samples(row, seconds);
  row.requirement = Requirement::at_most;
  row.required = recovery_s_max;
  context.result.rows.push_back(std::move(row));
}

}  // namespace gpu4fs::bench
