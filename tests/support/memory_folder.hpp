// The folder for device files of tests: in memory if there is a folder for that. A caller of tests that may end
// suddenly sets it in GPU4FS_TEST_MEMORY and removes it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace gpu4fs::test {

inline std::string memory_folder() {
  if (const char* named = std::getenv("GPU4FS_TEST_MEMORY"); named != nullptr) return named;
  std::error_code none;
  return std::filesystem::is_directory("/dev/shm", none) ? "/dev/shm" : std::filesystem::temp_directory_path().string();
}

}  // namespace gpu4fs::test
