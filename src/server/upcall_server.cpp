#include "server/upcall_server.hpp"

#include <chrono>
#include <shared_mutex>
#include <string>
#include <utility>

#include "base/host/log.hpp"
#include "base/mutant.hpp"
#include "engine/engine_host.hpp"
#include "engine/wake.hpp"
#include "fmt/format.h"

namespace gpu4fs::server {
namespace {

constexpr u64 upcall_wait_ns = 250'000'000;  // also the longest wait of stop()
constexpr u64 put_off_wait_ns = 1'000'000;   // while a chunk's free space is being discarded

// `path` empty: another device has its index meanwhile.
std::string loss_text(u64 device, const std::string& path) {
  if (path.empty()) {
    return fmt::format("device {} failed and is not used any more; another has taken its place since", device);
  }
  return fmt::format("device {} failed and is not used any more: {}; the pool goes on without it, with less redundancy",
                     device, path);
}

}  // namespace

void UpcallServer::start(std::unique_ptr<session::ServerSession> session) {
  session_ = std::move(session);
  thread_ = std::thread([this] { run(); });
}

// The thread may test for the end just before it sleeps, so it is woken until it has seen it.
void UpcallServer::stop() {
  end_is_asked_for_ = true;
  while (!has_ended_) {
    engine::wake_server(*mounted_.setup.upcalls);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  thread_.join();
}

void UpcallServer::set_spares(maintenance::SpareDevices* spares) {
  const std::lock_guard guard(spares_mutex_);
  spares_ = spares;
}

void UpcallServer::run() {
  engine::EngineHost& engine = *mounted_.setup.host;
  while (!end_is_asked_for_) {
    ring::Upcall upcall{};
    const bool was_dead = engine.has_died();  // tested first: then its last upcalls are read, and its death is reported
    if (!engine.wait_upcall(&upcall, put_off_.empty() ? upcall_wait_ns : put_off_wait_ns)) {
      death_.report();
      if (was_dead) break;
      try_put_off();
      continue;
    }
    if (upcall.kind == ring::UpcallKind::make_chunk && maker_.take(upcall)) continue;
    if (!serve(upcall)) put_off_.push_back(upcall);
  }
  has_ended_ = true;
}

void UpcallServer::try_put_off() {
  std::erase_if(put_off_, [this](const ring::Upcall& upcall) { return serve(upcall); });
}

// False: it has to be tried again, because of a discard that may take long. Others do not wait for it.
bool UpcallServer::serve(const ring::Upcall& upcall) {
  u64 failed_devices = 0;
  const Status result = carry_out(upcall, &failed_devices);
  if (upcall.kind == ring::UpcallKind::map_chunk && result == Status::busy) return false;
  // not_found: the command has stopped waiting.
  if (ring::wants_answer(upcall.kind)) {
    (void)session_->call(engine::answer_upcall_command(upcall, result, failed_devices));
  }
  return true;
}

Status UpcallServer::carry_out(const ring::Upcall& upcall, u64* failed_devices) {
  switch (upcall.kind) {
    case ring::UpcallKind::flush_device:
      return flush_devices(upcall.argument, failed_devices);
    case ring::UpcallKind::device_lost:
      tell_of_loss(upcall.argument, upcall.detail);
      return Status::ok;
    case ring::UpcallKind::map_chunk:
      return mapper_.map_chunk(upcall.argument, *session_);
    case ring::UpcallKind::make_chunk:
      return Status::no_space;
    case ring::UpcallKind::write_growth:
      return grower_.write(upcall.argument, upcall.detail);
    case ring::UpcallKind::log:
      log(LogLevel::warning, fmt::format("the engine reports {} {:#x}", upcall.detail, upcall.argument));
      return Status::ok;
    case ring::UpcallKind::wake_client:
    case ring::UpcallKind::none:
      return Status::ok;
  }
  return Status::not_supported;
}

// Another good file may have replaced the failed one meanwhile.
void UpcallServer::tell_of_loss(u64 device, u32 file_number) {
  has_lost_devices_ = true;
  {
    const std::shared_lock lock(mounted_.tables);
    const session::EngineSetup& setup = mounted_.setup;
    if (device >= setup.files.size()) return;
    const bool is_the_same = setup.file_numbers[device] == file_number;
    log(LogLevel::error, loss_text(device, is_the_same ? setup.files[device].path() : ""));
  }
  const std::lock_guard guard(spares_mutex_);
  if (spares_ != nullptr) spares_->device_lost();
}

// *failed_devices: those that failed; the engine decides whether the pool can work without them.
Status UpcallServer::flush_devices(u64 which, u64* failed_devices) {
  Status status = Status::ok;
  const std::shared_lock lock(mounted_.tables);
  const std::vector<device::MappedFile>& files = mounted_.setup.files;
  for (u64 i = 0; i < files.size(); ++i) {
    if (which != ~u64{0} && which != i) continue;
    // The engine itself has others flushed, by requests (engine/device_flush.hpp).
    if (!files[i].is_mapped()) continue;
    // The kernel reports a lost write once; the data stays lost.
    if (flush_errors_[i].load() != 0) {
      *failed_devices |= u64{1} << i;
      status = Status::device_failed;
      continue;
    }
    try {
      if (GPU4FS_MUTANT(server_flushes_nothing, files[i].needs_flush(), false)) files[i].flush();
    } catch (const device::DeviceError& error) {
      log(LogLevel::error, error.what());
      flush_errors_[i].fetch_add(1);
      *failed_devices |= u64{1} << i;
      status = Status::device_failed;
    }
  }
  return status;
}

}  // namespace gpu4fs::server
