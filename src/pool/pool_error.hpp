// The only exception of making and opening pools. Its message names the device and the place.
#pragma once

#include <stdexcept>
#include <string>

#include "base/status.hpp"

namespace gpu4fs::pool {

class PoolError : public std::runtime_error {
 public:
  PoolError(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}

  // The error as a code; a mount reports its errno.
  Status status() const { return status_; }

 private:
  Status status_;
};

}  // namespace gpu4fs::pool
