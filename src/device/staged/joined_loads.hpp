// Loads of pages for commands that leave their worker meanwhile, whoever has begun them.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/mutant.hpp"
#include "cache/line_lookup.hpp"
#include "device/staged/detached_io.hpp"

namespace gpu4fs::device {

// How a page comes into a frame.
enum class PageLoad : u32 {
  none,    // not at all now: it is there, or there is no room for it
  begun,   // the owner is told when it has ended
  joined,  // somebody else has begun it; the owner is told as well
  untold,  // somebody else loads the page, and nobody more is told: whoever needs it looks again later
};

namespace detail {

// Somebody else was loading the page into this line. One rank.
GPU4FS_FN GPU4FS_NOINLINE inline PageLoad join_load(const StagedDevices& staged, cache::PageKey key, u32 index,
                                                    u32 owner) {
  cache::Line& line = cache::line_at(staged.cache, index);
  const u64 link = load<Order::acquire, Scope::engine>(&line.link);
  if (link != 0) {
    const u32 generation = generation_of_link(link);
    u64 expected = waiter_word(generation, no_io_owner);
    u64* const waiter = &staged.detached[slot_of_link(link)].waiter;
    if (compare_exchange<Order::acq_rel, Scope::engine>(waiter, expected, waiter_word(generation, owner))) {
      return PageLoad::joined;
    }
  }
  // A lane loads it, others are told already, or the load has ended.
  const cache::LineWord word = cache::peek(line);
  return word.is_loading() && word.has_tag(cache::tag_of(key)) ? PageLoad::untold : PageLoad::none;
}

}  // namespace detail

// As begin_detached_loads(), and joins loads that others have begun, unless `owner` is no_io_owner. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PageLoad begin_or_join_loads(Group g, const StagedDevices& staged, const StagedPage& wanted,
                                                       u32 owner) {
  const detail::BegunLoad load = detail::begin_loads(g, staged, wanted, owner);
  if (load.is_begun) return PageLoad::begun;
  if (owner == no_io_owner) return PageLoad::none;
  if (GPU4FS_MUTANT(loads_not_joined, load.of_others == cache::no_line, true)) return PageLoad::none;
  return detail::join_load(staged, {wanted.device->index, wanted.page}, load.of_others, owner);
}

}  // namespace gpu4fs::device
