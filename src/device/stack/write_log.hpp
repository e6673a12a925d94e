// The writes and flushes of devices in the order in which they happened. Host only.
//
// A log has one order over all its devices. A write is entered when its bytes are stored. A flush has two entries: the
// writes before `flush_begin` are durable after `flush_end`. `mark` is for observers of the log: it marks the place of
// an external event, for example an acknowledged fsync.
//
// As a file (version 1, little endian): a header of 16 bytes, then entries, each a header of 48
// bytes and its bytes padded with zeros to a multiple of 8.
//
//   header   0  u64  magic "g4fswlog"
//            8  u32  version, 1
//           12  u32  0
//   entry    0  u64  sequence number, from 0
//            8  u32  kind (WriteLogKind)
//           12  u32  device, in order of the `device` entries, from 0
//           16  u64  write: device offset; device: size; mark: its value; else 0
//           24  u64  number of bytes behind the header
//           32  u64  XXH3-64 of the bytes
//           40  u64  XXH3-64 of this header's first 40 bytes
//
// A process that ends suddenly leaves an incomplete last entry, which readers skip.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::device {

enum class WriteLogKind : u32 {
  device = 1,  // bytes: its path
  write = 2,
  flush_begin = 3,
  flush_end = 4,
  mark = 5,
};

struct WriteLogEntry {
  u64 sequence;
  WriteLogKind kind;
  u32 device;
  u64 offset;
  std::vector<u8> bytes;
};

// Any thread.
class WriteLog {
 public:
  virtual ~WriteLog() = default;
  // The number of the device in this log.
  u32 add_device(const std::string& path, u64 size_bytes);
  void add(WriteLogKind kind, u32 device, u64 offset, const u8* bytes, u64 length);
  void mark(u64 value) { add(WriteLogKind::mark, 0, value, nullptr, 0); }
  // True as soon as an entry could not be kept.
  bool has_failed() const;

 protected:
  // One at a time. False: not kept.
  virtual bool keep(WriteLogEntry entry) = 0;

 private:
  void add_locked(WriteLogKind kind, u32 device, u64 offset, const u8* bytes, u64 length);

  mutable std::mutex mutex_;
  u64 next_sequence_ = 0;
  u32 device_count_ = 0;
  bool failed_ = false;
};

class MemoryWriteLog : public WriteLog {
 public:
  // While no thread adds entries.
  const std::vector<WriteLogEntry>& entries() const { return entries_; }

 protected:
  bool keep(WriteLogEntry entry) override;

 private:
  std::vector<WriteLogEntry> entries_;
};

// The log at `path`: one object in this process for each file, so devices that name the same file have one order. The
// file is truncated by the first entry. A file that is neither empty nor such a log is left alone: DeviceError, at
// once.
std::shared_ptr<WriteLog> open_write_log(const std::string& path);

// All complete entries of a log. DeviceError if it cannot be read, is not a log or has another version.
std::vector<WriteLogEntry> read_write_log(const std::string& path);

}  // namespace gpu4fs::device
