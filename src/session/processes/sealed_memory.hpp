// Memory that this process shares with another one, which may be hostile: a memfd whose length can never change, so
// that neither side can make the other one's accesses fail (SIGBUS). Host only.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::session {

class SealedMemory {
 public:
  // Zeroed, `length_bytes` of whole pages. PoolError: no_memory, with the system's reason.
  explicit SealedMemory(u64 length_bytes);
  ~SealedMemory();
  SealedMemory(const SealedMemory&) = delete;
  SealedMemory& operator=(const SealedMemory&) = delete;

  [[nodiscard]] u8* begin() const { return begin_; }
  [[nodiscard]] u64 length_bytes() const { return length_bytes_; }
  [[nodiscard]] int fd() const { return fd_; }  // valid as long as this object

 private:
  u64 length_bytes_;
  int fd_ = -1;
  u8* begin_ = nullptr;
};

}  // namespace gpu4fs::session
