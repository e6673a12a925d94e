// Attributes of an inode in commands and in the operation log (docs/internals/format.md, section 11).
#pragma once

#include <cstdint>

namespace gpu4fs::format {

// Attributes of an inode, 128 bytes; written to `output`, read from `data` by setattr.
struct AttributeRecord {
  std::uint64_t inode;
  std::uint64_t size_bytes;
  std::uint64_t blocks_512;
  std::int64_t access_seconds;
  std::int64_t modification_seconds;
  std::int64_t change_seconds;
  std::int64_t birth_seconds;
  std::uint32_t access_nanoseconds;
  std::uint32_t modification_nanoseconds;
  std::uint32_t change_nanoseconds;
  std::uint32_t birth_nanoseconds;
  std::uint32_t mode;
  std::uint32_t link_count;
  std::uint32_t uid;
  std::uint32_t gid;
  std::uint64_t device;  // dev_t of device nodes
  std::uint32_t generation;
  std::uint32_t flags;   // inode_flags_of_users
  std::uint64_t parent;  // directories
  std::uint64_t reserved[2];
};
static_assert(sizeof(AttributeRecord) == 128);

enum SetAttributeMask : std::uint32_t {
  set_mode = 1u << 0,
  set_uid = 1u << 1,
  set_gid = 1u << 2,
  set_size = 1u << 3,
  set_access_time = 1u << 4,
  set_modification_time = 1u << 5,
  set_access_time_now = 1u << 6,
  set_modification_time_now = 1u << 7,
  set_change_time = 1u << 8,
  set_flags = 1u << 9,
  set_attribute_known = 0x3ff,
};

}  // namespace gpu4fs::format
