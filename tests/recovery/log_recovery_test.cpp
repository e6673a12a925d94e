// The operation log and its recovery: which records are replayed, what ends a log, and what counts as damage.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "base/xxh3.hpp"
#include "fmt/format.h"
#include "fsck/repair/repair_pool.hpp"
#include "pool/pool_error.hpp"
#include "server/pool_server.hpp"
#include "server/recovery/log_scan.hpp"
#include "server/recovery/replay.hpp"
#include "session/engine_setup.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/saved_devices.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::log_recovery_test {
namespace {

constexpr u64 root = format::inode_number_root;

u64 create(FileClient& client, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::create;
  op.inode = root;
  op.name = name;
  op.mode = 0644;
  op.mask = 0200;
  const client::Reply reply = client.call(op);
  EXPECT_EQ(reply.status, Status::ok) << name;
  return reply.result;
}

std::vector<u8> random_bytes(u64 length, u64 seed) {
  std::vector<u8> bytes(length);
  fill_random(bytes.data(), bytes.size(), seed);
  return bytes;
}

void write(FileClient& client, u64 file, u64 offset, const std::vector<u8>& bytes) {
  FileOperation op;
  op.opcode = wire::Opcode::write;
  op.inode = file;
  op.offset = offset;
  op.length = bytes.size();
  ASSERT_EQ(client.call(op, bytes).status, Status::ok);
}

void sync(FileClient& client) {
  ASSERT_EQ(client.simple(wire::Opcode::sync).status, Status::ok);
}

std::vector<u8> read(FileClient& client, u64 file, u64 length) {
  const client::Reply reply = client.simple(wire::Opcode::read, file, 0, length);
  EXPECT_EQ(reply.status, Status::ok);
  return {client.data(), client.data() + reply.result};
}

bool exists(FileClient& client, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::lookup;
  op.inode = root;
  op.name = name;
  return client.call(op).status == Status::ok;
}

server::LogScan scan(const TestPool& pool) {
  pool::OpenPoolOptions open;
  open.device_paths = pool.device_paths();
  open.read_only = true;
  open.lock = false;
  return server::scan_log(pool::open_pool(open));
}

u64 log_offset(const TestPool& pool, u32 device) {
  pool::OpenPoolOptions open;
  open.device_paths = pool.device_paths();
  open.read_only = true;
  open.lock = false;
  return pool::open_pool(open).devices[device].part.log_offset;
}

template <class Bytes>
void overwrite(const std::string& path, u64 offset, const Bytes& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

// A pool of two devices with three files, each synced: at least one record for each in the log.
class LogRecovery : public ::testing::Test {
 protected:
  LogRecovery() {
    const auto session = pool_.open_session();
    FileClient client(*session);
    for (u32 i = 0; i < 3; ++i) {
      files_.push_back(create(client, fmt::format("file{}", i)));
      write(client, files_.back(), 0, content(i));
      sync(client);
    }
  }
  static std::vector<u8> content(u32 index) { return random_bytes(10'000 + 4'096 * index, 77 + index); }
  void crash() { pool_.crash(); }
  void expect_files(u32 count) {
    const auto session = pool_.open_session();
    FileClient client(*session);
    for (u32 i = 0; i < 3; ++i) {
      EXPECT_EQ(exists(client, fmt::format("file{}", i)), i < count);
      if (i < count) {
        EXPECT_EQ(read(client, files_[i], 100'000), content(i));
      }
    }
  }
  // Changes a byte of a record in the log of one device.
  void damage_record(u32 device, u64 index, u64 byte = 40) {
    const server::LogScan log = scan(pool_);
    ASSERT_LT(index, log.record_count());
    const u64 place = log.record(index).lsn % log.capacity + byte;
    overwrite(pool_.device_paths()[device], log_offset(pool_, device) + place, std::vector<u8>{0xa5});
  }

  TestPool pool_;
  std::vector<u64> files_;
};

TEST_F(LogRecovery, ReplaysWhatWasSynced) {
  crash();
  const u64 records = scan(pool_).record_count();
  EXPECT_GE(records, 6u);
  const fsck::CheckResult waiting = pool_.check();
  EXPECT_EQ(waiting.log_records, records);
  EXPECT_EQ(waiting.log_end, scan(pool_).end);
  EXPECT_EQ(waiting.findings.count(fsck::FindingId::log_waiting), 1u);
  EXPECT_EQ(waiting.findings.error_count(), 0u);
  pool_.mount();
  EXPECT_EQ(pool_.recovery().records_replayed, records);
  EXPECT_GE(pool_.recovery().pages_verified, 12u);
  expect_files(3);
  pool_.unmount();
  EXPECT_EQ(scan(pool_).record_count(), 0u) << "the log is empty after a clean end";
  EXPECT_EQ(pool_.check().findings.error_count(), 0u);
}

TEST_F(LogRecovery, IsIdempotent) {
  crash();
  const u64 records = scan(pool_).record_count();
  session::ServerOptions options;
  options.device_paths = pool_.device_paths();
  EXPECT_EQ(server::recover_pool(options).records_replayed, records);
  EXPECT_EQ(server::recover_pool(options).records_replayed, 0u);
  pool_.mount();
  expect_files(3);
}

TEST_F(LogRecovery, UnsyncedOperationsAreNotInTheLog) {
  {
    const auto session = pool_.open_session();
    FileClient client(*session);
    create(client, "unsynced");
  }
  crash();
  pool_.mount();
  expect_files(3);
  const auto session = pool_.open_session();
  FileClient client(*session);
  EXPECT_FALSE(exists(client, "unsynced"));
}

TEST_F(LogRecovery, OneReplicaIsEnough) {
  crash();
  damage_record(0, 0);
  damage_record(1, 2);
  pool_.mount();
  expect_files(3);
}

TEST_F(LogRecovery, LastRecordTornInBothReplicasEndsTheLog) {
  crash();
  const u64 records = scan(pool_).record_count();
  damage_record(0, records - 1);
  damage_record(1, records - 1);
  EXPECT_EQ(pool_.check().log_records, records - 1);
  EXPECT_EQ(pool_.check().findings.error_count(), 0u) << "nothing that was acknowledged is lost";
  pool_.mount();
  EXPECT_EQ(pool_.recovery().records_replayed, records - 1);
  const auto session = pool_.open_session();
  FileClient client(*session);
  EXPECT_EQ(read(client, files_[1], 100'000), content(1));
  EXPECT_TRUE(exists(client, "file2"));
  EXPECT_EQ(read(client, files_[2], 100'000).size(), 0u);
}

TEST_F(LogRecovery, DamageInFrontOfAcknowledgedRecordsIsToldAndDroppedOnDemand) {
  crash();
  damage_record(0, 1);
  damage_record(1, 1);
  EXPECT_EQ(pool_.check().log_records, 1u);
  EXPECT_EQ(pool_.check().findings.count(fsck::FindingId::log_damaged), 1u);
  EXPECT_EQ(pool_.check().findings.error_count(), 1u);
  session::ServerOptions options;
  options.device_paths = pool_.device_paths();
  try {
    server::recover_pool(options);
    FAIL() << "the damage was passed over";
  } catch (const pool::PoolError& error) {
    EXPECT_NE(std::string(error.what()).find("operation log is damaged"), std::string::npos) << error.what();
  }
  options.drop_damaged_log = true;
  EXPECT_EQ(server::recover_pool(options).records_replayed, 1u);
  pool_.mount();
  const auto session = pool_.open_session();
  FileClient client(*session);
  EXPECT_TRUE(exists(client, "file0"));
  EXPECT_FALSE(exists(client, "file1"));
}

TEST_F(LogRecovery, RepairGivesUpADamagedLogOnlyWhenTold) {
  crash();
  damage_record(0, 1);
  damage_record(1, 1);
  fsck::RepairOptions options;
  options.device_paths = pool_.device_paths();
  EXPECT_THROW(fsck::repair_pool(options), pool::PoolError);
  EXPECT_EQ(pool_.check().findings.count(fsck::FindingId::log_damaged), 1u);
  options.drop_log = true;
  EXPECT_EQ(fsck::repair_pool(options).operations_replayed, 1u);
  EXPECT_EQ(pool_.check().findings.error_count(), 0u);
  EXPECT_EQ(pool_.check().log_records, 0u);
}

TEST_F(LogRecovery, RepairReplaysWhatWaits) {
  crash();
  fsck::RepairOptions options;
  options.device_paths = pool_.device_paths();
  EXPECT_GE(fsck::repair_pool(options).operations_replayed, 6u);
  EXPECT_EQ(pool_.check().findings.kept().size(), 0u);
  pool_.mount();
  expect_files(3);
}

TEST_F(LogRecovery, PagesThatWereNotWrittenEndTheLog) {
  crash();
  const server::LogScan log = scan(pool_);
  const format::LogRecord& last = log.record(log.record_count() - 1);
  ASSERT_EQ(last.opcode, format::LogOpcode::write_extents);
  // The page's place on its device: every page with the first bytes of file 2.
  std::vector<u8> page = content(2);
  page.resize(page_size);
  u32 found = 0;
  for (const std::string& path : pool_.device_paths()) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    for (u64 at = 0; at + page_size <= bytes.size(); at += page_size) {
      if (std::memcmp(bytes.data() + at, page.data(), page_size) != 0) continue;
      overwrite(path, at + 100, std::vector<u8>{0x5a, 0x5a, 0x5a, 0x5a});
      ++found;
    }
  }
  ASSERT_EQ(found, 1u);
  EXPECT_EQ(pool_.check().log_records, log.record_count() - 1);
  pool_.mount();
  EXPECT_EQ(pool_.recovery().records_replayed, log.record_count() - 1);
  const auto session = pool_.open_session();
  FileClient client(*session);
  EXPECT_EQ(read(client, files_[1], 100'000), content(1));
  EXPECT_EQ(read(client, files_[2], 100'000).size(), 0u);
}

TEST_F(LogRecovery, ReadingOnlyRefusesUnlessTold) {
  crash();
  session::ServerOptions options;
  options.device_paths = pool_.device_paths();
  options.read_only = true;
  EXPECT_THROW(server::recover_pool(options), pool::PoolError);
  options.ignore_log = true;
  EXPECT_EQ(server::recover_pool(options).records_replayed, 0u);
  EXPECT_GE(scan(pool_).record_count(), 6u) << "nothing was written";
}

// The first, the second, ... write of the recovery fails: each time the log stays intact. Some of the operations change
// or free pages that earlier records name.
TEST_F(LogRecovery, FailuresInTheMiddleCostNothing) {
  std::vector<u8> changed = content(1);
  {
    const auto session = pool_.open_session();
    FileClient client(*session);
    write(client, files_[1], 100, std::vector<u8>(700, 0x11));
    std::fill_n(changed.begin() + 100, 700, u8{0x11});
    FileOperation op;
    op.opcode = wire::Opcode::unlink;
    op.inode = root;
    op.name = "file2";
    const client::Reply gone = client.call(op);
    ASSERT_EQ(gone.status, Status::ok);
    ASSERT_EQ(client.simple(wire::Opcode::reclaim, gone.result).status, Status::ok);
    const u64 other = create(client, "other");
    for (u32 i = 0; i < 40; ++i) write(client, other, i * 1000, random_bytes(1000, i + 1));
    sync(client);
  }
  crash();
  const u64 records = scan(pool_).record_count();
  const auto expect_all = [&] {
    pool_.mount();
    {
      const auto session = pool_.open_session();
      FileClient client(*session);
      EXPECT_EQ(read(client, files_[0], 100'000), content(0));
      EXPECT_EQ(read(client, files_[1], 100'000), changed);
      EXPECT_FALSE(exists(client, "file2"));
      EXPECT_TRUE(exists(client, "other"));
    }
    pool_.unmount();
    EXPECT_EQ(pool_.check().findings.error_count(), 0u) << findings_text(pool_.check());
  };
  const SavedDevices crashed(pool_.device_paths());
  u32 failures = 0;
  for (const u32 device : {0u, 1u}) {
    for (u32 nth = 1;; ++nth) {
      SCOPED_TRACE(fmt::format("device {}, write {}", device, nth));
      ASSERT_LT(nth, 1000u);
      crashed.restore(0);
      session::ServerOptions options;
      options.device_paths = pool_.device_paths();
      options.device_paths[device] = fmt::format("fault=write-error#{}:{}", nth, options.device_paths[device]);
      try {
        EXPECT_EQ(server::recover_pool(options).records_replayed, records);
        break;
      } catch (const pool::PoolError& error) {
        EXPECT_EQ(to_errno(error.status()), EIO) << error.what();
        // Device 0 may have got its superblock of the new epoch, with everything, and device 1 may not.
        const u64 left = scan(pool_).record_count();
        EXPECT_TRUE(left == records || (device == 1 && left == 0)) << left << ": " << error.what();
      }
      ++failures;
      expect_all();
      if (HasFailure()) return;
    }
    expect_all();
  }
  // With direct accesses larger pieces are written.
  EXPECT_GT(failures, session::resolve_access({}) == session::DeviceAccess::direct_everywhere ? 3u : 10u);
}

// A pool with redundancy and a file of 20 pages, synced and in no checkpoint, after a crash.
class LogOfPages : public ::testing::Test {
 protected:
  static constexpr u32 page_count = 20;

  LogOfPages(const char* profile, u32 device_count)
      : pool_(shaped(profile, device_count)), content_(random_bytes(page_count * page_size, 5)) {
    {
      const auto session = pool_.open_session();
      FileClient client(*session);
      file_ = create(client, "file");
      write(client, file_, 0, content_);
      sync(client);
    }
    pool_.crash();
    records_ = scan(pool_).record_count();
  }
  static TestPoolOptions shaped(const char* profile, u32 device_count) {
    TestPoolOptions options;
    options.profile = profile;
    options.device_count = device_count;
    return options;
  }
  // The place of the file's page on the device, if it has it. Most of a device was never written.
  std::optional<u64> find(u32 device, u32 page) {
    const int file = ::open(pool_.device_paths()[device].c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(file, 0);
    std::optional<u64> place;
    u8 bytes[page_size];
    for (off_t at = ::lseek(file, 0, SEEK_DATA); at >= 0 && !place;
         at = ::lseek(file, at + static_cast<off_t>(page_size), SEEK_DATA)) {
      if (::pread(file, bytes, page_size, at) != static_cast<ssize_t>(page_size)) break;
      if (std::memcmp(bytes, content_.data() + page * page_size, page_size) == 0) place = at;
    }
    ::close(file);
    return place;
  }
  // Whether the device had the page.
  bool damage(u32 device, u32 page) {
    const std::optional<u64> place = find(device, page);
    if (place) overwrite(pool_.device_paths()[device], *place + 100, std::vector<u8>{1, 2, 3, 4});
    return place.has_value();
  }
  void expect_whole(u32 copies) {
    EXPECT_EQ(pool_.check().log_records, records_);
    EXPECT_EQ(pool_.check().findings.count(fsck::FindingId::log_damaged), 0u);
    pool_.mount();
    EXPECT_EQ(pool_.recovery().records_replayed, records_);
    {
      const auto session = pool_.open_session();
      FileClient client(*session);
      EXPECT_EQ(read(client, file_, 100'000), content_);
    }
    pool_.unmount();
    EXPECT_EQ(pool_.check().findings.kept().size(), 0u) << findings_text(pool_.check());
    for (u32 page = 0; page < page_count; ++page) {
      u32 found = 0;
      for (u32 device = 0; device < pool_.options().device_count; ++device) found += find(device, page) ? 1 : 0;
      EXPECT_EQ(found, copies) << "page " << page;
    }
  }
  void expect_ended() {
    const u64 accepted = pool_.check().log_records;
    EXPECT_LT(accepted, records_);
    pool_.mount();
    EXPECT_EQ(pool_.recovery().records_replayed, accepted);
  }

  TestPool pool_;
  std::vector<u8> content_;
  u64 file_ = 0;
  u64 records_ = 0;
};

class LogOfCopies : public LogOfPages {
 protected:
  LogOfCopies() : LogOfPages("raid1", 2) {}
};

TEST_F(LogOfCopies, APageIsGoodOnOneDevice) {
  EXPECT_TRUE(damage(0, 3));
  expect_whole(2);
}

TEST_F(LogOfCopies, PagesAreGoodOnDifferentDevices) {
  for (const u32 page : {0u, 7u, 8u}) EXPECT_TRUE(damage(0, page));
  for (const u32 page : {1u, 6u, 19u}) EXPECT_TRUE(damage(1, page));
  expect_whole(2);
}

TEST_F(LogOfCopies, OneDeviceHasNothing) {
  for (u32 page = 0; page < page_count; ++page) EXPECT_TRUE(damage(0, page));
  expect_whole(2);
}

TEST_F(LogOfCopies, APageThatIsGoodNowhereEndsTheLog) {
  EXPECT_TRUE(damage(0, 3));
  EXPECT_TRUE(damage(1, 3));
  expect_ended();
}

// Two pages and one parity in each row.
class LogOfRows : public LogOfPages {
 protected:
  LogOfRows() : LogOfPages("raid5", 3) {}
  u32 damage_page(u32 page) {
    u32 found = 0;
    for (u32 device = 0; device < 3; ++device) found += damage(device, page) ? 1 : 0;
    return found;
  }
};

TEST_F(LogOfRows, AllIsThere) {
  expect_whole(1);
}

TEST_F(LogOfRows, APageIsMadeFromItsRow) {
  EXPECT_EQ(damage_page(3), 1u);
  expect_whole(1);
}

TEST_F(LogOfRows, OneDeviceHasNothing) {
  u32 damaged = 0;
  for (u32 page = 0; page < page_count; ++page) damaged += damage(1, page) ? 1 : 0;
  EXPECT_GT(damaged, page_count / 4);
  EXPECT_LT(damaged, page_count);
  expect_whole(1);
}

// A record has one digest, so bad pages can be found only for whole devices.
TEST_F(LogOfRows, TwoPagesOfARowEndTheLog) {
  EXPECT_EQ(damage_page(2), 1u);
  EXPECT_EQ(damage_page(3), 1u);
  expect_ended();
}

class LogOfTwoParities : public LogOfPages {
 protected:
  LogOfTwoParities() : LogOfPages("raid6", 4) {}
};

TEST_F(LogOfTwoParities, TwoDevicesHaveNothing) {
  for (u32 page = 0; page < page_count; ++page) {
    for (const u32 device : {0u, 2u}) (void)damage(device, page);
  }
  expect_whole(1);
}

TEST_F(LogOfTwoParities, ThreeDevicesHaveNothing) {
  for (u32 page = 0; page < page_count; ++page) {
    for (const u32 device : {0u, 1u, 2u}) (void)damage(device, page);
  }
  expect_ended();
}

// A log with valid checksums that names a page twice; only a writer of images makes one. It is refused before anything
// is written, so the log still has the earlier state.
class LogThatNamesPagesTwice : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr u32 page_count = 20;

  LogThatNamesPagesTwice() : pool_(options()) {
    const auto session = pool_.open_session();
    FileClient client(*session);
    for (u32 i = 0; i < 2; ++i) {
      files_.push_back(create(client, fmt::format("file{}", i)));
      write(client, files_.back(), 0, content(i));
    }
    sync(client);
  }
  static TestPoolOptions options() {
    TestPoolOptions options;
    options.profile = GetParam();
    options.device_count = 3;
    return options;
  }
  static std::vector<u8> content(u32 file) { return random_bytes(page_count * page_size, 50 + file); }

  // The complete record of the file's pages.
  std::vector<u8> record_of(u32 file) {
    const server::LogScan log = scan(pool_);
    for (u64 i = 0; i < log.record_count(); ++i) {
      const format::LogRecord& record = log.record(i);
      if (record.opcode != format::LogOpcode::write_extents || record.inode != files_[file]) continue;
      const u8* bytes = reinterpret_cast<const u8*>(&record);
      return {bytes, bytes + record.length};
    }
    ADD_FAILURE() << "no record of file " << file;
    return std::vector<u8>(sizeof(format::LogRecord) + 2 * sizeof(format::LogExtent));
  }
  static format::LogRecord head_of(const std::vector<u8>& record) {
    format::LogRecord head{};
    std::memcpy(&head, record.data(), sizeof(head));
    return head;
  }
  static std::vector<format::LogExtent> extents_of(const std::vector<u8>& record) {
    std::vector<format::LogExtent> extents(head_of(record).extent_count);
    std::memcpy(extents.data(), record.data() + sizeof(format::LogRecord), extents.size() * sizeof(format::LogExtent));
    return extents;
  }
  // Writes it to all logs. The length does not change.
  void put(const std::vector<u8>& record) {
    pool::OpenPoolOptions open;
    open.device_paths = pool_.device_paths();
    open.read_only = true;
    open.lock = false;
    const pool::OpenedPool pool = pool::open_pool(open);
    const u64 place =
        head_of(record).lsn %
        format::log_capacity(
            pool.superblock,
            std::vector<format::DevicePart>{pool.devices[0].part, pool.devices[1].part, pool.devices[2].part}.data());
    for (u32 d = 0; d < pool.superblock.tree_replica_count; ++d) {
      overwrite(pool_.device_paths()[d], pool.devices[d].part.log_offset + place, record);
    }
  }
  void forge(std::vector<u8> record, const std::vector<format::LogExtent>& extents) {
    format::LogRecord head = head_of(record);
    head.extent_count = static_cast<u16>(extents.size());
    ASSERT_EQ(format::log_record_layout(0, 0, head.extent_count).length, head.length);
    head.checksum = 0;
    std::fill(record.begin(), record.end(), u8{0});
    std::memcpy(record.data(), &head, sizeof(head));
    std::memcpy(record.data() + sizeof(head), extents.data(), extents.size() * sizeof(format::LogExtent));
    pool::OpenPoolOptions open;
    open.device_paths = pool_.device_paths();
    open.read_only = true;
    open.lock = false;
    const u64 seed = pool::open_pool(open).superblock.log_seed;
    head.checksum = xxh3_64(record.data(), record.size(), seed ^ head.lsn);
    std::memcpy(record.data(), &head, sizeof(head));
    put(record);
  }
  // Of pages of a file, from `first` on, which lie at `address`.
  static format::LogExtent extent(u64 address, u32 file, u32 first, u32 count) {
    const std::vector<u8> bytes = content(file);
    format::LogExtent made{address, 0, count, 0, 0};
    for (u32 i = 0; i < count; ++i) {
      const u64 checksum = xxh3_64(bytes.data() + (first + i) * page_size, page_size, address + i * page_size);
      made.digest += format::page_digest(checksum, i);
    }
    return made;
  }
  void expect_refusal(u64 records) {
    ASSERT_EQ(scan(pool_).record_count(), records) << "the record does not hold by itself";
    session::ServerOptions options;
    options.device_paths = pool_.device_paths();
    for (u32 attempt = 0; attempt < 2; ++attempt) {
      try {
        server::recover_pool(options);
        FAIL() << "it was carried out";
      } catch (const pool::PoolError& error) {
        EXPECT_EQ(error.status(), Status::corrupt_structure) << error.what();
      }
      ASSERT_EQ(scan(pool_).record_count(), records) << "nothing was given up";
    }
  }
  void expect_files() {
    pool_.mount();
    {
      const auto session = pool_.open_session();
      FileClient client(*session);
      for (u32 i = 0; i < 2; ++i) EXPECT_EQ(read(client, files_[i], 100'000), content(i)) << i;
    }
    pool_.unmount();
    EXPECT_EQ(pool_.check().findings.kept().size(), 0u) << findings_text(pool_.check());
  }

  TestPool pool_;
  std::vector<u64> files_;
};

TEST_P(LogThatNamesPagesTwice, InOneRecord) {
  pool_.crash();
  const u64 records = scan(pool_).record_count();
  const std::vector<u8> record = record_of(1);
  const u64 address = extents_of(record)[0].address;
  ASSERT_EQ(extents_of(record)[0].digest, extent(address, 1, 0, extents_of(record)[0].page_count).digest);
  ASSERT_GE(extents_of(record)[0].page_count, page_count / 2);
  const u32 half = page_count / 2;
  forge(record, {extent(address, 1, 0, half), extent(address, 1, 0, half)});
  expect_refusal(records);
  // All pages are contiguous except one.
  forge(record, {extent(address, 1, 0, half), extent(address + (half - 1) * page_size, 1, half - 1, half)});
  expect_refusal(records);
  put(record);
  expect_files();
}

TEST_P(LogThatNamesPagesTwice, InTwoRecords) {
  pool_.crash();
  const u64 records = scan(pool_).record_count();
  const std::vector<u8> record = record_of(1);
  forge(record, extents_of(record_of(0)));
  expect_refusal(records);
  put(record);
  expect_files();
}

INSTANTIATE_TEST_SUITE_P(Profiles, LogThatNamesPagesTwice, ::testing::Values("single", "raid1", "raid5"),
                         [](const auto& parameter) { return std::string(parameter.param); });

// A page that a record names is not changed in place, although no checkpoint has it: the synced data would not match
// its record.
TEST_F(LogRecovery, PagesOfARecordAreNotOverwritten) {
  {
    const auto session = pool_.open_session();
    FileClient client(*session);
    for (const u64 offset : {u64{0}, u64{5000}, u64{2 * page_size}}) {
      write(client, files_[2], offset, random_bytes(700, offset + 1));
    }
    write(client, files_[1], page_size, random_bytes(page_size, 3));
  }
  crash();
  const u64 records = scan(pool_).record_count();
  pool_.mount();
  EXPECT_EQ(pool_.recovery().records_replayed, records);
  expect_files(3);
}

// A checkpoint during a replay contains the operations so far, and the log still has their records: they can be
// replayed again.
TEST_F(LogRecovery, WhatWasCarriedOutBeforeACheckpointIsCarriedOutAgain) {
  {
    const auto session = pool_.open_session();
    FileClient client(*session);
    FileOperation op;
    op.opcode = wire::Opcode::set_attribute;
    op.inode = files_[0];
    op.name = "user.gone";
    op.text = "value";
    ASSERT_EQ(client.call(op).status, Status::ok);
  }
  ASSERT_EQ(pool_.checkpoint(), Status::ok);
  {
    const auto session = pool_.open_session();
    FileClient client(*session);
    FileOperation op;
    op.opcode = wire::Opcode::remove_attribute;
    op.inode = files_[0];
    op.name = "user.gone";
    ASSERT_EQ(client.call(op).status, Status::ok);
    sync(client);
  }
  crash();
  const server::LogScan log = scan(pool_);
  ASSERT_EQ(log.record_count(), 1u);
  ASSERT_EQ(log.record(0).opcode, format::LogOpcode::remove_attribute);
  session::ServerOptions options;
  options.device_paths = pool_.device_paths();
  {
    session::ServerOptions attempt = options;
    attempt.engine = session::EngineChoice::cpu;
    attempt.worker_count = 1;
    attempt.commit_interval_s = 0;
    attempt.purpose = session::ServerPurpose::recovery;
    server::PoolServer server(attempt);
    server.start();
    {
      const auto session = server.open_internal_session(format::log_record_bytes_max);
      server::replay_records(*session, log, server::verify_records(*session, log).record_count);
      wire::Command command{};
      command.opcode = wire::Opcode::checkpoint;
      ASSERT_EQ(session->call(command).status, Status::ok);
    }
    server.abandon();
  }
  EXPECT_EQ(scan(pool_).record_count(), 1u) << "the checkpoint has it, the log too";
  EXPECT_EQ(server::recover_pool(options).records_replayed, 1u);
  pool_.mount();
  expect_files(3);
}

// Several laps around a log of 1 MiB, with checkpoints whenever it is half full.
TEST(LogRing, WrapsAndStaysReplayable) {
  TestPoolOptions options;
  options.worker_count = 2;
  TestPool pool(options);
  u64 file = 0;
  std::vector<u8> expected;
  constexpr u32 step_count = 3000;
  {
    const auto session = pool.open_session();
    FileClient client(*session);
    file = create(client, "lap");
    for (u32 i = 0; i < step_count; ++i) {
      // Parts of pages, whose bytes are stored in the log.
      const std::vector<u8> bytes = random_bytes(1 + i * 7 % 3000, i + 1);
      const u64 offset = i * 37 % 60'000;
      if (expected.size() < offset + bytes.size()) expected.resize(offset + bytes.size());
      std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
      write(client, file, offset, bytes);
      if (i % 10 == 9) sync(client);
    }
    sync(client);
  }
  pool.crash();
  const server::LogScan log = scan(pool);
  EXPECT_GT(log.start, 3 * log.capacity) << "fewer laps than meant";
  pool.mount();
  const auto session = pool.open_session();
  FileClient client(*session);
  EXPECT_EQ(read(client, file, 200'000), expected);
}

}  // namespace
}  // namespace gpu4fs::test::log_recovery_test
