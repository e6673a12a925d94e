// The space that statfs reports as available can be stored in a file, by small writes and by large ones, and little
// more than that.
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "fmt/format.h"
#include "support/file_client.hpp"
#include "support/test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::statfs_promise_test {
namespace {

using wire::Opcode;

struct Case {
  const char* profile;
  u32 device_count;
  u64 device_mib;
  u64 write_bytes;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.profile << " on " << c.device_count << " of " << c.device_mib << " MiB, writes of " << c.write_bytes;
}

class StatfsPromise : public ::testing::TestWithParam<Case> {
 protected:
  StatfsPromise() : pool_(options()), session_(pool_.open_session()), client_(*session_) {}

  static TestPoolOptions options() {
    TestPoolOptions options;
    options.profile = GetParam().profile;
    options.device_count = GetParam().device_count;
    options.device_bytes = GetParam().device_mib << 20;
    return options;
  }

  u64 available() {
    EXPECT_EQ(client_.simple(Opcode::statfs).status, Status::ok);
    return client_.statistics().page_available;
  }
  u64 create(const std::string& name) {
    FileOperation op;
    op.opcode = Opcode::create;
    op.inode = PosixModel::root;
    op.name = name;
    op.mode = 0644;
    const client::Reply made = client_.call(op);
    EXPECT_EQ(made.status, Status::ok);
    return made.result;
  }
  // Writes until the pool is full; returns the number of bytes.
  u64 fill(u64 inode) {
    const std::vector<u8> bytes(GetParam().write_bytes, 0x5a);
    FileOperation op;
    op.opcode = Opcode::write;
    op.inode = inode;
    op.length = bytes.size();
    for (;;) {
      const client::Reply reply = client_.call(op, bytes);
      if (reply.status != Status::ok) {
        EXPECT_EQ(reply.status, Status::no_space);
        return op.offset;
      }
      op.offset += reply.result;
    }
  }
  void expect_kept(u64 promised, u64 written, const char* when) {
    std::printf("%s %s: promised %llu, written %llu pages (%+lld)\n", ::testing::PrintToString(GetParam()).c_str(),
                when, static_cast<unsigned long long>(promised), static_cast<unsigned long long>(written),
                static_cast<long long>(written - promised));
    EXPECT_GE(written, promised) << when;
    EXPECT_LE(written, promised + promised * 3 / 100 + 64) << when;
    EXPECT_LE(available(), 8u) << when;
  }

  TestPool pool_;
  std::unique_ptr<client::Session> session_;
  FileClient client_;
};

TEST_P(StatfsPromise, IsKept) {
  const u64 first = create("first");
  const u64 second = create("second");
  u64 promised = available();
  expect_kept(promised, fill(first) / page_size, "a new pool");
  // Half of it is free again, in many pieces.
  for (u64 offset = 0; offset < promised * page_size; offset += 64 * page_size) {
    FileOperation punch;
    punch.opcode = Opcode::fallocate;
    punch.inode = first;
    punch.offset = offset;
    punch.length = 32 * page_size;
    punch.mode = 3;
    ASSERT_EQ(client_.call(punch).status, Status::ok);
  }
  ASSERT_EQ(pool_.checkpoint(), Status::ok);
  promised = available();
  expect_kept(promised, fill(second) / page_size, "a used one");
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const u64 bytes : {u64{4096}, u64{1} << 20}) {
    for (const auto& [profile, devices, mib] : {std::tuple{"single", 1u, 40u},
                                                {"single", 1u, 200u},
                                                {"raid0", 3u, 40u},
                                                {"raid1", 2u, 60u},
                                                {"raid5", 3u, 60u},
                                                {"raid6", 4u, 60u},
                                                {"raid5+raid1", 3u, 60u},
                                                {"raid0+raid1", 3u, 40u},
                                                {"single+raid1c3", 3u, 40u}}) {
      // Small writes take long with sanitizers, and so does a large pool.
      if (is_short() && (bytes == 4096 ? devices != 3 : mib == 200)) continue;
      if (GPU4FS_TSAN && bytes == 4096 && std::string_view(profile) != "raid5+raid1") continue;
      list.push_back({profile, devices, mib, bytes});
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Pools, StatfsPromise, ::testing::ValuesIn(cases()));

}  // namespace
}  // namespace gpu4fs::test::statfs_promise_test
