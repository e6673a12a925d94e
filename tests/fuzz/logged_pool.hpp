// A pool that was not unmounted, and its operation log, for the targets that damage the log: its records and their
// places, and a reader of this file's own, which says how much of it verifies.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/xxh3_serial.hpp"
#include "format/log_format.hpp"
#include "fuzz/mounted_pool.hpp"
#include "pool/pool_error.hpp"
#include "server/recovery/log_scan.hpp"
#include "server/recovery/recovery.hpp"

namespace gpu4fs::fuzz {

class LoggedPool {
 public:
  // Pages on a device that a record names, in their original state.
  struct Pages {
    u64 record;
    PoolFile* file;
    u64 offset;  // in the file
    std::vector<u8> bytes;
  };

  explicit LoggedPool(std::vector<std::unique_ptr<PoolFile>> files) : files_(std::move(files)) {}
  LoggedPool(const LoggedPool&) = delete;
  LoggedPool& operator=(const LoggedPool&) = delete;
  virtual ~LoggedPool() = default;

  const std::vector<format::LogRecord>& records() const { return records_; }
  const std::vector<Pages>& pages() const { return pages_; }
  const format::Superblock& superblock() const { return superblock_; }
  u64 capacity() const { return capacity_; }
  std::vector<std::string> paths() const {
    std::vector<std::string> paths;
    for (const auto& file : files_) paths.push_back(file->path());
    return paths;
  }
  void restore() {
    for (const auto& file : files_) file->restore();
  }

  // Bytes of the log from an LSN on; none after the end of the log's area.
  void read_log(u64 lsn, void* bytes, u64 length) const { files_[0]->read(place_of(0, lsn), bytes, length); }
  // To all its copies.
  void write_log(u64 lsn, const void* bytes, u64 length) {
    for (u32 i = 0; i < superblock_.tree_replica_count; ++i) files_[i]->write(place_of(i, lsn), bytes, length);
  }
  template <class Change>
  void change_superblocks(Change change) {
    const u64 offset = pool::superblock_offset(superblock_.slot);
    for (const auto& file : files_) {
      auto superblock = file->read_as<format::Superblock>(offset);
      change(superblock);
      pool::seal(superblock, offset);
      file->write(offset, &superblock, sizeof(superblock));
    }
  }

  // With a power failure at the end.
  template <class Use>
  void mounted(Use use) {
    server::PoolServer server(mount_options(paths()));
    server.start();
    use(server.engine());
    server.abandon();
  }

 protected:
  // The current state is what restore() restores.
  void keep() {
    for (const auto& file : files_) file->keep();
    const pool::OpenedPool pool = pool::open_pool({paths(), true, false});
    superblock_ = pool.superblock;
    std::vector<format::DevicePart> parts;
    for (u32 i = 0; i < superblock_.tree_replica_count; ++i) {
      const u64 offset = pool::superblock_offset(superblock_.slot);
      parts.push_back(files_[i]->read_as<format::Superblock>(offset).device);
      log_offsets_.push_back(parts.back().log_offset);
    }
    capacity_ = format::log_capacity(superblock_, parts.data());
    const server::LogScan scan = server::scan_log(pool);
    for (u64 i = 0; i < scan.record_count(); ++i) {
      records_.push_back(scan.record(i));
      keep_pages(pool, i, scan.record(i));
    }
  }
  void add_pages(Pages pages) {
    pages.file->read(pages.offset, pages.bytes.data(), pages.bytes.size());
    pages_.push_back(std::move(pages));
  }
  bool is_log(u32 device, u64 offset) const {
    return device < log_offsets_.size() && offset - log_offsets_[device] < capacity_;
  }
  PoolFile& file(u32 device) { return *files_[device]; }
  u32 file_count() const { return static_cast<u32>(files_.size()); }

 private:
  // Calls add_pages() with the pages that the record names.
  virtual void keep_pages(const pool::OpenedPool& pool, u64 index, const format::LogRecord& record) = 0;

  u64 place_of(u32 device, u64 lsn) const { return log_offsets_[device] + lsn % capacity_; }

  std::vector<std::unique_ptr<PoolFile>> files_;
  format::Superblock superblock_{};
  std::vector<format::LogRecord> records_;  // their fixed parts
  std::vector<Pages> pages_;
  std::vector<u64> log_offsets_;  // of each device that has the log
  u64 capacity_ = 0;
};

// How many records verify, from the log's start on: linked by their numbers and lengths, each with its checksum.
inline u64 count_verified(const LoggedPool& pool) {
  const u64 capacity = pool.capacity();
  u64 count = 0;
  for (u64 lsn = pool.superblock().log_start, end = lsn + capacity; lsn < end;) {
    const u64 room = std::min<u64>(capacity - lsn % capacity, format::log_record_bytes_max);
    std::vector<u8> bytes(std::max<u64>(room, sizeof(format::LogRecord)));
    pool.read_log(lsn, bytes.data(), room);
    format::LogRecord head;
    std::memcpy(&head, bytes.data(), sizeof(head));
    const u64 hashed = head.opcode == format::LogOpcode::filler ? u64{format::log_record_granule} : head.length;
    if (head.lsn != lsn || hashed < format::log_record_granule || head.length < hashed || head.length > room) break;
    std::memset(bytes.data() + offsetof(format::LogRecord, checksum), 0, sizeof(head.checksum));
    if (xxh3_64(bytes.data(), hashed, pool.superblock().log_seed ^ lsn) != head.checksum) break;
    if (head.opcode != format::LogOpcode::filler) ++count;
    lsn += head.length;
  }
  return count;
}

inline std::optional<server::RecoveryReport> recover(const LoggedPool& pool, bool drops_damage, bool read_only) {
  session::ServerOptions options = mount_options(pool.paths(), read_only);
  options.drop_damaged_log = drops_damage;
  try {
    return server::recover_pool(options);
  } catch (const pool::PoolError&) {
    return std::nullopt;
  }
}

}  // namespace gpu4fs::fuzz
