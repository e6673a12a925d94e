#include "session/processes/sealed_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "fmt/format.h"
#include "pool/pool_error.hpp"

#if !defined(MFD_NOEXEC_SEAL)
#define MFD_NOEXEC_SEAL 8u  // Linux 6.3
#endif

namespace gpu4fs::session {
namespace {

int create() {
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = ::memfd_create("gpu4fs-session", flags | MFD_NOEXEC_SEAL);
  // Kernels before 6.3 do not know the flag.
  return fd < 0 && errno == EINVAL ? ::memfd_create("gpu4fs-session", flags) : fd;
}

// The last seal keeps the client from adding one against writes.
int length_seals() {
  return GPU4FS_MUTANT(session_memory_unsealed, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, F_SEAL_SEAL);
}

}  // namespace

SealedMemory::SealedMemory(u64 length_bytes) : length_bytes_(length_bytes) {
  GPU4FS_CHECK(length_bytes != 0 && is_aligned(length_bytes, page_size));
  fd_ = create();
  void* memory = MAP_FAILED;
  if (fd_ >= 0 && ::ftruncate(fd_, static_cast<off_t>(length_bytes)) == 0 &&
      ::fcntl(fd_, F_ADD_SEALS, length_seals()) == 0) {
    memory = ::mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  }
  if (memory == MAP_FAILED) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    throw pool::PoolError(Status::no_memory, fmt::format("no memory of {} bytes for a session of another process: {}",
                                                         length_bytes, std::strerror(error)));
  }
  begin_ = static_cast<u8*>(memory);
}

SealedMemory::~SealedMemory() {
  ::munmap(begin_, length_bytes_);
  ::close(fd_);
}

}  // namespace gpu4fs::session
