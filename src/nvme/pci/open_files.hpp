// Processes that have a file open. Host only.
#pragma once

#include <string>

#include "base/types.hpp"

namespace gpu4fs::nvme {

// "process 123 (qemu)": one that has the device node with this number open, the caller left out; "" if none is found. A
// user other than root sees only processes of its own.
std::string find_process_with_device(u64 device_number, bool is_block_device);

}  // namespace gpu4fs::nvme
