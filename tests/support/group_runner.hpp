// Runs one test body on every group: Lane and EmulatedWarp on the host; Lane and Warp in a kernel if nvcc compiles the
// test.
//
// A body is a trivially copyable object with template <class Group> GPU4FS_FN void operator()(Group g, GroupReport&
//     report) const;
// It reaches its data through pointers into GroupMemory, which both processors see, and states expectations with
// GPU4FS_EXPECT(report, condition) and GPU4FS_EXPECT_EQ(report, a, b). All ranks may state them. Oracles that exist
// only on the host are asked before the run, and their answers are stored in GroupMemory.
//
//     EXPECT_TRUE(passes_on_all_groups("copy", CopyBody{...}));
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

#if !GPU4FS_CUDA_COMPILER
#include "base/emulated_warp.hpp"
#endif

namespace gpu4fs::test {

// Counts expectations and keeps the first failed one.
struct GroupReport {
  u32 expectation_count;
  u32 failure_count;
  u32 line;
  u32 rank;
  u64 left;
  u64 right;

  GPU4FS_FN void expect(bool holds, u32 at_line, u32 at_rank, u64 a, u64 b) {
    fetch_add<Order::relaxed, Scope::engine>(&expectation_count, 1);
    if (holds) return;
    if (fetch_add<Order::relaxed, Scope::engine>(&failure_count, 1) != 0) return;
    line = at_line;
    rank = at_rank;
    left = a;
    right = b;
  }
};

#define GPU4FS_EXPECT(report, ...) (report).expect(static_cast<bool>(__VA_ARGS__), __LINE__, g.rank(), 0, 0)
#define GPU4FS_EXPECT_EQ(report, a, b)                                                                           \
  ::gpu4fs::test::expect_equal((report), static_cast<::gpu4fs::u64>(a), static_cast<::gpu4fs::u64>(b), __LINE__, \
                               g.rank())

GPU4FS_FN inline void expect_equal(GroupReport& report, u64 a, u64 b, u32 line, u32 rank) {
  report.expect(a == b, line, rank, a, b);
}

// An array that host and device code access at the same address, page-aligned and zeroed.
template <class T>
class GroupMemory {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  explicit GroupMemory(u64 count) : count_(count) {
    const u64 length = (count * sizeof(T) + page_size - 1) / page_size * page_size;
#if GPU4FS_CUDA_COMPILER
    void* memory = nullptr;
    const cudaError_t error = cudaMallocManaged(&memory, length == 0 ? page_size : length);
    if (error != cudaSuccess) {
      std::fprintf(stderr, "no memory for a kernel test: %s\n", cudaGetErrorString(error));
      std::exit(1);
    }
    data_ = static_cast<T*>(memory);
#else
    data_ = static_cast<T*>(std::aligned_alloc(page_size, length == 0 ? page_size : length));
    if (data_ == nullptr) std::abort();
#endif
    std::memset(static_cast<void*>(data_), 0, length);
  }
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;
  ~GroupMemory() {
#if GPU4FS_CUDA_COMPILER
    cudaFree(data_);
#else
    std::free(data_);
#endif
  }

  T* data() {
    return data_;
  }
  const T* data() const {
    return data_;
  }
  u64 size() const {
    return count_;
  }
  T& operator[](u64 index) {
    return data_[index];
  }
  const T& operator[](u64 index) const {
    return data_[index];
  }

 private:
  T* data_ = nullptr;
  u64 count_;
};

// The splitmix64 sequence: test data that is the same on all processors.
class Sequence {
 public:
  GPU4FS_FN explicit constexpr Sequence(u64 seed) : state_(seed) {}
  GPU4FS_FN constexpr u64 next() {
    state_ += 0x9e3779b97f4a7c15u;
    u64 z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  u64 state_;
};

inline void fill_random(void* data, u64 length, u64 seed) {
  Sequence sequence(seed);
  u8* bytes = static_cast<u8*>(data);
  for (; length >= sizeof(u64); bytes += sizeof(u64), length -= sizeof(u64)) {
    const u64 word = sequence.next();
    std::memcpy(bytes, &word, sizeof(word));
  }
  for (; length > 0; --length) *bytes++ = static_cast<u8>(sequence.next());
}

// A body without any expectation has failed: it did not run.
inline bool report_passes(const char* name, const char* group, const GroupReport& report) {
  if (report.failure_count == 0 && report.expectation_count > 0) return true;
  std::fprintf(stderr, "%s on %s: %u of %u expectations failed; first at line %u, rank %u: %llu and %llu\n", name,
               group, report.failure_count, report.expectation_count, report.line, report.rank,
               static_cast<unsigned long long>(report.left), static_cast<unsigned long long>(report.right));
  return false;
}

#if GPU4FS_CUDA_COMPILER

template <class Group, class Body>
__global__ void run_body_kernel(Body body, GroupReport* report) {
  body(Group{}, *report);
}

template <class Group, class Body>
bool passes_in_kernel(const char* name, const char* group, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>);
  GroupMemory<GroupReport> report(1);
  run_body_kernel<Group><<<1, Group::size()>>>(body, report.data());
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s on %s: %s\n", name, group, cudaGetErrorString(error));
    return false;
  }
  return report_passes(name, group, report[0]);
}

template <class Body>
bool passes_on_all_groups(const char* name, const Body& body) {
  const bool on_lane = passes_in_kernel<Lane>(name, "a CUDA lane", body);
  const bool on_warp = passes_in_kernel<Warp>(name, "a warp", body);
  return on_lane && on_warp;
}

#else

template <class Body>
bool passes_on_all_groups(const char* name, const Body& body) {
  GroupReport lane_report{};
  body(Lane{}, lane_report);
  GroupReport warp_report{};
  run_emulated_warp([&](EmulatedWarp g) { body(g, warp_report); });
  const bool on_lane = report_passes(name, "a CPU lane", lane_report);
  const bool on_warp = report_passes(name, "an emulated warp", warp_report);
  return on_lane && on_warp;
}

#endif

}  // namespace gpu4fs::test
