#include "client/session.hpp"

#include <utility>

#include "base/check.hpp"

namespace gpu4fs::client {

Session::Session(Connection connection) : connection_(std::move(connection)) {
  GPU4FS_CHECK_NE(connection_.port, nullptr);
  GPU4FS_CHECK_NE(connection_.producer.data, nullptr);
}

Session::~Session() = default;

u64 Session::address_of(const void* place) const {
  const auto offset = static_cast<u64>(static_cast<const u8*>(place) - data());
  GPU4FS_CHECK_LE(offset, data_bytes());
  return wire::ring_address(0, offset);
}

Status Session::submit(const wire::Command& command, u64* position) {
  return connection_.producer.publish(command, position);
}

void Session::wake_engine() {
  connection_.port->doorbell();
}

bool Session::is_done(u64 position) const {
  ring::Completion completion{};
  return connection_.producer.poll(position, &completion);
}

Reply Session::finish(u64 position) {
  ring::Completion completion{};
  const ring::RingProducer& producer = connection_.producer;
  const auto done = [&] { return producer.poll(position, &completion); };
  if (!done() && !connection_.port->wait(position + 1, done)) return {Status::engine_died, 0};
  if (completion.status != Status::ok) return {completion.status, 0};
  return {Status::ok, completion.result};
}

Reply Session::call(const wire::Command& command) {
  u64 position = 0;
  const Status status = submit(command, &position);
  // A caller that waits for each command never fills the ring, unless the engine completes nothing.
  if (status != Status::ok) return {Status::engine_died, 0};
  return finish(position);
}

Status Session::call_linked(std::span<const wire::Command> commands, std::span<Reply> replies) {
  GPU4FS_CHECK_EQ(commands.size(), replies.size());
  GPU4FS_CHECK(!commands.empty() && commands.size() <= linked_max);
  if (!connection_.producer.has_room(commands.size())) return Status::ring_full;
  u64 first = 0;
  for (u64 i = 0; i < commands.size(); ++i) {
    wire::Command command = commands[i];
    if (i + 1 < commands.size()) command.flags |= wire::command_flag_link;
    u64 position = 0;
    GPU4FS_TRY(submit(command, &position));
    if (i == 0) first = position;
  }
  Status status = Status::ok;
  for (u64 i = 0; i < commands.size(); ++i) {
    replies[i] = finish(first + i);
    if (status == Status::ok) status = replies[i].status;
  }
  return status;
}

}  // namespace gpu4fs::client
