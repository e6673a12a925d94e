// A mounted pool of a CrashImage; the class that serves it is a parameter (CrashPool: crash_pool.hpp, MappedPool:
// mapped_pool.hpp).
//
// A class that serves has:
//     using Host = ...;                 // the engine's host side, an EngineHost
//     struct Setup { TestPoolOptions options; ... };
//     Serving(CrashImage& image, const Setup& setup, pool::OpenedPool& pool, u64 log_seed);
//                                       // maps the devices and starts an engine; with the seed 0 one that replays
//     Host& host();
//     engine::Engine* engine();
//     void drain();                     // completes the work that has begun
//     ~Serving();                       // the engine ends; the image knows all changes
#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "crash/crash_image.hpp"
#include "server/recovery/replay.hpp"
#include "support/basic_test_pool.hpp"

namespace gpu4fs::test {

inline TestPoolOptions crash_pool_options() {
  TestPoolOptions options;
  options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
  options.config.command_count = 32;
  options.session_bytes = u64{256} << 10;
  return options;
}

// The operations on a mounted pool, independent of the class that serves it.
class ServedPool {
 public:
  ServedPool() = default;
  ServedPool(const ServedPool&) = delete;
  ServedPool& operator=(const ServedPool&) = delete;
  // The engine ends; nothing more is written.
  virtual ~ServedPool() = default;

  virtual client::Session& session() = 0;
  // For internal commands.
  virtual session::ServerSession& management() = 0;
  virtual engine::EngineHost& host() = 0;

  Status checkpoint(bool clean = false) { return command(wire::Opcode::checkpoint, clean ? checkpoint_mask_clean : 0); }

  // The part of opening that happens before anything is recorded: devices without the newest superblock get it.
  static void complete(CrashImage& image) { open_and_complete(image); }

  static void require(Status status, const char* what) {
    if (status == Status::ok) return;
    throw std::runtime_error(std::string(what) + ": " + status_name(status));
  }

 protected:
  static constexpr u32 checkpoint_mask_clean = 1;
  static constexpr u32 checkpoint_mask_forced = 2;

  Status command(wire::Opcode opcode, u32 mask = 0) {
    wire::Command command{};
    command.opcode = opcode;
    command.mask = mask;
    return management().call(command).status;
  }

  static pool::OpenedPool open_and_complete(CrashImage& image) {
    pool::OpenPoolOptions open;
    open.device_paths = image.paths();
    pool::OpenedPool pool = pool::open_pool(open);
    for (u32 i = 0; i < image.device_count(); ++i) {
      image.touch(i, format::superblock_offset_a, page_size);
      image.touch(i, format::superblock_offset_b, page_size);
    }
    pool::complete_superblocks(pool);
    return pool;
  }
};

template <class Serving>
class BasicCrashPool : public ServedPool {
 public:
  using Setup = typename Serving::Setup;
  using Host = typename Serving::Host;

  // Mounts. PoolError, std::runtime_error.
  BasicCrashPool(CrashImage& image, Setup setup) : image_(image), setup_(std::move(setup)) {
    open();
    const server::LogScan scan = server::scan_log(*pool_);
    if (scan.record_count() != 0) {
      start(0);
      require(command(wire::Opcode::load_chunks), "loading");
      replay(scan);
      replayed_count_ = scan.record_count();
      end();
      open();
    } else {
      server::require_nothing_lost(scan, scan.end);
    }
    start(pool_->superblock.log_seed + 1);
    require(command(wire::Opcode::load_chunks), "loading");
    require(command(wire::Opcode::checkpoint, checkpoint_mask_forced), "the first checkpoint");
    require(command(wire::Opcode::reclaim_orphans), "freeing orphans");
    session_ = open_session();
  }
  ~BasicCrashPool() override { serving_->drain(); }

  client::Session& session() override { return *session_; }
  // Another one.
  std::unique_ptr<client::Session> open_session() {
    auto session = std::make_shared<session::ServerSession>(
        host(), sessions_mutex_, session::ServerSession::Kind::trusted, 4, setup_.options.session_bytes);
    client::Connection connection{session->producer(), &session->port(), session};
    return std::make_unique<client::Session>(std::move(connection));
  }
  session::ServerSession& management() override { return *management_; }
  Host& host() override { return serving_->host(); }
  engine::Engine* engine() { return serving_->engine(); }
  u64 replayed_count() const { return replayed_count_; }
  // Completes the work that has begun.
  void drain() { serving_->drain(); }

 private:
  void open() { pool_ = std::make_unique<pool::OpenedPool>(open_and_complete(image_)); }

  void start(u64 log_seed) {
    serving_ = std::make_unique<Serving>(image_, setup_, *pool_, log_seed);
    management_ = std::make_unique<session::ServerSession>(
        host(), sessions_mutex_, session::ServerSession::Kind::internal, 4, format::log_record_bytes_max);
  }
  void end() {
    serving_->drain();
    management_.reset();
    serving_.reset();
    pool_.reset();
  }

  // As in server/recovery/recovery.cpp.
  void replay(const server::LogScan& scan) {
    const server::VerifiedLog verified = server::verify_records(*management_, scan);
    server::require_nothing_lost(scan, verified.end);
    server::replay_records(*management_, scan, verified.record_count);
    server::set_log_end(*management_, verified.end);
    require(command(wire::Opcode::checkpoint, checkpoint_mask_clean), "the checkpoint of the recovery");
  }

  CrashImage& image_;
  Setup setup_;
  u64 replayed_count_ = 0;
  std::unique_ptr<pool::OpenedPool> pool_;
  std::unique_ptr<Serving> serving_;
  std::mutex sessions_mutex_;
  std::unique_ptr<session::ServerSession> management_;
  std::unique_ptr<client::Session> session_;
};

}  // namespace gpu4fs::test
