#include "frontend/local_session.hpp"

#include <utility>

namespace gpu4fs::frontend {

client::Session open_local_session(server::PoolServer& server, u64 data_bytes, u32 depth_log2) {
  server::LocalSession local = server.open_session(data_bytes, depth_log2);
  return client::Session(client::Connection{local.producer, local.port, std::move(local.owner)});
}

std::unique_ptr<client::Session> LocalSessions::open_session(u64 data_bytes) {
  return std::make_unique<client::Session>(open_local_session(server_, data_bytes));
}

}  // namespace gpu4fs::frontend
