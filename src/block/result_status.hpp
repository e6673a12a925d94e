// Errors of the system as status codes and texts. Host only.
#pragma once

#include <string>

#include "base/status.hpp"
#include "base/types.hpp"
#include "device/queue/io_request.hpp"

namespace gpu4fs::block {

// `error`: 0 or an errno. block/controller.hpp says what each status means.
Status status_of_error(device::IoOperation operation, int error);

// "PATH: read of 8192 bytes at 4096 failed: "
std::string place_text(const std::string& path, device::IoOperation operation, u64 offset, u64 length);

}  // namespace gpu4fs::block
