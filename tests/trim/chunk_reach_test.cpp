// Of chunks without a page in use only the front of their header areas takes memory, whatever is done to the pool.
#include "pool/chunk_reach.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "fsck/check/check_pool.hpp"
#include "pool/pool_make.hpp"
#include "raid/levels/levels.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::test::chunk_reach_test {
namespace {

constexpr u64 mega = u64{1} << 20;

class ChunkReach : public ::testing::Test {
 protected:
  ChunkReach() {
    std::string name =
        std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    name += "/gpu4fs_reach_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~ChunkReach() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  void make(const std::string& profile, u32 device_count) {
    pool::MakePoolOptions options;
    for (u32 i = 0; i < device_count; ++i) options.device_paths.push_back(folder_ / ("device" + std::to_string(i)));
    options.size_bytes = 512 * mega;
    options.chunk_size_bytes = 64 * mega;
    options.log_bytes = mega;
    options.data_profile = options.metadata_profile = profile;
    pool::make_pool(options);
    paths_ = options.device_paths;
  }
  session::ServerOptions server_options() const {
    session::ServerOptions options;
    options.device_paths = paths_;
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 2;
    options.commit_interval_s = 0;
    options.cache_bytes = 16 * mega;
    return options;
  }
  pool::OpenedPool look() const {
    pool::OpenPoolOptions options;
    options.device_paths = paths_;
    options.read_only = true;
    options.lock = false;
    return pool::open_pool(options);
  }

  // Every column of chunks without content is a hole after its front.
  void expect_empty_chunks_untouched(const std::string& when) const {
    const pool::OpenedPool pool = look();
    u32 empty_count = 0;
    for (const pool::OpenedChunk& chunk : pool.chunks) {
      if (pool::may_hold_pages(pool, chunk)) continue;
      ++empty_count;
      for (const format::ColumnAddress column : chunk.columns) {
        const u64 begin = column.offset_bytes() + pool::header_front_bytes(chunk.descriptor);
        const u64 end = column.offset_bytes() + raid::column_length(chunk.descriptor);
        const int file = pool.devices[column.device_index()].file.fd();
        const off_t data = ::lseek(file, static_cast<off_t>(begin), SEEK_DATA);
        EXPECT_TRUE(data < 0 || static_cast<u64>(data) >= end)
            << when << ": chunk " << chunk.descriptor.base_address << " at " << data;
      }
    }
    EXPECT_GT(empty_count, 0u);
    EXPECT_LT(empty_count, pool.chunks.size());
  }

  std::filesystem::path folder_;
  std::vector<std::string> paths_;
};

TEST_F(ChunkReach, EmptyChunksTakeNoMemory) {
  for (const std::string profile : {"single", "raid0", "raid1", "raid5"}) {
    make(profile, 3);
    expect_empty_chunks_untouched(profile + " made");
    for (const fsck::CheckEngine engine : {fsck::CheckEngine::none, fsck::CheckEngine::cpu}) {
      fsck::CheckOptions options;
      options.device_paths = paths_;
      options.engine = engine;
      EXPECT_TRUE(fsck::check_pool(options).findings.kept().empty());
    }
    expect_empty_chunks_untouched(profile + " checked");
    for (u32 i = 0; i < 2; ++i) {
      server::PoolServer server(server_options());
      server.start();
      EXPECT_TRUE(server.stop());
    }
    expect_empty_chunks_untouched(profile + " mounted");
    for (const std::string& path : paths_) std::filesystem::remove(path);
  }
}

// A device is filled, and missing copies of a header area are rewritten.
TEST_F(ChunkReach, ARebuildLeavesThemAlone) {
  make("raid1", 2);
  const std::string other = folder_ / "other";
  pool::DeviceFile::create(other, 512 * mega);
  {
    server::PoolServer server(server_options());
    server.start();
    EXPECT_EQ(server.exchange().replace("1", other, false, 0), "");
    while (server.rebuilder().is_busy()) std::this_thread::yield();
    EXPECT_EQ(server.rebuilder().report().state, maintenance::JobState::finished);
    EXPECT_TRUE(server.stop());
  }
  paths_[1] = other;
  expect_empty_chunks_untouched("rebuilt");
  {
    // The header of an empty chunk's first copy is damaged.
    const pool::OpenedPool pool = look();
    const pool::OpenedChunk& chunk = pool.chunks.back();
    ASSERT_FALSE(pool::may_hold_pages(pool, chunk));
    const int file = ::open(pool.devices[chunk.columns[0].device_index()].file.path().c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(file, 0);
    EXPECT_EQ(::pwrite(file, "damage", 6, static_cast<off_t>(chunk.columns[0].offset_bytes() + 32)), 6);
    ::close(file);
  }
  {
    server::PoolServer server(server_options());
    server.start();
    EXPECT_TRUE(server.stop());
  }
  expect_empty_chunks_untouched("repaired");
  fsck::CheckOptions options;
  options.device_paths = paths_;
  EXPECT_TRUE(fsck::check_pool(options).findings.kept().empty());
}

}  // namespace
}  // namespace gpu4fs::test::chunk_reach_test
