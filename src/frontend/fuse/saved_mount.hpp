// What a FUSE mount hands to the process that goes on serving it.
//
// After the death of a GPU engine its process has lost the use of the GPU for good, so the mount goes on in a new
// program image: the channel to the kernel stays open over execve(2), requests wait in it meanwhile, and this
// structure says what the kernel holds. Handles and inode numbers stay as they are.
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
  bool lost = false;  // a former engine knew it, the pool does not have it any more
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

// Bytes for the same program, and back. std::runtime_error if they make no sense.
std::string to_bytes(const SavedMount& saved);
SavedMount saved_mount_from(const std::string& bytes);

}  // namespace gpu4fs::frontend
