// A mounted pool without a real pool: memory for devices, unformatted chunks, and an engine and a server that the test
// simulates.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/limits.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/pool_host.hpp"
#include "support/played_engine.hpp"

namespace gpu4fs::test {

// Memory without a name, as on a tmpfs, so it can be released.
inline device::MappedFile make_memory_file(u64 size_bytes) {
  const std::string name = "gpu4fs_played";
  const int descriptor = ::memfd_create(name.c_str(), MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(size_bytes)) != 0) {
    throw std::runtime_error(name + ": no file can be made");
  }
  return device::MappedFile::adopt(descriptor, name);
}

class PlayedPool {
 public:
  static constexpr u64 chunk_bytes = u64{24} << 20;
  static constexpr u64 device_bytes = u64{64} << 20;
  static constexpr u64 column_offset = u64{1} << 20;

  PlayedPool() {
    auto engine = std::make_unique<PlayedEngine>();
    engine_ = engine.get();
    mounted.setup.host = std::move(engine);
  }

  PlayedEngine& engine() { return *engine_; }
  void add_device(device::MappedFile file) {
    mounted.setup.files.push_back(std::move(file));
    mounted.pool.devices.push_back({pool::DeviceFile::absent("played"), {}, true, pool::MemberState::here, 0});
  }
  // A mirrored chunk on the first two devices. Returns its number.
  u32 add_chunk() {
    pool::OpenedChunk chunk{};
    chunk.descriptor.level = format::RaidLevel::raid1;
    chunk.descriptor.column_count = 2;
    chunk.descriptor.redundancy = 1;
    chunk.descriptor.size_bytes = chunk_bytes;
    const u64 number = mounted.pool.chunks.size();
    chunk.descriptor.base_address = number * chunk_bytes;
    const u64 offset = column_offset + number * (device_bytes / 2);
    for (u32 i = 0; i < 2; ++i) chunk.columns.push_back(format::ColumnAddress::make(i, offset));
    mounted.pool.chunks.push_back(std::move(chunk));
    return static_cast<u32>(number);
  }
  std::unique_ptr<session::ServerSession> open_session() {
    return std::make_unique<session::ServerSession>(*mounted.setup.host, mounted.open_close,
                                                    session::ServerSession::Kind::internal, 2, page_size);
  }

  maintenance::MountedPool mounted{pool::OpenedPool{}};

 private:
  PlayedEngine* engine_ = nullptr;
};

// Records the commands of the management session; `answer` answers them in the calling thread.
class PlayedHost final : public maintenance::PoolHost {
 public:
  using Answer = std::function<ring::Completion(const wire::Command&)>;

  explicit PlayedHost(Answer answer = nullptr) : answer_(std::move(answer)) {}

  const CommandList& commands() const { return commands_; }

  ring::Completion call(wire::Command command) override {
    commands_.add(command);
    return answer_ ? answer_(command) : ring::Completion{};
  }
  void device_joined(const std::string& /*spec*/) override {}
  void device_left(const std::string& /*path*/) override {}
  void device_replaced(const std::string& /*path*/, const std::string& /*spec*/) override {}
  void forget_errors(u32 /*device*/) override {}

 private:
  CommandList commands_;
  Answer answer_;
};

}  // namespace gpu4fs::test
