// Which sizes the tiers of the page cache have. Host only.
//
// With the CPU engine `page_cache=` are the frames of devices that are not mapped. With the GPU engine they lie in
// memory of the host, which is `host_cache=`, and `page_cache=` is the second tier, in memory of the GPU.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "session/server_options.hpp"

namespace gpu4fs::session {

struct PageCacheSizes {
  u64 frame_bytes;           // 0: depending on the memory
  const char* frame_option;  // that names them
  u64 tier_bytes;            // 0: there is no second tier
};

// `reason`: why it is this engine. PoolError: the options do not fit the engine, or the environment is wrong. For
// tests, the variable GPU4FS_PAGE_TIER=BYTES makes a tier that no option asks for, with both engines.
PageCacheSizes page_cache_sizes(const ServerOptions& options, EngineChoice engine, const std::string& reason);

// What GPU4FS_PAGE_TIER says; 0: nothing. PoolError.
u64 page_tier_bytes_of_tests();

// Frames of the tier for this size, 0: none. *text: a clause about it, empty if none is asked for. What is not as asked
// for becomes a warning, too. `has_checksums`: of data; without them there is no tier.
u32 page_tier_frames(u64 bytes, bool has_checksums, std::string* text, std::vector<std::string>* warnings);

}  // namespace gpu4fs::session
