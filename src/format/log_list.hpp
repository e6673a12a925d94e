// The records of the operation log. Everything that any layer knows of one kind is in one row. A record without a row
// is refused (docs/internals/format.md has the list for readers of the medium).
//
//   number    on the medium, ascending and never reused
//   name      LogOpcode
//   command   the command that replays it (wire/record_commands.hpp); noop if there is nothing to do
//   content   the meaning of the fields: a scan checks them by it (server/recovery/log_scan.cpp), and the command is
//             made by it (server/recovery/replay.cpp)
//   replays   how often it may be replayed
#pragma once

#include <cstdint>

#include "base/config.hpp"

namespace gpu4fs::format {

enum class LogContent : std::uint8_t {
  filler,      // nothing
  plain,       // the command's fields
  renaming,    // the command's fields; number: of the whiteout, if the mask requests one
  creation,    // number, mode, device; mask: the requested mode
  bytes,       // size: data_length
  extents,     // pages with content; offset, size
  unwritten,   // pages without content; offset, size, whole pages
  allocation,  // pages without content; offset, size, mode: FALLOC_FL_*, mask: LogAllocateMask
  size,        // size: of the file
  range,       // offset, size: the punched range
  attributes,  // data: AttributeRecord
  row,         // see log_format.hpp
};

enum class Replays : std::uint8_t {
  once,   // it counts as replayed with its commit
  twice,  // it may take several commits and be restarted, and counts as replayed when the next record begins
};

// "File" stands for the inode number in `inode`.
#define GPU4FS_LOG_LIST(X)                                                                                    \
  /* nothing */                                                                                               \
  X(1, filler, noop, filler, once)                                                                            \
  /* file `number` of type and permissions `mode` named in directory `inode`; device */                       \
  X(2, mknod, mknod, creation, once)                                                                          \
  /* as mknod */                                                                                              \
  X(3, mkdir, mkdir, creation, once)                                                                          \
  /* as mknod; data: target */                                                                                \
  X(4, symlink, symlink, creation, once)                                                                      \
  /* file `number` without a name, an orphan; made in directory `inode` */                                    \
  X(5, tmpfile, tmpfile, creation, once)                                                                      \
  /* `second_inode` gets a name in directory `inode` */                                                       \
  X(6, link, link, plain, once)                                                                               \
  /* the name in directory `inode` goes */                                                                    \
  X(7, unlink, unlink, plain, once)                                                                           \
  /* the same for an empty directory */                                                                       \
  X(8, rmdir, rmdir, plain, once)                                                                             \
  /* the name in directory `inode` becomes the second name in `second_inode`; mask: RENAME_*; number and   \
     size: of the whiteout that the first one names then, and its generation */  \
  X(9, rename, rename, renaming, once)                                                                        \
  /* data to byte `offset` of the file */                                                                     \
  X(10, write_bytes, write, bytes, twice)                                                                     \
  /* bytes [offset, offset + size) of the file lie in the extents, whole pages from that of `offset` on */    \
  X(11, write_extents, write, extents, once)                                                                  \
  /* the extents are unwritten blocks of the file, from the page of `offset` on */                            \
  X(12, allocate, fallocate, unwritten, once)                                                                 \
  /* the file has `size` bytes */                                                                             \
  X(13, set_size, truncate, size, twice)                                                                      \
  /* `size` bytes from `offset` on read as zeros; whole pages are a hole */                                   \
  X(14, zero_range, fallocate, range, twice)                                                                  \
  /* mask: SetAttributeMask; data: AttributeRecord */                                                         \
  X(15, set_inode, setattr, attributes, twice)                                                                \
  /* extended attribute: name, data: value; mask as in the command */                                         \
  X(16, set_attribute, set_attribute, plain, once)                                                            \
  /* extended attribute: name */                                                                              \
  X(17, remove_attribute, remove_attribute, plain, twice)                                                     \
  /* the orphan is free */                                                                                    \
  X(18, reclaim, reclaim, plain, twice)                                                                       \
  /* a row of pages with parities is written, see log_format.hpp */                                           \
  X(19, row, adopt_logged, row, once)                                                                         \
  /* mode: FALLOC_FL_* of bytes [offset, offset + size); mask: LogAllocateMask; the extents are unwritten   \
     blocks of the file, each from its page on */ \
  X(20, fallocate, fallocate, allocation, once)

enum class LogOpcode : std::uint16_t {
  none = 0,
#define GPU4FS_LOG_OPCODE(number, name, command, content, replays) name = number,
  GPU4FS_LOG_LIST(GPU4FS_LOG_OPCODE)
#undef GPU4FS_LOG_OPCODE
      count,  // one more than the last
};

struct LogRow {
  LogOpcode opcode;
  const char* name;
  LogContent content;
  Replays replays;
};

// For constants and for the host.
inline constexpr LogRow log_rows[] = {
#define GPU4FS_LOG_ROW(number, name, command, content, replays) \
  {LogOpcode::name, #name, LogContent::content, Replays::replays},
    GPU4FS_LOG_LIST(GPU4FS_LOG_ROW)
#undef GPU4FS_LOG_ROW
};

// Null: there is no such record.
constexpr const LogRow* find_log_row(LogOpcode opcode) {
  for (const LogRow& row : log_rows) {
    if (row.opcode == opcode) return &row;
  }
  return nullptr;
}

// In the mask of a rename: RENAME_WHITEOUT of Linux.
inline constexpr unsigned rename_whiteout = 4;

constexpr bool names_pages(LogContent content) {
  return content == LogContent::extents || content == LogContent::unwritten || content == LogContent::allocation;
}

using LogSet = std::uint64_t;  // bit n: the record of number n
static_assert(static_cast<unsigned>(LogOpcode::count) <= 64, "LogSet has too few bits");

template <class Predicate>
constexpr LogSet records_with(Predicate has_property) {
  LogSet set = 0;
  for (const LogRow& row : log_rows) {
    if (has_property(row)) set |= LogSet{1} << static_cast<unsigned>(row.opcode);
  }
  return set;
}

inline constexpr LogSet log_records = records_with([](const LogRow&) { return true; });
inline constexpr LogSet log_records_replayed_twice =
    records_with([](const LogRow& row) { return row.replays == Replays::twice; });

GPU4FS_FN constexpr bool is_in(LogSet set, LogOpcode opcode) {
  const unsigned number = static_cast<unsigned>(opcode);
  return number < 64 && (set >> number & 1) != 0;
}
GPU4FS_FN constexpr bool is_log_opcode(LogOpcode opcode) {
  return is_in(log_records, opcode);
}

namespace detail {

constexpr bool log_numbers_ascend() {
  unsigned last = 0;
  for (const LogRow& row : log_rows) {
    if (static_cast<unsigned>(row.opcode) <= last) return false;
    last = static_cast<unsigned>(row.opcode);
  }
  return true;
}

}  // namespace detail
static_assert(detail::log_numbers_ascend());

}  // namespace gpu4fs::format
