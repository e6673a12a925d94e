// Why a file or a block device cannot be mapped.
#pragma once

#include <string>

#include "device/memory/mapped_file.hpp"

namespace gpu4fs::test {

// The message, "" if it can be mapped.
inline std::string open_error(const std::string& path, device::OpenOptions options = {}) {
  try {
    device::MappedFile::open(path, options);
  } catch (const device::DeviceError& error) {
    return error.what();
  }
  return {};
}

}  // namespace gpu4fs::test
