// The operation log of a full pool with parities, damaged as in log_fuzz.cpp, with records of rows that were changed in
// place. The pages of such rows are damaged too, as by a crash during their write: a recovery that finds the whole log
// restores them, whatever the devices contain.
#include "fuzz/log_damage.hpp"
#include "fuzz/logged_pool.hpp"

namespace gpu4fs::fuzz {

const char target_name[] = "log_rows";

namespace {

using format::LogOpcode;
using format::LogRecord;

constexpr u32 device_count = 3;
constexpr u64 small_file_count = 60;
constexpr u64 small_file_bytes = 3 * page_size;  // leaves free pages in stripes

// The device files of a new pool, in a folder that outlives them.
std::vector<std::unique_ptr<PoolFile>> new_pool(const test::DeviceFolder& folder) {
  pool::MakePoolOptions make;
  for (u32 d = 0; d < device_count; ++d) make.device_paths.push_back(folder.device(d));
  make.size_bytes = pool_file_bytes;
  make.chunk_size_bytes = format::chunk_size_min;
  make.data_profile = "raid5";
  make.metadata_profile = "raid1";
  make.stripe_length_bytes = 16384;
  make.root_uid = 0;
  make.root_gid = 0;
  pool::make_pool(make);
  std::vector<std::unique_ptr<PoolFile>> files;
  for (const std::string& path : make.device_paths) files.push_back(std::make_unique<PoolFile>(path));
  return files;
}

class FullPool final : public LoggedPool {
 public:
  explicit FullPool(const test::DeviceFolder& folder) : LoggedPool(new_pool(folder)) {
    mounted([&](engine::EngineHost& host) { fill(host); });
    mounted([&](engine::EngineHost& host) { take_whole_stripes(host); });
    mounted([&](engine::EngineHost& host) { change(host); });
    keep();
    u64 row_count = 0;
    for (const LogRecord& record : records()) row_count += record.opcode == LogOpcode::row ? 1 : 0;
    require(row_count > 5, "the log has too few records of rows");
    require(pages().size() > 5, "too few pages of rows are found");
  }

 private:
  // Different content each time, by which the pages of rows are found.
  static void draw(NameClient& names, u64 seed) {
    u64 state = seed * 0x9e3779b97f4a7c15u + 1;
    for (u64 i = 0; i < small_file_bytes; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      names.data()[i] = static_cast<u8>(state);
    }
  }
  static std::string small_name(u64 i) { return "small" + std::to_string(i); }
  // Small files, half of which are removed again: then parts of stripes are free.
  void fill(engine::EngineHost& host) {
    NameClient names(host);
    FileCalls files(names);
    for (u64 i = 0; i < small_file_count; ++i) {
      inodes_.push_back(require_ok(names.create(format::inode_number_root, small_name(i))));
      draw(names, i);
      require_ok(files.write(inodes_.back(), 0, small_file_bytes));
    }
    require_ok(files.sync());
    for (u64 i = 1; i < small_file_count; i += 2) {
      require_ok(names.reclaim(require_ok(names.unlink(format::inode_number_root, small_name(i)))));
    }
    require_ok(files.sync());
  }
  static void take_whole_stripes(engine::EngineHost& host) {
    NameClient names(host);
    FileCalls files(names);
    const u64 big = require_ok(names.create(format::inode_number_root, "big"));
    u64 end = 0;
    for (u64 length = u64{4} << 20; length >= page_size; length /= 4) {
      for (; files.fallocate(big, 1, end, length).status == Status::ok; end += length) {
      }  // 1: KEEP_SIZE
    }
    require(end != 0, "nothing was to be filled");
    require_ok(files.sync());
  }
  void change(engine::EngineHost& host) {
    NameClient names(host);
    FileCalls files(names);
    for (u64 i = 0; i < small_file_count; i += 2) {
      draw(names, 1000 + i);
      // After the end: freed pages would require a wait for a checkpoint.
      require_ok(files.write(inodes_[i], small_file_bytes + i % 3 * page_size, i % 4 == 0 ? page_size : 700));
      if (i % 8 == 0) require_ok(files.sync());
    }
    require_ok(files.sync());
  }

  // The new pages and the parities on a device; a row that a later record changed again has other ones.
  void keep_pages(const pool::OpenedPool& pool, u64 index, const LogRecord& record) override {
    if (record.opcode != LogOpcode::row) return;
    (void)pool;
    const u64 data = format::log_record_layout(0, record.data_length, 0).data_offset;
    for (u64 at = 0; at < record.data_length; at += page_size) {
      std::vector<u8> wanted(page_size);
      read_log(record.lsn + data + at, wanted.data(), page_size);
      find_page(index, wanted);
    }
  }
  void find_page(u64 index, const std::vector<u8>& wanted) {
    std::vector<u8> page(page_size);
    for (u32 d = 0; d < file_count(); ++d) {
      for (u64 offset = 0; offset < pool_file_bytes; offset += page_size) {
        if (is_log(d, offset)) continue;
        file(d).read(offset, page.data(), page_size);
        if (page == wanted) add_pages({index, &file(d), offset, page});
      }
    }
  }

  std::vector<u64> inodes_;
};

// Pages of rows that differ from the log.
u64 count_other_pages(const LoggedPool& pool) {
  u64 count = 0;
  for (const LoggedPool::Pages& pages : pool.pages()) {
    std::vector<u8> now(pages.bytes.size());
    pages.file->read(pages.offset, now.data(), now.size());
    if (now != pages.bytes) ++count;
  }
  return count;
}

}  // namespace

void run_input(const u8* data, std::size_t length) {
  static const test::DeviceFolder folder;
  static FullPool pool(folder);
  Input input(data, length);
  pool.restore();
  const u32 how = input.byte();
  LogDamage damage(pool);
  if (how % 3 == 0) {
    damage.tear_pages(input);
  } else {
    damage.apply(input);
  }
  const u64 verified = count_verified(pool);
  const bool is_whole = verified == pool.records().size();
  const bool had_torn_rows = count_other_pages(pool) != 0;
  const bool read_only = how % 16 == 15;  // refused while the log has to be replayed
  const auto report = recover(pool, how % 2 == 0, read_only);
  const bool has_torn_rows = had_torn_rows && (!is_whole || read_only);
  if (damage.has_changed_superblock() || damage.has_forged() || has_torn_rows) {
    // Records with other contents, or rows without a found record: everything in the pool can be read.
    try {
      (void)check(pool.paths());
    } catch (const pool::PoolError&) {
    }
    return;
  }
  const u64 replayed = report ? report->records_replayed : 0;
  require(replayed <= verified, "a record that does not verify was replayed");
  require(!is_whole || read_only || report, "an undamaged log is refused");
  require(!is_whole || read_only || count_other_pages(pool) == 0, "a row is not what its record says");
  require_clean(pool.paths());
}

}  // namespace gpu4fs::fuzz
