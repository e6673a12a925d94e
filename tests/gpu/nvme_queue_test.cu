// A virtual queue in GPU memory, whose entries, doorbells and data lie in host memory that an emulated controller
// reads and writes. Warps, and lanes on their own, write and read back. Prints "N passed, N failed" and exits non-zero
// on any failure.
#include <cstdio>
#include <memory>

#include "base/group.hpp"
#include "device/nvme/queue_build.hpp"
#include "device/nvme/submit.hpp"
#include "nvme/controller.hpp"
#include "nvme/emulated/emulated_controller.hpp"

namespace gpu4fs::nvme::test {
namespace {

constexpr u32 block_count = 4;
constexpr u32 thread_count = 128;
constexpr u32 lane_count = block_count * thread_count;
constexpr u32 rounds = 20;
constexpr u64 limit_ns = 60000000000;
constexpr u64 bus_bytes = u64{32} << 20;

struct Work {
  VirtualQueue* queue;
  u32* outcomes;    // by lane: status + 1
  u32* faults;      // a count
  u8* data;         // by lane: a page, as the GPU sees it
  u64 bus_address;  // of `data`
};

template <class Group>
__device__ void carry_out(Group g, const Work& work, u32 lane, IoOpcode opcode) {
  SubmissionEntry entry{};
  entry.opcode = static_cast<u8>(opcode);
  entry.namespace_id = 1;
  entry.data.prp.first = work.bus_address + u64{lane} * page_size;
  entry.dword10 = lane;
  const u64 end_ns = now_monotonic_ns() + limit_ns;
  const auto visit = [&](const Outcome& outcome) {
    const u32 answer = outcome.end == CommandEnd::answered ? outcome.status + 1 : ~0u;
    store<Order::release, Scope::engine>(&work.outcomes[outcome.cookie], answer);
  };
  const auto wait = [&] {
    backoff(200);
    if (now_monotonic_ns() > end_ns) fail(*work.queue->controller, Failure::timed_out);
  };
  const SubmitResult result = submit(g, *work.queue, {entry, lane, true}, visit, wait);
  const auto is_left = [&] { return load<Order::acquire, Scope::engine>(&work.outcomes[lane]) == 0; };
  while (result == SubmitResult::submitted && g.any(is_left())) {
    if (poll(g, *work.queue, visit) == 0) wait();
    if (g.any(failure_of(*work.queue->controller) != Failure::none)) break;
  }
  // The controller's stores to the data come before its completion, which another lane may have acquired.
  fence<Order::acquire, Scope::system>();
  if (load<Order::acquire, Scope::engine>(&work.outcomes[lane]) != 1) add<Scope::engine>(work.faults, 1u);
  store<Order::relaxed, Scope::engine>(&work.outcomes[lane], 0u);
  g.sync();
}

template <class Group>
__global__ void write_and_read(Work work) {
  const u32 lane = blockIdx.x * blockDim.x + threadIdx.x;
  u32* const words = reinterpret_cast<u32*>(work.data + u64{lane} * page_size);
  for (u32 round = 0; round < rounds; ++round) {
    const u32 value = lane * 1000 + round;
    for (u32 i = 0; i < page_size / sizeof(u32); i += 64) store<Order::relaxed, Scope::system>(&words[i], value + i);
    carry_out(Group{}, work, lane, IoOpcode::write);
    for (u32 i = 0; i < page_size / sizeof(u32); i += 64) store<Order::relaxed, Scope::system>(&words[i], 0u);
    carry_out(Group{}, work, lane, IoOpcode::read);
    for (u32 i = 0; i < page_size / sizeof(u32); i += 64) {
      if (load<Order::relaxed, Scope::system>(&words[i]) != value + i) add<Scope::engine>(work.faults, 1u);
    }
  }
}

__global__ void place(VirtualQueue* queue, QueueEntries entries, u8* table, u32 depth, ControllerState* state) {
  place_queue(*queue, entries, table, depth, 1, state);
}

bool cuda_ok(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return false;
}

// One queue of this depth. True: no lane saw a fault.
template <class Group>
bool run(u32 depth) {
  EmulatedBus bus(bus_bytes);
  const DmaBlock data = bus.allocate(u64{lane_count} * page_size);
  if (!cuda_ok(cudaHostRegister(data.memory, bus_bytes, cudaHostRegisterMapped), "cudaHostRegister")) return false;
  EmulatedOptions emulated_options;
  emulated_options.namespaces = {{1, std::make_shared<Medium>(lane_count, page_size, false)}};
  emulated_options.in_random_order = true;
  EmulatedController emulated(bus, emulated_options);
  ControllerOptions options;
  options.queue_depth = depth;
  bool passed = false;
  {
    Controller controller(emulated, bus, options);
    const VirtualQueue& host = controller.queue(0);
    u8* memory = nullptr;
    const u64 table_bytes = align_up(queue_table_bytes(depth), cache_line);
    const u64 bytes = sizeof(VirtualQueue) + sizeof(ControllerState) + table_bytes + (lane_count + 1) * sizeof(u32);
    cudaMalloc(reinterpret_cast<void**>(&memory), bytes);
    cudaMemset(memory, 0, bytes);
    VirtualQueue* const queue = reinterpret_cast<VirtualQueue*>(memory);
    ControllerState* const state = reinterpret_cast<ControllerState*>(queue + 1);
    u8* const table = reinterpret_cast<u8*>(state + 1);
    u32* const outcomes = reinterpret_cast<u32*>(table + table_bytes);
    const QueueEntries entries{host.submissions, host.completions, host.submission_doorbell, host.completion_doorbell};
    place<<<1, 1>>>(queue, entries, table, depth, state);
    const Work work{queue, outcomes, outcomes + lane_count, data.memory, data.bus_address};
    write_and_read<Group><<<block_count, thread_count>>>(work);
    u32 faults = 1;
    ControllerState found{};
    if (cuda_ok(cudaDeviceSynchronize(), "kernel")) {
      cudaMemcpy(&faults, work.faults, sizeof(faults), cudaMemcpyDefault);
      cudaMemcpy(&found, state, sizeof(found), cudaMemcpyDefault);
    }
    cudaFree(memory);
    passed = faults == 0 && found.failure == 0 && emulated.complaint().empty();
    if (!passed) std::printf("%u faults, failure %u, %s\n", faults, found.failure, emulated.complaint().c_str());
  }
  cudaHostUnregister(data.memory);
  return passed;
}

int run_all() {
  u32 passed_count = 0;
  u32 failed_count = 0;
  const auto count = [&](const char* name, u32 depth, bool passed) {
    std::printf("%s  %s, depth %u\n", passed ? "ok    " : "FAILED", name, depth);
    (passed ? passed_count : failed_count) += 1;
  };
  for (const u32 depth : {2u, 16u, 256u}) {
    count("warps", depth, run<Warp>(depth));
    count("lanes", depth, run<Lane>(depth));
  }
  std::printf("%u passed, %u failed\n", passed_count, failed_count);
  return failed_count == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gpu4fs::nvme::test

int main() {
  return gpu4fs::nvme::test::run_all();
}
