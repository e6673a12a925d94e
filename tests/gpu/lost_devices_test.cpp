// Pools with redundancy that lose devices, with the GPU engine. They are written, mounted without as many devices as
// their level may lose, read, written and checked. Other devices replace the lost ones and are filled. Then the pool is
// used without devices that were present all the time, so the filled content is read. Several clients use files at once
// (tests/engine/file_walk.hpp).
//
// usage: gpu4fs_gpu_lost_devices_test [cpu]    cpu: with the CPU engine, to try the test itself
// Environment: GPU4FS_TEST_SCALE
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/file_walk.hpp"
#include "gpu/gpu_report.hpp"
#include "server/pool_server.hpp"
#include "support/basic_test_pool.hpp"
#include "support/pool_profiles.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using session::EngineChoice;

constexpr u64 device_bytes = u64{96} << 20;
constexpr u32 walk_count = 4;

struct Shape {
  const char* profile;
  u32 device_count;
  u32 lost_max;
};

// A pool with the files of its devices, including those elsewhere.
class LosingPool {
 public:
  LosingPool(const Shape& shape, EngineChoice engine) : shape_(shape), engine_(engine) {
    pool::MakePoolOptions make;
    for (u32 i = 0; i < shape.device_count; ++i) paths_.push_back(folder_.device(i));
    make.device_paths = paths_;
    make.size_bytes = device_bytes;
    make.chunk_size_bytes = u64{8} << 20;
    set_profiles(make, shape.profile);
    make.root_uid = 0;
    make.root_gid = 0;
    pool::make_pool(make);
  }

  // Mounts search for a missing device in the folder of the others.
  void take_away(u32 index) { std::filesystem::rename(paths_[index], elsewhere_.device(++away_count_)); }
  // Creates an empty file under the device's path, which is then the device.
  std::string make_empty(u32 index) {
    paths_[index] = folder_.device(100 + ++new_count_);
    pool::DeviceFile::create(paths_[index], device_bytes);
    return paths_[index];
  }
  std::unique_ptr<server::PoolServer> start(const std::vector<std::string>& paths, bool degraded) {
    session::ServerOptions options;
    options.device_paths = paths;
    options.engine = engine_;
    options.commit_interval_s = 1;
    options.cache_bytes = u64{8} << 20;  // the minimum: pages are evicted
    options.degraded = degraded;
    auto server = std::make_unique<server::PoolServer>(options);
    server->start();
    return server;
  }
  void stop(std::unique_ptr<server::PoolServer> server) {
    expect(!server->engine().has_died(), "the engine lives: " + server->engine().fault_text());
    expect(server->stop(), "the last checkpoint is written");
  }
  void expect(bool holds, const std::string& what) { check(holds, fmt::format("{}: {}", shape_.profile, what)); }
  void expect_files(server::PoolServer& server, const std::vector<ModelFile>& files, const char* when) {
    const std::string difference = stored_difference<Client>(server.engine(), files);
    expect(difference.empty(), fmt::format("{}, {}: {}", server.engine_text(), when, difference));
  }
  const std::vector<std::string>& paths() const { return paths_; }
  bool is_mirrored() const { return std::string(shape_.profile) == "raid1"; }

 private:
  Shape shape_;
  EngineChoice engine_;
  DeviceFolder folder_;
  DeviceFolder elsewhere_;
  std::vector<std::string> paths_;
  u32 new_count_ = 0;
  u32 away_count_ = 0;
};

void write_files(LosingPool& pool, server::PoolServer& server, u64 seed, std::vector<ModelFile>& files) {
  std::vector<std::unique_ptr<FileWalk<Client>>> walks;
  for (u32 w = 0; w < walk_count; ++w) walks.push_back(std::make_unique<FileWalk<Client>>(server.engine(), seed + w));
  std::vector<std::thread> threads;
  for (u32 w = 0; w < walk_count; ++w) {
    threads.emplace_back([&, w] {
      for (u32 i = 0; i < scaled(250) && walks[w]->step(); ++i) {
      }
      walks[w]->read_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& walk : walks) {
    pool.expect(walk->difference().empty(), "files: " + walk->difference());
    files.insert(files.end(), walk->files(), walk->files() + 2);
  }
}

bool fill(LosingPool& pool, server::PoolServer& server, u32 index, const std::string& path) {
  const std::string problem = server.exchange().replace(std::to_string(index), path, false, 0);
  pool.expect(problem.empty(), "a device is replaced: " + problem);
  if (!problem.empty()) return false;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (server.rebuilder().is_busy() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const maintenance::RebuildReport report = server.rebuilder().report();
  const bool is_filled = report.state == maintenance::JobState::finished;
  pool.expect(is_filled && report.written_count > 0, fmt::format("device {} is filled: {}", index, report.problem));
  pool.expect(report.unreadable_count == 0, "all of it could be read");
  // Pages of mirrors that fallocate has allocated have no bytes with the right checksum; rows do not contain such
  // pages.
  pool.expect(pool.is_mirrored() || report.unverified_count == 0, "all of it could be made");
  return is_filled;
}

void check_medium(LosingPool& pool) {
  fsck::CheckOptions options;
  options.device_paths = pool.paths();
  const fsck::CheckResult result = fsck::check_pool(options);
  pool.expect(result.findings.error_count() == 0, "fsck finds no error" + findings_text(result));
}

// Devices [0, lost) are gone and others replace them; then the last ones are gone.
void test_losses(const Shape& shape, u32 lost, EngineChoice engine) {
  LosingPool pool(shape, engine);
  std::vector<ModelFile> files;
  auto server = pool.start(pool.paths(), false);
  write_files(pool, *server, 1000 * lost, files);
  pool.stop(std::move(server));
  for (u32 i = 0; i < lost; ++i) pool.take_away(i);

  server = pool.start(pool.paths(), true);
  pool.expect_files(*server, files, "without devices");
  write_files(pool, *server, 1000 * lost + 100, files);
  for (u32 i = 0; i < lost; ++i) {
    if (!fill(pool, *server, i, pool.make_empty(i))) return;
  }
  pool.expect_files(*server, files, "with new devices");
  pool.stop(std::move(server));
  check_medium(pool);

  for (u32 i = 0; i < lost; ++i) pool.take_away(shape.device_count - 1 - i);
  server = pool.start(pool.paths(), true);
  pool.expect_files(*server, files, "without devices that were there all the time");
  pool.stop(std::move(server));
}

void run(EngineChoice engine) {
  for (const Shape& shape : {Shape{"raid1", 3, 1}, Shape{"raid5", 4, 1}, Shape{"raid6", 6, 2}, Shape{"raid7", 7, 3}}) {
    for (u32 lost = 1; lost <= shape.lost_max; ++lost) {
      std::printf("%s without %u of %u devices\n", shape.profile, lost, shape.device_count);
      test_losses(shape, lost, engine);
    }
  }
}

}  // namespace
}  // namespace gpu4fs::test

int main(int argument_count, char** arguments) {
  using namespace gpu4fs::test;
  const bool on_cpu = argument_count > 1 && std::strcmp(arguments[1], "cpu") == 0;
  try {
    if (on_cpu || has_gpu()) run(on_cpu ? EngineChoice::cpu : EngineChoice::cuda);
  } catch (const std::exception& error) {
    check(false, error.what());
  }
  return finish();
}
