#include "base/random.hpp"

#include <sys/random.h>

#include <cerrno>
#include <system_error>

namespace gpu4fs {

void fill_random(void* bytes, std::size_t length) {
  ssize_t got = 0;
  do {
    got = ::getrandom(bytes, length, 0);
  } while (got < 0 && errno == EINTR);
  // Up to 256 bytes are never delivered in part.
  if (got != static_cast<ssize_t>(length))
    throw std::system_error(got < 0 ? errno : EIO, std::generic_category(), "getrandom");
}

Uuid random_uuid() {
  Uuid uuid{};
  fill_random(uuid.bytes, sizeof(uuid.bytes));
  uuid.bytes[6] = static_cast<u8>((uuid.bytes[6] & 0x0f) | 0x40);
  uuid.bytes[8] = static_cast<u8>((uuid.bytes[8] & 0x3f) | 0x80);
  return uuid;
}

}  // namespace gpu4fs
