// The service kernel without a pool: noop, memset, memcopy, chains and malformed descriptors from several rings, idle
// exit and relaunch, memory of all kinds; and the cost of a command. Prints "N passed, N failed" last.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "engine/engine_build.hpp"
#include "engine/engine_cuda.hpp"
#include "gpu/gpu_report.hpp"
#include "support/ring_session.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using wire::Opcode;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

wire::Command memset_command(u64 address, u64 length, u8 value) {
  wire::Command command = make_command(Opcode::memset);
  command.data = address;
  command.length = length;
  command.mode = value;
  return command;
}
wire::Command memcopy_command(u64 from, u64 to, u64 length) {
  wire::Command command = make_command(Opcode::memcopy);
  command.data = from;
  command.output = to;
  command.length = length;
  return command;
}
wire::Command linked(wire::Command command) {
  command.flags |= wire::command_flag_link;
  return command;
}

void test_latency(engine::CudaEngine& host) {
  Client client(host, {.data_length = 4096});
  for (u32 i = 0; i < scaled(1000); ++i) client.call(make_command(Opcode::noop));
  std::vector<double> samples;
  bool all_ok = true;
  for (u32 i = 0; i < scaled(20000); ++i) {
    const Clock::time_point begin = Clock::now();
    all_ok = client.call(make_command(Opcode::noop)).status == Status::ok && all_ok;
    samples.push_back(seconds_since(begin) * 1e6);
  }
  check(all_ok, "noops complete");
  std::sort(samples.begin(), samples.end());
  std::printf("noop, one in flight: p50 %.2f us, p99 %.2f us, p99.9 %.2f us\n", samples[samples.size() / 2],
              samples[samples.size() * 99 / 100], samples[samples.size() * 999 / 1000]);
}

void test_rate(engine::CudaEngine& host, u32 ring_count, Opcode opcode, u64 length) {
  constexpr u32 depth_log2 = 8;
  const u32 rounds = scaled(40000);
  std::vector<std::unique_ptr<Client>> clients;
  for (u32 i = 0; i < ring_count; ++i) {
    clients.push_back(std::make_unique<Client>(host, ClientOptions{.depth_log2 = depth_log2}));
  }
  std::vector<u32> failures(ring_count, 0);
  const Clock::time_point begin = Clock::now();
  std::vector<std::thread> threads;
  for (u32 t = 0; t < ring_count; ++t) {
    threads.emplace_back([&, t] {
      Client& client = *clients[t];
      u64 finished = 0;
      for (u32 i = 0; i < rounds; ++i) {
        if (client.producer().next_position - finished == client.producer().depth()) {
          if (client.wait(finished++).status != Status::ok) ++failures[t];
        }
        wire::Command command = make_command(opcode);
        command.length = length;
        command.data = (i % 64) * length;
        command.output = (1 << 19) + (i % 64) * length;
        if (opcode == Opcode::noop) command = make_command(opcode);
        client.publish(command);
      }
      while (finished < client.producer().next_position) {
        if (client.wait(finished++).status != Status::ok) ++failures[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = seconds_since(begin);
  u32 failure_count = 0;
  for (const u32 count : failures) failure_count += count;
  check(failure_count == 0, "commands at full rate complete");
  std::printf("%s of %llu bytes, %u rings, 256 in flight each: %.3f million/s\n",
              opcode == Opcode::noop ? "noop" : "memcopy", static_cast<unsigned long long>(length), ring_count,
              double(ring_count) * double(rounds) / seconds * 1e-6);
}

void test_transfers(engine::CudaEngine& host) {
  constexpr u64 half = 1 << 20;
  Client client(host, {.data_length = 2 * half});
  std::vector<u8> expected(2 * half, 0);
  std::mt19937_64 random(11);
  bool equal = true;
  for (u32 round = 0; round < 60 && equal; ++round) {
    const u64 length = round % 3 == 0 ? random() % 100 : random() % (half / 2);
    const u64 from = random() % (half - length);
    const u64 to = half + random() % (half - length);
    const u8 value = static_cast<u8>(random());
    equal = client.call(memset_command(from, length, value)).result == length;
    std::memset(expected.data() + from, value, length);
    equal = equal && client.call(memcopy_command(from, to, length)).result == length;
    std::memcpy(expected.data() + to, expected.data() + from, length);
    equal = equal && std::memcmp(client.data(), expected.data(), 2 * half) == 0;
  }
  check(equal, "memset and memcopy touch exactly their bytes");
}

void test_chains_and_malformed(engine::CudaEngine& host) {
  Client client(host, {.data_length = 1 << 16});
  bool ordered = true;
  for (u32 round = 0; round < 100; ++round) {
    const u8 value = static_cast<u8>(round + 1);
    client.publish(linked(memset_command(0, 1, value)));
    for (u64 i = 0; i < 14; ++i) client.publish(linked(memcopy_command(i, i + 1, 1)));
    ordered = client.call(memcopy_command(14, 15, 1)).status == Status::ok && ordered;
    ordered = client.data()[15] == value && ordered;
  }
  check(ordered, "chains run in order");
  const u64 first = client.publish(linked(memset_command(u64{1} << 40, 1, 1)));
  const u64 second = client.publish(make_command(Opcode::noop));
  check(client.wait(first).status == Status::bad_address, "an address outside the session");
  check(client.wait(second).status == Status::cancelled, "the rest of a failed chain is cancelled");
  wire::Command bad = make_command(Opcode::noop);
  bad.flags = 1u << 12;
  check(client.call(bad).status == Status::bad_descriptor, "unknown flags");
  check(client.call(make_command(Opcode::count)).status == Status::unknown_command, "unknown command");
  check(client.call(make_command(Opcode::checkpoint)).status == Status::permission, "internal command");
  check(client.call(make_command(Opcode::noop)).status == Status::ok, "and the engine goes on");
}

void test_sleep(engine::CudaEngine& host) {
  Client client(host, {.data_length = 4096});
  bool all_ok = true;
  double slowest_ms = 0;
  for (u32 round = 0; round < 10; ++round) {
    while (!host.is_asleep()) std::this_thread::yield();
    const u64 launches = host.launch_count();
    const Clock::time_point begin = Clock::now();
    all_ok = client.call(make_command(Opcode::noop)).status == Status::ok && all_ok;
    slowest_ms = std::max(slowest_ms, seconds_since(begin) * 1e3);
    all_ok = host.launch_count() > launches && all_ok;
  }
  check(all_ok, "the kernel ends when idle and is started again");
  std::printf("noop that starts the kernel: %.3f ms at most\n", slowest_ms);
}

void test_bandwidth(engine::CudaEngine& host) {
  const u64 length = u64{scaled(256)} << 20;
  Client client(host, {.data_length = length});
  void* device_memory = nullptr;
  check(cudaMalloc(&device_memory, length) == cudaSuccess, "GPU memory");
  SharedMemory other(length);
  check(host.add_buffer(client.session(), 1, device_memory, length) == Status::ok, "GPU memory as a buffer");
  check(host.add_buffer(client.session(), 2, other.data(), length) == Status::ok, "host memory as a buffer");
  std::mt19937_64 random(5);
  for (u64 i = 0; i < length; i += 8) {
    const u64 value = random();
    std::memcpy(client.data() + i, &value, 8);
  }
  const auto run = [&](const char* name, u64 from, u64 to) {
    double best = 0;
    bool all_ok = true;
    for (u32 round = 0; round < 5; ++round) {
      const Clock::time_point begin = Clock::now();
      all_ok = client.call(memcopy_command(from, to, length)).status == Status::ok && all_ok;
      best = std::max(best, static_cast<double>(length) / seconds_since(begin) * 1e-9);
    }
    check(all_ok, name);
    std::printf("%s: %.1f GB/s\n", name, best);
  };
  run("memcopy host to GPU", 0, wire::ring_address(1, 0));
  run("memcopy GPU to host", wire::ring_address(1, 0), wire::ring_address(2, 0));
  check(std::memcmp(client.data(), other.data(), length) == 0, "bytes there and back are equal");
  run("memcopy host to host", 0, wire::ring_address(2, 0));
  host.remove_buffer(client.session(), 1);
  host.remove_buffer(client.session(), 2);
  check(client.call(memset_command(wire::ring_address(1, 0), 1, 0)).status == Status::bad_address, "a removed buffer");
  cudaFree(device_memory);
}

// Whether memory can be registered while the kernel runs, or has to wait for its end.
void test_registration(engine::CudaEngine& host, SharedMemory& memory, u64 length) {
  Client client(host, {.data_length = 4096});
  std::memset(memory.data(), 1, length);
  std::atomic<bool> stop{false};
  std::atomic<u64> slowest_us{0};
  std::thread busy([&] {
    while (!stop.load()) {
      const Clock::time_point begin = Clock::now();
      client.call(make_command(Opcode::noop));
      slowest_us = std::max(slowest_us.load(), static_cast<u64>(seconds_since(begin) * 1e6));
    }
  });
  const u64 launches = host.launch_count();
  const Clock::time_point begin = Clock::now();
  const Status status = host.map_memory(memory.data(), length);
  const double seconds = seconds_since(begin);
  stop = true;
  busy.join();
  check(status == Status::ok, "memory is registered while the kernel runs");
  std::printf("registering %llu MiB beside a busy kernel: %.1f ms, %llu launches meanwhile, slowest noop %llu us\n",
              static_cast<unsigned long long>(length >> 20), seconds * 1e3,
              static_cast<unsigned long long>(host.launch_count() - launches),
              static_cast<unsigned long long>(slowest_us.load()));
}

void test_sessions(engine::CudaEngine& host) {
  // No kernel runs when a session is closed, so all earlier commands are in the count, and the ones below will be.
  const u64 counted_before = host.counters().commands_completed;
  std::vector<std::thread> threads;
  std::atomic<u32> wrong{0};
  std::mutex management;
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (u32 round = 0; round < 5; ++round) {
        std::unique_ptr<Client> client;
        {
          const std::lock_guard<std::mutex> guard(management);
          client = std::make_unique<Client>(host, ClientOptions{.depth_log2 = 4, .data_length = 4096});
        }
        for (u32 i = 0; i < 50; ++i) {
          if (client->call(make_command(Opcode::noop)).status != Status::ok) ++wrong;
        }
        const std::lock_guard<std::mutex> guard(management);
        client.reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  check(wrong.load() == 0, "sessions come and go");
  const u64 counted = host.counters().commands_completed - counted_before;
  check(host.has_died() || counted == 4 * 5 * 50, "each command is counted once");
}

void run() {
  const engine::CudaOptions options = gpu_test_options();
  engine::CudaAllocator allocator;
  auto* upcalls = static_cast<ring::UpcallRing*>(allocator.allocate_shared(sizeof(ring::UpcallRing)));
  const engine::MemorySizes sizes{1024, 256, 8};
  const engine::EngineConfig config = engine::cuda_engine_config(options);
  engine::EngineImage image = engine::prepare_engine(allocator, config, sizes, upcalls);
  engine::Engine* engine = engine::place_engine(allocator, image);
  const u64 registered_length = u64{scaled(256)} << 20;
  SharedMemory registered(registered_length);  // until the engine ends
  engine::CudaEngine host(engine, upcalls, allocator, options);
  std::printf("%s\n", host.description().c_str());
  host.start();
  const std::vector<std::function<void()>> tests = {
      [&] { test_latency(host); },
      [&] { test_transfers(host); },
      [&] { test_chains_and_malformed(host); },
      [&] { test_rate(host, 1, Opcode::noop, 0); },
      [&] { test_rate(host, 8, Opcode::noop, 0); },
      [&] { test_rate(host, 8, Opcode::memcopy, 4096); },
      [&] { test_bandwidth(host); },
      [&] { test_registration(host, registered, registered_length); },
      [&] { test_sessions(host); },
      [&] { test_sleep(host); },
  };
  for (const auto& test : tests) {
    test();
    std::fflush(stdout);
    if (host.has_died()) {
      std::printf("the engine died: %s\n", host.fault_text().c_str());
      break;
    }
  }
  check(!host.has_died(), "the engine lives to the end");
  host.stop();
  check(host.has_died() || host.counters().commands_completed > 0, "counters are read");
}

}  // namespace
}  // namespace gpu4fs::test

int main() {
  return gpu4fs::test::run_on_gpu(gpu4fs::test::run);
}
