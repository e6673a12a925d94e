// Residency of a file in the working directory. Skips what the kernel or the file system does not have.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "route/residency.hpp"
#include "route/route_error.hpp"

namespace gpu4fs::route {
namespace {

class ResidencyFile : public testing::TestWithParam<ResidencySource> {
 protected:
  void SetUp() override {
    std::string path = "route_residency_XXXXXX";
    fd_ = ::mkstemp(path.data());
    ASSERT_GE(fd_, 0);
    ::unlink(path.c_str());
    write_pages(0, page_count);
    try {
      page_residency(fd_, {0, page_size}, GetParam());
    } catch (const RouteError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  void TearDown() override {
    if (fd_ >= 0) ::close(fd_);
  }

  void write_pages(u64 first, u64 count) {
    const std::vector<char> bytes(count * page_size, 'x');
    ASSERT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(first * page_size)),
              static_cast<ssize_t>(bytes.size()));
  }

  // Empties the page cache of the file; false if its file system keeps it.
  bool drop_pages() {
    if (::fsync(fd_) != 0 || ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED) != 0) return false;
    for (const PageRun& run : residency().runs) {
      if (is_resident(run.state)) return false;
    }
    return true;
  }

  // Without the kernel's read-ahead, which would bring in more.
  void read_page(u64 page) {
    char byte;
    ASSERT_EQ(::posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM), 0);
    ASSERT_EQ(::pread(fd_, &byte, 1, static_cast<off_t>(page * page_size)), 1);
  }

  Residency residency(u64 first = 0, u64 count = page_count) {
    return page_residency(fd_, {first * page_size, count * page_size}, GetParam());
  }

  PageState cached_state() const {
    return GetParam() == ResidencySource::mincore ? PageState::resident : PageState::clean;
  }

  static constexpr u64 page_count = 64;
  int fd_ = -1;
};

TEST_P(ResidencyFile, WrittenPagesAreResidentAndDroppedOnesAreNot) {
  const Residency written = residency();
  u64 resident = 0;
  for (const PageRun& run : written.runs) resident += is_resident(run.state) ? run.page_count : 0;
  EXPECT_EQ(resident, page_count);
  EXPECT_EQ(written.source, GetParam());
  EXPECT_GE(written.call_count, 1u);
  if (!drop_pages()) GTEST_SKIP() << "the file system here keeps pages in memory";
  EXPECT_EQ(residency().runs, (std::vector<PageRun>{{0, page_count, PageState::absent}}));
}

TEST_P(ResidencyFile, PagesThatAreReadAreRuns) {
  if (!drop_pages()) GTEST_SKIP() << "the file system here keeps pages in memory";
  for (const u64 page : {3, 10, 11, 63}) read_page(page);
  const std::vector<PageRun> expected = {{0, 3, PageState::absent},   {3, 1, cached_state()},
                                         {4, 6, PageState::absent},   {10, 2, cached_state()},
                                         {12, 51, PageState::absent}, {63, 1, cached_state()}};
  EXPECT_EQ(residency().runs, expected);
  const std::vector<PageRun> part = {{9, 1, PageState::absent}, {10, 2, cached_state()}};
  EXPECT_EQ(page_residency(fd_, {9 * page_size + 100, 3 * page_size - 200}, GetParam()).runs, part);
}

TEST_P(ResidencyFile, DirtyPagesMayBeDirtyUntilTheyAreWritten) {
  if (!drop_pages()) GTEST_SKIP() << "the file system here keeps pages in memory";
  write_pages(5, 2);
  const Residency dirty = residency(4, 4);
  ASSERT_EQ(dirty.runs.size(), 3u);
  EXPECT_EQ(dirty.runs[1].first_page, 5u);
  EXPECT_EQ(dirty.runs[1].page_count, 2u);
  EXPECT_TRUE(may_be_dirty(dirty.runs[1].state));
  ASSERT_EQ(::fsync(fd_), 0);
  EXPECT_EQ(residency(4, 4).runs[1].state, cached_state());
}

TEST_P(ResidencyFile, EndsWithTheFile) {
  EXPECT_EQ(residency(60, 1000).runs.back().end_page(), page_count);
  EXPECT_TRUE(residency(64, 10).runs.empty());
  EXPECT_TRUE(residency(0, 0).runs.empty());
  ASSERT_EQ(::ftruncate(fd_, 3 * page_size + 1), 0);
  EXPECT_EQ(residency().runs.back().end_page(), 4u);
}

INSTANTIATE_TEST_SUITE_P(Sources, ResidencyFile, testing::Values(ResidencySource::cachestat, ResidencySource::mincore),
                         [](const auto& source) { return std::string(to_text(source.param)); });

std::string residency_fault(int fd, ByteRange bytes, ResidencySource source = ResidencySource::automatic) {
  try {
    page_residency(fd, bytes, source);
  } catch (const RouteError& error) {
    return error.what();
  }
  return "";
}

TEST(Residency, RefusesWhatIsNoFile) {
  EXPECT_NE(residency_fault(-1, {0, 1}).find("no attributes"), std::string::npos);
  const int folder = ::open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(residency_fault(folder, {0, 1}), "residency: not a regular file");
  ::close(folder);
}

TEST(Residency, RefusesRangesBeyondWhatOffsetsHave) {
  std::string path = "route_residency_XXXXXX";
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ::unlink(path.c_str());
  EXPECT_NE(residency_fault(fd, {~u64{0}, 1}).find("beyond 2^63"), std::string::npos);
  EXPECT_NE(residency_fault(fd, {1, ~u64{0}}).find("beyond 2^63"), std::string::npos);
  ::close(fd);
}

// A process that may only read a file of another user must get no answer, and no wrong one. In a child, which gives up
// its rights.
TEST(Residency, OthersAreToldWhy) {
  if (::geteuid() != 0) GTEST_SKIP() << "only the superuser can become another user";
  std::string path = "route_residency_XXXXXX";
  const int writable = ::mkstemp(path.data());
  ASSERT_GE(writable, 0);
  ASSERT_EQ(::pwrite(writable, "x", 1, 0), 1);
  ASSERT_EQ(::fchmod(writable, 0444), 0);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::unlink(path.c_str());
  ::close(writable);
  ASSERT_GE(fd, 0);
  EXPECT_EXIT(
      {
        const bool is_other = ::setgid(65534) == 0 && ::setuid(65534) == 0;
        const std::string fault = residency_fault(fd, {0, page_size}, ResidencySource::mincore);
        ::_exit(!is_other ? 2 : fault.find("only for the owner") != std::string::npos ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  ::close(fd);
}

// So many runs that counting is given up.
TEST(Residency, ManyRunsAreAskedOfMincore) {
  std::string path = "route_residency_XXXXXX";
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ::unlink(path.c_str());
  constexpr u64 page_count = 512;
  ASSERT_EQ(::ftruncate(fd, page_count * page_size), 0);
  for (u64 page = 0; page < page_count; page += 2) {
    ASSERT_EQ(::pwrite(fd, "x", 1, static_cast<off_t>(page * page_size)), 1);
  }
  Residency found;
  try {
    found = page_residency(fd, {0, page_count * page_size}, ResidencySource::automatic);
  } catch (const RouteError& error) {
    ::close(fd);
    GTEST_SKIP() << error.what();
  }
  ::close(fd);
  EXPECT_EQ(found.source, ResidencySource::mincore);
  EXPECT_EQ(found.runs.size(), page_count);
}

}  // namespace
}  // namespace gpu4fs::route
