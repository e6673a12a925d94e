// Groups: the ranks that execute an engine function together.
//
// An engine function is `template <class Group> GPU4FS_FN Status f(Group g, ...)`. Every rank calls it with equal
// arguments, in uniform control flow, and gets an equal result. Lane is a group of one rank: a CPU thread, or one CUDA
// lane on its own; its collectives do nothing. Warp is the 32 lanes of a CUDA warp, all converged; it can be named in
// host code but not used there. EmulatedWarp (base/emulated_warp.hpp) is 32 fibers of one host thread.
//
// Every group has
//   size(), rank(), leader()   leader() is rank 0
//   sync()                     all ranks arrive; memory effects before are visible to all after
//   broadcast(v)               rank 0's value
//   shuffle(v, source_rank)    the value of rank source_rank, which is below size()
//   shuffle_xor(v, mask)       the value of rank() ^ mask, or v where no such rank exists
//   ballot(p)                  bit r is p of rank r
//   any(p), all(p)             over all ranks
//   reduce(v, op)              op over all ranks, on all ranks; associative and commutative
//   exclusive_scan(v)          sum over the ranks before this one, 0 on rank 0
//   match_any(key)             bit r is set where rank r has an equal 64-bit key
// and all collectives are called by all ranks. Values are of any trivially copyable type, sent in
// 32-bit words. The collectives other than sync() order no memory.
#pragma once

#include <type_traits>

#include "base/bits.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs {

class Lane {
 public:
  GPU4FS_FN static constexpr u32 size() { return 1; }
  GPU4FS_FN static constexpr u32 rank() { return 0; }
  GPU4FS_FN static constexpr bool leader() { return true; }
  GPU4FS_FN void sync() const {}

  template <class T>
  GPU4FS_FN T broadcast(T value) const {
    return value;
  }
  template <class T>
  GPU4FS_FN T shuffle(T value, u32 /*source_rank*/) const {
    return value;
  }
  template <class T>
  GPU4FS_FN T shuffle_xor(T value, u32 /*mask*/) const {
    return value;
  }
  GPU4FS_FN u32 ballot(bool predicate) const { return predicate ? 1 : 0; }
  GPU4FS_FN bool any(bool predicate) const { return predicate; }
  GPU4FS_FN bool all(bool predicate) const { return predicate; }
  template <class T, class Operation>
  GPU4FS_FN T reduce(T value, Operation&& /*operation*/) const {
    return value;
  }
  template <class T>
  GPU4FS_FN T exclusive_scan(T /*value*/) const {
    return T{};
  }
  GPU4FS_FN u32 match_any(u64 /*key*/) const { return 1; }
};

class Warp {
 public:
  GPU4FS_FN static constexpr u32 size() { return warp_size; }

  GPU4FS_FN static u32 rank() {
#if GPU4FS_DEVICE_CODE
    u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
#else
    return unusable<u32>();
#endif
  }

  GPU4FS_FN static bool leader() {
    return rank() == 0;
  }

  GPU4FS_FN void sync() const {
#if GPU4FS_DEVICE_CODE
    __syncwarp();
#else
    unusable<int>();
#endif
  }

  template <class T>
  GPU4FS_FN T broadcast(T value) const {
    return shuffle(value, 0);
  }

  template <class T>
  GPU4FS_FN T shuffle(T value, u32 source_rank) const {
    return by_words(value, [source_rank](u32 word) -> u32 {
#if GPU4FS_DEVICE_CODE
      return __shfl_sync(full_mask, word, static_cast<int>(source_rank));
#else
      return unusable<u32>(word, source_rank);
#endif
    });
  }

  template <class T>
  GPU4FS_FN T shuffle_xor(T value, u32 mask) const {
    return by_words(value, [mask](u32 word) -> u32 {
#if GPU4FS_DEVICE_CODE
      return __shfl_xor_sync(full_mask, word, static_cast<int>(mask));
#else
      return unusable<u32>(word, mask);
#endif
    });
  }

  GPU4FS_FN u32 ballot(bool predicate) const {
#if GPU4FS_DEVICE_CODE
    return __ballot_sync(full_mask, predicate);
#else
    return unusable<u32>(predicate);
#endif
  }

  GPU4FS_FN bool any(bool predicate) const {
    return ballot(predicate) != 0;
  }
  GPU4FS_FN bool all(bool predicate) const {
    return ballot(predicate) == full_mask;
  }

  template <class T, class Operation>
  GPU4FS_FN T reduce(T value, Operation&& operation) const {
    GPU4FS_UNROLL
    for (u32 mask = 1; mask < warp_size; mask *= 2) value = operation(value, shuffle_xor(value, mask));
    return value;
  }

  template <class T>
  GPU4FS_FN T exclusive_scan(T value) const {
    T sum = value;
    GPU4FS_UNROLL
    for (u32 distance = 1; distance < warp_size; distance *= 2) {
      const T before = shuffle(sum, (rank() - distance) % warp_size);
      if (rank() >= distance) sum = static_cast<T>(sum + before);
    }
    return static_cast<T>(sum - value);
  }

  GPU4FS_FN u32 match_any(u64 key) const {
#if GPU4FS_DEVICE_CODE
    return __match_any_sync(full_mask, static_cast<unsigned long long>(key));
#else
    return unusable<u32>(key);
#endif
  }

 private:
  static constexpr u32 full_mask = 0xffffffffu;

  // Lets the host pass of nvcc instantiate code that only a kernel executes.
  template <class T, class... Unused>
  GPU4FS_FN static T unusable(const Unused&...) {
#if !GPU4FS_DEVICE_CODE
    __builtin_trap();
#endif
    return T{};
  }

  template <class T, class WordShuffle>
  GPU4FS_FN static T by_words(T value, WordShuffle&& word_shuffle) {
    static_assert(std::is_trivially_copyable_v<T>);
    constexpr u32 word_count = (sizeof(T) + 3) / 4;
    u32 words[word_count] = {};
    __builtin_memcpy(words, &value, sizeof(T));
    GPU4FS_UNROLL
    for (u32 i = 0; i < word_count; ++i) words[i] = word_shuffle(words[i]);
    __builtin_memcpy(&value, words, sizeof(T));
    return value;
  }
};

static_assert(std::is_trivially_copyable_v<Lane> && std::is_trivially_copyable_v<Warp>);

// The number of ranks, from the first one on, whose value is true. Collective.
template <class Group>
GPU4FS_FN u32 leading_ranks(Group g, bool answer) {
  return minimum(count_trailing_zeros(~g.ballot(answer)), Group::size());
}

// Runs `body` on the leader and gives its value to every rank. Memory that was written before is visible to the leader,
// and memory that the leader writes is visible to every rank afterwards. The value is a trivially copyable,
// default-constructible type, best of a few words. Locals captured by reference change on the leader alone.
template <class Group, class Body>
GPU4FS_FN auto on_leader(Group g, Body&& body) {
  using Value = decltype(body());
  if constexpr (Group::size() == 1) {
    return body();
  } else if constexpr (std::is_void_v<Value>) {
    g.sync();
    if (g.leader()) body();
    g.sync();
  } else {
    static_assert(std::is_trivially_copyable_v<Value> && std::is_default_constructible_v<Value>);
    Value value{};
    g.sync();
    if (g.leader()) value = body();
    g.sync();
    return g.broadcast(value);
  }
}

}  // namespace gpu4fs
