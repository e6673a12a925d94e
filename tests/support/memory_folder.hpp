// Where tests put device files: in memory where there is a folder for that. Whoever runs tests that may end suddenly
// says where, in GPU4FS_TEST_MEMORY, and removes it.
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
