// The states in which a crash can leave a pool's devices, from the recorded writes and flushes of a run
// (device/stack/record_layer.hpp): the medium after a prefix of the writes; or without some of the writes that no
// completed flush of their device covers, with the last one torn.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/stack/write_log.hpp"
#include "growth/growing_pool.hpp"
#include "pool/pool_device_file.hpp"
#include "support/file_mapping.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {

using GrowthImage = std::vector<u8>;

class GrowthCrashStates {
 public:
  // `looks(mark)`: whether states after a mark are tested; `every`: one of how many writes.
  struct Pace {
    std::function<u64(u64 mark)> every;  // 0: none
    u64 goes_on_every = 12;
  };

  GrowthCrashStates(std::vector<std::string> paths, std::string log_path, u64 size_bytes)
      : paths_(std::move(paths)), log_path_(std::move(log_path)), device_bytes_(size_bytes) {}

  std::string recorded(u32 device) const { return "record=" + log_path_ + ":" + paths_[device]; }
  // Before the recorded run.
  void remember_base() {
    for (u32 i = 0; i < paths_.size(); ++i) base_.push_back(read_device(i));
  }
  // Writes the state to the files.
  void put(const std::vector<GrowthImage>& images) {
    for (u32 i = 0; i < images.size(); ++i) {
      if (i == files_.size()) files_.push_back(std::make_unique<FileMapping>(paths_[i], images[i].size()));
      files_[i]->put(0, images[i].data(), images[i].size());
    }
  }

  // visit(images, mark, goes_on): goes_on for some of them, which are mounted as well. Ends at a fatal failure.
  template <class Visit>
  void for_each(const Pace& pace, Visit&& visit) {
    const std::vector<device::WriteLogEntry> entries = read_log();
    std::vector<GrowthImage> images = base_;   // after all writes so far
    std::vector<GrowthImage> durable = base_;  // those that a completed flush covers
    std::vector<GrowthImage> state;            // memory that is used again
    std::vector<const device::WriteLogEntry*> loose;
    std::vector<u64> begun(paths_.size());
    Sequence random(17);
    u64 mark = 0;
    u64 writes = 0;
    for (const device::WriteLogEntry& entry : entries) {
      if (entry.kind == device::WriteLogKind::mark) mark = entry.offset;
      if (entry.kind == device::WriteLogKind::flush_begin) begun[entry.device] = entry.sequence;
      if (entry.kind == device::WriteLogKind::flush_end) end_flush(entry, begun[entry.device], loose, durable);
      if (entry.kind != device::WriteLogKind::write) continue;
      const u64 every = pace.every(mark);
      const bool is_looked_at = every != 0 && writes++ % every == 0;
      if (is_looked_at && random.next() % 3 == 0) {
        state = durable;
        for (const device::WriteLogEntry* one : loose) {
          if (random.next() % 2 == 0) apply(state, *one, one->bytes.size());
        }
        apply(state, entry, entry.bytes.size() / 2);
        ++count_;
        ASSERT_NO_FATAL_FAILURE(visit(state, mark, random.next() % (pace.goes_on_every * 2 / 3) == 0))
            << "loose, entry " << entry.sequence;
      }
      apply(images, entry, entry.bytes.size());
      loose.push_back(&entry);
      if (!is_looked_at) continue;
      ++count_;
      ASSERT_NO_FATAL_FAILURE(visit(images, mark, random.next() % pace.goes_on_every == 0))
          << "entry " << entry.sequence;
    }
    ++count_;
    visit(images, mark, true);
    std::printf("%llu states\n", static_cast<unsigned long long>(count_));
  }

 private:
  // Devices as in `paths`. The log numbers them in the order in which they were opened, which varies.
  std::vector<device::WriteLogEntry> read_log() const {
    std::vector<device::WriteLogEntry> entries = device::read_write_log(log_path_);
    std::vector<u32> numbers;
    for (device::WriteLogEntry& entry : entries) {
      if (entry.kind == device::WriteLogKind::device) {
        const std::string path(entry.bytes.begin(), entry.bytes.end());
        const auto found = std::find(paths_.begin(), paths_.end(), path);
        if (found == paths_.end()) throw std::runtime_error(path + ": unknown device in the log");
        numbers.push_back(static_cast<u32>(found - paths_.begin()));
      } else if (entry.kind != device::WriteLogKind::mark) {
        entry.device = numbers.at(entry.device);
      }
    }
    return entries;
  }
  GrowthImage read_device(u32 device) const {
    GrowthImage image(device_bytes_);
    pool::DeviceFile::open(paths_[device], pool::DeviceFile::Access::read_only, pool::DeviceFile::Locking::none)
        .read_at(0, image.data(), image.size());
    return image;
  }
  static void apply(std::vector<GrowthImage>& images, const device::WriteLogEntry& entry, u64 length) {
    std::memcpy(images[entry.device].data() + entry.offset, entry.bytes.data(), length);
  }
  static void end_flush(const device::WriteLogEntry& entry, u64 begun, std::vector<const device::WriteLogEntry*>& loose,
                        std::vector<GrowthImage>& durable) {
    std::vector<const device::WriteLogEntry*> left;
    for (const device::WriteLogEntry* one : loose) {
      if (one->device == entry.device && one->sequence < begun) {
        apply(durable, *one, one->bytes.size());
      } else {
        left.push_back(one);
      }
    }
    loose = left;
  }

  std::vector<std::string> paths_;
  std::string log_path_;
  u64 device_bytes_;
  std::vector<std::unique_ptr<FileMapping>> files_;
  std::vector<GrowthImage> base_;
  u64 count_ = 0;
};

}  // namespace gpu4fs::test
