#include "frontend/dead_session.hpp"

#include <cstring>
#include <new>

#include "base/host/json.hpp"
#include "ring/ring_client.hpp"
#include "ring/ring_layout.hpp"

namespace gpu4fs::frontend {
namespace {

constexpr u32 depth_log2 = 1;

class DeadPort final : public ring::EnginePort {
 public:
  explicit DeadPort(u64 bytes) : memory_(static_cast<u8*>(::operator new (bytes, std::align_val_t{page_size}))) {
    std::memset(memory_, 0, bytes);
  }
  DeadPort(const DeadPort&) = delete;
  DeadPort& operator=(const DeadPort&) = delete;
  ~DeadPort() override { ::operator delete (memory_, std::align_val_t{page_size}); }

  void doorbell() override {}
  bool wait(u64, ring::Predicate) override { return false; }
  u8* memory() { return memory_; }

 private:
  u8* memory_;
};

}  // namespace

std::unique_ptr<client::Session> DeadSessions::open_session(u64 data_bytes) {
  const ring::SessionLayout layout = ring::SessionLayout::make(depth_log2, data_bytes);
  const auto port = std::make_shared<DeadPort>(layout.total_length);
  return std::make_unique<client::Session>(
      client::Connection{ring::RingProducer::attach(port->memory(), layout), port.get(), port});
}

std::string DeadSessions::statistics_json() {
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("engine", "");
  json.add("fault", reason_);
  json.end();
  return json.text();
}

}  // namespace gpu4fs::frontend
