// Large files: writes from and reads into host memory, and reads into GPU memory.
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/limits.hpp"
#include "bench/parts.hpp"
#include "bench/pool.hpp"
#include "engine/engine_host.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"
#include "ring/ring_client.hpp"
#include "session/server_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u32 in_flight = 2;
constexpr double bytes_per_gb = 1e9;
constexpr double write_ratio_min = 0.8;
constexpr double read_ratio_min = 0.8;
constexpr double device_ratio_min = 0.9;
constexpr double cpu_s_per_gb_max = 0.05;

// Clients that work concurrently, each in a thread of its own.
class ClientGroup {
 public:
  ClientGroup(BenchContext& context, u32 count) {
    for (u32 i = 0; i < count; ++i) {
      clients_.push_back(std::make_unique<BenchClient>(
          frontend::open_local_session(context.server, context.scale.file_bytes + BenchClient::control_bytes)));
    }
  }

  u32 count() const { return static_cast<u32>(clients_.size()); }
  BenchClient& operator[](u32 index) { return *clients_[index]; }

  struct Cost {
    double seconds;
    double cpu_seconds;  // of the whole machine
  };
  // Runs `work` for every client at the same time. The cost is from the common start to the last end.
  Cost run(const std::function<void(BenchClient&, u32)>& work) {
    std::mutex mutex;
    std::exception_ptr failure;
    double began = 0;
    double cpu_began = 0;
    std::barrier start(static_cast<std::ptrdiff_t>(clients_.size()), [&]() noexcept {
      cpu_began = machine_cpu_seconds();
      began = now_seconds();
    });
    std::vector<std::thread> threads;
    for (u32 i = 0; i < clients_.size(); ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        try {
          work(*clients_[i], i);
        } catch (...) {
          const std::lock_guard guard(mutex);
          failure = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const Cost cost{now_seconds() - began, machine_cpu_seconds() - cpu_began};
    if (failure) std::rethrow_exception(failure);
    return cost;
  }

 private:
  std::vector<std::unique_ptr<BenchClient>> clients_;
};

}  // namespace

FileRates measure_files(BenchContext& context, u32 file_count) {
  FileRates rates;
  const u64 length = context.scale.file_bytes;
  ClientGroup clients(context, file_count);
  clients.run([&](BenchClient& client, u32 i) { fill_pattern(client.buffer(), i, 0, length / page_size); });
  const double gigabytes = static_cast<double>(length) * file_count / bytes_per_gb;
  for (u32 repeat = 0; repeat <= context.scale.repeats; ++repeat) {
    std::vector<u64> inodes(file_count);
    const auto name = [&](u32 i) { return fmt::format("file-{}-{}", repeat, i); };
    clients.run([&](BenchClient& client, u32 i) { inodes[i] = client.create(format::inode_number_root, name(i)); });
    const auto written = clients.run([&](BenchClient& client, u32 i) {
      client.stream(wire::Opcode::write, inodes[i], length, context.scale.command_bytes(), in_flight,
                    client.buffer_address(0));
    });
    const double sync_cpu_began = machine_cpu_seconds();
    const double sync_began = now_seconds();
    clients[0].sync();
    const double sync_seconds = now_seconds() - sync_began;
    const double sync_cpu_seconds = machine_cpu_seconds() - sync_cpu_began;
    clients.run([&](BenchClient& client, u32) { std::fill_n(client.buffer(), length, u8{0}); });
    const auto read = clients.run([&](BenchClient& client, u32 i) {
      client.stream(wire::Opcode::read, inodes[i], length, context.scale.command_bytes(), in_flight,
                    client.buffer_address(0));
    });
    clients.run([&](BenchClient& client, u32 i) {
      check_pattern(client.buffer(), i, 0, length / page_size);
      client.unlink(format::inode_number_root, name(i));
    });
    clients[0].sync();  // the space of this round is free for the round after the next one
    if (repeat == 0) continue;
    rates.write_gb_per_s.push_back(gigabytes / written.seconds);
    rates.synced_gb_per_s.push_back(gigabytes / (written.seconds + sync_seconds));
    rates.read_gb_per_s.push_back(gigabytes / read.seconds);
    rates.write_cpu_s_per_gb.push_back(written.cpu_seconds / gigabytes);
    rates.synced_cpu_s_per_gb.push_back((written.cpu_seconds + sync_cpu_seconds) / gigabytes);
  }
  return rates;
}

namespace {

std::string file_text(const BenchContext& context, u32 count) {
  const u64 step = std::min(context.scale.command_bytes(), context.scale.file_bytes);
  return fmt::format("{} file{} of {} MiB ({} MiB a command)", count, count == 1 ? "" : "s",
                     context.scale.file_bytes >> 20, step >> 20);
}

}  // namespace

void add_rate(BenchContext& context, const char* name, std::string what, const std::vector<double>& samples,
              double limit, double required) {
  BenchRow row;
  row.name = name;
  row.what = std::move(what);
  row.unit = "GB/s";
  set_samples(row, samples);
  row.limit = limit;
  row.limit_what = context.limits.what;
  // A value above the limit means that one of the two measurements is wrong.
  if (limit > 0 && row.value > 1.05 * limit) {
    if (!context.on_gpu) {  // a shared machine was busy while the limit was measured: there is no ratio
      row.limit = 0;
      row.remark = fmt::format("limit measured as {:.2g} GB/s", limit);
      context.result.rows.push_back(std::move(row));
      return;
    }
    throw std::runtime_error(fmt::format("{}: {:.1f} GB/s is above the limit of {:.1f} GB/s", name, row.value, limit));
  }
  if (context.on_gpu && required > 0) {
    row.requirement = Requirement::at_least;
    row.required = required;
  }
  context.result.rows.push_back(std::move(row));
}

void bench_first_touch(BenchContext& context) {
  const u64 length = context.scale.file_bytes;
  BenchClient client(frontend::open_local_session(context.server, length + BenchClient::control_bytes));
  fill_pattern(client.buffer(), 0, 0, length / page_size);
  const u64 file_count = client.available_bytes() / length - 1;  // the space of one file stays free
  std::vector<double> rates;
  for (u64 i = 0; i < file_count; ++i) {
    const u64 inode = client.create(format::inode_number_root, fmt::format("touch-{}", i));
    const double began = now_seconds();
    client.stream(wire::Opcode::write, inode, length, context.scale.command_bytes(), in_flight,
                  client.buffer_address(0));
    rates.push_back(static_cast<double>(length) / bytes_per_gb / (now_seconds() - began));
  }
  for (u64 i = 0; i < file_count; ++i) client.unlink(format::inode_number_root, fmt::format("touch-{}", i));
  client.sync();
  client.sync();
  add_rate(context, "write-first", "write to memory used for the first time", rates, context.limits.write_gb_per_s, 0);
}

void bench_files(BenchContext& context) {
  for (const u32 count : {1u, context.scale.file_count}) {
    const FileRates rates = measure_files(context, count);
    const std::string files = file_text(context, count);
    const std::string suffix = count == 1 ? "one" : "many";
    add_rate(context, ("write-" + suffix).c_str(), "write " + files, rates.write_gb_per_s,
             context.limits.write_gb_per_s, write_ratio_min);
    add_rate(context, ("write-sync-" + suffix).c_str(), "write and sync " + files, rates.synced_gb_per_s,
             context.limits.write_gb_per_s, 0);
    add_rate(context, ("read-" + suffix).c_str(), "read " + files, rates.read_gb_per_s, context.limits.read_gb_per_s,
             read_ratio_min);
    if (count == 1) continue;
    BenchRow cpu;
    cpu.name = "write-cpu";
    cpu.what = "CPU time of the machine, writing " + files;
    cpu.unit = "s/GB";
    set_samples(cpu, rates.write_cpu_s_per_gb);
    if (context.on_gpu) {
      cpu.requirement = Requirement::at_most;
      cpu.required = cpu_s_per_gb_max;
    }
    context.result.rows.push_back(std::move(cpu));
  }
}

namespace {

// A client whose buffer is GPU memory, which is freed with the process: a free would wait for the service kernel.
class DeviceReader {
 public:
  // For files of this length. Throws std::runtime_error.
  DeviceReader(server::PoolServer& server, u64 length_bytes)
      : memory_(allocate_device(length_bytes)), copy_(length_bytes), client_(open(server)) {}

  // Reads a whole file so many times, and compares it with pattern 0 each time. Returns the rates in GB/s.
  std::vector<double> rates(u64 inode, u64 command_bytes, u32 passes) {
    std::vector<double> rates;
    for (u32 pass = 0; pass < passes; ++pass) {
      zero_device(memory_, copy_.size());
      const double began = now_seconds();
      client_.stream(wire::Opcode::read, inode, copy_.size(), command_bytes, in_flight, wire::ring_address(buffer, 0));
      rates.push_back(static_cast<double>(copy_.size()) / bytes_per_gb / (now_seconds() - began));
      std::fill(copy_.begin(), copy_.end(), u8{0});
      copy_from_device(copy_.data(), memory_, copy_.size());
      check_pattern(copy_.data(), 0, 0, copy_.size() / page_size);
    }
    return rates;
  }

 private:
  static constexpr u32 buffer = 1;

  client::Session open(server::PoolServer& server) {
    server::LocalSession local = server.open_session(BenchClient::control_bytes + page_size);
    const auto* session = static_cast<const session::ServerSession*>(local.owner.get());
    const Status added = server.engine().add_buffer(session->index(), buffer, memory_, copy_.size());
    if (added != Status::ok) throw std::runtime_error(fmt::format("GPU memory as a buffer: {}", status_text(added)));
    return client::Session(client::Connection{local.producer, local.port, std::move(local.owner)});
  }

  void* memory_;
  std::vector<u8> copy_;
  BenchClient client_;
};

// A new file with pattern 0.
u64 write_pattern_file(BenchClient& writer, const BenchScale& scale, const char* name) {
  fill_pattern(writer.buffer(), 0, 0, scale.file_bytes / page_size);
  const u64 inode = writer.create(format::inode_number_root, name);
  writer.stream(wire::Opcode::write, inode, scale.file_bytes, scale.command_bytes(), in_flight,
                writer.buffer_address(0));
  return inode;
}

}  // namespace

void bench_read_device(BenchContext& context) {
  if (!context.on_gpu) return;
  const BenchScale& scale = context.scale;
  BenchClient writer(frontend::open_local_session(context.server, scale.file_bytes + BenchClient::control_bytes));
  const u64 inode = write_pattern_file(writer, scale, "device-read");
  DeviceReader reader(context.server, scale.file_bytes);
  (void)reader.rates(inode, scale.command_bytes(), 1);
  const std::vector<double> rates = reader.rates(inode, scale.command_bytes(), scale.repeats);
  add_rate(context, "read-vram", "read into GPU memory " + file_text(context, 1), rates, context.limits.device_gb_per_s,
           device_ratio_min);
  writer.unlink(format::inode_number_root, "device-read");
  writer.sync();
}

void bench_page_tier(const BenchScale& scale, const Limits& limits, session::ServerOptions options, bool on_gpu,
                     BenchResult& result) {
  constexpr u32 passes_before_copies = 3;  // the first ones find out that the pages are read again
  constexpr double hit_ratio_min = 0.4;
  if (!on_gpu) throw std::runtime_error("copies in GPU memory need the GPU engine");
  // The pool of the caller is claimed until its server is gone.
  const MemoryPool pool({.device_bytes = scale.device_bytes});
  options.device_paths = pool.paths();
  options.page_cache_bytes = 2 * scale.file_bytes;
  server::PoolServer server(options);
  server.start();
  {
    BenchContext context{server, scale, limits, on_gpu, result};
    BenchClient writer(frontend::open_local_session(server, scale.file_bytes + BenchClient::control_bytes));
    const u64 inode = write_pattern_file(writer, scale, "tier-read");
    writer.sync();
    DeviceReader reader(server, scale.file_bytes);
    (void)reader.rates(inode, scale.command_bytes(), passes_before_copies);
    const u64 hits_before = server.engine().page_tier().hits;
    const std::vector<double> rates = reader.rates(inode, scale.command_bytes(), scale.repeats);
    const u64 hits = server.engine().page_tier().hits - hits_before;
    add_rate(context, "read-tier", "read into GPU memory, copies in it, " + file_text(context, 1), rates,
             limits.device_copy_gb_per_s, hit_ratio_min);
    // A page may be looked for more than once.
    const u64 pages = scale.file_bytes / page_size * scale.repeats;
    result.rows.back().remark =
        fmt::format("{:.3f} copies found a page", static_cast<double>(hits) / static_cast<double>(pages));
  }
  if (!server.stop()) throw std::runtime_error("the last checkpoint failed");
}

}  // namespace gpu4fs::bench
