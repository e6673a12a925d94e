// Operations on media with a stack of layers (device/stack/device_stack.hpp). Host only; any thread.
#pragma once

#include "block/block_medium.hpp"
#include "block/request_batch.hpp"

namespace gpu4fs::block {

// Carries out the operation; its layers see it. Returns 0 or an errno. The medium has a stack.
int carry_out_stacked(const RequestGroup& group, const BlockMedium& medium);

}  // namespace gpu4fs::block
