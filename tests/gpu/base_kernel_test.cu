// The base layer's test bodies inside kernels, on a warp and on a single lane, compared with results from the CPU; a
// lock contended by many blocks; a 16-byte cell exchanged with the CPU while both run; and a failed check, which must
// leave its record. Prints "N passed, N failed" and exits non-zero on any failure.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.hpp"
#include "base/group_bodies.hpp"

namespace gpu4fs::test {
namespace {

u32 passed_count = 0;
u32 failed_count = 0;

void count(const char* name, bool passed) {
  std::printf("%s  %s\n", passed ? "ok    " : "FAILED", name);
  (passed ? passed_count : failed_count) += 1;
}

bool cuda_ok(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return false;
}

// The CPU's result comes from the serial hash, which the host tests compare with libxxhash.
void test_hashes() {
  constexpr u64 page_count = 64;
  GroupMemory<u8> pages(page_count * page_size);
  GroupMemory<u8> scratch(page_size);
  GroupMemory<u64> seeds(page_count);
  GroupMemory<u64> hashes(page_count);
  fill_random(pages.data(), pages.size(), 21);
  for (u64 i = 0; i < page_count; ++i) {
    seeds[i] = i < 2 ? 0 - i : i * 0x10000000001000u;
    hashes[i] = xxh3_64(pages.data() + i * page_size, page_size, seeds[i]);
  }
  count("page hash", passes_on_all_groups("page hash", PageHashBody{pages.data(), page_count, seeds.data(),
                                                                    hashes.data(), scratch.data()}));

  GroupMemory<u8> data(1200);
  fill_random(data.data(), data.size(), 22);
  GroupMemory<u64> lengths(2 * 1024);
  for (u64 length = 0; length < 1024; ++length) {
    lengths[2 * length] = xxh3_64(data.data(), length, 99);
    lengths[2 * length + 1] = xxh3_64(data.data() + 3, length, 99);
  }
  count("serial hash", passes_on_all_groups("serial hash", SerialHashBody{data.data(), lengths.data(), 1024, 99}));
}

void test_copies() {
  GroupMemory<u8> source(4096 + 64);
  GroupMemory<u8> destination(4096 + 64);
  GroupMemory<u64> hashes(16);
  fill_random(source.data(), source.size(), 23);
  for (u64 a = 0; a < 16; ++a) hashes[a] = xxh3_64(source.data() + a, page_size, 1234);
  count("verify copy",
        passes_on_all_groups("verify copy", VerifyCopyBody{source.data(), hashes.data(), 1234, destination.data(), 1}));
  const u64 values[] = {0, 1, 15, 16, 33, 63, 64, 511, 2100, 4096};
  GroupMemory<u64> lengths(10);
  for (u32 i = 0; i < 10; ++i) lengths[i] = values[i];
  count("copy bytes", passes_on_all_groups("copy bytes", CopyBytesBody{source.data(), destination.data(),
                                                                       lengths.data(), 10, 4096 + 64, 1}));
}

void test_groups() {
  GroupMemory<u64> words(40);
  GroupMemory<u64> counters(4);
  GroupMemory<Vector16> vectors(33);
  count("collectives", passes_on_all_groups("collectives", CollectivesBody{}));
  count("galois", passes_on_all_groups("galois", GaloisBody{}));
  count("on_leader", passes_on_all_groups("on_leader", OnLeaderBody{words.data()}));
  count("atomics", passes_on_all_groups("atomics", AtomicsBody{counters.data()}));
  count("shared access", passes_on_all_groups("shared access", SharedAccessBody{vectors.data()}));
}

struct Contended {
  TicketLock lock;
  u64 counter;
  u64 copy;
  u64 unequal;
};

__global__ void contend_kernel(Contended* shared, u32 round_count) {
  const Warp g;
  for (u32 round = 0; round < round_count; ++round) {
    on_leader(g, [&] { shared->lock.lock(); });
    on_leader(g, [&] {
      if (shared->counter != shared->copy) shared->unequal += 1;
      shared->counter += 1;
      shared->copy += 1;
    });
    on_leader(g, [&] { shared->lock.unlock(); });
  }
}

void test_lock() {
  GroupMemory<Contended> shared(1);
  contend_kernel<<<16, 256>>>(shared.data(), 50);
  const bool ran = cuda_ok(cudaDeviceSynchronize(), "contend");
  count("ticket lock", ran && shared[0].counter == 16 * 8 * 50 && shared[0].copy == shared[0].counter &&
                           shared[0].unequal == 0 && !shared[0].lock.is_locked());
}

// The kernel answers each value of cells[0] in cells[1]; both sides check that no 16 bytes are torn.
__global__ void answer_kernel(Vector16* cells, u64 round_count, u64* torn) {
  for (u64 round = 1; round <= round_count; ++round) {
    Vector16 value = load_shared_16(&cells[0]);
    while (value.low != round) {
      if (value.low != ~value.high) *torn += 1;
      value = load_shared_16(&cells[0]);
    }
    if (value.low != ~value.high) *torn += 1;
    store_shared_16(&cells[8], Vector16{round, ~round});
  }
}

void test_cells_between_processors() {
  constexpr u64 round_count = 20000;
  constexpr u64 deadline_ns = u64{20} * 1000000000;
  void* memory = nullptr;
  if (!cuda_ok(cudaHostAlloc(&memory, page_size, cudaHostAllocMapped), "allocate")) return count("cells", false);
  Vector16* cells = static_cast<Vector16*>(memory);
  u64* torn = reinterpret_cast<u64*>(cells + 32);
  std::memset(memory, 0, page_size);
  store_shared_16(&cells[0], Vector16{0, ~u64{0}});
  store_shared_16(&cells[8], Vector16{0, ~u64{0}});
  answer_kernel<<<1, 1>>>(cells, round_count, torn);
  u64 torn_here = 0;
  u64 round = 1;
  const u64 start_ns = now_monotonic_ns();
  for (; round <= round_count; ++round) {
    store_shared_16(&cells[0], Vector16{round, ~round});
    Vector16 answer = load_shared_16(&cells[8]);
    while (answer.low != round && now_monotonic_ns() - start_ns < deadline_ns) {
      torn_here += answer.low != ~answer.high ? 1 : 0;
      answer = load_shared_16(&cells[8]);
    }
    if (answer.low != round) break;
  }
  const bool finished = round == round_count + 1;
  if (!finished) {
    count("cells between processors (no answer)", false);
    std::_Exit(1);  // the kernel still waits
  }
  const bool ran = cuda_ok(cudaDeviceSynchronize(), "answer");
  count("cells between processors", ran && torn_here == 0 && *torn == 0);
  cudaFreeHost(memory);
}

__global__ void failing_kernel(u32 value) {
  if (threadIdx.x == 37) GPU4FS_CHECK_LT(value, 5u);
}

// Last: after a trap the process cannot use the GPU.
void test_fault_record() {
  void* memory = std::aligned_alloc(page_size, page_size);
  std::memset(memory, 0, page_size);
  FaultRecord* on_device = nullptr;
  bool ready = cuda_ok(cudaHostRegister(memory, page_size, cudaHostRegisterMapped), "register");
  ready = ready && cuda_ok(cudaHostGetDevicePointer(reinterpret_cast<void**>(&on_device), memory, 0), "map");
  ready = ready && cuda_ok(set_fault_record(on_device), "set");
  if (!ready) return count("fault record", false);
  failing_kernel<<<1, 64>>>(1000);
  const cudaError_t error = cudaDeviceSynchronize();
  const FaultRecord& record = *static_cast<const FaultRecord*>(memory);
  count("fault record", error != cudaSuccess && record.state == 1 && record.left == 1000 && record.right == 5 &&
                            record.thread == 37 && std::strcmp(record.expression, "value < 5u") == 0 &&
                            std::strstr(record.file, "base_kernel_test.cu") != nullptr);
}

}  // namespace
}  // namespace gpu4fs::test

int main() {
  using namespace gpu4fs::test;
  test_groups();
  test_hashes();
  test_copies();
  test_lock();
  test_cells_between_processors();
  // A sanitizer would count the trap as an error.
  if (std::getenv("GPU4FS_TEST_SANITIZER") == nullptr) test_fault_record();
  std::printf("%u passed, %u failed\n", passed_count, failed_count);
  return failed_count == 0 ? 0 : 1;
}
