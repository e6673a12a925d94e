// Parts of the log on their way to devices: what is announced and written. On a Lane and an emulated warp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "device/memory/mapped_file.hpp"
#include "device/stack/device_stack.hpp"
#include "device/stack/fault_layer.hpp"
#include "fs/journal/operation_log.hpp"
#include "support/group_runner.hpp"
#include "support/on_all_groups.hpp"

namespace gpu4fs::fs {
namespace {

using test::on_all_groups;

constexpr u64 ring_bytes = 4 * page_size;
constexpr u64 log_device_bytes = 16 * page_size;
constexpr u64 log_offset[] = {4 * page_size, 7 * page_size};

struct LogWrite {
  u32 device;
  u64 offset;
  u64 length;
  bool operator==(const LogWrite&) const = default;
};

class LogListener : public device::StackLayer {
 public:
  LogListener(std::vector<LogWrite>& heard, u32 device) : heard_(heard), device_(device) {}
  void write(std::vector<device::StackWrite>& writes) override {
    for (const device::StackWrite& write : writes) heard_.push_back({device_, write.offset, write.bytes.size()});
  }

 private:
  std::vector<LogWrite>& heard_;
  u32 device_;
};

// A log on two devices; one of them may have faults.
class LogOnDevices {
 public:
  explicit LogOnDevices(const char* faults = nullptr) : ring_(ring_bytes) {
    for (u32 d = 0; d < 2; ++d) {
      std::vector<std::unique_ptr<device::StackLayer>> layers;
      layers.push_back(std::make_unique<LogListener>(heard, d));
      if (d == 0 && faults != nullptr) {
        layers.push_back(std::make_unique<device::FaultLayer>(device::parse_fault_rules(faults)));
      }
      stacks_.push_back(std::make_shared<device::DeviceStack>(std::move(layers)));
      files_.push_back(device::MappedFile::anonymous(log_device_bytes, stacks_.back()));
      devices_.push_back(files_.back().device(d));
      superblocks_[d].device.log_offset = log_offset[d];
    }
    test::fill_random(ring_.data(), ring_bytes, 5);
    fs = std::make_unique<FileSystem>();
    std::memset(static_cast<void*>(fs.get()), 0, sizeof(*fs));
    fs->superblocks = superblocks_;
    fs->space.devices = devices_.data();
    fs->space.device_count = 2;
    fs->space.stacked = 1;
    fs->log.ring = ring_.data();
    fs->log.capacity = ring_bytes;
    fs->log.device_count = 2;
  }

  // The content of the devices if [from, to) of the log was written to `device`, and nothing else.
  std::vector<u8> expected(u32 device, u64 from, u64 to) const {
    std::vector<u8> bytes(log_device_bytes);
    for (u64 at = from; at < to; ++at) bytes[log_offset[device] + at % ring_bytes] = ring_[at % ring_bytes];
    return bytes;
  }
  std::vector<u8> content(u32 device) const {
    return {files_[device].base(), files_[device].base() + log_device_bytes};
  }
  void clear() {
    heard.clear();
    for (const device::MappedFile& file : files_) std::memset(file.base(), 0, log_device_bytes);
  }

  std::unique_ptr<FileSystem> fs;
  std::vector<LogWrite> heard;

 private:
  std::vector<u8> ring_;
  std::vector<std::shared_ptr<device::DeviceStack>> stacks_;
  std::vector<device::MappedFile> files_;
  std::vector<device::Device> devices_;
  format::Superblock superblocks_[2] = {};
};

TEST(LogTransfer, WritesExactlyThePart) {
  struct Part {
    u64 from;
    u64 to;
  };
  const Part parts[] = {
      {0, 64}, {192, 256}, {4032, 4160}, {64, 3 * page_size + 64}, {5 * ring_bytes + 128, 5 * ring_bytes + 192}};
  for (const Part& part : parts) {
    LogOnDevices log;
    on_all_groups([&](auto g) {
      on_leader(g, [&] { log.clear(); });
      EXPECT_EQ(write_log(g, *log.fs, part.from, part.to), Status::ok);
      on_leader(g, [&] {
        const u64 length = part.to - part.from;
        const std::vector<LogWrite> heard = {{0, log_offset[0] + part.from % ring_bytes, length},
                                             {1, log_offset[1] + part.from % ring_bytes, length}};
        EXPECT_EQ(log.heard, heard);
        for (u32 d = 0; d < 2; ++d) EXPECT_EQ(log.content(d), log.expected(d, part.from, part.to));
      });
    });
  }
}

TEST(LogTransfer, APartAcrossTheEndOfTheRingIsTwo) {
  LogOnDevices log;
  const u64 from = 3 * ring_bytes - 192;
  const u64 to = 3 * ring_bytes + 128;
  on_all_groups([&](auto g) {
    on_leader(g, [&] { log.clear(); });
    EXPECT_EQ(write_log(g, *log.fs, from, to), Status::ok);
    on_leader(g, [&] {
      const std::vector<LogWrite> heard = {{0, log_offset[0] + ring_bytes - 192, 192},
                                           {0, log_offset[0], 128},
                                           {1, log_offset[1] + ring_bytes - 192, 192},
                                           {1, log_offset[1], 128}};
      EXPECT_EQ(log.heard, heard);
      for (u32 d = 0; d < 2; ++d) EXPECT_EQ(log.content(d), log.expected(d, from, to));
    });
  });
}

TEST(LogTransfer, ARefusedPartIsAnError) {
  LogOnDevices log("write-error=1");
  on_all_groups([&](auto g) { EXPECT_EQ(write_log(g, *log.fs, 64, 128), Status::device_failed); });
  EXPECT_TRUE(log.heard.empty());
  EXPECT_EQ(log.content(0), std::vector<u8>(log_device_bytes));
}

}  // namespace
}  // namespace gpu4fs::fs
