// The possible contents of an image's devices after a crash, while a log of writes and flushes is followed.
//
// The writes before the last flush that has ended are on the medium. Of the later ones, the volatile ones, any part may
// be. Variant 0 has all of them, variant 1 none. Variants from 2 on are random: subsets, all but one, only one, single
// ones torn at 512 or 16 bytes, other orders.
#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "crash/crash_image.hpp"
#include "device/stack/write_log.hpp"
#include "fmt/format.h"
#include "support/group_runner.hpp"

namespace gpu4fs::test {

class CrashMedium {
 public:
  // Both outlive it. The image holds the content of the devices before the first entry.
  CrashMedium(CrashImage& image, const std::vector<device::WriteLogEntry>& entries)
      : image_(image), entries_(entries) {}

  // The entry at `index` has happened. `forgets_flush`: if it ends a flush, the flush has no effect.
  void follow(u64 index, bool forgets_flush = false) {
    const device::WriteLogEntry& entry = entries_[index];
    switch (entry.kind) {
      case device::WriteLogKind::write:
        volatile_.push_back(index);
        break;
      case device::WriteLogKind::flush_begin:
        flush_begin_[entry.device] = index;
        break;
      case device::WriteLogKind::flush_end:
        if (!forgets_flush) make_durable(entry.device, flush_begin_[entry.device]);
        break;
      default:
        break;
    }
  }

  bool has_volatile() const { return !volatile_.empty(); }

  // Stores the state in the image; equal arguments give equal states.
  void build(u64 seed, u64 variant) {
    image_.reset();
    // All writes to a device are announced, so all changes that must be undone are known.
    if (++builds_ % 64 == 0 && !image_.is_pristine()) throw std::runtime_error("a write that was not announced");
    if (variant == 1) return;
    Sequence random(seed);
    std::vector<u64> order = volatile_;
    const u64 mode = variant == 0 ? 0 : 1 + random.next() % 6;
    const u64 single = order.empty() ? 0 : random.next() % order.size();
    const u64 percent = 10 + 40 * (random.next() % 3);
    if (mode == 6) {
      for (u64 i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
    }
    for (u64 i = 0; i < order.size(); ++i) {
      const device::WriteLogEntry& write = entries_[order[i]];
      const bool torn = (mode == 4 || mode == 5) && i == single;
      if (torn) {
        put_torn(random, write, mode == 4 ? 512 : 16);
        continue;
      }
      const bool stored = mode == 0 || (mode == 2 && i != single) || (mode == 3 && i == single) ||
                          ((mode == 1 || mode >= 4) && random.next() % 100 < percent);
      if (stored) image_.write(write.device, write.offset, write.bytes.data(), write.bytes.size());
    }
  }

  std::string volatile_text() const {
    std::string text = "\nwrites not flushed:";
    for (const u64 index : volatile_) {
      const device::WriteLogEntry& write = entries_[index];
      text += fmt::format("\n  {}: device {} offset {:#x}, {} bytes", index, write.device, write.offset,
                          write.bytes.size());
    }
    return text;
  }

 private:
  void make_durable(u32 device, u64 before) {
    std::vector<u64> left;
    for (const u64 index : volatile_) {
      const device::WriteLogEntry& write = entries_[index];
      if (write.device != device || index > before) {
        left.push_back(index);
      } else {
        image_.write_pristine(device, write.offset, write.bytes.data(), write.bytes.size());
      }
    }
    volatile_ = std::move(left);
  }

  void put_torn(Sequence& random, const device::WriteLogEntry& write, u64 granule) {
    const u64 mode = random.next() % 3;
    const u64 count = (write.bytes.size() + granule - 1) / granule;
    const u64 cut = random.next() % (count + 1);
    for (u64 i = 0; i < count; ++i) {
      const bool stored = mode == 0 ? i < cut : mode == 1 ? i >= cut : random.next() % 2 == 0;
      const u64 length = std::min(granule, write.bytes.size() - i * granule);
      if (stored) image_.write(write.device, write.offset + i * granule, write.bytes.data() + i * granule, length);
    }
  }

  CrashImage& image_;
  const std::vector<device::WriteLogEntry>& entries_;
  std::vector<u64> volatile_;       // indices of entries
  std::map<u32, u64> flush_begin_;  // by device
  u64 builds_ = 0;
};

// A log numbers devices in the order of their appearance, and their names contain their index; here they get this
// index.
inline void number_devices(std::vector<device::WriteLogEntry>& entries) {
  std::map<u32, u32> index_of;
  for (device::WriteLogEntry& entry : entries) {
    if (entry.kind == device::WriteLogKind::device) {
      index_of[entry.device] = static_cast<u32>(std::stoul(std::string(entry.bytes.begin(), entry.bytes.end())));
    }
    if (entry.kind != device::WriteLogKind::mark) entry.device = index_of.at(entry.device);
  }
}

}  // namespace gpu4fs::test
