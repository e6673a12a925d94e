// Pools on a tmpfs that is too small for them: a lack of its memory is an answer, wherever it happens.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/session.hpp"
#include "fsck/check/check_pool.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_make.hpp"
#include "server/pool_server.hpp"
#include "support/file_client.hpp"

namespace gpu4fs::test::full_medium_test {
namespace {

constexpr u64 mega = u64{1} << 20;
constexpr u64 root = format::inode_number_root;

class FullMedium : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path().string() + "/gpu4fs_full_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const char* part : {"small", "large"}) std::filesystem::create_directory(folder_ / part);
    if (!mount_tmpfs("small", 40)) GTEST_SKIP() << "a tmpfs cannot be mounted here: " << std::strerror(errno);
  }
  void TearDown() override {
    for (const std::string& place : mounted_) ::umount2(place.c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  bool mount_tmpfs(const std::string& part, u64 megabytes) {
    const std::string place = folder_ / part;
    const std::string limit = "size=" + std::to_string(megabytes) + "m";
    if (::mount("gpu4fs-test", place.c_str(), "tmpfs", 0, limit.c_str()) != 0) return false;
    mounted_.push_back(place);
    return true;
  }

  std::string device(const std::string& part) const { return folder_ / part / "device"; }
  void make_pool(const std::vector<std::string>& devices, u64 device_megabytes = 160) {
    pool::MakePoolOptions make;
    make.device_paths = devices;
    make.size_bytes = device_megabytes * mega;
    make.chunk_size_bytes = 16 * mega;
    pool::make_pool(make);
  }
  // Takes the rest of the medium.
  void fill_up() {
    const int file = ::open((folder_ / "small" / "filler").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    const std::vector<char> block(4096, 'x');
    while (::write(file, block.data(), block.size()) > 0) {
    }
    EXPECT_EQ(errno, ENOSPC);
    ::close(file);
  }

  std::filesystem::path folder_;
  std::vector<std::string> mounted_;
};

// A served pool and one client.
class Served {
 public:
  explicit Served(const std::vector<std::string>& devices) {
    session::ServerOptions options;
    options.device_paths = devices;
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 1;
    options.commit_interval_s = 0;
    server_ = std::make_unique<server::PoolServer>(options);
    server_->start();
    server::LocalSession local = server_->open_session(4 * mega);
    session_ =
        std::make_unique<client::Session>(client::Connection{local.producer, local.port, std::move(local.owner)});
    client_ = std::make_unique<FileClient>(*session_);
  }
  ~Served() { stop(); }
  bool stop() {
    client_.reset();
    session_.reset();
    return server_->stop();
  }

  client::Reply named(wire::Opcode opcode, const std::string& name) {
    FileOperation op;
    op.opcode = opcode;
    op.inode = root;
    op.name = name;
    op.mode = 0644;
    return client_->call(op);
  }
  FileClient& client() { return *client_; }

  // Writes files until a write fails, and returns its status; `written` counts complete ones.
  Status fill_with_files(u64* written) {
    constexpr u64 length = mega;
    for (*written = 0; *written < 1000; ++*written) {
      const client::Reply made = named(wire::Opcode::create, "file" + std::to_string(*written));
      if (made.status != Status::ok) return made.status;
      const client::Reply reply = client_->simple(wire::Opcode::write, made.result, 0, length);
      if (reply.status != Status::ok) return reply.status;
      if (reply.result < length) return Status::no_space;
    }
    return Status::ok;
  }
  void remove_files(u64 count) {
    for (u64 i = 0; i <= count; ++i) {
      const client::Reply removed = named(wire::Opcode::unlink, "file" + std::to_string(i));
      ASSERT_TRUE(removed.status == Status::ok || (i == count && removed.status == Status::not_found))
          << status_name(removed.status);
      if (removed.status != Status::ok) continue;
      EXPECT_EQ(client_->simple(wire::Opcode::reclaim, removed.result).status, Status::ok);
    }
  }

 private:
  std::unique_ptr<server::PoolServer> server_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<FileClient> client_;
};

void expect_sound(const std::vector<std::string>& devices) {
  fsck::CheckOptions options;
  options.device_paths = devices;
  const fsck::CheckResult result = fsck::check_pool(options);
  EXPECT_EQ(result.findings.error_count(), 0u);
  for (const fsck::Finding& finding : result.findings.kept()) ADD_FAILURE() << finding.text;
}

TEST_F(FullMedium, WritingMoreThanThereIsMemoryIsAnAnswer) {
  const std::vector<std::string> devices{device("small")};
  make_pool(devices);
  {
    Served served(devices);
    u64 written = 0;
    EXPECT_EQ(served.fill_with_files(&written), Status::no_space);
    // 40 MiB hold two chunks of 16 MiB.
    EXPECT_GT(written, 24u);
    struct statvfs medium {};
    ASSERT_EQ(::statvfs((folder_ / "small").c_str(), &medium), 0);
    EXPECT_GT(medium.f_bavail * medium.f_bsize, mega) << "a chunk that does not fit takes nothing";
    // The pool continues: existing files can be read and removed, which makes room again.
    served.client().data()[0] = 1;
    const client::Reply found = served.named(wire::Opcode::lookup, "file0");
    EXPECT_EQ(served.client().simple(wire::Opcode::read, found.result, 0, mega).result, mega);
    served.remove_files(written);
    EXPECT_EQ(served.client().simple(wire::Opcode::sync).status, Status::ok);
    u64 written_again = 0;
    EXPECT_EQ(served.fill_with_files(&written_again), Status::no_space);
    EXPECT_GT(written_again + 4, written);
    EXPECT_TRUE(served.stop());
  }
  expect_sound(devices);
}

TEST_F(FullMedium, SpaceIsTakenFromTheDeviceThatHasMemory) {
  ASSERT_TRUE(mount_tmpfs("large", 400));
  const std::vector<std::string> devices{device("small"), device("large")};
  make_pool(devices);
  fill_up();
  {
    Served served(devices);
    u64 written = 0;
    EXPECT_EQ(served.fill_with_files(&written), Status::no_space);
    EXPECT_GT(written, 140u) << "nearly all of the larger device, and the first chunk";
    EXPECT_TRUE(served.stop());
  }
  expect_sound(devices);
}

TEST_F(FullMedium, APoolWhoseMemoryIsTakenIsNotOpened) {
  const std::vector<std::string> devices{device("small")};
  make_pool(devices);
  // The page descriptors of the last chunk are zeros, so a hole there is not damage.
  struct stat before {};
  ASSERT_EQ(::stat(devices[0].c_str(), &before), 0);
  const int file = ::open(devices[0].c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const std::vector<u8> zeros(page_size);
  std::vector<u8> page(page_size);
  for (off_t at = before.st_size - page_size; at > 0; at -= page_size) {
    ASSERT_EQ(::pread(file, page.data(), page.size(), at), static_cast<ssize_t>(page.size()));
    if (page != zeros) continue;
    ASSERT_EQ(::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, page_size), 0);
  }
  ::close(file);
  fill_up();
  try {
    Served served(devices);
    ADD_FAILURE() << "opened";
  } catch (const pool::PoolError& error) {
    EXPECT_EQ(error.status(), Status::no_space) << error.what();
    EXPECT_NE(std::string(error.what()).find(devices[0]), std::string::npos) << error.what();
  }
}

TEST_F(FullMedium, APoolIsNotMadeWhereItsHeadersDoNotFit) {
  // Ten chunks of 1 GiB: descriptors of 4 MiB each.
  pool::MakePoolOptions make;
  make.device_paths = {device("small")};
  make.size_bytes = u64{12} << 30;
  make.chunk_size_bytes = u64{1} << 30;
  struct statvfs before {};
  ASSERT_EQ(::statvfs((folder_ / "small").c_str(), &before), 0);
  try {
    pool::make_pool(make);
    ADD_FAILURE() << "made";
  } catch (const pool::PoolError& error) {
    EXPECT_EQ(error.status(), Status::no_space) << error.what();
    EXPECT_NE(std::string(error.what()).find(make.device_paths[0]), std::string::npos) << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(make.device_paths[0]));
  struct statvfs medium {};
  ASSERT_EQ(::statvfs((folder_ / "small").c_str(), &medium), 0);
  EXPECT_EQ(medium.f_bfree, before.f_bfree) << "what was taken is given back";
}

}  // namespace
}  // namespace gpu4fs::test::full_medium_test
