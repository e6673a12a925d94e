// Rows of a chunk with parities for code that reads them as a whole: which parts are present, where they are, and their
// sums.
//
// Addresses and checksums for the loop over a row's pages are determined before the first page is loaded. So the loop
// calls no functions, and no register of a page in flight has to be saved; for that it would have to arrive first. The
// next page is loaded while one page is hashed and added.
//
// Determining them is a chain of dependent accesses that takes as long as the loop itself. So the ranks of a warp work
// in parallel, and on several consecutive rows together. An entry of a row is a slot or, after the slots, a parity.
// Entry i * width + e of a batch, of row i, belongs to rank (i * width + e) % 32. A Lane's batch is one row, and it
// examines each entry when it needs it.
//
// Uniform, except for values that are described as a rank's own. Under the locks of the rows.
#pragma once

#include "base/xxh3.hpp"
#include "raid/parity/parity_pages.hpp"
#include "raid/parity/row.hpp"
#include "raid/stage_pages.hpp"

namespace gpu4fs::raid {
namespace detail {

inline constexpr u32 entries_of_rank = 2;
static_assert(entries_of_rank * warp_size == 64);  // the columns of a chunk

struct RowBatch {
  u32 chunk;
  u32 row_count;
  u32 rows;        // those of them that are processed, one bit each
  u32 width;       // entries of a row
  u32 data_slots;  // those of them before the parities
  u32 reserved;
  u64 row;  // number of the first row
  // Entries, one bit each:
  u64 included;    // in the parities
  u64 missing;     // slots that are requested or included and cannot be read
  u64 rebuilding;  // those on devices that are being rebuilt; slots among them are missing
  u64 parities;    // that can be read
  // Of a rank of a warp:
  RowView view;  // the row of its first entry; a Lane's row
  u64 memory[entries_of_rank];
  u64 checksums[entries_of_rank];
};

// A row of a batch; its entries have one bit each.
struct BatchRow {
  RowView view;
  u32 index;       // in the batch
  u32 entry;       // its first entry
  u64 included;    // slots
  u64 missing;     // slots
  u64 rebuilding;  // slots, and parities after them
  u32 parities;    // that can be read; bit j: parity j
  u32 reserved;
};

// A row of a batch whose entries have been examined.
struct RowAccess {
  const LogicalSpace& space;
  const RowBatch& batch;
  const BatchRow& row;

  GPU4FS_FN u64 address_of(u32 slot) const {
    return space.chunks[batch.chunk].base_address + row_page(row.view, slot) * page_size;
  }
};

// How many rows of the chunk are examined together.
template <class Group>
GPU4FS_FN u32 batch_rows_max(const ChunkState& chunk) {
  return Group::size() == 1 || chunk.column_count > Group::size() ? 1 : Group::size() / chunk.column_count;
}

GPU4FS_FN constexpr u64 bits_of_row(const RowBatch& batch, u64 entries, u32 index) {
  return entries >> (index * batch.width) & low_bits(batch.width);
}

// Rows that have one of the entries.
GPU4FS_FN GPU4FS_NOINLINE inline u32 rows_of_entries(const RowBatch& batch, u64 entries) {
  u32 rows = 0;
  for (u32 i = 0; i < batch.row_count; ++i) rows |= bits_of_row(batch, entries, i) != 0 ? 1u << i : 0;
  return rows;
}

// Rows [row, row + count), at most batch_rows_max(), all of which are processed; not examined yet.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RowBatch make_batch(Group g, const LogicalSpace& space, u32 index, u64 row, u32 count) {
  const ChunkState& chunk = space.chunks[index];
  RowBatch batch{};
  batch.chunk = index;
  batch.row_count = count;
  batch.rows = static_cast<u32>(low_bits(count));
  batch.width = chunk.column_count;
  batch.data_slots = chunk.column_count - chunk.parity_count;
  batch.row = row;
  const u32 own = g.rank() / batch.width;
  batch.view = row_view(space, index, row + (own < count ? own : 0));
  return batch;
}

// Calls visit(base, slot, is_there) for the entries of the rows among `rows`, each on its rank; after the slots, `slot`
// continues with the parities.
template <class Group, class Visit>
GPU4FS_FN void for_each_entry(Group g, const RowBatch& batch, u32 rows, Visit&& visit) {
  const u32 end = batch.row_count * batch.width;
  for (u32 base = 0; base < end; base += Group::size()) {
    const u32 entry = base + g.rank();
    const u32 row = entry / batch.width;
    visit(base, entry - row * batch.width, entry < end && (rows >> row & 1) != 0);
  }
}

// The slots of pages [first, first + count).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 find_slots_of_pages(Group g, const RowBatch& batch, u64 first, u64 count) {
  u64 found = 0;
  for_each_entry(g, batch, batch.rows, [&](u32 base, u32 slot, bool is_there) {
    const u64 page = row_page(batch.view, slot);
    const bool holds = is_there && slot < batch.view.slot_count && page >= first && page - first < count;
    found |= u64{g.ballot(holds)} << base;
  });
  return found;
}

// The slots whose pages have their bit in a bitmap of the chunk.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 find_slots_in(Group g, const RowBatch& batch, const u64* bitmap) {
  u64 found = 0;
  for_each_entry(g, batch, batch.rows, [&](u32 base, u32 slot, bool is_there) {
    const bool holds = is_there && slot < batch.view.slot_count && page_bit(bitmap, row_page(batch.view, slot));
    found |= u64{g.ballot(holds)} << base;
  });
  return found;
}

GPU4FS_FN inline TicketLock& lock_of_row(const LogicalSpace& space, const RowBatch& batch, u32 index) {
  RowView view{};
  view.chunk = batch.chunk;
  view.row = batch.row + index;
  return row_lock(space, view);
}

// Locks the rows of the batch that are among `rows`, which is not empty. No caller waits for a lock while it holds
// another one: if one of the locks is taken, only the first row is locked, after a wait. Returns the locked rows.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 lock_rows(Group g, const LogicalSpace& space, const RowBatch& batch, u32 rows) {
  if ((rows & (rows - 1)) != 0) {
    const bool is_held = (rows >> g.rank() & 1) != 0 && lock_of_row(space, batch, g.rank()).try_lock();
    const u32 held = g.ballot(is_held);
    if (held == rows) {
      g.sync();
      return rows;
    }
    if (is_held) lock_of_row(space, batch, g.rank()).unlock();
  }
  const u32 first = count_trailing_zeros(u64{rows});
  on_leader(g, [&] { lock_of_row(space, batch, first).lock(); });
  return 1u << first;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void unlock_rows(Group g, const LogicalSpace& space, const RowBatch& batch, u32 rows) {
  g.sync();
  for (u32 base = 0; base < batch.row_count; base += Group::size()) {
    const u32 index = base + g.rank();
    if (index < batch.row_count && (rows >> index & 1) != 0) lock_of_row(space, batch, index).unlock();
  }
  g.sync();
}

// The number of rows of the batch that the caller has passed when it has processed the locked ones.
GPU4FS_FN constexpr u32 rows_passed(const RowBatch& batch, u32 wanted, u32 locked) {
  return locked == wanted ? batch.row_count : log2_floor(u64{locked}) + 1;
}

struct EntryLook {
  u32 is_readable;
  u32 is_rebuilding;  // and cannot be read
  u64 memory;         // 0: a lost device may have no memory, or it is found only when a write is announced
};

// Any rank: announces a read of the entry.
GPU4FS_FN GPU4FS_NOINLINE inline EntryLook look_at_entry(const LogicalSpace& space, const RowView& view, u32 slot) {
  const DevicePlace place = row_entry_place(space, view, slot);
  const device::Device& device = space.devices[place.device];
  EntryLook look{0, 0, 0};
  look.is_readable = begin_noted_read(space, place.device, place.offset, page_size) == Status::ok ? 1 : 0;
  if (look.is_readable == 0) look.is_rebuilding = static_cast<u32>(rebuilding_devices(space) >> place.device & 1);
  if (look.is_readable != 0 || (!is_announced(space) && device.base != nullptr)) {
    look.memory = reinterpret_cast<std::uintptr_t>(device::memory_at(device, place.offset, page_size));
  }
  return look;
}

enum class LookAt : u32 { slots = 1, parities = 2, both = 3 };

// Entries that have to be loaded are on their way together before the first is waited for.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void begin_row_loads(Group g, const LogicalSpace& space, const RowBatch& batch, u32 rows,
                                               u64 wanted, LookAt what) {
  if (!stages_pages(space)) return;
  const ChunkState& chunk = space.chunks[batch.chunk];
  bool begun = false;
  for_each_entry(g, batch, rows, [&](u32 base, u32 slot, bool is_there) {
    const bool is_slot = is_there && slot < batch.view.slot_count && what != LookAt::parities;
    const bool is_parity = is_there && slot >= batch.data_slots && what != LookAt::slots;
    const bool is_needed =
        is_parity ||
        (is_slot && ((wanted >> (base + g.rank()) & 1) != 0 || is_in_parity(chunk, row_page(batch.view, slot))));
    // As look_at_entry() will need it.
    const device::StagedPage page =
        is_needed ? staged_page(space, row_entry_place(space, batch.view, slot)) : device::StagedPage{nullptr, 0};
    begun |= device::begin_detached_loads(g, *space.staged, page, device::no_io_owner);
  });
  if (begun) ring_staged(space);
}

// For some rows: the slots that are in the parities, the `wanted` ones even if they are in none, and the parities.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void look_at_rows(Group g, const LogicalSpace& space, RowBatch& batch, u32 rows, u64 wanted,
                                            LookAt what) {
  const ChunkState& chunk = space.chunks[batch.chunk];
  begin_row_loads(g, space, batch, rows, wanted, what);
  for_each_entry(g, batch, rows, [&](u32 base, u32 slot, bool is_there) {
    const bool is_slot = is_there && slot < batch.view.slot_count && what != LookAt::parities;
    const bool is_parity = is_there && slot >= batch.data_slots && what != LookAt::slots;
    Vector16 descriptor{};
    if (is_slot) descriptor = load_shared_16(&chunk.descriptors[row_page(batch.view, slot)]);
    const u32 flags = static_cast<u32>(descriptor.high >> 32);
    const bool is_unverified = (flags & format::page_flag_unverified) != 0;
    const bool is_included = (flags & parity_flags) != 0;
    const bool is_needed = is_parity || (is_slot && (is_included || (wanted >> (base + g.rank()) & 1) != 0));
    const EntryLook look = is_needed ? look_at_entry(space, batch.view, slot) : EntryLook{};
    batch.included |= u64{g.ballot(is_included)} << base;
    batch.missing |= u64{g.ballot(is_slot && is_needed && (look.is_readable == 0 || is_unverified))} << base;
    batch.parities |= u64{g.ballot(is_parity && look.is_readable != 0)} << base;
    batch.rebuilding |= u64{g.ballot(look.is_rebuilding != 0)} << base;
    if constexpr (Group::size() > 1) {
      // Constant indexes, so the values stay in registers.
      if (is_needed) batch.memory[base == 0 ? 0 : 1] = look.memory;
      if (is_slot) batch.checksums[base == 0 ? 0 : 1] = descriptor.low;
    }
  });
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE BatchRow row_of_batch(Group g, const RowBatch& batch, u32 index) {
  BatchRow row{};
  row.index = index;
  row.entry = index * batch.width;
  row.view = g.shuffle(batch.view, row.entry % Group::size());
  const u64 slots = low_bits(batch.data_slots);
  row.included = bits_of_row(batch, batch.included, index) & slots;
  row.missing = bits_of_row(batch, batch.missing, index) & slots;
  row.rebuilding = bits_of_row(batch, batch.rebuilding, index);
  row.parities = static_cast<u32>(bits_of_row(batch, batch.parities, index) >> batch.data_slots);
  return row;
}

// On a warp, the value that the rank of an entry keeps.
template <class Group, class T>
GPU4FS_FN T of_entry(Group g, const T (&own)[entries_of_rank], u32 entry) {
  return g.shuffle(entry < warp_size ? own[0] : own[1], entry % warp_size);
}

template <class Group>
GPU4FS_FN u8* known_memory(Group g, const RowBatch& batch, u32 entry) {
  return reinterpret_cast<u8*>(static_cast<std::uintptr_t>(of_entry(g, batch.memory, entry)));
}

// A slot or parity that can be read.
template <class Group>
GPU4FS_FN PageRegisters<Group> load_entry(Group g, RowAccess at, u32 slot) {
  if constexpr (Group::size() > 1) {
    return load_aligned_page(g, known_memory(g, at.batch, at.row.entry + slot));
  } else {
    return load_aligned_page(g, row_entry_memory(at.space, at.row.view, slot));
  }
}

template <class Group>
GPU4FS_FN u64 checksum_of_slot(Group g, RowAccess at, u32 slot) {
  if constexpr (Group::size() > 1) {
    return of_entry(g, at.batch.checksums, at.row.entry + slot);
  } else {
    return load_shared_16(&at.space.chunks[at.batch.chunk].descriptors[row_page(at.row.view, slot)]).low;
  }
}

// The lowest readable parities, as many as there are missing pages; 0 if none is missing or if there are too few.
GPU4FS_FN inline u32 parities_for(u64 missing, u32 parities) {
  return choose_parities(parities, popcount(missing), 0);
}

// How to compute an entry of a row, a missing slot or a rebuilt parity, from the row's sums. Sum j is parity j of the
// available pages. If j is one of `parities`, of which there are as many as missing pages, sum j is the missing part of
// parity j instead.
GPU4FS_FN GPU4FS_NOINLINE inline SumWeights weights_of_entry(u64 missing, u32 parities, u32 data_slots, u32 entry) {
  const bool is_parity = entry >= data_slots;
  SumWeights weights = is_parity ? weight_of_sum(entry - data_slots, 1) : 0;
  if (missing == 0) return weights;
  // The sum of parity 0 is the missing page.
  if (!is_parity && parities == 1) return weight_of_sum(0, 1);
  u32 powers[galois::equation_count_max] = {};
  u32 places[galois::equation_count_max] = {};
  const u32 count = popcount(missing);
  GPU4FS_CHECK_LE(count, galois::equation_count_max);
  GPU4FS_CHECK_EQ(count, popcount(u64{parities}));
  for (u32 i = 0; i < count; ++i, missing &= missing - 1, parities &= parities - 1) {
    places[i] = count_trailing_zeros(missing);
    powers[i] = count_trailing_zeros(u64{parities});
  }
  for (u32 n = 0; n < count; ++n) {
    if (!is_parity && places[n] != entry) continue;
    const u8 factor = is_parity ? galois::power_of_two((entry - data_slots) * places[n]) : u8{1};
    const galois::Weights page = galois::solve(powers, places, count, n);
    for (u32 r = 0; r < count; ++r) weights ^= weight_of_sum(powers[r], galois::multiply(factor, page.values[r]));
  }
  return weights;
}

// The weights of some entries of the batch, with the parities of parities_for(). Those of the n-th one of row i belong
// to rank i * (parities of a row) + n. A row has at most as many such entries as parities. A Lane computes them when it
// needs them.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE SumWeights own_weights(Group g, const RowBatch& batch, u64 entries) {
  if (Group::size() == 1 || entries == 0) return 0;
  const u32 parity_count = batch.width - batch.data_slots;
  const u32 index = g.rank() / parity_count;
  if (index >= batch.row_count) return 0;
  u64 left = bits_of_row(batch, entries, index);
  for (u32 n = g.rank() % parity_count; n > 0; --n) left &= left - 1;
  const u64 missing = bits_of_row(batch, batch.missing, index);
  const u32 chosen =
      parities_for(missing, static_cast<u32>(bits_of_row(batch, batch.parities, index) >> batch.data_slots));
  if (left == 0 || (missing != 0 && chosen == 0)) return 0;
  return weights_of_entry(missing, chosen, batch.data_slots, count_trailing_zeros(left));
}

// Of an entry in `entries`, which are those of own_weights() in this row.
template <class Group>
GPU4FS_FN SumWeights weights_in(Group g, const RowBatch& batch, const BatchRow& row, SumWeights own, u64 entries,
                                u32 entry) {
  if constexpr (Group::size() > 1) {
    const u32 n = popcount(entries & low_bits(entry));
    return g.shuffle(own, row.index * (batch.width - batch.data_slots) + n);
  } else {
    return weights_of_entry(row.missing, parities_for(row.missing, row.parities), batch.data_slots, entry);
  }
}

// Sums of a row for parities [first, first + count). If there are several, `first` is 0.
struct SumRange {
  u32 first;
  u32 count;
};

// The sums for some parities, one bit each.
GPU4FS_FN inline SumRange sums_for(u64 parities) {
  if (parities == 0) return {0, 1};
  const u32 last = log2_floor(parities);
  return (parities & (parities - 1)) == 0 ? SumRange{last, 1} : SumRange{0, last + 1};
}

// The terms of a sum.
struct SumTerms {
  u64 present;   // slots, one bit each
  u32 parities;  // one bit each
  u32 first;     // sums are for parities from this one on
};

// Adds up the pages of terms.present that are in the parities, and adds parity j to the sum for parity j if
// terms.parities has its bit. accept(page, slot) says of each page whether it is good; after its addition pass(page,
// slot) is called. A bad page ends this with false, and `result` is not set.
template <u32 count, class Group, class Accept, class Pass>
GPU4FS_FN GPU4FS_FORCE_INLINE bool sum_slots_and_parities(Group g, RowAccess at, SumTerms terms,
                                                          ParityPages<Group, count>& result, Accept&& accept,
                                                          Pass&& pass) {
  // A warp has registers for one sum; more are in memory, possibly spilled.
  u64 present = terms.present;
  u32 parities = terms.parities;
  constexpr bool is_local = Group::size() > 1 && count == 1;
  ParityPages<Group, count> local;
  ParityPages<Group, count>& sums = is_local ? local : result;
  clear_parities(g, sums);
  PageRegisters<Group> next{};
  const auto load_next = [&] {
    if (present == 0 && parities == 0) return;
    const u32 slot = present != 0 ? log2_floor(present) : at.batch.data_slots + count_trailing_zeros(u64{parities});
    next = load_entry(g, at, slot);
  };
  load_next();
  for (u32 slot = at.row.view.slot_count; slot-- > 0;) {
    const bool is_present = (present >> slot & 1) != 0;
    const PageRegisters<Group> page = next;
    if (is_present) {
      present &= ~(u64{1} << slot);
      load_next();
      if (!accept(page, slot)) return false;
    }
    add_lower_slot(g, sums, page, is_present && (at.row.included >> slot & 1) != 0, terms.first);
    if (is_present) pass(page, slot);
  }
  while (parities != 0) {
    const u32 j = count_trailing_zeros(u64{parities});
    const PageRegisters<Group> page = next;
    parities &= parities - 1;
    load_next();
    add_page(g, sums.pages[j - terms.first], page);
  }
  if constexpr (is_local) result = local;
  return true;
}

}  // namespace detail
}  // namespace gpu4fs::raid
