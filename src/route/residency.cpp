#include "route/residency.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "route/residency_search.hpp"
#include "route/route_error.hpp"

namespace gpu4fs::route {

namespace {

// Headers older than Linux 6.5 have neither. The number is the same on all processors but Alpha.
#if defined(SYS_cachestat)
constexpr long cachestat_number = SYS_cachestat;
#else
constexpr long cachestat_number = 451;
#endif

struct CachestatRange {
  u64 offset;
  u64 length;
};

struct CachestatCounts {
  u64 cached;
  u64 dirty;
  u64 writeback;
  u64 evicted;
  u64 recently_evicted;
};

// Counts that take about as long as mincore with its mapping.
constexpr u64 quick_count_limit = 64;
constexpr u64 no_count_limit = std::numeric_limits<u64>::max();
constexpr u64 mincore_pages_max = u64{1} << 20;  // of one call; a byte each

struct Attempt {
  std::optional<Residency> residency;
  std::string problem;  // if there is none
};

std::string error_text(int number) {
  return std::strerror(number);
}

Attempt ask_cachestat(int fd, PageRange pages, u64 count_limit) {
  Residency result;
  result.source = ResidencySource::cachestat;
  int error = 0;
  const auto count_pages = [&](PageRange part) {
    ++result.call_count;
    CachestatRange range = {part.first_page * page_size, part.page_count * page_size};
    CachestatCounts counts = {};
    if (::syscall(cachestat_number, fd, &range, &counts, 0u) != 0) {
      error = errno;
      return PageCounts{};
    }
    return PageCounts{counts.cached, counts.dirty + counts.writeback};
  };
  const bool is_complete = append_runs_by_counts(pages, count_pages, count_limit, result.runs);
  if (error == ENOSYS) return {std::nullopt, "cachestat: this kernel does not have it (Linux 6.5)"};
  if (error == EPERM) return {std::nullopt, "cachestat: only for the owner of the file and those who may write it"};
  if (error != 0) return {std::nullopt, "cachestat: " + error_text(error)};
  if (!is_complete) return {std::nullopt, "cachestat: too many runs"};
  return {std::move(result), ""};
}

// Others get a vector of ones from mincore.
bool mincore_tells(int fd, const struct stat& attributes) {
  if (attributes.st_uid == ::geteuid() || ::geteuid() == 0) return true;
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

Attempt ask_mincore(int fd, PageRange pages, const struct stat& attributes) {
  if (!mincore_tells(fd, attributes)) {
    return {std::nullopt, "mincore: only for the owner of the file and those who may write it"};
  }
  Residency result;
  result.source = ResidencySource::mincore;
  std::vector<unsigned char> is_cached;
  for (u64 first = pages.first_page; first < pages.end_page();) {
    const u64 count = std::min(mincore_pages_max, pages.end_page() - first);
    void* address =
        ::mmap(nullptr, count * page_size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(first * page_size));
    if (address == MAP_FAILED) return {std::nullopt, "mincore: the file cannot be mapped: " + error_text(errno)};
    is_cached.resize(count);
    ++result.call_count;
    const int status = ::mincore(address, count * page_size, is_cached.data());
    const int error = errno;
    ::munmap(address, count * page_size);
    if (status != 0) return {std::nullopt, "mincore: " + error_text(error)};
    for (u64 i = 0; i < count; ++i) {
      append_run(result.runs, {first + i, 1, (is_cached[i] & 1) != 0 ? PageState::resident : PageState::absent});
    }
    first += count;
  }
  return {std::move(result), ""};
}

// The pages of the range that the file has.
PageRange existing_pages(ByteRange bytes, const struct stat& attributes) {
  const u64 size = static_cast<u64>(attributes.st_size);
  if (bytes.offset >= size) return {bytes.offset / page_size, 0};
  return pages_of({bytes.offset, std::min(bytes.length, size - bytes.offset)});
}

}  // namespace

std::string_view to_text(ResidencySource source) {
  switch (source) {
    case ResidencySource::cachestat:
      return "cachestat";
    case ResidencySource::mincore:
      return "mincore";
    case ResidencySource::automatic:
      break;
  }
  return "automatic";
}

Residency page_residency(int fd, ByteRange bytes, ResidencySource source) {
  struct stat attributes = {};
  if (::fstat(fd, &attributes) != 0) throw RouteError("residency: the file has no attributes: " + error_text(errno));
  if (!S_ISREG(attributes.st_mode)) throw RouteError("residency: not a regular file");
  constexpr u64 offset_max = u64{1} << 63;
  if (bytes.offset > offset_max || bytes.length > offset_max - bytes.offset) {
    throw RouteError(fmt::format("residency: {} bytes at {} end beyond 2^63", bytes.length, bytes.offset));
  }
  if (::sysconf(_SC_PAGESIZE) != static_cast<long>(page_size)) {
    throw RouteError(fmt::format("residency: the kernel's pages do not have {} bytes", page_size));
  }
  const PageRange pages = existing_pages(bytes, attributes);
  Attempt counted = {std::nullopt, ""};
  if (source != ResidencySource::mincore) {
    counted = ask_cachestat(fd, pages, source == ResidencySource::automatic ? quick_count_limit : no_count_limit);
    if (counted.residency) return std::move(*counted.residency);
    if (source == ResidencySource::cachestat) throw RouteError("residency: " + counted.problem);
  }
  Attempt mapped = ask_mincore(fd, pages, attributes);
  if (mapped.residency) return std::move(*mapped.residency);
  if (source == ResidencySource::mincore) throw RouteError("residency: " + mapped.problem);
  // Many runs, of a file that cannot be mapped.
  counted = ask_cachestat(fd, pages, no_count_limit);
  if (counted.residency) return std::move(*counted.residency);
  throw RouteError("residency: " + counted.problem + "; " + mapped.problem);
}

}  // namespace gpu4fs::route
