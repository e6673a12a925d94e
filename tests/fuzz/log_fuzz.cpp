// The operation log of a pool that was not unmounted, damaged: recovery scans, verifies and replays it as a mount does,
// or refuses it with a PoolError. Nothing is replayed behind a record that does not verify, by a reader of the log of
// this file's own; the pool is sound afterwards, recovered or as it was.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/xxh3_serial.hpp"
#include "format/log_format.hpp"
#include "fuzz/damage.hpp"
#include "fuzz/mounted_pool.hpp"
#include "server/pool_error.hpp"
#include "server/recovery/log_scan.hpp"
#include "server/recovery/recovery.hpp"

namespace gpu4fs::fuzz {

const char target_name[] = "log";

namespace {

using format::LogExtent;
using format::LogOpcode;
using format::LogRecord;

constexpr u64 root = format::inode_number_root;

// A pool with two of everything that is logged, the first half behind a checkpoint, all of it synced.
class LoggedPool {
 public:
  LoggedPool() {
    for (const char* prefix : {"first", "second"}) {
      server::PoolServer server(mount_options(file_));
      server.start();
      change(server.engine(), prefix);
      server.abandon();
    }
    file_.keep();
    look();
  }

  PoolFile& file() { return file_; }
  const std::vector<LogRecord>& records() const { return records_; }
  u64 log_offset() const { return log_offset_; }
  u64 capacity() const { return capacity_; }
  const format::Superblock& superblock() const { return superblock_; }
  u64 place_of(u64 lsn) const { return log_offset_ + lsn % capacity_; }
  // The pages that a record named at first.
  struct Pages {
    u64 record;
    u64 offset;  // in the file
    std::vector<u8> bytes;
  };
  const std::vector<Pages>& pages() const { return pages_; }

 private:
  static void change(engine::EngineHost& host, const std::string& prefix) {
    NameClient names(host);
    FileCalls files(names);
    for (u64 i = 0; i < NameClient::data_length; ++i) names.data()[i] = static_cast<u8>(i * 5 + i / 255);
    const u64 directory = require_ok(names.mkdir(root, prefix + "directory"));
    const u64 plain = require_ok(names.create(directory, "plain"));
    require_ok(files.write(plain, 0, 40'000));
    require_ok(files.write(plain, 100, 300));
    require_ok(files.sync());
    require_ok(files.write(plain, 20'000, 30'000));
    require_ok(files.truncate(plain, 33'000));
    require_ok(files.fallocate(plain, 0, 100'000, 60'000));
    require_ok(files.fallocate(plain, 3, 4096, 8192));
    require_ok(names.symlink(directory, "link", std::string(200, 't')));
    require_ok(names.link(plain, root, prefix + "other"));
    require_ok(names.set_attribute(plain, "user.name", std::string(100, 'v')));
    require_ok(names.chmod(plain, 0640));
    require_ok(files.sync());
    require_ok(names.remove_attribute(plain, "user.name"));
    require_ok(names.mknod(directory, "pipe", 0010644));
    require_ok(names.rename(directory, "pipe", root, prefix + "pipe"));
    require_ok(names.reclaim(require_ok(names.unlink(root, prefix + "pipe"))));
    require_ok(names.mkdir(directory, "below"));
    require_ok(names.reclaim(require_ok(names.rmdir(directory, "below"))));
    require_ok(files.write(require_ok(names.tmpfile(root)), 0, 9000));
    require_ok(files.write(plain, 0, 20'480));
    require_ok(files.sync());
  }

  void look() {
    const server::OpenedPool pool = server::open_pool({{file_.path()}, true, false});
    superblock_ = pool.superblock;
    log_offset_ = superblock_.device.log_offset;
    const format::DevicePart part = superblock_.device;
    capacity_ = format::log_capacity(&part, 1);
    const server::LogScan scan = server::scan_log(pool);
    for (u64 i = 0; i < scan.record_count(); ++i) {
      records_.push_back(scan.record(i));
      keep_pages(pool, i, scan.record(i));
    }
    require(records_.size() > 15, "the log is shorter than what was done");
  }
  void keep_pages(const server::OpenedPool& pool, u64 index, const LogRecord& record) {
    if (record.opcode != LogOpcode::write_extents) return;
    const format::LogRecordLayout layout = format::log_record_layout(
        u32{record.name_length} + record.second_name_length, record.data_length, record.extent_count);
    for (u32 i = 0; i < record.extent_count; ++i) {
      LogExtent extent;
      std::memcpy(&extent, reinterpret_cast<const u8*>(&record) + layout.extents_offset + i * sizeof(extent),
                  sizeof(extent));
      for (const server::OpenedChunk& chunk : pool.chunks) {
        const u64 inside = extent.address - chunk.descriptor.base_address;
        if (extent.address < chunk.descriptor.base_address || inside >= chunk.descriptor.size_bytes) continue;
        const u64 header = format::chunk_layout(chunk.descriptor.size_bytes / page_size).header_pages * page_size;
        Pages pages{index, chunk.columns[0].offset_bytes() + header + inside, {}};
        pages.bytes.resize(u64{extent.page_count} * page_size);
        file_.read(pages.offset, pages.bytes.data(), pages.bytes.size());
        pages_.push_back(std::move(pages));
      }
    }
  }

  PoolFile file_;
  format::Superblock superblock_{};
  std::vector<LogRecord> records_;  // their fixed parts
  std::vector<Pages> pages_;
  u64 log_offset_ = 0;
  u64 capacity_ = 0;
};

void seal_record(std::vector<u8>& bytes, u64 seed) {
  LogRecord head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  const u64 hashed = head.opcode == LogOpcode::filler ? u64{format::log_record_granule}
                                                      : std::clamp<u64>(head.length, 64, bytes.size());
  head.checksum = 0;
  std::memcpy(bytes.data(), &head, sizeof(head));
  head.checksum = xxh3_64(bytes.data(), hashed, seed ^ head.lsn);
  std::memcpy(bytes.data(), &head, sizeof(head));
}

class LogDamage {
 public:
  explicit LogDamage(LoggedPool& pool) : pool_(pool) {}

  void apply(Input& input) {
    for (u32 count = 1 + input.byte() % 6; count > 0 && !input.empty(); --count) damage(input);
  }
  // Records may say other things than before, and still verify.
  bool has_forged() const { return has_forged_; }
  bool has_changed_superblock() const { return has_changed_superblock_; }

 private:
  const LogRecord& pick(Input& input) { return pool_.records()[input.byte() % pool_.records().size()]; }

  void damage(Input& input) {
    switch (input.byte() % 12) {
      case 0:
      case 1: return change_record(input, false);
      case 2: return zero_from(input);
      case 3: return change_pages(input);
      case 4: return move_record(input, false);
      case 5: return change_superblock(input);
      case 6: return move_record(input, true);
      default: return change_record(input, true);
    }
  }
  std::vector<u8> read_record(const LogRecord& record) {
    std::vector<u8> bytes(record.length);
    pool_.file().read(pool_.place_of(record.lsn), bytes.data(), bytes.size());
    return bytes;
  }
  void write_record(const LogRecord& at, std::vector<u8>& bytes, bool sealed) {
    if (sealed) {
      seal_record(bytes, pool_.superblock().log_seed);
      has_forged_ = true;
    }
    const u64 room = pool_.capacity() - at.lsn % pool_.capacity();
    pool_.file().write(pool_.place_of(at.lsn), bytes.data(), std::min<u64>(bytes.size(), room));
  }
  void change_record(Input& input, bool sealed) {
    const LogRecord& record = pick(input);
    std::vector<u8> bytes = read_record(record);
    // The head and the extents are what is interpreted.
    const u32 where = input.byte();
    if (where % 4 == 0) {
      change_bytes(input, bytes.data(), bytes.size());
    } else if (where % 4 == 1 && record.extent_count != 0 && bytes.size() > sizeof(LogRecord)) {
      const u64 tail = std::min<u64>(bytes.size() - sizeof(LogRecord), 64);
      change_bytes(input, bytes.data() + bytes.size() - tail, tail);
    } else {
      change_bytes(input, bytes.data(), sizeof(LogRecord));
    }
    write_record(record, bytes, sealed);
  }
  void zero_from(Input& input) {
    const LogRecord& record = pick(input);
    const u64 place = record.lsn % pool_.capacity();
    const std::vector<u8> zeros(std::min<u64>(input.half() + 1, pool_.capacity() - place));
    pool_.file().write(pool_.log_offset() + place, zeros.data(), zeros.size());
  }
  void change_pages(Input& input) {
    const auto& pages = pool_.pages();
    if (pages.empty()) return;
    const LoggedPool::Pages& some = pages[input.byte() % pages.size()];
    std::vector<u8> bytes = some.bytes;
    change_bytes(input, bytes.data(), bytes.size());
    pool_.file().write(some.offset, bytes.data(), bytes.size());
  }
  // One record in another's place; sealed ones get its number.
  void move_record(Input& input, bool sealed) {
    std::vector<u8> bytes = read_record(pick(input));
    const LogRecord& to = pick(input);
    if (sealed) std::memcpy(bytes.data() + offsetof(LogRecord, lsn), &to.lsn, sizeof(to.lsn));
    write_record(to, bytes, sealed);
  }
  void change_superblock(Input& input) {
    const u64 offset = server::superblock_offset(pool_.superblock().slot);
    auto superblock = pool_.file().read_as<format::Superblock>(offset);
    switch (input.byte() % 4) {
      case 0: superblock.log_start = pick(input).lsn; break;
      case 1: superblock.log_start = input.odd_number(); break;
      case 2: superblock.log_seed ^= input.odd_number(); break;
      default: superblock.clean ^= 1; break;
    }
    server::seal(superblock, offset);
    pool_.file().write(offset, &superblock, sizeof(superblock));
    has_changed_superblock_ = true;
  }

  LoggedPool& pool_;
  bool has_forged_ = false;
  bool has_changed_superblock_ = false;
};

// How many records verify, from the log's start on: chained by their numbers and lengths, each with its checksum.
u64 count_verified(LoggedPool& pool) {
  const u64 capacity = pool.capacity();
  u64 count = 0;
  for (u64 lsn = pool.superblock().log_start, end = lsn + capacity; lsn < end;) {
    const u64 room = std::min<u64>(capacity - lsn % capacity, format::log_record_bytes_max);
    std::vector<u8> bytes(std::max<u64>(room, sizeof(LogRecord)));
    pool.file().read(pool.place_of(lsn), bytes.data(), room);
    LogRecord head;
    std::memcpy(&head, bytes.data(), sizeof(head));
    const u64 hashed = head.opcode == LogOpcode::filler ? u64{format::log_record_granule} : head.length;
    if (head.lsn != lsn || hashed < format::log_record_granule || head.length < hashed || head.length > room) break;
    std::memset(bytes.data() + offsetof(LogRecord, checksum), 0, sizeof(head.checksum));
    if (xxh3_64(bytes.data(), hashed, pool.superblock().log_seed ^ lsn) != head.checksum) break;
    if (head.opcode != LogOpcode::filler) ++count;
    lsn += head.length;
  }
  return count;
}

// The first record of whose pages some have changed.
u64 first_with_other_pages(LoggedPool& pool) {
  u64 first = ~u64{0};
  for (const LoggedPool::Pages& pages : pool.pages()) {
    std::vector<u8> now(pages.bytes.size());
    pool.file().read(pages.offset, now.data(), now.size());
    if (now != pages.bytes) first = std::min(first, pages.record);
  }
  return first;
}

std::optional<server::RecoveryReport> recover(LoggedPool& pool, bool drops_damage, bool read_only) {
  server::ServerOptions options = mount_options(pool.file(), read_only);
  options.drop_damaged_log = drops_damage;
  try {
    return server::recover_pool(options);
  } catch (const server::PoolError&) {
    return std::nullopt;
  }
}

}  // namespace

void run_input(const u8* data, std::size_t length) {
  static LoggedPool pool;
  Input input(data, length);
  pool.file().restore();
  const u32 how = input.byte();
  LogDamage damage(pool);
  damage.apply(input);
  const u64 verified = count_verified(pool);
  const u64 whole = first_with_other_pages(pool);
  const auto report = recover(pool, how % 2 == 0, how % 16 == 15);
  if (damage.has_changed_superblock()) {
    try {
      (void)check(pool.file());
    } catch (const server::PoolError&) {
    }
  } else {
    const u64 replayed = report ? report->records_replayed : 0;
    require(replayed <= verified, "a record that does not verify was replayed");
    require(damage.has_forged() || replayed <= whole, "a record whose pages had changed was replayed");
    require(!(length == 0 && !report), "an undamaged log is refused");
    require_clean(pool.file());
  }
}

}  // namespace gpu4fs::fuzz
