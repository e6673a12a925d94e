// The only exception of this layer. Its message names what was asked for and why it cannot be. Host only.
#pragma once

#include <stdexcept>

namespace gpu4fs::route {

class RouteError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace gpu4fs::route
