// The operation log of a pool that was not unmounted, damaged: recovery scans, verifies and replays it like a mount, or
// refuses it with a PoolError. According to this target's own reader of the log, nothing is replayed after a record
// that does not verify. Afterwards the pool is valid, recovered or unchanged.
#include "fuzz/log_damage.hpp"
#include "fuzz/logged_pool.hpp"

namespace gpu4fs::fuzz {

const char target_name[] = "log";

namespace {

using format::LogExtent;
using format::LogOpcode;
using format::LogRecord;

constexpr u64 root = format::inode_number_root;

// A pool with two of everything that is logged, the first half before a checkpoint, all of it synced.
class OneDevicePool : public LoggedPool {
 public:
  OneDevicePool() : LoggedPool(one_file()) {
    for (const char* prefix : {"first", "second"}) {
      mounted([&](engine::EngineHost& host) { change(host, prefix); });
    }
    keep();
    require(records().size() > 15, "the log is shorter than what was done");
  }

 private:
  static std::vector<std::unique_ptr<PoolFile>> one_file() {
    std::vector<std::unique_ptr<PoolFile>> files;
    files.push_back(std::make_unique<PoolFile>());
    return files;
  }

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
    require_ok(names.set_attribute(plain, "user.great", std::string(9000, 'g')));
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

  void keep_pages(const pool::OpenedPool& pool, u64 index, const LogRecord& record) override {
    if (record.opcode != LogOpcode::write_extents) return;
    const format::LogRecordLayout layout = format::log_record_layout(
        u32{record.name_length} + record.second_name_length, record.data_length, record.extent_count);
    for (u32 i = 0; i < record.extent_count; ++i) {
      LogExtent extent;
      std::memcpy(&extent, reinterpret_cast<const u8*>(&record) + layout.extents_offset + i * sizeof(extent),
                  sizeof(extent));
      for (const pool::OpenedChunk& chunk : pool.chunks) {
        const u64 inside = extent.address - chunk.descriptor.base_address;
        if (extent.address < chunk.descriptor.base_address || inside >= chunk.descriptor.size_bytes) continue;
        const u64 header = format::chunk_layout(chunk.descriptor.size_bytes / page_size).header_pages * page_size;
        const u64 offset = chunk.columns[0].offset_bytes() + header + inside;
        add_pages({index, &file(0), offset, std::vector<u8>(u64{extent.page_count} * page_size)});
      }
    }
  }
};

// The first record with changed pages.
u64 first_with_other_pages(const LoggedPool& pool) {
  u64 first = ~u64{0};
  for (const LoggedPool::Pages& pages : pool.pages()) {
    std::vector<u8> now(pages.bytes.size());
    pages.file->read(pages.offset, now.data(), now.size());
    if (now != pages.bytes) first = std::min(first, pages.record);
  }
  return first;
}

}  // namespace

void run_input(const u8* data, std::size_t length) {
  static OneDevicePool pool;
  Input input(data, length);
  pool.restore();
  const u32 how = input.byte();
  LogDamage damage(pool);
  damage.apply(input);
  const u64 verified = count_verified(pool);
  const u64 whole = first_with_other_pages(pool);
  const auto report = recover(pool, how % 2 == 0, how % 16 == 15);
  if (damage.has_changed_superblock()) {
    try {
      (void)check(pool.paths());
    } catch (const pool::PoolError&) {
    }
  } else {
    const u64 replayed = report ? report->records_replayed : 0;
    require(replayed <= verified, "a record that does not verify was replayed");
    require(damage.has_forged() || replayed <= whole, "a record whose pages had changed was replayed");
    require(!(length == 0 && !report), "an undamaged log is refused");
    require_clean(pool.paths());
  }
}

}  // namespace gpu4fs::fuzz
