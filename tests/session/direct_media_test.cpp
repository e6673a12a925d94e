// Which open file a medium with direct access has.
#include "session/direct_media.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "block/disk_file.hpp"
#include "pool/lock_wait.hpp"
#include "pool/pool_device_file.hpp"

namespace gpu4fs::session::direct_media_test {
namespace {

using pool::DeviceFile;

DeviceFile open_locked(const std::string& path) {
  return DeviceFile::open(path, DeviceFile::Access::read_write, DeviceFile::Locking::lock);
}

// What is in flight for the medium keeps its open file open.
TEST(DirectMedia, TheOpenFileOfRequestsHasTheLock) {
  gpu4fs::test::DiskFile disk(16 * page_size);
  std::unique_ptr<DirectMedia::Medium> medium;
  {
    DeviceFile file = open_locked(disk.path());
    device::MappedFile mapped =
        device::MappedFile::adopt(::fcntl(file.fd(), F_DUPFD_CLOEXEC, 3), disk.path(), {.lock = true});
    file.leave_locked_file();
    medium = DirectMedia::open(mapped);
    // Direct accesses need aligned memory, offsets and lengths.
    const u8 written[5] = {1, 2, 3, 4, 5};
    u8 read[5] = {};
    file.write_at(1001, written, sizeof(written));
    file.read_at(1001, read, sizeof(read));
    EXPECT_EQ(read[4], 5);
    EXPECT_THROW(open_locked(disk.path()), pool::DeviceInUse);
  }
  EXPECT_THROW(open_locked(disk.path()), pool::DeviceInUse);
  EXPECT_THROW(device::MappedFile::open(disk.path(), {}), device::DeviceError);
  medium.reset();
  EXPECT_NO_THROW(open_locked(disk.path()));
}

}  // namespace
}  // namespace gpu4fs::session::direct_media_test
