#include "session/page_tier_setup.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/bits.hpp"
#include "device/tier/page_tier_build.hpp"
#include "fmt/format.h"
#include "pool/pool_error.hpp"

namespace gpu4fs::session {
namespace {

constexpr u64 page_tier_bytes_max = u64{1} << 40;

}  // namespace

u64 page_tier_bytes_of_tests() {
  const char* const wanted = std::getenv("GPU4FS_PAGE_TIER");
  if (wanted == nullptr) return 0;
  u64 bytes = 0;
  const char* const end = wanted + std::strlen(wanted);
  const std::from_chars_result parsed = std::from_chars(wanted, end, bytes);
  if (parsed.ec != std::errc() || parsed.ptr != end || wanted == end) {
    throw pool::PoolError(Status::invalid_argument,
                          fmt::format("GPU4FS_PAGE_TIER={}: it must be a number of bytes", wanted));
  }
  return bytes;
}

PageCacheSizes page_cache_sizes(const ServerOptions& options, EngineChoice engine, const std::string& reason) {
  const u64 of_tests = options.purpose == ServerPurpose::mount ? page_tier_bytes_of_tests() : 0;
  if (engine == EngineChoice::cuda) {
    return {options.host_cache_bytes, "host_cache",
            options.page_cache_bytes != 0 ? options.page_cache_bytes : of_tests};
  }
  // A replay of the log and a check are the CPU engine's, whatever the mount has.
  if (options.host_cache_bytes != 0 && options.purpose == ServerPurpose::mount) {
    throw pool::PoolError(Status::invalid_argument,
                          fmt::format("option 'host_cache' is for the GPU engine, and this is the CPU engine ({}); its "
                                      "page cache is page_cache=SIZE",
                                      reason));
  }
  return {options.page_cache_bytes, "page_cache", of_tests};
}

u32 page_tier_frames(u64 bytes, bool has_checksums, std::string* text, std::vector<std::string>* warnings) {
  text->clear();
  if (bytes == 0) return 0;
  if (!has_checksums) {
    *text = "no copies of pages, because data has no checksums";
    warnings->push_back("page_cache: there are " + *text);
    return 0;
  }
  const u64 wanted = align_down(std::min(bytes, page_tier_bytes_max) / page_size, u64{device::page_tier_frames_min});
  const u32 frames = static_cast<u32>(std::max<u64>(wanted, device::page_tier_frames_min));
  if (wanted == 0) {
    warnings->push_back(
        fmt::format("page_cache={} KiB is too small: {} KiB are used", bytes >> 10, u64{frames} * page_size >> 10));
  }
  *text = fmt::format("with {} KiB for copies of pages that are read again", u64{frames} * page_size >> 10);
  return frames;
}

}  // namespace gpu4fs::session
