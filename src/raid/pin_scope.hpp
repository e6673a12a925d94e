// Frames of staged devices stay in place while a call into raid uses them (device/staged/pins.hpp).
//
// Every function that other layers call and that announces accesses has a scope, and so has each part of a long call: a
// run of pages, a batch of rows. A function whose result is in engine memory may have a scope within that of its
// caller. A function that answers an address in a frame has none, so the address is valid in the scope of the caller.
//
// A worker has room for a bounded number of pins. Here is what the longest chains of scopes may pin:
#pragma once

#include "base/config.hpp"
#include "base/limits.hpp"
#include "device/staged/pins.hpp"
#include "device/staged/write_back.hpp"
#include "raid/device_loss.hpp"
#include "raid/levels/levels.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::raid {

namespace detail {

inline constexpr u32 pins_of_run = warp_size * copy_count_max;  // all copies of a run of pages
inline constexpr u32 pins_of_row = 2 * warp_size;               // the columns of a chunk, or of the rows of a batch
// Each attempt to read a page finds its other copies and repairs some.
inline constexpr u32 pins_of_page = 1 + (copy_count_max + 1) * 2 * copy_count_max;

// Rebuilt runs, and in them single pages, each from all copies to all copies.
static_assert(pins_of_run + copy_count_max * copy_count_max <= device::pin_list_capacity);
// A page that is verified, merged with another one and written, where the old one is computed from its row.
static_assert(3 * pins_of_page + copy_count_max + pins_of_row <= device::pin_list_capacity);
// Pages of a row some of which are computed from the row. Written rows whose parities are read before. Each output of
// a rebuilt row is read and written.
static_assert(2 * pins_of_row + pins_of_page <= device::pin_list_capacity);

}  // namespace detail

// Devices whose frames could not be written are given up if the pool can do without them. Otherwise each flush answers
// the error. One rank.
GPU4FS_FN inline void decide_late_errors(const LogicalSpace& space) {
  for (u64 left = device::undecided_errors(*space.staged); left != 0; left &= left - 1) {
    const u32 device = count_trailing_zeros(left);
    (void)outlives_flush_error(space, device);
    device::end_decision(*space.staged, device);
  }
}

// Collective. What is pinned while it exists is unpinned at its end, after all ranks have come there. In a space
// without staged devices this is one test.
template <class Group>
class PinScope {
 public:
  GPU4FS_FN PinScope(Group g, const LogicalSpace& space) : g_(g), space_(space), first_(no_scope) {
    if (space.staged == nullptr) return;
    on_leader(g, [&] { decide_late_errors(space); });
    first_ = device::begin_pins(g, *space.staged);
  }
  PinScope(const PinScope&) = delete;
  PinScope& operator=(const PinScope&) = delete;
  GPU4FS_FN ~PinScope() {
    if (first_ != no_scope) device::end_pins(g_, *space_.staged, first_);
  }

 private:
  static constexpr u32 no_scope = ~u32{0};

  Group g_;
  const LogicalSpace& space_;
  u32 first_;
};

}  // namespace gpu4fs::raid
