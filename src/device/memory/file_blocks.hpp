// Which parts of a file have blocks on its file system. Host only.
//
// A hole needs blocks when it is written for the first time, which fails if the file system is full. Blocks that were
// reserved and never written count as blocks, although they are no data.
#pragma once

#include <vector>

#include "base/types.hpp"

namespace gpu4fs::device {

class FileBlocks {
 public:
  // Of the bytes [offset, + length) of an open file, as of now. If the file system does not list blocks, what it calls
  // data has some.
  static FileBlocks find(int descriptor, u64 offset, u64 length);

  // False: the file system does not list blocks, so more may be there.
  bool is_exact() const { return is_exact_; }
  // Bytes of the range that have no blocks; outside of what was looked at, none has.
  u64 missing_bytes(u64 offset, u64 length) const;
  bool has_all(u64 offset, u64 length) const { return missing_bytes(offset, length) == 0; }

 private:
  struct Extent {
    u64 begin;
    u64 end;
  };

  bool list_extents(int descriptor, u64 offset, u64 length);
  void find_data(int descriptor, u64 offset, u64 length);
  void add(u64 begin, u64 end);

  std::vector<Extent> extents_;  // ascending, apart from each other
  bool is_exact_ = true;
};

}  // namespace gpu4fs::device
