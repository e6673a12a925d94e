// Damage to the operation log of a pool as the input says: records changed, moved or cut off, with or without
// recomputed checksums, and the pages that they name.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/xxh3_serial.hpp"
#include "format/log_format.hpp"
#include "fuzz/damage.hpp"
#include "fuzz/logged_pool.hpp"

namespace gpu4fs::fuzz {

inline void seal_record(std::vector<u8>& bytes, u64 seed) {
  format::LogRecord head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  const u64 hashed = head.opcode == format::LogOpcode::filler ? u64{format::log_record_granule}
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
  // Changes only pages that records name, including adjacent ones in the list.
  void tear_pages(Input& input) {
    for (u32 count = 1 + input.byte() % 6; count > 0 && !input.empty(); --count) {
      const u32 first = input.byte();
      change_pages(input, first / 2);
      if (first % 2 != 0) change_pages(input, first / 2 + 1);
    }
  }
  // Records may have other contents than before and still verify.
  bool has_forged() const { return has_forged_; }
  bool has_changed_superblock() const { return has_changed_superblock_; }

 private:
  const format::LogRecord& pick(Input& input) { return pool_.records()[input.byte() % pool_.records().size()]; }

  void damage(Input& input) {
    switch (input.byte() % 12) {
      case 0:
      case 1:
        return change_record(input, false);
      case 2:
        return zero_from(input);
      case 3:
        return change_pages(input, input.byte());
      case 4:
        return move_record(input, false);
      case 5:
        return change_superblock(input);
      case 6:
        return move_record(input, true);
      default:
        return change_record(input, true);
    }
  }
  std::vector<u8> read_record(const format::LogRecord& record) {
    std::vector<u8> bytes(record.length);
    pool_.read_log(record.lsn, bytes.data(), bytes.size());
    return bytes;
  }
  void write_record(const format::LogRecord& at, std::vector<u8>& bytes, bool sealed) {
    if (sealed) {
      seal_record(bytes, pool_.superblock().log_seed);
      has_forged_ = true;
    }
    const u64 room = pool_.capacity() - at.lsn % pool_.capacity();
    pool_.write_log(at.lsn, bytes.data(), std::min<u64>(bytes.size(), room));
  }
  void change_record(Input& input, bool sealed) {
    const format::LogRecord& record = pick(input);
    std::vector<u8> bytes = read_record(record);
    // The code interprets the header and the extents.
    const u32 where = input.byte();
    if (where % 4 == 0) {
      change_bytes(input, bytes.data(), bytes.size());
    } else if (where % 4 == 1 && record.extent_count != 0 && bytes.size() > sizeof(format::LogRecord)) {
      const u64 tail = std::min<u64>(bytes.size() - sizeof(format::LogRecord), 64);
      change_bytes(input, bytes.data() + bytes.size() - tail, tail);
    } else {
      change_bytes(input, bytes.data(), sizeof(format::LogRecord));
    }
    write_record(record, bytes, sealed);
  }
  void zero_from(Input& input) {
    const format::LogRecord& record = pick(input);
    const u64 place = record.lsn % pool_.capacity();
    const std::vector<u8> zeros(std::min<u64>(input.half() + 1, pool_.capacity() - place));
    pool_.write_log(record.lsn, zeros.data(), zeros.size());
  }
  void change_pages(Input& input, u32 which) {
    const auto& pages = pool_.pages();
    if (pages.empty()) return;
    const LoggedPool::Pages& some = pages[which % pages.size()];
    std::vector<u8> bytes = some.bytes;
    change_bytes(input, bytes.data(), bytes.size());
    some.file->write(some.offset, bytes.data(), bytes.size());
  }
  // Moves one record to the place of another; records with recomputed checksums get its number.
  void move_record(Input& input, bool sealed) {
    std::vector<u8> bytes = read_record(pick(input));
    const format::LogRecord& to = pick(input);
    if (sealed) std::memcpy(bytes.data() + offsetof(format::LogRecord, lsn), &to.lsn, sizeof(to.lsn));
    write_record(to, bytes, sealed);
  }
  void change_superblock(Input& input) {
    const u32 what = input.byte() % 4;
    const u64 number = what == 0 ? pick(input).lsn : what < 3 ? input.odd_number() : 0;
    pool_.change_superblocks([&](format::Superblock& superblock) {
      switch (what) {
        case 0:
        case 1:
          superblock.log_start = number;
          break;
        case 2:
          superblock.log_seed ^= number;
          break;
        default:
          superblock.clean ^= 1;
          break;
      }
    });
    has_changed_superblock_ = true;
  }

  LoggedPool& pool_;
  bool has_forged_ = false;
  bool has_changed_superblock_ = false;
};

}  // namespace gpu4fs::fuzz
