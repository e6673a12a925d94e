// A CPU engine on a small pool in heap memory, and clients that work with files: for tests of handlers.
#pragma once

#include <string>
#include <thread>

#include "engine/engine_fixture.hpp"
#include "support/file_commands.hpp"
#include "support/small_file_system.hpp"

namespace gpu4fs::test {

struct FileEngineOptions {
  SmallPoolOptions pool{};
  u32 worker_count = 2;
  u32 inline_transfer_pages = 4;  // small, so that tests fan out
  u32 task_pages = 3;
  bool start = true;  // false: no worker threads; the test runs worker_step() itself
};

class FileEngine {
 public:
  explicit FileEngine(const FileEngineOptions& options = {})
      : options_(options), pool_(options.pool), upcalls_(sizeof(ring::UpcallRing)) {
    start();
  }
  // The pool as a crash of another engine at this moment leaves it.
  FileEngine(const FileEngineOptions& options, const DeviceImages& images)
      : options_(options), pool_(options.pool, images), upcalls_(sizeof(ring::UpcallRing)) {
    start();
  }
  ~FileEngine() {
    if (options_.start) host_->stop();
  }

  engine::Engine& engine() { return *engine_; }
  engine::CpuEngine& host() { return *host_; }
  // So clients are made from the fixture like from any engine.
  operator engine::EngineHost&() { return *host_; }
  fs::FileSystem& fs() { return engine_->fs; }
  DeviceImages images() const { return pool_.images(); }

 private:
  void start() {
    GPU4FS_CHECK_OK(pool_.load_status());
    engine::EngineConfig config{};
    config.worker_count = options_.worker_count;
    config.command_count = 64;
    config.inline_transfer_pages = options_.inline_transfer_pages;
    config.task_pages = options_.task_pages;
    const engine::MemorySizes sizes{64, 16, 2};
    auto* upcall_ring = reinterpret_cast<ring::UpcallRing*>(upcalls_.data());
    engine::EngineImage image = engine::prepare_engine(allocator_, config, sizes, upcall_ring);
    image->fs = pool_.fs();
    engine_ = engine::place_engine(allocator_, image);
    host_ = std::make_unique<engine::CpuEngine>(engine_, options_.worker_count);
    if (options_.start) host_->start();
  }

  FileEngineOptions options_;
  SmallFileSystem pool_;
  SharedMemory upcalls_;
  engine::HeapAllocator allocator_;
  engine::Engine* engine_ = nullptr;
  std::unique_ptr<engine::CpuEngine> host_;
};

// A client that only waits, so the workers under test do all the work.
class WaitingClient : public Client {
 public:
  using Client::Client;
  ring::Completion call(const wire::Command& command) {
    const u64 position = publish(command);
    ring::Completion completion{Status::engine_died, 0};
    while (!producer().poll(position, &completion)) std::this_thread::yield();
    return completion;
  }
};

using FileClient = BasicFileClient<Client>;

}  // namespace gpu4fs::test
