// Routes from a file to a buffer in GPU memory, and the reasons for which one is chosen. Host only.
#pragma once

#include <string_view>

#include "base/types.hpp"

namespace gpu4fs::route {

// X(name, what it is)
#define GPU4FS_ROUTE_LIST(X)                                                   \
  X(cached, "the kernel's page cache, then a copy to the GPU")                 \
  X(direct, "from the medium past the page cache: peer-to-peer or direct I/O") \
  X(engine, "the engine of gpu4fs, which reads its medium and its own page cache")

enum class Route : u8 {
#define GPU4FS_ROUTE_NAME(name, text) name,
  GPU4FS_ROUTE_LIST(GPU4FS_ROUTE_NAME)
#undef GPU4FS_ROUTE_NAME
};

#define GPU4FS_ROUTE_ONE(name, text) +1
inline constexpr u32 route_count = 0 GPU4FS_ROUTE_LIST(GPU4FS_ROUTE_ONE);

// X(name, what it says of the bytes that took the route)
#define GPU4FS_REASON_LIST(X)                                                         \
  X(resident, "in the page cache")                                                    \
  X(dirty, "in the page cache, and newer there than on the medium")                   \
  X(absent, "not in the page cache")                                                  \
  X(merged, "in the page cache, but faster as a part of a longer read of the medium") \
  X(read_ahead, "a sequential read, which read-ahead serves")                         \
  X(above_window, "a sequential read that is longer than the window of read-ahead")   \
  X(misaligned, "the edge of a range that direct I/O cannot read")                    \
  X(unavailable, "the other routes do not exist for this file")

enum class Reason : u8 {
#define GPU4FS_REASON_NAME(name, text) name,
  GPU4FS_REASON_LIST(GPU4FS_REASON_NAME)
#undef GPU4FS_REASON_NAME
};

inline constexpr u32 reason_count = 0 GPU4FS_REASON_LIST(GPU4FS_ROUTE_ONE);
#undef GPU4FS_ROUTE_ONE

constexpr std::string_view to_text(Route route) {
  constexpr std::string_view names[] = {
#define GPU4FS_ROUTE_TEXT(name, text) #name,
      GPU4FS_ROUTE_LIST(GPU4FS_ROUTE_TEXT)
#undef GPU4FS_ROUTE_TEXT
  };
  return names[static_cast<u32>(route)];
}

constexpr std::string_view to_text(Reason reason) {
  constexpr std::string_view texts[] = {
#define GPU4FS_REASON_TEXT(name, text) text,
      GPU4FS_REASON_LIST(GPU4FS_REASON_TEXT)
#undef GPU4FS_REASON_TEXT
  };
  return texts[static_cast<u32>(reason)];
}

}  // namespace gpu4fs::route
