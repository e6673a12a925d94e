// Runs a generic lambda on the host's groups: on a Lane, then on an emulated warp (32 threads).
// Expectations may be stated by every rank.
//
//     on_all_groups([&](auto g) { EXPECT_EQ(read_page(g, space, address, buffer), Status::ok); });
#pragma once

#include "base/emulated_warp.hpp"
#include "base/group.hpp"

namespace gpu4fs::test {

template <class Body>
void on_all_groups(Body&& body) {
  body(Lane{});
  run_emulated_warp([&](EmulatedWarp g) { body(g); });
}

}  // namespace gpu4fs::test
