// Checks of pools with copies: which copy of a header area is used.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "format/chunk_format.hpp"
#include "fsck/check/check_pool.hpp"
#include "fsck/repair/repair_pool.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/header_image.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::check_copies_test {
namespace {

std::vector<char> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(TestPool& pool, const std::string& name, u64 length, u64 seed) {
  const auto session = pool.open_session();
  FileClient client(*session);
  FileOperation op;
  op.opcode = wire::Opcode::create;
  op.inode = format::inode_number_root;
  op.name = name;
  op.mode = 0644;
  op.mask = 0200;
  const client::Reply created = client.call(op);
  ASSERT_EQ(created.status, Status::ok);
  std::vector<u8> bytes(length);
  fill_random(bytes.data(), bytes.size(), seed);
  op = {};
  op.opcode = wire::Opcode::write;
  op.inode = created.result;
  op.length = length;
  ASSERT_EQ(client.call(op, bytes).status, Status::ok);
}

// Restores the header areas of one device from an earlier checkpoint, as if later writes to them had been lost.
void put_back_header_areas(const TestPool& pool, u32 device, const std::vector<char>& before) {
  pool::OpenPoolOptions open;
  open.device_paths = pool.device_paths();
  open.read_only = true;
  const pool::OpenedPool opened = pool::open_pool(open);
  std::fstream file(pool.device_paths()[device], std::ios::in | std::ios::out | std::ios::binary);
  u32 areas = 0;
  for (const pool::OpenedChunk& chunk : opened.chunks) {
    for (u32 column = 0; column <= chunk.descriptor.redundancy; ++column) {
      if (chunk.columns[column].device_index() != device) continue;
      const u64 at = chunk.columns[column].offset_bytes();
      const u64 length = format::chunk_layout(chunk.descriptor.size_bytes / page_size).header_pages * page_size;
      file.seekp(static_cast<std::streamoff>(at));
      file.write(before.data() + at, static_cast<std::streamsize>(length));
      ++areas;
    }
  }
  ASSERT_GT(areas, 0u);
  ASSERT_TRUE(file.good());
}

class CheckCopies : public ::testing::TestWithParam<u32> {};

TEST_P(CheckCopies, TheNewestHeaderAreaCounts) {
  const u32 device = GetParam();
  TestPoolOptions options;
  options.profile = "raid1";
  TestPool pool(options);
  write_file(pool, "first", 300'000, 1);
  pool.unmount();
  const std::vector<char> before = bytes_of(pool.device_paths()[device]);
  pool.mount();
  write_file(pool, "second", 500'000, 2);
  pool.unmount();
  ASSERT_EQ(pool.check().findings.kept().size(), 0u);
  put_back_header_areas(pool, device, before);

  for (const fsck::CheckEngine engine : {fsck::CheckEngine::none, fsck::CheckEngine::cpu}) {
    fsck::CheckOptions check;
    check.device_paths = pool.device_paths();
    check.engine = engine;
    check.worker_count = 2;
    const fsck::CheckResult result = fsck::check_pool(check);
    const u64 older = result.findings.count(fsck::FindingId::header_copy_damaged);
    EXPECT_GT(older, 0u);
    EXPECT_EQ(result.findings.kept().size(), older) << findings_text(result);
  }
  pool.mount();
  pool.unmount();
  EXPECT_EQ(pool.check().findings.kept().size(), 0u) << findings_text(pool.check());
}

// Damage to each part of the header area of a chunk in use, in one column: every checker finds it, and it is repaired
// without a mount.
TEST_P(CheckCopies, EveryPartOfAHeaderAreaIsVerifiedAndRepaired) {
  const u32 device = GetParam();
  TestPoolOptions options;
  options.profile = "raid1";
  TestPool pool(options);
  write_file(pool, "file", 300'000, 1);
  pool.unmount();
  const std::string path = pool.device_paths()[device];
  const std::vector<char> before[] = {bytes_of(pool.device_paths()[0]), bytes_of(pool.device_paths()[1])};
  const std::vector<char>& whole = before[device];
  std::vector<char> bytes = whole;
  pool::OpenPoolOptions open;
  open.device_paths = pool.device_paths();
  open.read_only = true;
  const pool::OpenedChunk chunk = pool::open_pool(open).chunks.front();
  const u32 column = chunk.columns[0].device_index() == device ? 0 : 1;
  const HeaderImage area({[&](u64 offset, void* to, u64 length) { std::memcpy(to, &bytes[offset], length); },
                          [&](u64 offset, const void* from, u64 length) { std::memcpy(&bytes[offset], from, length); }},
                         chunk.columns[column].offset_bytes(), chunk.descriptor.base_address,
                         chunk.descriptor.size_bytes / page_size);
  const u64 slot = area.slot_page(area.slot());
  for (const u64 page : {slot, slot + 1, area.table_page(), area.descriptor_page(0)}) {
    SCOPED_TRACE("page " + std::to_string(page));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(area.offset_of(page) + 30));
    file.put(static_cast<char>(~whole[area.offset_of(page) + 30]));
    file.close();
    for (const fsck::CheckEngine engine : {fsck::CheckEngine::none, fsck::CheckEngine::cpu}) {
      fsck::CheckOptions check;
      check.device_paths = pool.device_paths();
      check.engine = engine;
      check.worker_count = 2;
      const fsck::CheckResult result = fsck::check_pool(check);
      EXPECT_EQ(result.findings.count(fsck::FindingId::header_copy_damaged), 1u) << findings_text(result);
      EXPECT_EQ(result.findings.kept().size(), 1u) << findings_text(result);
    }
    fsck::RepairOptions repair;
    repair.device_paths = pool.device_paths();
    EXPECT_GT(fsck::repair_pool(repair).repair_count, 0u);
    EXPECT_EQ(pool.check().findings.kept().size(), 0u) << findings_text(pool.check());
    for (u32 i = 0; i < 2; ++i) {
      std::ofstream back(pool.device_paths()[i], std::ios::binary | std::ios::in);
      back.write(before[i].data(), static_cast<std::streamsize>(before[i].size()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CheckCopies, ::testing::Values(0u, 1u));

}  // namespace
}  // namespace gpu4fs::test::check_copies_test
