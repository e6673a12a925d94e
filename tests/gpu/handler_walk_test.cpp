// The walks of the handler tests (tests/engine) on pools that are served as by a mount, with upcalls and regular
// checkpoints: files by several clients at once, names compared with the CPU engine. The CPU engine checks and reads
// what the GPU engine left.
#include <memory>
#include <thread>
#include <vector>

#include "engine/file_walk.hpp"
#include "engine/name_walk.hpp"
#include "gpu/gpu_report.hpp"
#include "server/pool_server.hpp"
#include "support/basic_test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using session::EngineChoice;

constexpr u64 cache_bytes = u64{8} << 20;  // the minimum: pages are evicted

std::vector<std::string> device_paths(const DeviceFolder& folder) {
  return {folder.device(0), folder.device(1)};
}

void make_pool(const DeviceFolder& folder) {
  pool::MakePoolOptions make;
  make.device_paths = device_paths(folder);
  make.size_bytes = u64{64} << 20;
  make.chunk_size_bytes = u64{8} << 20;
  make.root_uid = 0;
  make.root_gid = 0;
  pool::make_pool(make);
}

session::ServerOptions serving(const DeviceFolder& folder, EngineChoice engine) {
  session::ServerOptions options;
  options.device_paths = device_paths(folder);
  options.engine = engine;
  options.commit_interval_s = 1;
  options.cache_bytes = cache_bytes;
  return options;
}

void check_medium(const DeviceFolder& folder) {
  fsck::CheckOptions options;
  options.device_paths = device_paths(folder);
  const fsck::CheckResult result = fsck::check_pool(options);
  check(result.findings.error_count() == 0, "fsck finds no error" + findings_text(result));
  options.engine = fsck::CheckEngine::cuda;
  const fsck::CheckResult by_gpu = fsck::check_pool(options);
  check(by_gpu.findings.error_count() == 0, "fsck on the GPU finds no error" + findings_text(by_gpu));
  check(by_gpu.engine != "none" && by_gpu.names == result.names && by_gpu.pages_used == result.pages_used &&
            by_gpu.pages_verified == result.pages_verified && by_gpu.inodes == result.inodes,
        "fsck on the GPU counts what the host's reader counts");
}

// The files that the clients left.
std::vector<ModelFile> walk_files(engine::EngineHost& host, u32 walk_count, u32 step_count) {
  std::vector<std::unique_ptr<FileWalk<Client>>> walks;
  for (u32 w = 0; w < walk_count; ++w) walks.push_back(std::make_unique<FileWalk<Client>>(host, 100 + w));
  std::vector<std::thread> threads;
  for (u32 w = 0; w < walk_count; ++w) {
    threads.emplace_back([&, w] {
      for (u32 i = 0; i < step_count && walks[w]->step(); ++i) {
      }
      walks[w]->read_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<ModelFile> files;
  for (const auto& walk : walks) {
    check(walk->difference().empty(), "files: " + walk->difference());
    files.insert(files.end(), walk->files(), walk->files() + 2);
  }
  return files;
}

void test_files(u32 walk_count, u32 step_count) {
  const DeviceFolder folder;
  make_pool(folder);
  std::vector<ModelFile> files;
  {
    server::PoolServer server(serving(folder, EngineChoice::cuda));
    server.start();
    files = walk_files(server.engine(), walk_count, step_count);
    check(!server.engine().has_died(), "the engine lives: " + server.engine().fault_text());
    check(server.stop(), "the last checkpoint is written");
  }
  check_medium(folder);
  for (const EngineChoice engine : {EngineChoice::cpu, EngineChoice::cuda}) {
    server::PoolServer server(serving(folder, engine));
    server.start();
    const std::string difference = stored_difference<Client>(server.engine(), files);
    check(difference.empty(), server.engine_text() + ": " + difference);
  }
}

// A directory of several levels gives back its pages while its names are removed.
void empty_directory(engine::EngineHost& host, u32 name_count) {
  BasicNameClient<Client> client(host);
  const u64 directory = client.mkdir(format::inode_number_root, "emptied", 0777).result;
  const auto name = [](u32 i) { return fmt::format("a name of some length, number {}", i); };
  Status status = Status::ok;
  for (u32 i = 0; i < name_count && status == Status::ok; ++i) status = client.create(directory, name(i)).status;
  check(status == Status::ok, fmt::format("{} names: {}", name_count, status_name(status)));
  for (u32 i = 0; i < name_count && status == Status::ok; ++i) {
    const ring::Completion done = client.unlink(directory, name(i));
    status = done.status == Status::ok ? client.reclaim(done.result).status : done.status;
  }
  check(status == Status::ok, fmt::format("{} names go: {}", name_count, status_name(status)));
  status = client.rmdir(format::inode_number_root, "emptied").status;
  check(status == Status::ok, fmt::format("the emptied directory goes: {}", status_name(status)));
}

NameWalkResult walk_names(EngineChoice engine, u32 step_count) {
  const DeviceFolder folder;
  make_pool(folder);
  NameWalkResult result;
  {
    server::PoolServer server(serving(folder, engine));
    server.start();
    {
      NameWalk<Client> walk(server.engine());
      result = run_name_walk(walk, step_count);
    }
    empty_directory(server.engine(), scaled(3000));
    check(!server.engine().has_died(), "the engine lives: " + server.engine().fault_text());
  }
  check_medium(folder);
  return result;
}

void test_names(u32 step_count) {
  const NameWalkResult cpu = walk_names(EngineChoice::cpu, step_count);
  const NameWalkResult gpu = walk_names(EngineChoice::cuda, step_count);
  check(cpu.is_complete && gpu.is_complete && !cpu.tree.empty(), "the trees can be listed");
  check(cpu.tree == gpu.tree, "both engines leave the same tree");
  for (u32 i = 0; i < step_count; ++i) {
    if (cpu.answers[i] == gpu.answers[i]) continue;
    check(false, fmt::format("names, step {}: the CPU answers {}, the GPU {}", i, cpu.answers[i], gpu.answers[i]));
    return;
  }
  check(true, "both engines answer the same");
}

void run() {
  test_files(1, scaled(1500));
  test_files(4, scaled(1000));
  test_names(scaled(3000));
}

}  // namespace
}  // namespace gpu4fs::test

int main() {
  return gpu4fs::test::run_on_gpu(gpu4fs::test::run);
}
