// Devices on top of devices: layers that watch, delay, damage or refuse what goes to a device. Host
// only.
//
// A memory device is a mapped region, so a stack does not stand in the way of loads and stores;
// those who make them announce them (device/device_access.hpp), and the stack makes the region look
// as its layers want it:
//
//   read    layers may fail it, then may change the bytes of the medium that are about to be read
//   write   layers may fail it. When the bytes are stored, they pass the layers from the top to the bottom, each of
//           which hands on what it was given, or less, or something else, or elsewhere. Then the range gets its old
//           bytes back and what arrived at the bottom is stored
//   flush   layers may fail it, and are told when it is done
//
// So `record` above `fault` records what was meant, below it what reached the medium. Files that
// are read and written by calls (mkfs, opening a pool, fsck) take the same way with read() and
// write().
//
// Accesses of any threads; ranges that are being written at one time do not overlap.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "base/types.hpp"
#include "device/device_types.hpp"

namespace gpu4fs::device {

// Bytes on their way to the medium.
struct StackWrite {
  u64 offset;
  std::vector<u8> bytes;
};

class StackLayer {
 public:
  virtual ~StackLayer() = default;
  // The device is open: its size. Once, before anything else.
  virtual void attach(u64 size_bytes) { (void)size_bytes; }
  // Whether the access may be tried; not ok is what it answers.
  virtual Status may_read(u64 offset, u64 length) { return (void)offset, (void)length, Status::ok; }
  virtual Status may_write(u64 offset, u64 length) { return (void)offset, (void)length, Status::ok; }
  virtual Status may_flush() { return Status::ok; }
  virtual void flushed() {}
  // Changes the bytes that are about to be read; true: it did.
  virtual bool read(u64 offset, std::span<u8> bytes) { return (void)offset, (void)bytes, false; }
  // Takes what comes from above, leaves what goes on.
  virtual void write(std::vector<StackWrite>& writes) { (void)writes; }
  // False: write() leaves everything as it is.
  virtual bool changes_writes() const { return false; }
};

class DeviceStack {
 public:
  using Store = std::function<void(u64 offset, const u8* bytes, u64 length)>;

  // Top first.
  explicit DeviceStack(std::vector<std::unique_ptr<StackLayer>> layers);
  DeviceStack(const DeviceStack&) = delete;
  DeviceStack& operator=(const DeviceStack&) = delete;

  // The device's size, once it is known; the same each time.
  void attach(u64 size_bytes);
  // Where the device's bytes stand in memory for the following accesses; nullptr: nowhere any more.
  void map(u8* base, bool writable);

  // Of the mapped region; see device/device_access.hpp.
  Status begin_read(u64 offset, u64 length);
  Status begin_write(u64 offset, u64 length);
  void end_write(u64 offset, u64 length);
  // In place of end_write(), also where no write had begun: what was stored stays, unseen by the layers.
  void cancel_write(u64 offset);

  // Of a file: read() when `bytes` were read, which it may change; write() calls `store` for what
  // reaches the medium.
  Status read(u64 offset, u8* bytes, u64 length);
  Status write(u64 offset, const u8* bytes, u64 length, const Store& store);

  // Around each flush of the medium.
  Status begin_flush();
  void end_flush();

 private:
  Status may_write(u64 offset, u64 length);
  std::vector<StackWrite> pass(u64 offset, const u8* bytes, u64 length);

  std::vector<std::unique_ptr<StackLayer>> layers_;
  bool changes_writes_ = false;
  u64 size_bytes_ = 0;
  std::mutex mutex_;  // below
  u8* base_ = nullptr;
  bool writable_ = false;
  std::map<u64, std::vector<u8>> old_bytes_;  // of the writes that have begun, by offset
};

}  // namespace gpu4fs::device
