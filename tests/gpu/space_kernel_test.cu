// Space and pages on the GPU: a warp mounts a pool on host memory, hundreds of warps share its pages, warps write,
// merge and read them, a warp makes a checkpoint; then the CPU mounts the same medium and must find every page. Prints
// "N passed, N failed", non-zero on any failure.
#include <cstdio>
#include <cstring>
#include <set>
#include <vector>

#include "base/host/engine_allocator.hpp"
#include "pool/logical_space/logical_space.hpp"
#include "raid/page_io.hpp"
#include "support/group_runner.hpp"
#include "support/space_fixture.hpp"

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
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  return false;
}

class VramAllocator : public EngineAllocator {
 public:
  void* allocate(u64 bytes, u64 /*alignment*/) override {
    void* memory = nullptr;
    if (!cuda_ok(cudaMalloc(&memory, bytes), "cudaMalloc")) throw std::bad_alloc();
    return memory;
  }
  void copy_in(void* destination, const void* source, u64 bytes) override {
    cuda_ok(cudaMemcpy(destination, source, bytes, cudaMemcpyHostToDevice), "copy_in");
  }
  void zero(void* destination, u64 bytes) override { cuda_ok(cudaMemset(destination, 0, bytes), "zero"); }
};

constexpr u32 block_count = 64;
constexpr u32 warps_per_block = 8;
constexpr u32 warp_count = block_count * warps_per_block;
constexpr u32 pages_per_warp = 12;
constexpr u32 merge_from = 77;
constexpr u32 merge_to = 3001;

__global__ void mount_kernel(fs::FileSystem* fs, Status* status) {
  for (u32 i = 0; i < fs->space.chunk_count; ++i) {
    const Status loaded = space::load_chunk(Warp{}, *fs, i, 1);
    if (threadIdx.x == 0) status[i] = loaded;
  }
}

// Every warp takes pages in runs of three, returns one run, writes and commits the others.
__global__ void write_kernel(fs::FileSystem* fs, const u8* source, u64* addresses, Status* status) {
  const Warp g;
  const u32 warp = blockIdx.x * warps_per_block + threadIdx.x / warp_size;
  __shared__ fs::Operation operations[warps_per_block];
  fs::Operation& op = operations[threadIdx.x / warp_size];
  Status worst = on_leader(g, [&] {
    op = fs::Operation{};
    op.shard = warp % fs->shard_count;
    return space::reserve_pages(*fs, op, pages_per_warp + 3);
  });
  u32 done = 0;
  bool abandoned = false;
  while (worst == Status::ok && done < pages_per_warp) {
    const raid::Extent run =
        on_leader(g, [&] { return space::allocate_run(Lane{}, *fs, op, minimum(u32{3}, pages_per_warp - done), 1); });
    if (!abandoned) {
      on_leader(g, [&] { space::abandon_extent(*fs, op, run); });
      abandoned = true;
      continue;
    }
    for (u32 i = 0; i < run.page_count; ++i) {
      const u64 address = run.address + i * page_size;
      const u32 index = warp * pages_per_warp + done + i;
      const u8* bytes = source + u64{index} * 64 + index % 61;  // any alignment
      Status written = raid::write_page(g, fs->space, address, bytes);
      if (written == Status::ok) {
        written = raid::write_page_merged(g, fs->space, {address, address, {merge_from, merge_to}, source + index});
      }
      if (written != Status::ok) worst = written;
      if (g.leader()) addresses[index] = address;
    }
    done += run.page_count;
    on_leader(g, [&] { space::commit_extent(Lane{}, *fs, run); });
  }
  on_leader(g, [&] { space::unreserve_pages(*fs, op, op.pages_reserved); });
  if (g.leader()) status[warp] = worst;
}

__global__ void read_kernel(fs::FileSystem* fs, const u64* addresses, u8* pages, Status* status) {
  const u32 warp = blockIdx.x * warps_per_block + threadIdx.x / warp_size;
  Status worst = Status::ok;
  for (u32 i = 0; i < pages_per_warp; ++i) {
    const u64 index = u64{warp} * pages_per_warp + i;
    const Status read = raid::read_page(Warp{}, fs->space, addresses[index], pages + index * page_size);
    if (read != Status::ok) worst = read;
  }
  if (threadIdx.x % warp_size == 0) status[warp] = worst;
}

__global__ void checkpoint_kernel(fs::FileSystem* fs, Status* status) {
  const u32 chunk = blockIdx.x;
  space::snapshot_chunk(Warp{}, *fs, chunk);
  const Status written = space::write_chunk(Warp{}, *fs, chunk, 2);
  space::publish_chunk(Warp{}, *fs, chunk);
  if (threadIdx.x == 0) status[chunk] = written;
}

bool all_ok(const GroupMemory<Status>& status, u64 status_count) {
  for (u64 i = 0; i < status_count; ++i) {
    if (status[i] == Status::ok) continue;
    std::printf("entry %llu: %s\n", static_cast<unsigned long long>(i), status_name(status[i]));
    return false;
  }
  return true;
}

std::vector<u8> expected_page(const u8* source, u32 index) {
  const u8* bytes = source + u64{index} * 64 + index % 61;
  std::vector<u8> page(bytes, bytes + page_size);
  std::memcpy(page.data() + merge_from, source + index, merge_to - merge_from);
  return page;
}

void run() {
  constexpr u64 page_count = u64{warp_count} * pages_per_warp;
  SpaceFixture pool({.device_count = 2, .chunks_per_device = 2, .shard_count = 24});
  std::vector<device::Device> devices = pool.devices;
  for (device::Device& device : devices) {
    void* on_gpu = nullptr;
    const u32 flags = cudaHostRegisterMapped;
    if (!cuda_ok(cudaHostRegister(device.base, device.size_bytes, flags), "register")) return;
    if (!cuda_ok(cudaHostGetDevicePointer(&on_gpu, device.base, 0), "pointer")) return;
    device.base = static_cast<u8*>(on_gpu);
  }
  VramAllocator allocator;
  GroupMemory<fs::FileSystem> fs(1);
  fs[0].space = pool::build_logical_space(allocator, pool.superblock, devices, pool.chunks, true);
  fs[0].shard_count = 24;
  const u64 shard_bytes = fs[0].shard_count * sizeof(space::AllocationShard);
  fs[0].shards = static_cast<space::AllocationShard*>(allocator.allocate(shard_bytes, 128));
  allocator.zero(fs[0].shards, shard_bytes);

  GroupMemory<Status> status(warp_count);
  mount_kernel<<<1, warp_size>>>(fs.data(), status.data());
  if (!cuda_ok(cudaDeviceSynchronize(), "mount")) return;
  count("a warp mounts the chunks", all_ok(status, 4));
  count("all pages are available", fs[0].data_counters().available == 4 * 2048);

  GroupMemory<u8> source(page_count * 64 + 2 * page_size);
  fill_random(source.data(), source.size(), 5);
  GroupMemory<u64> addresses(page_count);
  write_kernel<<<block_count, warps_per_block * warp_size>>>(fs.data(), source.data(), addresses.data(), status.data());
  if (!cuda_ok(cudaDeviceSynchronize(), "write")) return;
  count("warps write their pages", all_ok(status, warp_count));
  const std::set<u64> distinct(addresses.data(), addresses.data() + page_count);
  count("no page has two owners", distinct.size() == page_count && distinct.count(0) == 0);
  count("counters add up", fs[0].data_counters().used == page_count && fs[0].data_counters().reserved == 0 &&
                               fs[0].data_counters().available == 4 * 2048 - page_count);

  GroupMemory<u8> pages(page_count * page_size);
  read_kernel<<<block_count, warps_per_block * warp_size>>>(fs.data(), addresses.data(), pages.data(), status.data());
  if (!cuda_ok(cudaDeviceSynchronize(), "read")) return;
  count("warps read verified pages", all_ok(status, warp_count));
  checkpoint_kernel<<<4, warp_size>>>(fs.data(), status.data());
  if (!cuda_ok(cudaDeviceSynchronize(), "checkpoint")) return;
  count("warps write a checkpoint", all_ok(status, 4));

  SpaceFixture mounted = pool.remount();
  count("the CPU mounts what the GPU wrote", mounted.load(2) == Status::ok);
  count("with its pages in use", space::check_page_used(*mounted.fs, page_count) == Status::ok);
  u64 right = 0;
  std::vector<u8> page(page_size);
  for (u32 i = 0; i < page_count; ++i) {
    const Status read = raid::read_page(Lane{}, mounted.fs->space, addresses[i], page.data());
    const std::vector<u8> expected = expected_page(source.data(), i);
    const bool on_gpu = std::memcmp(pages.data() + i * page_size, expected.data(), page_size) == 0;
    right += read == Status::ok && page == expected && on_gpu ? 1 : 0;
  }
  count("both read the same bytes", right == page_count);
}

}  // namespace
}  // namespace gpu4fs::test

int main() {
  gpu4fs::test::run();
  const bool finished = gpu4fs::test::passed_count + gpu4fs::test::failed_count == 10;
  if (!finished) std::printf("the test did not finish\n");
  std::printf("%u passed, %u failed\n", gpu4fs::test::passed_count, gpu4fs::test::failed_count + (finished ? 0 : 1));
  return finished && gpu4fs::test::failed_count == 0 ? 0 : 1;
}
