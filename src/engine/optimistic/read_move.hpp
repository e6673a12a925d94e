// Moves the bytes of planned reads to the clients (read_plan.hpp).
//
// A page is loaded, hashed, and the version of its file is looked at, before the first of its bytes is stored. Long
// reads hold the file's lock instead. A file that has changed is read again the ordinary way.
#pragma once

#include "base/mutant.hpp"
#include "base/racy_access.hpp"
#include "base/xxh3.hpp"
#include "engine/command_locks.hpp"
#include "engine/optimistic/read_plan.hpp"
#include "engine/optimistic/version.hpp"

namespace gpu4fs::engine {
namespace detail {

// A page on its way.
template <class Group>
struct LoadedPage {
  PageRegisters<Group> bytes;
  u64 checksum;
};

// `lane_copy`: a page of work space for a Lane.
template <class Group>
GPU4FS_FN LoadedPage<Group> load_planned(Group g, const u8* page, const format::PageDescriptor* descriptor,
                                         u8* lane_copy) {
  static_assert(offsetof(format::PageDescriptor, checksum) == 0);
  const u64 checksum = load_shared_16(descriptor).low;
  return {load_racy_page(g, page, lane_copy), checksum};
}

template <class Group>
GPU4FS_FN bool has_checksum(Group g, const RootView& root, const xxh3::PageKeys& keys, const LoadedPage<Group>& page) {
  return root.data_checksums == 0 || xxh3_registers(g, page.bytes, keys) == page.checksum;
}

// Gives the client the bytes of a page that matches its checksum if the file still has the version of the plan. `lock`:
// its state after the page was loaded.
template <class Group>
GPU4FS_FN bool give_loaded(Group g, const ReadPlan& plan, const LoadedPage<Group>& page, bool matches,
                           const LockState& lock) {
  bool is_late = GPU4FS_MUTANT(version_checked_late, false, true);  // a constant would have no mutant
  if (!g.all((is_late || shows_version(lock, plan.version)) && matches)) return false;
  store_mostly_whole_page(g, page.bytes, plan.destination, {plan.from, plan.to});
  return !is_late || g.all(is_unchanged(*plan.lock, plan.version));
}

template <class Group>
GPU4FS_FN bool give_zeros(Group g, const ReadPlan& plan) {
  if (!g.all(is_unchanged(*plan.lock, plan.version))) return false;
  fill_bytes(g, plan.destination, 0, plan.to - plan.from);
  return true;
}

}  // namespace detail

// Gives the client the bytes if they are those of the plan. Otherwise the client sees nothing of them. Uniform: all
// ranks have the plan, and every rank has to find its own part valid. `lane_copy`: a page of work space for a Lane.
template <class Group>
GPU4FS_FN bool move_planned(Group g, const RootView& root, const ReadPlan& plan, u8* lane_copy) {
  if (plan.page == nullptr) return detail::give_zeros(g, plan);
  // The checksum and the keys are on their way together with the page, the version while the page is hashed.
  const xxh3::PageKeys keys = xxh3::page_keys(g, plan.address);
  const detail::LoadedPage<Group> page = detail::load_planned(g, plan.page, plan.descriptor, lane_copy);
  end_reading();
  const detail::LockState lock = look_again(*plan.lock);
  return detail::give_loaded(g, plan, page, detail::has_checksum(g, root, keys, page), lock);
}

// The same for the plans of the ranks in `set`, while the next page is on its way. Returns the set of those that were
// given. Uniform.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 move_set(Group g, const RootView& root, const ReadPlan& mine, u32 set, u8* lane_copy) {
  const auto load_of = [&](u32 rank) {
    const u8* const page = g.shuffle(mine.page, rank);
    const format::PageDescriptor* const descriptor = g.shuffle(mine.descriptor, rank);
    return page == nullptr ? detail::LoadedPage<Group>{} : detail::load_planned(g, page, descriptor, lane_copy);
  };
  u32 given = 0;
  detail::LoadedPage<Group> next = load_of(count_trailing_zeros(set));
  // The fence below empties the first-level cache, so the keys are on their way together with their page, too.
  xxh3::PageKeys next_keys = xxh3::page_keys(g, g.shuffle(mine.address, count_trailing_zeros(set)));
  for (u32 left = set; left != 0;) {
    const u32 rank = count_trailing_zeros(left);
    left &= left - 1;
    const detail::LoadedPage<Group> page = next;
    const xxh3::PageKeys keys = next_keys;
    if (left != 0) {
      next = load_of(count_trailing_zeros(left));
      next_keys = xxh3::page_keys(g, g.shuffle(mine.address, count_trailing_zeros(left)));
    }
    const ReadPlan plan = g.shuffle(mine, rank);
    bool is_given = false;
    if (plan.page == nullptr) {
      is_given = detail::give_zeros(g, plan);
    } else {
      // The fence waits for all loads, also for those of the next page. So the hash comes before it.
      const bool matches = detail::has_checksum(g, root, keys, page);
      end_reading();
      is_given = detail::give_loaded(g, plan, page, matches, look_again(*plan.lock));
    }
    if (is_given) given |= 1u << rank;
  }
  return given;
}

// Copies the pages of the ranks in `set`, which deserve it. Returns where the rank's page is to be read: at `page` if
// it could not be copied. Uniform. In a kernel this is a function of its own, because other reads do not need its
// registers.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE const u8* promote_planned(Group g, const raid::LogicalSpace& space, u32 set, u64 address,
                                                    const u8* page) {
  for (u32 left = set; left != 0; left &= left - 1) {
    const u32 rank = count_trailing_zeros(left);
    const u8* const copy = raid::promote_page(g, space, g.shuffle(address, rank));
    if (g.rank() == rank && copy != nullptr) page = copy;
  }
  return page;
}

namespace detail {

// The rank's page of reader.views->long_read. `plan->destination` == nullptr: none. False: it is not a usual one.
GPU4FS_FN inline bool plan_long_read(const ReaderContext& reader, u32 rank, ReadPlan* plan, FreshViews* fresh,
                                     FilledViews* filled, bool* is_repeated) {
  const LongRead& whole = reader.views->long_read;
  const u32 begin = maximum(static_cast<u32>(rank * page_size), whole.plan.from);
  const u32 end = minimum(static_cast<u32>((rank + 1) * page_size), whole.plan.to);
  *plan = {};
  if (begin >= end) return true;
  // What a worker remembers is for its leader alone.
  ReaderContext context = reader;
  context.known = nullptr;
  const u32 inside = begin - whole.plan.from;
  const ReadRange part{whole.range.inode, whole.range.offset + inside, end - begin};
  const PlannedRead kind = plan_read(context, part, whole.plan.destination + inside, plan, fresh, filled);
  *is_repeated = kind == PlannedRead::repeated;
  return (kind == PlannedRead::page || kind == PlannedRead::repeated) && plan->lock == whole.plan.lock &&
         plan->to - plan->from == end - begin;
}

// Moves the pages of the ranks in `set`, which nobody changes meanwhile; a frame may get another page. False: one of
// them is damaged. Uniform.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool move_locked(Group g, const RootView& root, const ReadPlan& mine, u32 set) {
  // As numbers: a compiler took the emulated warp's copy of a pointer for what it points to.
  const auto own_page = reinterpret_cast<std::uintptr_t>(mine.page);
  const auto own_destination = reinterpret_cast<std::uintptr_t>(mine.destination);
  const auto load_of = [&](u32 rank) {
    const std::uintptr_t page = g.shuffle(own_page, rank);
    return page == 0 ? PageRegisters<Group>{} : load_racy_page(g, reinterpret_cast<const u8*>(page), nullptr);
  };
  // Each rank loads the checksum of its page.
  const u64 own = mine.page == nullptr ? 0 : load_shared_16(mine.descriptor).low;
  PageRegisters<Group> next = load_of(count_trailing_zeros(set));
  for (u32 left = set; left != 0;) {
    const u32 rank = count_trailing_zeros(left);
    left &= left - 1;
    PageRegisters<Group> page = next;
    if (left != 0) next = load_of(count_trailing_zeros(left));
    const u64 address = g.shuffle(mine.address, rank);
    u8* const destination = reinterpret_cast<u8*>(g.shuffle(own_destination, rank));
    const ByteRange range{g.shuffle(mine.from, rank), g.shuffle(mine.to, rank)};
    const u64 checksum = g.shuffle(own, rank);
    if (g.shuffle(own_page, rank) == 0) {
      fill_bytes(g, destination, 0, range.to - range.from);
      continue;
    }
    const bool matches = root.data_checksums == 0 || xxh3_registers(g, page, address) == checksum;
    if (GPU4FS_MUTANT(long_read_unverified, !matches, false)) return false;
    store_mostly_whole_page(g, page, destination, range);
  }
  return true;
}

}  // namespace detail

// Moves the pages of reader.views->long_read: each rank plans one of them. The file is locked shared meanwhile, because
// otherwise each page would cost a fence and a look at the version. False: the ordinary way has to read all of it. For
// a warp, inside the step gate. Uniform.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool move_long_read(Group g, const ReaderContext& reader) {
  static_assert(Group::size() == warp_size && ring::long_read_max <= warp_size * page_size);
  CommandLock& lock = *reader.views->long_read.plan.lock;
  if (!on_leader(g, [&] { return detail::try_shared_lock(*reader.engine, lock); })) return false;
  // What the client has stored where the bytes go was stored before.
  ring::acquire_payload();
  ReadPlan mine{};
  FreshViews fresh;
  FilledViews filled{};
  const u64 version = load<Order::relaxed, Scope::engine>(&lock.version);
  bool is_repeated = false;
  bool is_planned = GPU4FS_MUTANT(long_read_outdated, version == reader.views->long_read.plan.version, true) &&
                    detail::plan_long_read(reader, g.rank(), &mine, &fresh, &filled, &is_repeated);
  is_planned = g.all(is_planned);
  // One of the views is enough.
  detail::remember(g, reader, fresh, g.leader() ? filled : FilledViews{});
  const u32 set = g.ballot(mine.destination != nullptr);
  const u32 repeated = g.ballot(is_repeated);
  if (is_planned && repeated != 0) {
    mine.page = promote_planned(g, reader.engine->fs.space, repeated, mine.address, mine.page);
  }
  const bool is_moved = is_planned && detail::move_locked(g, reader.views->root, mine, set);
  g.sync();
  on_leader(g, [&] { detail::release_lock(*reader.engine, lock, LockMode::shared); });
  return is_moved;
}

}  // namespace gpu4fs::engine
