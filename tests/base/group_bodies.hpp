// Test bodies of the base layer that run on every group, on the host and in kernels (tests/gpu/).
#pragma once

#include "base/atomics.hpp"
#include "base/copy.hpp"
#include "base/galois.hpp"
#include "base/locks.hpp"
#include "base/xxh3.hpp"
#include "support/group_runner.hpp"

namespace gpu4fs::test {

struct Wide {
  u64 words[13];  // more than one slot of the emulated warp
  u8 tail;
};

struct CollectivesBody {
  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    const u32 n = Group::size();
    const u32 r = g.rank();
    GPU4FS_EXPECT(report, r < n);
    GPU4FS_EXPECT_EQ(report, g.leader(), r == 0);
    GPU4FS_EXPECT_EQ(report, g.broadcast(u64{7} * r + 3), 3);
    GPU4FS_EXPECT_EQ(report, g.broadcast(static_cast<u8>(r + 9)), 9);
    GPU4FS_EXPECT_EQ(report, g.shuffle(u16(r * 3), (r + 5) % n), (r + 5) % n * 3);
    for (u32 mask = 1; mask < n; mask *= 2) GPU4FS_EXPECT_EQ(report, g.shuffle_xor(r, mask), r ^ mask);

    Wide wide{};
    for (u32 i = 0; i < 13; ++i) wide.words[i] = u64{r} * 100 + i;
    wide.tail = static_cast<u8>(r + 1);
    const Wide last = g.shuffle(wide, n - 1);
    for (u32 i = 0; i < 13; ++i) GPU4FS_EXPECT_EQ(report, last.words[i], u64{n - 1} * 100 + i);
    GPU4FS_EXPECT_EQ(report, last.tail, n);

    u32 thirds = 0;
    u32 same = 0;
    u64 before = 0;
    for (u32 i = 0; i < n; ++i) {
      if (i % 3 == 0) thirds |= 1u << i;
      if (i % 5 == r % 5) same |= 1u << i;
      before += i + 1 <= r ? u64{i} * i + 1 : 0;
    }
    GPU4FS_EXPECT_EQ(report, g.ballot(r % 3 == 0), thirds);
    GPU4FS_EXPECT_EQ(report, g.match_any(0xabcdef0000000000u + r % 5), same);
    GPU4FS_EXPECT_EQ(report, g.exclusive_scan(u64{r} * r + 1), before);
    GPU4FS_EXPECT(report, g.any(r == n - 1));
    GPU4FS_EXPECT(report, !g.any(r == n));
    GPU4FS_EXPECT(report, g.all(r < n));
    GPU4FS_EXPECT_EQ(report, g.all(r != n - 1), false);
    GPU4FS_EXPECT_EQ(report, g.reduce(r, [](u32 a, u32 b) { return a + b; }), n * (n - 1) / 2);
    GPU4FS_EXPECT_EQ(report, g.reduce(u64{n - r}, [](u64 a, u64 b) { return a > b ? a : b; }), n);
  }
};

// Products of bytes, one at a time and in words, compared with those by definition. Ranks share the factors.
struct GaloisBody {
  GPU4FS_FN static u8 product(u8 a, u8 b) {
    u32 sum = 0;
    for (u32 bit = 0; bit < 8; ++bit) {
      if ((b >> bit & 1) != 0) sum ^= u32{a} << bit;
    }
    for (u32 bit = 14; bit >= 8; --bit) {
      if ((sum >> bit & 1) != 0) sum ^= 0x11du << (bit - 8);
    }
    return static_cast<u8>(sum);
  }
  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    for (u32 f = g.rank(); f < 256; f += Group::size()) {
      const u8 factor = static_cast<u8>(f);
      const galois::Multiplier by = galois::make_multiplier(factor);
      for (u32 begin = 0; begin < 256; begin += 3) {
        u64 bytes = 0;
        u64 expected = 0;
        u64 doubled = 0;
        for (u32 i = 0; i < 8; ++i) {
          const u8 byte = static_cast<u8>(begin * (2 * i + 1) + 29 * i);
          bytes |= u64{byte} << (8 * i);
          expected |= u64{product(byte, factor)} << (8 * i);
          doubled |= u64{product(byte, 2)} << (8 * i);
        }
        GPU4FS_EXPECT_EQ(report, galois::scale(galois::split_bytes(bytes), by), expected);
        GPU4FS_EXPECT_EQ(report, galois::scale(bytes, factor), expected);
        GPU4FS_EXPECT_EQ(report, galois::twice(bytes), doubled);
        GPU4FS_EXPECT_EQ(report, galois::multiply(static_cast<u8>(begin), factor),
                         product(static_cast<u8>(begin), factor));
      }
      if (factor != 0) GPU4FS_EXPECT_EQ(report, product(galois::inverse(factor), factor), 1);
    }
  }
};

// on_leader() gives one value to all, runs its body once, and publishes its writes.
struct OnLeaderBody {
  u64* memory;  // 40 words

  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    u64* words = memory;
    for (u32 round = 0; round < 16; ++round) {
      const u64 value = on_leader(g, [&]() -> u64 {
        for (u32 i = 0; i < 32; ++i) words[i] = u64{round} * 1000 + i;
        words[32] += 1;
        return words[32];
      });
      GPU4FS_EXPECT_EQ(report, value, words[33] + 1);
      GPU4FS_EXPECT_EQ(report, words[(g.rank() + 7) % 32], u64{round} * 1000 + (g.rank() + 7) % 32);
      on_leader(g, [&] { words[33] = words[32]; });
      const Status status = on_leader(g, [&] { return round % 2 == 0 ? Status::ok : Status::no_space; });
      GPU4FS_EXPECT_EQ(report, status, round % 2 == 0 ? Status::ok : Status::no_space);
    }
    GPU4FS_EXPECT_EQ(report, words[33], 16);
    on_leader(g, [&] { words[32] = words[33] = 0; });
  }
};

struct AtomicsBody {
  u64* words;  // 4, zero before and after

  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    const u32 n = Group::size();
    const u64 mine = fetch_add<Order::acq_rel, Scope::engine>(&words[0], 3);
    GPU4FS_EXPECT(report, mine % 3 == 0 && mine < 3 * n);
    fetch_or<Order::relaxed, Scope::engine>(&words[1], u64{1} << g.rank());
    u64 expected = load<Order::relaxed, Scope::engine>(&words[2]);
    while (!compare_exchange<Order::acq_rel, Scope::engine>(&words[2], expected, expected + g.rank())) {
    }
    g.sync();
    GPU4FS_EXPECT_EQ(report, (load<Order::acquire, Scope::engine>(&words[0])), 3 * n);
    GPU4FS_EXPECT_EQ(report, (load<Order::acquire, Scope::system>(&words[1])), (u64{1} << n) - 1);
    GPU4FS_EXPECT_EQ(report, (load<Order::seq_cst, Scope::group>(&words[2])), n * (n - 1) / 2);
    g.sync();
    fetch_and<Order::relaxed, Scope::engine>(&words[1], ~(u64{1} << g.rank()));
    fetch_sub<Order::release, Scope::engine>(&words[0], 3);
    g.sync();
    const u64 sums = on_leader(g, [&] {
      const u64 previous = exchange<Order::acq_rel, Scope::engine>(&words[2], 0);
      store<Order::release, Scope::system>(&words[3], previous + 1);
      fence<Order::acq_rel, Scope::system>();
      u64 wrong = previous;
      const bool swapped = compare_exchange<Order::acquire, Scope::engine>(&words[3], wrong, 0);
      return (swapped ? 1000000 : 0) + wrong - previous + words[0] + words[1];
    });
    GPU4FS_EXPECT_EQ(report, sums, 1);
    on_leader(g, [&] { words[3] = 0; });
  }
};

struct SharedAccessBody {
  Vector16* vectors;  // 33

  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    const u32 r = g.rank();
    store_shared_16(&vectors[r], Vector16{u64{r} + 1, ~u64{r}});
    g.sync();
    const u32 other = (r + 1) % Group::size();
    const Vector16 shared = load_shared_16(&vectors[other]);
    GPU4FS_EXPECT_EQ(report, shared.low, u64{other} + 1);
    GPU4FS_EXPECT_EQ(report, shared.high, ~u64{other});
    GPU4FS_EXPECT(report, load_stream_16(&vectors[other]) == shared);
    g.sync();
    store_stream_16(&vectors[r], Vector16{~u64{r}, 5});
    g.sync();
    GPU4FS_EXPECT_EQ(report, vectors[other].low, ~u64{other});
    const u64 start_ns = now_monotonic_ns();
    backoff(100);
    cpu_relax();
    GPU4FS_EXPECT(report, now_monotonic_ns() >= start_ns);
  }
};

// The host's oracle stored the expected hashes next to pages and seeds.
struct PageHashBody {
  const u8* pages;  // page_count pages, then one extra byte for the unaligned case
  u64 page_count;
  const u64* seeds;
  const u64* hashes;
  u8* scratch;  // one page

  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    for (u64 i = 0; i < page_count; ++i) {
      const u8* page = pages + i * page_size;
      GPU4FS_EXPECT_EQ(report, xxh3_page(g, page, seeds[i]), hashes[i]);
      g.sync();
      GPU4FS_EXPECT_EQ(report, xxh3_copy_page(g, scratch, page, seeds[i]), hashes[i]);
      g.sync();
      check_equal(g, report, scratch, page, page_size);
      GPU4FS_EXPECT_EQ(report, xxh3_64(page, page_size, seeds[i]), hashes[i]);
    }
  }

  template <class Group>
  GPU4FS_FN static void check_equal(Group g, GroupReport& report, const u8* a, const u8* b, u64 length) {
    u64 differing = 0;
    for (u64 i = g.rank(); i < length; i += Group::size()) differing += a[i] != b[i] ? 1 : 0;
    GPU4FS_EXPECT_EQ(report, differing, 0);
    g.sync();
  }
};

// A page at every source alignment, to every destination alignment and a few ranges; nothing
// around the range may change, and nothing at all on a mismatch.
struct VerifyCopyBody {
  const u8* source;   // page_size + 32 bytes
  const u64* hashes;  // of the page at source + a, for a in 0 to 15
  u64 seed;
  u8* destination;  // page_size + 64 bytes
  u32 alignment_step;

  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    const u32 ranges[7][2] = {{0, 4096}, {0, 1}, {4095, 4096}, {100, 100}, {17, 23}, {1, 4095}, {512, 3000}};
    for (u32 from_alignment = 0; from_alignment < 16; from_alignment += alignment_step) {
      for (u32 to_alignment = 0; to_alignment < 16; to_alignment += 1) {
        const u32* range = ranges[(from_alignment + to_alignment) % 7];
        check_one(g, report, from_alignment, to_alignment, range[0], range[1]);
      }
    }
    for (u32 from = 0; from < 16; from += alignment_step) {
      GPU4FS_EXPECT_EQ(report, xxh3_copy_page(g, destination, source + from, seed), hashes[from]);
      g.sync();
      PageHashBody::check_equal(g, report, destination, source + from, page_size);
    }
    const u64 wrong = hashes[0] ^ (u64{1} << 40);
    fill_bytes(g, destination, 0xee, page_size + 64);
    g.sync();
    GPU4FS_EXPECT(report, !verify_copy_page(g, destination + 3, source, seed, wrong, {0, 4096}));
    GPU4FS_EXPECT(report, !verify_copy_page(g, destination + 16, source, seed, wrong));
    g.sync();
    expect_filled(g, report, 0, 3);
    expect_filled(g, report, page_size + 16, page_size + 64);
    // A lane may have zeroed what it had copied.
    for (u64 i = g.rank(); i < page_size + 16; i += Group::size()) {
      GPU4FS_EXPECT(report, destination[i] == 0xee || (Group::size() == 1 && destination[i] == 0));
    }
    g.sync();
    GPU4FS_EXPECT(report, verify_copy_page(g, destination + 16, source, seed, hashes[0]));
    g.sync();
    PageHashBody::check_equal(g, report, destination + 16, source, page_size);
  }

  template <class Group>
  GPU4FS_FN void check_one(Group g, GroupReport& report, u32 from_alignment, u32 to_alignment, u32 from, u32 to) const {
    fill_bytes(g, destination, 0xee, page_size + 64);
    g.sync();
    const u32 at = 16 + to_alignment;
    const u8* page = source + from_alignment;
    GPU4FS_EXPECT(report, verify_copy_page(g, destination + at, page, seed, hashes[from_alignment], {from, to}));
    g.sync();
    PageHashBody::check_equal(g, report, destination + at, page + from, to - from);
    expect_filled(g, report, 0, at);
    expect_filled(g, report, at + (to - from), page_size + 64);
  }

  template <class Group>
  GPU4FS_FN void expect_filled(Group g, GroupReport& report, u64 from, u64 to) const {
    u64 changed = 0;
    for (u64 i = from + g.rank(); i < to; i += Group::size()) changed += destination[i] != 0xee ? 1 : 0;
    GPU4FS_EXPECT_EQ(report, changed, 0);
    g.sync();
  }
};

struct CopyBytesBody {
  const u8* source;  // at least length_max + 64 bytes
  u8* destination;   // the same
  const u64* lengths;
  u32 length_count;
  u64 capacity;  // of the destination
  u32 alignment_step;

  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    for (u32 i = 0; i < length_count; ++i) {
      for (u32 from = 0; from < 17; from += alignment_step) {
        for (u32 to = 0; to < 17; to += alignment_step) check_one(g, report, from, to, lengths[i]);
      }
    }
    check_zero_page(g, report);
  }

  template <class Group>
  GPU4FS_FN void check_one(Group g, GroupReport& report, u32 from, u32 to, u64 length) const {
    fill_bytes(g, destination, 0x5a, capacity);
    g.sync();
    copy_bytes(g, destination + to, source + from, length);
    g.sync();
    u64 wrong = 0;
    for (u64 i = g.rank(); i < capacity; i += Group::size()) {
      const u8 expected = i >= to && i < to + length ? source[from + i - to] : u8{0x5a};
      wrong += destination[i] != expected ? 1 : 0;
    }
    GPU4FS_EXPECT_EQ(report, wrong, 0);
    g.sync();
  }

  template <class Group>
  GPU4FS_FN void check_zero_page(Group g, GroupReport& report) const {
    fill_bytes(g, destination, 0x5a, capacity);
    g.sync();
    zero_page(g, destination + 16);
    g.sync();
    u64 wrong = 0;
    for (u64 i = g.rank(); i < capacity; i += Group::size()) {
      wrong += destination[i] != (i >= 16 && i < 16 + page_size ? 0 : 0x5a) ? 1 : 0;
    }
    GPU4FS_EXPECT_EQ(report, wrong, 0);
    g.sync();
  }
};

// Every length class of the serial hash, at two alignments.
struct SerialHashBody {
  const u8* data;     // length_count + 64 bytes
  const u64* hashes;  // hashes[2 * length + (alignment != 0)]
  u64 length_count;
  u64 seed;

  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    for (u64 length = g.rank(); length < length_count; length += Group::size()) {
      GPU4FS_EXPECT_EQ(report, xxh3_64(data, length, seed), hashes[2 * length]);
      GPU4FS_EXPECT_EQ(report, xxh3_64(data + 3, length, seed), hashes[2 * length + 1]);
    }
  }
};

}  // namespace gpu4fs::test
