// The state that a FUSE mount passes to the process that continues it.
//
// After the death of a GPU engine its process cannot use the GPU again, so the mount continues in a new program image.
// The channel to the kernel stays open over execve(2), requests wait in it meanwhile, and this structure describes
// everything that the kernel refers to. Handles and inode numbers stay the same.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::frontend {

// An inode that the kernel refers to.
struct SavedInode {
  u64 inode = 0;
  u64 lookups = 0;
  u32 generation = 0;
  bool orphan = false;
  bool lost = false;  // an earlier engine knew it, and the pool does not have it
};

// A description of a file that is open for writing, and the file (open_files.hpp).
struct SavedDescription {
  u64 handle = 0;
  u64 inode = 0;
  u64 reported = 0;
  u64 file_error = 0;
  bool file_changed = false;
};

struct SavedMount {
  std::string init_request;  // the kernel's INIT, as received
  u64 write_errors = 0;      // the sequence up to which descriptions have seen it
  std::vector<SavedInode> inodes;
  std::vector<SavedDescription> descriptions;
};

// Bytes for the same program, and back. std::runtime_error if they are invalid.
std::string to_bytes(const SavedMount& saved);
SavedMount saved_mount_from(const std::string& bytes);

}  // namespace gpu4fs::frontend
