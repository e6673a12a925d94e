// Devices on top of devices: layers that watch, delay, damage or refuse accesses to a device. Host only.
//
// A memory device is a mapped region, so a stack cannot intercept loads and stores. The code that makes them announces
// them (device/device_access.hpp), and the stack changes the region as its layers require:
//
//   read    layers may fail it, then may change the bytes of the medium that are about to be read
//   write   layers may fail it. When the bytes are stored, they pass the layers from the top to the bottom. Each layer
//           passes on what it was given, or less, or something else, or to another place. Then the range gets its old
//           bytes back, and the bytes that arrived at the bottom are stored
//   flush   layers may fail it, and are told when it is done
//
// So `record` above `fault` records the intended writes, and below it the writes that reached the medium. Files that
// are read and written by calls (mkfs, opening a pool, fsck) pass the same layers with read() and write().
//
// Any threads may access it; ranges that are written at the same time must not overlap.
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

// Bytes that pass the layers to the medium.
struct StackWrite {
  u64 offset;
  std::vector<u8> bytes;
};

class StackLayer {
 public:
  virtual ~StackLayer() = default;
  // The device is open and has this size. Called once, before anything else.
  virtual void attach(u64 size_bytes) { (void)size_bytes; }
  // Whether the access may be tried; a status that is not ok is its answer.
  virtual Status may_read(u64 offset, u64 length) { return (void)offset, (void)length, Status::ok; }
  virtual Status may_write(u64 offset, u64 length) { return (void)offset, (void)length, Status::ok; }
  virtual Status may_flush() { return Status::ok; }
  virtual void flushed() {}
  // Changes the bytes that are about to be read. Returns true if it did.
  virtual bool read(u64 offset, std::span<u8> bytes) { return (void)offset, (void)bytes, false; }
  // A write that may_write() accepted will not be made.
  virtual void write_cancelled(u64 offset) { (void)offset; }
  // Replaces the writes from above by those that continue downwards.
  virtual void write(std::vector<StackWrite>& writes) { (void)writes; }
  // The page at `offset` of a scattered device was looked up.
  virtual void looked_up(u64 offset) { (void)offset; }
  // False: write() leaves everything unchanged.
  virtual bool changes_writes() const { return false; }
};

class DeviceStack {
 public:
  using Store = std::function<void(u64 offset, const u8* bytes, u64 length)>;

  // Top first.
  explicit DeviceStack(std::vector<std::unique_ptr<StackLayer>> layers);
  DeviceStack(const DeviceStack&) = delete;
  DeviceStack& operator=(const DeviceStack&) = delete;

  // The device's size, once it is known; always the same.
  void attach(u64 size_bytes);
  // The address of the device's bytes for later accesses; nullptr: none.
  void map(u8* base, bool writable);

  // For the mapped region; see device/device_access.hpp.
  Status begin_read(u64 offset, u64 length);
  Status begin_write(u64 offset, u64 length);
  void end_write(u64 offset, u64 length);
  // Instead of end_write(), also if no write had begun: the stored bytes stay, unseen by the layers.
  void cancel_write(u64 offset);
  void note_look_up(u64 offset);

  // For a file: read() is called after `bytes` were read and may change them; write() calls `store` for the bytes that
  // reach the medium.
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
  std::mutex mutex_;  // protects everything below
  u8* base_ = nullptr;
  bool writable_ = false;
  std::map<u64, std::vector<u8>> old_bytes_;  // of writes in progress, by offset
};

}  // namespace gpu4fs::device
