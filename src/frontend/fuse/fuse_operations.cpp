#include "frontend/fuse/fuse_operations.hpp"

#include <atomic>
#include <cerrno>
#include <ctime>

#include "base/host/log.hpp"
#include "fmt/format.h"

namespace gpu4fs::frontend {

struct stat to_stat(const format::AttributeRecord& record) {
  struct stat result {};
  result.st_ino = record.inode;
  result.st_mode = record.mode;
  result.st_nlink = record.link_count;
  result.st_uid = record.uid;
  result.st_gid = record.gid;
  result.st_rdev = record.device;
  result.st_size = static_cast<off_t>(record.size_bytes);
  result.st_blksize = page_size;
  result.st_blocks = static_cast<blkcnt_t>(record.blocks_512);
  result.st_atim = {record.access_seconds, record.access_nanoseconds};
  result.st_mtim = {record.modification_seconds, record.modification_nanoseconds};
  result.st_ctim = {record.change_seconds, record.change_nanoseconds};
  return result;
}

fuse_entry_param to_entry(FuseWorker& worker, const format::AttributeRecord& record) {
  fuse_entry_param entry{};
  entry.ino = record.inode;
  entry.generation = record.generation;
  entry.attr = to_stat(record);
  entry.attr_timeout = attribute_timeout_s(record);
  entry.entry_timeout = cache_timeout_s;
  worker.shared().inodes.add_lookup(record.inode, record.generation);
  return entry;
}

namespace {

// EIO has little information, so the log gets the cause. Only the first few each second are logged.
void log_failure(Status status) {
  constexpr u32 lines_per_second = 5;
  static std::atomic<u64> window{0};
  static std::atomic<u32> lines{0};
  const auto now = static_cast<u64>(std::time(nullptr));
  if (window.exchange(now) != now) lines = 0;
  if (lines.fetch_add(1) >= lines_per_second) return;
  log(LogLevel::error, fmt::format("an operation failed, {}: {}", status_name(status), status_text(status)));
}

}  // namespace

int answered_errno(Status status) {
  if (to_errno(status) == EIO) log_failure(status);
  return to_errno(status);
}

void reply_status(fuse_req_t request, Status status) {
  // A failed reply means that the kernel has stopped waiting for it.
  fuse_reply_err(request, answered_errno(status));
}

}  // namespace gpu4fs::frontend
