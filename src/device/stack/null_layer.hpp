// The layer `null`: discards writes. Its memory is zero and nobody else writes to it, so reads return zeros.
#pragma once

#include "device/stack/device_stack.hpp"

namespace gpu4fs::device {

class NullLayer : public StackLayer {
 public:
  void write(std::vector<StackWrite>& writes) override { writes.clear(); }
  bool changes_writes() const override { return true; }
};

}  // namespace gpu4fs::device
