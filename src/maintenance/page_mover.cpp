#include "maintenance/page_mover.hpp"

#include <cstring>

#include "base/check.hpp"
#include "format/inode_format.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u32 mover_session_depth_log2 = 2;
constexpr u64 mover_data_bytes = u64{64} << 10;

}  // namespace

PageMover::PageMover(engine::EngineHost& host, std::mutex& open_close)
    : session_(host, open_close, session::ServerSession::Kind::internal, mover_session_depth_log2, mover_data_bytes) {}

ring::Completion PageMover::call(wire::RelocateStep step, u64 inode, u64 offset, u64 length, u32 mask) {
  wire::Command command{};
  command.opcode = wire::Opcode::relocate;
  command.mode = static_cast<u32>(step);
  command.mask = mask;
  command.inode = inode;
  command.offset = offset;
  command.length = length;
  command.data = wire::ring_address(0, 0);
  command.deadline_ms = session::patient_deadline_ms;
  return session_.call(command);
}

Status PageMover::move(wire::RelocateStep step, u64 inode, u32 mask, const GoesOn& goes_on, Moved* moved) {
  const bool is_data = step == wire::RelocateStep::data;
  for (u64 offset = 0; offset != wire::relocate_end;) {
    const ring::Completion done = call(step, inode, offset, is_data ? command_pages_ : 0, mask);
    if (done.status == Status::stale) return Status::ok;
    if (done.status != Status::ok) return done.status;
    wire::RelocateReport report;
    std::memcpy(&report, session_.data(), sizeof(report));
    GPU4FS_CHECK(report.next > offset || report.moved != 0);
    moved->page_count += report.moved;
    moved->stayed_count += report.stayed;
    if (!goes_on(report.moved)) return Status::cancelled;
    offset = report.next;
  }
  return Status::ok;
}

Status PageMover::move_file(u64 inode, u32 mask, const GoesOn& goes_on, Moved* moved) {
  return move(wire::RelocateStep::data, inode, mask, goes_on, moved);
}

Status PageMover::move_metadata(u64 inode, const GoesOn& goes_on, Moved* moved) {
  return move(wire::RelocateStep::metadata, inode, 0, goes_on, moved);
}

Status PageMover::next_inode(u64 inode, u64* found) {
  const ring::Completion done = call(wire::RelocateStep::next_inode, inode, 0, 0, 0);
  *found = done.result;
  return done.status;
}

Status PageMover::freeze(u32 chunk) {
  return call(wire::RelocateStep::freeze, chunk, 0, 0, 0).status;
}

Status PageMover::unfreeze(u32 chunk) {
  return call(wire::RelocateStep::unfreeze, chunk, 0, 0, 0).status;
}

Status PageMover::chunk_usage(std::vector<wire::ChunkUsage>* usage) {
  usage->clear();
  for (;;) {
    const ring::Completion done = call(wire::RelocateStep::usage, usage->size(), 0, mover_data_bytes, 0);
    if (done.status != Status::ok) return done.status;
    if (done.result == 0) return Status::ok;
    const u64 before = usage->size();
    usage->resize(before + done.result);
    std::memcpy(usage->data() + before, session_.data(), done.result * sizeof(wire::ChunkUsage));
  }
}

}  // namespace gpu4fs::maintenance
