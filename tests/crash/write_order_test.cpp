// The order of writes and flushes of a served pool at its devices: everything that a superblock names was flushed
// before the superblock is written, and everything acknowledged was flushed before the answer.
// tests/crash/explore_test.cpp looks for crash states that follow from a wrong order; this test examines the order
// itself, in the log of the devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "device/stack/write_log.hpp"
#include "fmt/format.h"
#include "growth/growing_pool.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::write_order_test {
namespace {

using device::WriteLogEntry;
using device::WriteLogKind;

bool is_superblock(const WriteLogEntry& entry) {
  return entry.offset == format::superblock_offset_a || entry.offset == format::superblock_offset_b;
}

constexpr u64 none = ~u64{0};

// Violations of the order, one line each, if the entry `left_out` had not existed. At a mark everything has been
// acknowledged, and no work is in progress.
std::vector<std::string> find_problems(const std::vector<WriteLogEntry>& entries, u64 left_out = none) {
  std::vector<std::string> problems;
  std::vector<const WriteLogEntry*> unflushed;
  std::map<u32, u64> flush_begin;
  for (const WriteLogEntry& entry : entries) {
    if (entry.sequence == left_out) continue;
    const auto complain = [&](const char* what, const WriteLogEntry& about) {
      problems.push_back(fmt::format("{} at {}: write {} of device {} at {:#x}", what, entry.sequence, about.sequence,
                                     about.device, about.offset));
    };
    if (entry.kind == WriteLogKind::flush_begin) flush_begin[entry.device] = entry.sequence;
    if (entry.kind == WriteLogKind::flush_end) {
      std::erase_if(unflushed, [&](const WriteLogEntry* write) {
        return write->device == entry.device && write->sequence < flush_begin[entry.device];
      });
    }
    if (entry.kind == WriteLogKind::mark) {
      for (const WriteLogEntry* write : unflushed) complain("acknowledged", *write);
    }
    if (entry.kind != WriteLogKind::write) continue;
    for (const WriteLogEntry* write : unflushed) {
      // Superblocks of one epoch are written to all devices without a flush in between.
      const bool is_same = is_superblock(*write) && write->device != entry.device && write->offset == entry.offset;
      if (is_superblock(entry) && !is_same) complain("superblock", *write);
    }
    unflushed.push_back(&entry);
  }
  return problems;
}

class WriteOrder : public ::testing::Test {
 protected:
  WriteOrder() {
    pool::MakePoolOptions make;
    make.device_paths = {folder_ / "a", folder_ / "b"};
    make.size_bytes = u64{48} << 20;
    make.chunk_size_bytes = u64{8} << 20;
    pool::make_pool(make);
    for (const std::string& path : make.device_paths) recorded_.push_back(fmt::format("record={}:{}", log_path_, path));
  }

  // Mounts, syncs, checkpoints and unmounts, with a mark after each answer.
  std::vector<WriteLogEntry> work() {
    GrowthMount mount(recorded_);
    const std::shared_ptr<device::WriteLog> log = device::open_write_log(log_path_);
    const auto sync = [&] {
      EXPECT_EQ(mount.files().simple(wire::Opcode::sync).status, Status::ok);
      log->mark(++marks_);
    };
    const u64 file = make_file(mount.files(), "file");
    sync();
    for (u64 round = 0; round < 3; ++round) {
      EXPECT_EQ(write_block(mount.files(), file, round, round + 1), Status::ok);
      sync();
      EXPECT_EQ(write_block(mount.files(), file, 0, round + 10), Status::ok);
      const auto session = mount.server().open_internal_session(page_size);
      wire::Command command{};
      command.opcode = wire::Opcode::checkpoint;
      EXPECT_EQ(session->call(command).status, Status::ok);
      log->mark(++marks_);
    }
    EXPECT_TRUE(mount.stop());
    log->mark(++marks_);
    return device::read_write_log(log_path_);
  }

  GrowthFolder folder_;
  const std::string log_path_ = folder_ / "writes";
  std::vector<std::string> recorded_;
  u64 marks_ = 0;
};

TEST_F(WriteOrder, WhatIsNamedOrAcknowledgedWasFlushed) {
  const std::vector<WriteLogEntry> entries = work();
  for (const std::string& problem : find_problems(entries)) ADD_FAILURE() << problem;
  const auto superblocks = std::count_if(entries.begin(), entries.end(), [](const WriteLogEntry& entry) {
    return entry.kind == WriteLogKind::write && is_superblock(entry);
  });
  EXPECT_GE(superblocks, 2 * 5) << "the mount's, three checkpoints, the last one, on two devices";
}

// If any flush before other entries is left out, the order is wrong.
TEST_F(WriteOrder, AForgottenFlushIsNoticed) {
  const std::vector<WriteLogEntry> entries = work();
  u32 flushes = 0;
  u32 noticed = 0;
  for (const WriteLogEntry& entry : entries) {
    if (entry.kind != WriteLogKind::flush_end) continue;
    ++flushes;
    if (!find_problems(entries, entry.sequence).empty()) ++noticed;
  }
  EXPECT_GE(flushes, 16u);
  // A flush of a device without writes since its last flush may be left out.
  EXPECT_GE(noticed, flushes / 2);
}

}  // namespace
}  // namespace gpu4fs::test::write_order_test
