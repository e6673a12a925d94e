// How long the kernel may keep what it is told. Private to this folder.
#pragma once

#include <sys/stat.h>

#include "wire/ring_format.hpp"

namespace gpu4fs::frontend {

// This mount is the only writer of its pool, so what the kernel has cached stays true until an operation
// of this mount changes it; the kernel invalidates what each operation changes. Seconds.
inline constexpr double cache_timeout_s = 365.0 * 86400;

// The same for attributes. When content changes the engine takes set-id bits away (HANDLE_KILLPRIV_V2), but the kernel
// takes only size and times for changed. So it asks each time for the mode of a file that has such bits: who overwrites
// a program must not run it with its former owner's rights.
constexpr double attribute_timeout_s(const format::AttributeRecord& record) {
  const bool has_set_id = (record.mode & (S_ISUID | S_ISGID)) != 0;
  return S_ISREG(record.mode) && has_set_id ? 0 : cache_timeout_s;
}

}  // namespace gpu4fs::frontend
