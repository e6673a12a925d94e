// Where a seccomp filter refuses io_uring, as in many containers, threads take its place.
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string>

#include "block/controller_fixture.hpp"

namespace gpu4fs::test {
namespace {

// io_uring_setup() fails with `error` in this process from now on.
bool refuse_io_uring(u32 error) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(code) / sizeof(code[0]), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

// Ends the process; its last words are the controller's or the error's.
[[noreturn]] void serve_without_io_uring(const std::string& path, u32 error, block::ControllerKind kind) {
  if (!refuse_io_uring(error)) std::_Exit(77);
  std::string text;
  bool is_served = false;
  try {
    block::ControllerOptions options;
    options.kind = kind;
    ControllerFixture fixture(path, 1, options);
    text = fixture.controller().describe();
    is_served = fixture.carry_out(device::IoOperation::read, 0, 0) == Status::ok;
  } catch (const block::DeviceError& refused) {
    text = refused.what();
  }
  std::fprintf(stderr, "%s\n", text.c_str());
  std::_Exit(is_served ? 0 : 3);
}

TEST(RefusedUringDeathTest, ThreadsTakeItsPlaceAndSayWhy) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const DiskFile file(page_size);
  EXPECT_EXIT(serve_without_io_uring(file.path(), EPERM, block::ControllerKind::automatic), testing::ExitedWithCode(0),
              "16 threads with preadv and pwritev \\(io_uring is not allowed here: .*seccomp");
  EXPECT_EXIT(serve_without_io_uring(file.path(), ENOSYS, block::ControllerKind::automatic), testing::ExitedWithCode(0),
              "the kernel has none");
}

TEST(RefusedUringDeathTest, ItIsAnErrorIfNothingElseIsWanted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const DiskFile file(page_size);
  EXPECT_EXIT(serve_without_io_uring(file.path(), EPERM, block::ControllerKind::uring), testing::ExitedWithCode(3),
              "^io_uring is not allowed here");
}

}  // namespace
}  // namespace gpu4fs::test
