// Reading memory that others may be changing at the same moment.
//
// What these functions read means nothing until the caller has found out that nobody changed it meanwhile
// (engine/optimistic/version.hpp), and nothing is done with it before that could not be done with any bytes. Eight
// aligned bytes are read in one access, and each byte is read once. No function here orders anything.
//
// ThreadSanitizer cannot know that the bytes are judged afterwards, so its builds read them without its knowledge.
#pragma once

#include <type_traits>

#include "base/access.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/page_registers.hpp"
#include "base/types.hpp"

#if GPU4FS_TSAN
#define GPU4FS_UNWATCHED __attribute__((no_sanitize("thread"), noinline)) inline
#else
#define GPU4FS_UNWATCHED GPU4FS_FORCE_INLINE
#endif

namespace gpu4fs {

// `address` is 16-byte aligned.
GPU4FS_FN GPU4FS_UNWATCHED Vector16 load_racy_16(const void* address) {
#if GPU4FS_DEVICE_CODE
  return load_stream_16(address);
#else
  const u64* words = static_cast<const u64*>(address);
  return Vector16{__atomic_load_n(&words[0], __ATOMIC_RELAXED), __atomic_load_n(&words[1], __ATOMIC_RELAXED)};
#endif
}

GPU4FS_FN GPU4FS_UNWATCHED u64 load_racy_8(const u64* address) {
#if GPU4FS_DEVICE_CODE
  return load<Order::relaxed, Scope::engine>(address);
#else
  return __atomic_load_n(address, __ATOMIC_RELAXED);
#endif
}

// Bytes [from, to) of the object at `source`, in chunks of 16 from its beginning; the copy's other bytes stay as they
// are.
template <u32 from, u32 to, class T>
GPU4FS_FN GPU4FS_FORCE_INLINE void copy_racy(T& copy, const T* source) {
  static_assert(std::is_trivially_copyable_v<T> && from % 16 == 0 && to % 16 == 0 && to <= sizeof(T));
  const u8* bytes = reinterpret_cast<const u8*>(source);
  GPU4FS_UNROLL
  for (u32 at = from; at < to; at += 16) {
    const Vector16 chunk = load_racy_16(bytes + at);
    __builtin_memcpy(reinterpret_cast<u8*>(&copy) + at, &chunk, sizeof(chunk));
  }
}

namespace detail {

#if !GPU4FS_DEVICE_CODE
GPU4FS_UNWATCHED void copy_racy_page(u8* destination, const u8* source) {
#if GPU4FS_TSAN
  for (u32 at = 0; at < page_size; at += 8) {
    const u64 word = *reinterpret_cast<const volatile u64*>(source + at);
    *reinterpret_cast<volatile u64*>(destination + at) = word;
  }
#else
  std::memcpy(destination, source, page_size);
#endif
}
#endif

}  // namespace detail

// The page at `source`, by one lane: both aligned to 16 bytes. Nobody else uses the destination.
GPU4FS_FN inline void copy_changing_page(u8* destination, const u8* source) {
#if GPU4FS_DEVICE_CODE
  copy_bytes(Lane{}, destination, source, page_size);
#else
  detail::copy_racy_page(destination, source);
#endif
}

// The page at `source`, 16-byte aligned. A Lane's is copied to `lane_copy`, where nobody else writes.
template <class Group>
GPU4FS_FN PageRegisters<Group> load_racy_page(Group g, const u8* source, u8* lane_copy) {
  GPU4FS_CHECK(is_aligned(source, 16));
  if constexpr (Group::size() == 1) {
#if GPU4FS_DEVICE_CODE
    copy_bytes(g, lane_copy, source, page_size);
#else
    (void)g;
    detail::copy_racy_page(lane_copy, source);
#endif
    return PageRegisters<Group>{lane_copy};
  } else {
    (void)lane_copy;
    PageRegisters<Group> page;
    GPU4FS_UNROLL
    for (u32 s = 0; s < page_chunk_rows; ++s) {
      page.chunks[s] = load_racy_16(source + detail::page_chunk_offset(s, g.rank()));
    }
    return page;
  }
}

}  // namespace gpu4fs
