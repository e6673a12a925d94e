// Files that are registered with a ring.
#include "block/uring.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "base/limits.hpp"
#include "block/disk_file.hpp"

namespace gpu4fs::test {
namespace {

// The kernel refuses changes by other threads than the one that made the ring.
TEST(Uring, AFileThatIsNotReleasedIsNotUsed) {
  const DiskFile file(page_size);
  const int descriptor = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  std::unique_ptr<block::Uring> ring;
  try {
    ring = std::make_unique<block::Uring>(4, std::vector<block::MemoryRange>{}, std::vector<int>{descriptor});
  } catch (const block::DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
  if ((ring->get()->flags & IORING_SETUP_SINGLE_ISSUER) == 0 || !ring->remarks().empty()) {
    GTEST_SKIP() << "this kernel allows it: " << ring->remarks();
  }
  io_uring_sqe entry{};
  ring->set_file(&entry, 0, descriptor);
  EXPECT_NE(entry.flags & IOSQE_FIXED_FILE, 0);
  std::thread([&] { EXPECT_FALSE(ring->unregister_file(0)); }).join();
  entry = {};
  ring->set_file(&entry, 0, descriptor);
  EXPECT_EQ(entry.flags & IOSQE_FIXED_FILE, 0);
  EXPECT_EQ(entry.fd, descriptor);
  EXPECT_TRUE(ring->unregister_file(0)) << "there is nothing to release any more";
  EXPECT_TRUE(ring->unregister_file(7));
  ::close(descriptor);
}

}  // namespace
}  // namespace gpu4fs::test
