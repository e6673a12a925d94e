#include "session/pool_inspector.hpp"

#include <cstring>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::session {
namespace {

using wire::Opcode;

constexpr u32 inspector_session_depth_log2 = 2;

}  // namespace

PoolInspector::PoolInspector(engine::EngineHost& host, std::mutex& open_close)
    : session_(host, open_close, ServerSession::Kind::internal, inspector_session_depth_log2, name_bytes + data_bytes),
      data_(session_.producer().data + name_bytes) {}

wire::Command PoolInspector::command(Opcode opcode, u64 inode) {
  wire::Command command{};
  command.opcode = opcode;
  command.inode = inode;
  command.data = wire::ring_address(0, name_bytes);
  command.length = data_bytes;
  command.deadline_ms = patient_deadline_ms;
  return command;
}

void PoolInspector::set_name(wire::Command& command, std::string_view name) {
  GPU4FS_CHECK_LE(name.size(), name_length_max);
  constexpr u64 offset = 64;  // address 0 means "none"
  std::memcpy(session_.producer().data + offset, name.data(), name.size());
  command.name = wire::ring_address(0, offset);
  command.name_length = static_cast<u16>(name.size());
}

PoolInspector::Verified PoolInspector::run_verify(wire::Command& command, u32 chunk, u64 first, u64 count) {
  GPU4FS_CHECK_LE(count, verify_page_max);
  static_assert(verify_page_max / 8 <= data_bytes);
  std::memset(data(), 0, divide_up(count, 64) * sizeof(u64));
  command.inode = chunk;
  command.offset = first;
  command.length = count;
  const ring::Completion done = session_.call(command);
  if (done.status != Status::ok) return {done.status, 0, 0};
  return {Status::ok, wire::scrub_pages_verified(done.result), wire::scrub_pages_damaged(done.result)};
}

PoolInspector::Verified PoolInspector::verify(u32 chunk, u64 first, u64 count) {
  wire::Command request = command(Opcode::scrub, chunk);
  return run_verify(request, chunk, first, count);
}

PoolInspector::Verified PoolInspector::verify_and_record(u32 chunk, u64 first, u64 count, u64 owner,
                                                         wire::DamageKind kind) {
  wire::Command request = command(Opcode::scrub, chunk);
  request.mask = wire::scrub_mask_record;
  request.second_inode = owner;
  request.mode = static_cast<u32>(kind);
  return run_verify(request, chunk, first, count);
}

bool PoolInspector::is_damaged(u64 page) const {
  GPU4FS_CHECK_LT(page, verify_page_max);
  u64 word = 0;
  std::memcpy(&word, data() + page / 64 * sizeof(word), sizeof(word));
  return (word >> (page % 64) & 1) != 0;
}

Status PoolInspector::list_blocks(u64 inode, const std::function<void(const wire::BlockRecord&)>& visit,
                                  bool* is_complete) {
  *is_complete = true;
  for (u64 page = 0; page != wire::block_list_end;) {
    wire::Command request = command(Opcode::list_blocks, inode);
    request.offset = page;
    const ring::Completion done = session_.call(request);
    if (done.status != Status::ok) return done.status;
    wire::BlockListHeader header;
    std::memcpy(&header, data(), sizeof(header));
    GPU4FS_CHECK_LE(sizeof(header) + header.record_count * sizeof(wire::BlockRecord), data_bytes);
    GPU4FS_CHECK_GT(header.next_page, page);
    if (header.skipped != 0) *is_complete = false;
    for (u32 i = 0; i < header.record_count; ++i) {
      wire::BlockRecord record;
      std::memcpy(&record, data() + sizeof(header) + i * sizeof(record), sizeof(record));
      visit(record);
    }
    page = header.next_page;
  }
  return Status::ok;
}

Status PoolInspector::read_directory(u64 inode, bool with_attributes, std::vector<DirectoryEntry>* entries) {
  entries->clear();
  for (u64 cursor = 0;;) {
    wire::Command request = command(Opcode::readdir, inode);
    request.offset = cursor;
    request.mask = with_attributes ? 1 : 0;
    const ring::Completion done = session_.call(request);
    if (done.status != Status::ok) return done.status;
    if (done.result == 0) return Status::ok;
    for (u64 at = 0; at < done.result;) {
      wire::DirectoryRecord record;
      std::memcpy(&record, data() + at, sizeof(record));
      GPU4FS_CHECK_GT(record.record_length, sizeof(record));
      u64 name_at = at + sizeof(record);
      u32 link_count = 0;
      if (record.has_attributes != 0) {
        format::AttributeRecord attributes;
        std::memcpy(&attributes, data() + name_at, sizeof(attributes));
        link_count = attributes.link_count;
        name_at += sizeof(attributes);
      }
      entries->push_back({std::string(reinterpret_cast<const char*>(data() + name_at), record.name_length),
                          record.inode, record.type, link_count});
      cursor = record.next_cursor;
      at += record.record_length;
    }
  }
}

Status PoolInspector::health(PoolHealth* health) {
  const ring::Completion done = session_.call(command(Opcode::health, 0));
  if (done.status != Status::ok) return done.status;
  std::memcpy(&health->record, data(), sizeof(health->record));
  const u64 count = health->record.damage_count;
  GPU4FS_CHECK_LE(sizeof(health->record) + count * sizeof(wire::DamageRecord), data_bytes);
  health->damage.resize(count);
  if (count != 0) {
    std::memcpy(health->damage.data(), data() + sizeof(health->record), count * sizeof(wire::DamageRecord));
  }
  return Status::ok;
}

u64 PoolInspector::lost_devices() {
  PoolHealth found;
  const Status status = health(&found);
  if (status != Status::ok) throw pool::PoolError(status, status_text(status));
  return found.record.failed_devices;
}

Status PoolInspector::checkpoint() {
  return session_.call(command(Opcode::checkpoint, 0)).status;
}

Status PoolInspector::sync() {
  return session_.call(command(Opcode::sync, 0)).status;
}

std::optional<std::string> PoolInspector::get_attribute(u64 inode, std::string_view name) {
  wire::Command request = command(Opcode::get_attribute, inode);
  set_name(request, name);
  const ring::Completion done = session_.call(request);
  if (done.status != Status::ok || done.result > data_bytes) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(data()), done.result);
}

Status PoolInspector::set_attribute(u64 inode, std::string_view name, std::string_view value) {
  GPU4FS_CHECK_LE(value.size(), data_bytes);
  wire::Command request = command(Opcode::set_attribute, inode);
  set_name(request, name);
  std::memcpy(data(), value.data(), value.size());
  request.length = value.size();
  return session_.call(request).status;
}

}  // namespace gpu4fs::session
