// Which open file a medium with direct access has.
#include "session/direct_media.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "block/disk_file.hpp"
#include "device/queue/io_queue_build.hpp"
#include "pool/lock_wait.hpp"
#include "pool/pool_device_file.hpp"
#include "support/heap_allocator.hpp"
#include "support/memory_folder.hpp"

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

// Media behind drives.
class DriveMedia {
 public:
  DriveMedia(u32 device_count, u32 spare_count) {
    void* const memory = heap_.allocate(device::io_queue_shared_bytes(DirectMedia::slot_count), cache_line);
    media.emplace(heap_, device::IoQueueMemory{memory, memory}, true);
    EmulatedDriveOptions options;
    options.spare_count = spare_count;
    media->use_drives(heap_, heap_, device_count, options);
  }

 private:
  gpu4fs::test::HeapAllocator heap_;

 public:
  std::optional<DirectMedia> media;
};

bool is_locked(const std::string& path) {
  try {
    (void)device::MappedFile::open(path, {});
    return false;
  } catch (const device::DeviceError& error) {
    EXPECT_EQ(error.error_number(), EBUSY);
    return true;
  }
}

void use_one_drive_twice(const std::string& first, const std::string& second) {
  DriveMedia drives(1, 0);
  const auto prepare = [&](u32 device, const std::string& path) {
    device::MappedFile file = device::MappedFile::open(path, {});
    return drives.media->prepare(device, file);
  };
  drives.media->install(0, prepare(0, first));
  drives.media->start({}, {});
  EXPECT_TRUE(is_locked(first));
  try {
    (void)prepare(1, second);
    ADD_FAILURE() << "there is no drive for it";
  } catch (const device::DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find(second), std::string::npos) << error.what();
  }
  EXPECT_FALSE(is_locked(second));
  EXPECT_EQ(drives.media->close(0, 0), "");
  EXPECT_FALSE(is_locked(first));
  (void)prepare(1, second);
  EXPECT_NO_THROW(drives.media->install(1, prepare(1, second))) << "what was prepared in vain was given back";
  EXPECT_TRUE(is_locked(second));
}

TEST(DirectMedia, ADriveIsReleasedWithItsDevice) {
  const gpu4fs::test::DiskFile first(16 * page_size);
  const gpu4fs::test::DiskFile second(16 * page_size);
  use_one_drive_twice(first.path(), second.path());
}

// The drive maps a file on tmpfs.
TEST(DirectMedia, ADriveInMemoryIsReleasedWithItsDevice) {
  std::string folder = gpu4fs::test::memory_folder() + std::string("/gpu4fs_media_XXXXXX");
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (const char* const name : {"/first", "/second"}) DeviceFile::create(folder + name, 16 * page_size);
  use_one_drive_twice(folder + "/first", folder + "/second");
  std::filesystem::remove_all(folder);
}

TEST(DirectMedia, AThreadThatCannotBeStartedIsAnError) {
  pthread_attr_t usual;
  pthread_attr_t giant;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&giant), 0);
  // More than there are addresses.
  ASSERT_EQ(::pthread_attr_setstacksize(&giant, std::size_t{1} << 60), 0);
  DriveMedia drives(1, 0);
  ASSERT_EQ(::pthread_setattr_default_np(&giant), 0);
  EXPECT_THROW(drives.media->start({}, {}), device::DeviceError);
  EXPECT_EQ(::pthread_setattr_default_np(&usual), 0);
  (void)::pthread_attr_destroy(&giant);
  (void)::pthread_attr_destroy(&usual);
}

}  // namespace
}  // namespace gpu4fs::session::direct_media_test
