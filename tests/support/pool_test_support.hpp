// Shared parts of tests of pools on files: a temporary folder, raw access to images, small pools.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "pool/pool_checksum.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_make.hpp"
#include "pool/pool_superblock.hpp"

namespace gpu4fs::test {

inline constexpr u64 mib = u64{1} << 20;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpu4fs_pool_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// A file of `size` bytes, sparse.
inline void make_file(const std::string& path, std::uint64_t size) {
  std::ofstream(path, std::ios::binary).flush();
  std::filesystem::resize_file(path, size);
}

inline std::vector<std::uint8_t> read_bytes(const std::string& path, std::uint64_t offset, std::size_t length) {
  std::vector<std::uint8_t> bytes(length);
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(length));
  EXPECT_EQ(static_cast<std::size_t>(file.gcount()), length) << path << " at " << offset;
  return bytes;
}

inline void write_bytes(const std::string& path, std::uint64_t offset, const void* data, std::size_t length) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(length));
  ASSERT_TRUE(file) << path << " at " << offset;
}

inline void flip_byte(const std::string& path, std::uint64_t offset) {
  std::uint8_t byte = read_bytes(path, offset, 1)[0];
  byte = static_cast<std::uint8_t>(byte ^ 0x5a);
  write_bytes(path, offset, &byte, 1);
}

template <class T>
T read_struct(const std::string& path, std::uint64_t offset) {
  T value;
  std::memcpy(&value, read_bytes(path, offset, sizeof(T)).data(), sizeof(T));
  return value;
}

inline pool::MakePoolOptions pool_options(const std::vector<std::string>& paths, std::uint64_t size) {
  pool::MakePoolOptions options;
  options.device_paths = paths;
  options.size_bytes = size;
  return options;
}

// Writes a superblock with the right checksum to the slot of its epoch.
inline void put_superblock(const std::string& path, format::Superblock superblock) {
  superblock.slot = static_cast<u32>(superblock.epoch & 1);
  pool::seal(superblock, pool::superblock_offset(superblock.slot));
  write_bytes(path, pool::superblock_offset(superblock.slot), &superblock, sizeof(superblock));
}

// The message of the PoolError that `body` throws; fails the test if it throws none.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const pool::PoolError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace gpu4fs::test
