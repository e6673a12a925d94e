// How long the kernel may cache entries and attributes. Private to this folder.
#pragma once

#include <sys/stat.h>

#include "wire/ring_format.hpp"

namespace gpu4fs::frontend {

// This mount is the only writer of its pool, so the kernel's cache is valid until an operation of this mount changes
// something; the kernel invalidates the entries that an operation changes. Seconds.
inline constexpr double cache_timeout_s = 365.0 * 86400;

// The same for attributes. When content changes, the engine removes set-id bits (HANDLE_KILLPRIV_V2), but the kernel
// invalidates only size and times. So it requests the mode of a file with such bits each time: a user who overwrites a
// program must not execute it with the rights of its former owner.
constexpr double attribute_timeout_s(const format::AttributeRecord& record) {
  const bool has_set_id = (record.mode & (S_ISUID | S_ISGID)) != 0;
  return S_ISREG(record.mode) && has_set_id ? 0 : cache_timeout_s;
}

}  // namespace gpu4fs::frontend
