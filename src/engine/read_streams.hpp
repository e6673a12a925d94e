// Which files are read one piece after the other, and how far ahead of the reader their pages are loaded.
//
// A stream is a file with the place where its next read should begin. A read that begins there, or in what was loaded
// ahead, continues the stream; any other begins a new one, without a window. The second read of a stream opens a
// window, and the pages of the window are loaded. When the reader comes to the marker, in the middle of what was begun
// last, the window doubles, up to a limit, and its pages are loaded beside the reads. So a random reader loads nothing,
// several readers of one file have streams of their own, and reads that overtake each other stay in their stream.
//
// The table is small and lies in engine memory. Its words are atomic and change without a lock. Several workers may see
// a mixture of two changes: then other pages are loaded than would be best, and no more than two windows.
//
// Plain functions for one rank. read_ahead.hpp loads the pages.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/types.hpp"

namespace gpu4fs::engine {

// All numbers of pages are those of pages in the file.
struct ReadStream {
  u64 inode;       // 0: there is no stream
  u64 next;        // page with the byte behind the last read
  u64 begun_end;   // loads of the pages before it have begun
  u64 wanted_end;  // and of those before it they should
  u64 marker;      // the page from which on the window doubles
  u32 window;      // pages; 0: one read was seen
  u32 last_use;    // tick of the set
};

inline constexpr u32 stream_set_count = 16;
inline constexpr u32 streams_per_set = 4;

// Zeroed memory is an empty table.
struct ReadStreams {
  struct alignas(cache_line) Set {
    ReadStream streams[streams_per_set];
    u32 tick;  // streams that have begun
  };
  Set sets[stream_set_count];

  GPU4FS_FN Set& set_of(u64 inode) { return sets[inode * 0x9e3779b97f4a7c15u >> 60]; }
  GPU4FS_FN const Set& set_of(u64 inode) const { return sets[inode * 0x9e3779b97f4a7c15u >> 60]; }
};
static_assert(stream_set_count == 1 << 4, "bits of ReadStreams::set_of()");

// A read of bytes [begin, end) of a file; begin < end.
struct SeenRead {
  u64 inode;
  u64 begin;
  u64 end;
};

// Pages of a file that should be loaded.
struct AheadWish {
  u64 first;
  u32 count;   // 0: none
  u32 stream;  // index in the set of the file
};

inline constexpr u32 no_stream = ~u32{0};
inline constexpr u32 window_least_pages = 4;
// A stream that was not continued while so many others began in its set may be replaced by any other.
inline constexpr u32 stream_age_max = 64;

namespace detail {

template <class T>
GPU4FS_FN T look_at_stream(const T* member) {
  return load<Order::relaxed, Scope::engine>(member);
}
template <class T>
GPU4FS_FN void set_in_stream(T* member, T value) {
  store<Order::relaxed, Scope::engine>(member, value);
}

// A set as one rank saw it. It is loaded as a whole, so a look at it takes one access of memory and not many, one after
// the other.
struct SeenSet {
  ReadStream streams[streams_per_set];
  u32 tick;
};

GPU4FS_FN inline SeenSet look_at_set(const ReadStreams::Set& set) {
  SeenSet seen;
  GPU4FS_UNROLL
  for (u32 i = 0; i < streams_per_set; ++i) {
    const ReadStream& stream = set.streams[i];
    seen.streams[i] = {look_at_stream(&stream.inode),     look_at_stream(&stream.next),
                       look_at_stream(&stream.begun_end), look_at_stream(&stream.wanted_end),
                       look_at_stream(&stream.marker),    look_at_stream(&stream.window),
                       look_at_stream(&stream.last_use)};
  }
  seen.tick = look_at_stream(&set.tick);
  return seen;
}

enum class StreamFit : u32 { other, continued, overtaken };

// A read that is further behind the place where the next one should begin was not overtaken. Its reader has gone back.
GPU4FS_FN constexpr u64 overtaken_pages_max(u64 page_count) {
  return 32 + 4 * page_count;
}

// How a read that begins in this page fits to the stream of its file. Overtaken: a later read came first.
GPU4FS_FN inline StreamFit fit_of(const ReadStream& seen, u64 inode, u64 first, u64 page_count) {
  if (seen.inode != inode) return StreamFit::other;
  if (first >= seen.next) {
    const bool is_near = first == seen.next || first <= seen.begun_end;
    return GPU4FS_MUTANT(any_read_is_sequential, is_near, true) ? StreamFit::continued : StreamFit::other;
  }
  const u64 behind = minimum<u64>(maximum(seen.window, 1u), overtaken_pages_max(page_count));
  return first + behind >= seen.next ? StreamFit::overtaken : StreamFit::other;
}

// The first stream to which a read fits in this way, or no_stream.
GPU4FS_FN inline u32 find_fitting(const SeenSet& seen, const SeenRead& read, StreamFit wanted) {
  const u64 first = read.begin / page_size;
  const u64 page_count = divide_up(read.end, page_size) - first;
  u32 found = no_stream;
  GPU4FS_UNROLL
  for (u32 i = 0; i < streams_per_set; ++i) {
    if (found == no_stream && fit_of(seen.streams[i], read.inode, first, page_count) == wanted) found = i;
  }
  return found;
}

// The new stream of a read that continues none, in place of one without a window, or of one that has ended.
GPU4FS_FN inline void begin_stream(ReadStreams::Set& set, const SeenSet& seen, const SeenRead& read) {
  u32 worst = 0;
  u32 worst_score = 0;
  GPU4FS_UNROLL
  for (u32 i = 0; i < streams_per_set; ++i) {
    const ReadStream& stream = seen.streams[i];
    const u32 age = minimum(seen.tick - stream.last_use, 2 * stream_age_max);
    const bool has_window = GPU4FS_MUTANT(stream_not_protected, stream.window != 0, false);
    const u32 score = stream.inode == 0 ? 8 * stream_age_max : age + (has_window ? 0 : stream_age_max) + 1;
    if (score > worst_score) {
      worst = i;
      worst_score = score;
    }
  }
  ReadStream& stream = set.streams[worst];
  const u64 untouched = divide_up(read.end, page_size);
  set_in_stream(&stream.inode, u64{0});
  set_in_stream(&stream.next, read.end / page_size);
  set_in_stream(&stream.begun_end, untouched);
  set_in_stream(&stream.wanted_end, untouched);
  set_in_stream(&stream.marker, untouched);
  set_in_stream(&stream.window, 0u);
  set_in_stream(&stream.last_use, seen.tick);
  set_in_stream(&stream.inode, read.inode);
  set_in_stream(&set.tick, seen.tick + 1);
}

GPU4FS_FN inline ReadStream stream_in(const SeenSet& seen, u32 index) {
  ReadStream stream = seen.streams[0];
  GPU4FS_UNROLL
  for (u32 i = 1; i < streams_per_set; ++i) {
    if (i == index) stream = seen.streams[i];
  }
  return stream;
}

GPU4FS_FN inline AheadWish continue_stream(ReadStreams::Set& set, const SeenSet& seen, u32 index, const SeenRead& read,
                                           u32 window_max) {
  const ReadStream before = stream_in(seen, index);
  ReadStream& stream = set.streams[index];
  const u64 untouched = divide_up(read.end, page_size);
  const u64 first = maximum(before.begun_end, untouched);
  u64 end = before.wanted_end;
  set_in_stream(&stream.next, read.end / page_size);
  set_in_stream(&stream.last_use, seen.tick);
  if (before.window == 0 || untouched >= before.marker) {
    const u64 of_read = divide_up(read.end - read.begin, page_size);
    const u64 first_window = maximum<u64>(2 * of_read, window_least_pages);
    const u64 wider = GPU4FS_MUTANT(window_not_doubled, 2 * u64{before.window}, u64{before.window});
    const u64 limit = GPU4FS_MUTANT(window_not_limited, u64{window_max}, u64{window_max} * 16);
    const u32 grown = static_cast<u32>(minimum(before.window == 0 ? first_window : wider, limit));
    end = first + grown;
    set_in_stream(&stream.window, grown);
    set_in_stream(&stream.wanted_end, end);
    set_in_stream(&stream.marker, first + grown / 2);
  }
  if (first >= end) return {0, 0, 0};
  return {first, static_cast<u32>(minimum(end - first, 2 * u64{window_max})), index};
}

}  // namespace detail

// The stream that a read continues, as its number in the set of the file, or no_stream.
GPU4FS_FN inline u32 find_stream(const ReadStreams& streams, const SeenRead& read) {
  return detail::find_fitting(detail::look_at_set(streams.set_of(read.inode)), read, detail::StreamFit::continued);
}

// Notes a read, and says what should be loaded for the next ones; note_begun() follows if that is something.
// `window_max`: pages, not 0. `begins`: a read that continues no stream begins one. Reads of pages that are in memory
// need not.
GPU4FS_FN GPU4FS_NOINLINE inline AheadWish note_read(ReadStreams& streams, const SeenRead& read, u32 window_max,
                                                     bool begins) {
  ReadStreams::Set& set = streams.set_of(read.inode);
  const detail::SeenSet seen = detail::look_at_set(set);
  const u32 continued = detail::find_fitting(seen, read, detail::StreamFit::continued);
  if (continued != no_stream) return detail::continue_stream(set, seen, continued, read, window_max);
  const bool is_overtaken = detail::find_fitting(seen, read, detail::StreamFit::overtaken) != no_stream;
  if (begins && !is_overtaken) detail::begin_stream(set, seen, read);
  return {0, 0, 0};
}

// `count` of the wish's pages are dealt with. The next reads ask for the others again.
GPU4FS_FN inline void note_begun(ReadStreams& streams, u64 inode, const AheadWish& wish, u32 count) {
  ReadStream& stream = streams.set_of(inode).streams[wish.stream];
  // Another file may have replaced it.
  if (detail::look_at_stream(&stream.inode) != inode) return;
  detail::set_in_stream(&stream.begun_end, wish.first + count);
}

}  // namespace gpu4fs::engine
