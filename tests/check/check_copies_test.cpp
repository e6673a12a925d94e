// Checking pools with copies: which copy of a header area counts.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "format/chunk_format.hpp"
#include "server/check/check_pool.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
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
  op.opcode = format::Opcode::create;
  op.inode = format::inode_number_root;
  op.name = name;
  op.mode = 0644;
  op.mask = 0200;
  const client::Reply created = client.call(op);
  ASSERT_EQ(created.status, Status::ok);
  std::vector<u8> bytes(length);
  fill_random(bytes.data(), bytes.size(), seed);
  op = {};
  op.opcode = format::Opcode::write;
  op.inode = created.result;
  op.length = length;
  ASSERT_EQ(client.call(op, bytes).status, Status::ok);
}

// The header areas of one device are those of an earlier checkpoint, as if its writes to them had been lost.
void put_back_header_areas(const TestPool& pool, u32 device, const std::vector<char>& before) {
  server::OpenPoolOptions open;
  open.device_paths = pool.device_paths();
  open.read_only = true;
  const server::OpenedPool opened = server::open_pool(open);
  std::fstream file(pool.device_paths()[device], std::ios::in | std::ios::out | std::ios::binary);
  u32 areas = 0;
  for (const server::OpenedChunk& chunk : opened.chunks) {
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

  for (const server::CheckEngine engine : {server::CheckEngine::none, server::CheckEngine::cpu}) {
    server::CheckOptions check;
    check.device_paths = pool.device_paths();
    check.engine = engine;
    check.worker_count = 2;
    const server::CheckResult result = server::check_pool(check);
    const u64 older = result.findings.count(server::FindingId::header_copy_damaged);
    EXPECT_GT(older, 0u);
    EXPECT_EQ(result.findings.kept().size(), older) << findings_text(result);
  }
  pool.mount();
  pool.unmount();
  EXPECT_EQ(pool.check().findings.kept().size(), 0u) << findings_text(pool.check());
}

INSTANTIATE_TEST_SUITE_P(Devices, CheckCopies, ::testing::Values(0u, 1u));

}  // namespace
}  // namespace gpu4fs::test::check_copies_test
