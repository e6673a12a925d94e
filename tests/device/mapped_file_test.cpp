// MappedFile on every medium this machine has: tmpfs (/dev/shm, memfd), a disk file system (the
// build folder).
#include "device/memory/mapped_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "device/memory/memory_device.hpp"
#include "device/open_error.hpp"

namespace gpu4fs::device {
namespace {

class TemporaryFile {
 public:
  TemporaryFile(const std::string& folder, u64 size_bytes) : path_(folder + "/gpu4fs-mapped-file-XXXXXX") {
    descriptor_ = mkstemp(path_.data());
    EXPECT_GE(descriptor_, 0) << path_ << std::strerror(errno);
    EXPECT_EQ(ftruncate(descriptor_, static_cast<off_t>(size_bytes)), 0);
  }
  ~TemporaryFile() {
    close(descriptor_);
    unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  std::vector<u8> read(u64 offset, u64 length) const {
    std::vector<u8> bytes(length);
    EXPECT_EQ(pread(descriptor_, bytes.data(), length, static_cast<off_t>(offset)), static_cast<ssize_t>(length));
    return bytes;
  }
  u64 allocated_bytes() const {
    struct stat status;
    EXPECT_EQ(fstat(descriptor_, &status), 0);
    return static_cast<u64>(status.st_blocks) * 512;
  }

 private:
  std::string path_;
  int descriptor_ = -1;
};

constexpr u64 file_bytes = 64 * page_size;

TEST(MappedFile, tmpfs_needs_no_flush_and_can_be_registered) {
  TemporaryFile file("/dev/shm", file_bytes);
  const MappedFile mapped = MappedFile::open(file.path());
  EXPECT_EQ(mapped.medium(), MediumKind::tmpfs);
  EXPECT_STREQ(medium_name(mapped.medium()), "tmpfs");
  EXPECT_EQ(mapped.size_bytes(), file_bytes);
  EXPECT_FALSE(mapped.needs_flush());
  EXPECT_TRUE(mapped.gpu_registration().possible);
  mapped.base()[5 * page_size] = 0x77;
  mapped.flush();
  EXPECT_EQ(file.read(5 * page_size, 1)[0], 0x77);
}

TEST(MappedFile, disk_file_is_flushed_and_cannot_be_registered_for_writing) {
  TemporaryFile file(".", file_bytes);
  {
    const MappedFile mapped = MappedFile::open(file.path());
    if (mapped.medium() != MediumKind::file) GTEST_SKIP() << "the working directory lies on tmpfs";
    EXPECT_TRUE(mapped.needs_flush());
    EXPECT_FALSE(mapped.gpu_registration().possible);
    EXPECT_NE(mapped.gpu_registration().reason.find(file.path()), std::string::npos);
    std::memset(mapped.base() + page_size, 0x5a, 3 * page_size);
    mapped.flush();
    EXPECT_EQ(file.read(page_size, 3 * page_size), std::vector<u8>(3 * page_size, 0x5a));
    const Device device = mapped.device(3);
    EXPECT_EQ(device.index, 3u);
    EXPECT_EQ(device.needs_flush, 1u);
    EXPECT_EQ(device.read_only, 0u);
  }
  const MappedFile read_only = MappedFile::open(file.path(), {.read_only = true});
  EXPECT_FALSE(read_only.needs_flush());
  EXPECT_TRUE(read_only.gpu_registration().possible);
  EXPECT_EQ(read_only.base()[page_size], 0x5a);
  EXPECT_EQ(read_only.device(0).read_only, 1u);
}

TEST(MappedFile, memfd_is_adopted) {
  const int descriptor = memfd_create("gpu4fs-test", MFD_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(ftruncate(descriptor, file_bytes), 0);
  const MappedFile mapped = MappedFile::adopt(descriptor, "memory");
  EXPECT_EQ(mapped.medium(), MediumKind::tmpfs);
  EXPECT_EQ(mapped.descriptor(), descriptor);
}

TEST(MappedFile, anonymous_memory_is_zero) {
  MappedFile first = MappedFile::anonymous(file_bytes);
  EXPECT_EQ(first.medium(), MediumKind::anonymous);
  EXPECT_TRUE(first.gpu_registration().possible);
  for (u64 i = 0; i < file_bytes; i += 512) ASSERT_EQ(first.base()[i], 0);
  u8* base = first.base();
  const MappedFile second = std::move(first);
  EXPECT_EQ(second.base(), base);
  EXPECT_EQ(first.base(), nullptr);
  EXPECT_THROW(MappedFile::anonymous(100), DeviceError);
}

TEST(MappedFile, second_writer_is_refused_and_readers_share) {
  TemporaryFile file("/dev/shm", file_bytes);
  {
    const MappedFile writer = MappedFile::open(file.path());
    EXPECT_NE(test::open_error(file.path()).find("in use"), std::string::npos);
    EXPECT_NE(test::open_error(file.path(), {.read_only = true}).find("in use"), std::string::npos);
    EXPECT_EQ(test::open_error(file.path(), {.read_only = true, .lock = false}), "");
    const pid_t child = fork();
    if (child == 0) _exit(test::open_error(file.path()).empty() ? 1 : 0);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const MappedFile reader = MappedFile::open(file.path(), {.read_only = true});
  EXPECT_EQ(test::open_error(file.path(), {.read_only = true}), "");
  EXPECT_NE(test::open_error(file.path()).find("in use"), std::string::npos);
}

TEST(MappedFile, lock_ends_with_a_killed_process) {
  TemporaryFile file("/dev/shm", file_bytes);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const MappedFile mapped = MappedFile::open(file.path());
    const char byte = 1;
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_NE(test::open_error(file.path()), "");
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(test::open_error(file.path()), "");
  close(ready[0]);
  close(ready[1]);
}

TEST(MappedFile, says_what_is_wrong_with_a_path) {
  TemporaryFile odd("/dev/shm", page_size + 1);
  TemporaryFile empty("/dev/shm", 0);
  EXPECT_NE(test::open_error(odd.path()).find("not a multiple of 4096"), std::string::npos);
  EXPECT_NE(test::open_error(empty.path()).find("is empty"), std::string::npos);
  EXPECT_NE(test::open_error("/dev/shm/no-such-file").find("/dev/shm/no-such-file"), std::string::npos);
  EXPECT_NE(test::open_error("/dev/shm", {.read_only = true}).find("a directory"), std::string::npos);
  EXPECT_NE(test::open_error("/dev/null").find("a character device"), std::string::npos);
}

TEST(MappedFile, reserve_blocks_fills_holes_and_keeps_content) {
  TemporaryFile file("/dev/shm", file_bytes);
  const MappedFile mapped = MappedFile::open(file.path());
  mapped.base()[7] = 9;
  EXPECT_LT(file.allocated_bytes(), file_bytes);
  mapped.reserve_blocks();
  EXPECT_GE(file.allocated_bytes(), file_bytes);
  EXPECT_EQ(mapped.base()[7], 9);
}

struct FailedCheck {};

TEST(MemoryDevice, ranges_outside_fail_a_check) {
  const MappedFile mapped = MappedFile::anonymous(4 * page_size);
  const Device device = mapped.device(0);
  EXPECT_EQ(memory_at(device, page_size, 3 * page_size), mapped.base() + page_size);
  const CheckHandler previous = set_check_handler([](const CheckFailure&) { throw FailedCheck{}; });
  EXPECT_THROW(memory_at(device, page_size, 3 * page_size + 1), FailedCheck);
  EXPECT_THROW(memory_at(device, 5 * page_size, 0), FailedCheck);
  EXPECT_THROW(memory_at(device, ~u64{0}, 2), FailedCheck);
  set_check_handler(previous);
}

}  // namespace
}  // namespace gpu4fs::device
