#include "frontend/fuse/fuse_worker.hpp"

#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse_lowlevel.h>

#include <cstring>
#include <thread>

#include "base/check.hpp"
#include "base/host/log.hpp"
#include "fmt/format.h"

namespace gpu4fs::frontend {

thread_local FuseWorker* FuseWorker::current_ = nullptr;

wire::Command FuseWorker::command(fuse_req* request, wire::Opcode opcode, u64 inode) {
  wire::Command command{};
  command.opcode = opcode;
  command.inode = inode;
  if (request != nullptr) {
    const fuse_ctx* context = fuse_req_ctx(request);
    command.uid = context->uid;
    command.gid = context->gid;
    command.umask_bits = context->umask;
  }
  return command;
}

bool FuseWorker::in_data_area(const void* address) const {
  const auto* byte = static_cast<const u8*>(address);
  return byte >= session_->data() && byte < session_->data() + session_->data_bytes();
}

void FuseWorker::set_name(wire::Command& command, std::string_view name) {
  const void* place = name.data();
  if (!in_data_area(place)) {
    GPU4FS_CHECK_LE(name.size(), path_length_max);
    std::memcpy(name_buffer(), name.data(), name.size());
    place = name_buffer();
  }
  command.name = session_->address_of(place);
  command.name_length = static_cast<u16>(name.size());
}

void FuseWorker::set_names(wire::Command& command, std::string_view first, std::string_view second) {
  GPU4FS_CHECK_LE(first.size() + second.size(), path_length_max);
  std::memcpy(name_buffer(), first.data(), first.size());
  std::memcpy(name_buffer() + first.size(), second.data(), second.size());
  command.name = session_->address_of(name_buffer());
  command.name_length = static_cast<u16>(first.size());
  command.second_name_length = static_cast<u16>(second.size());
}

void FuseWorker::set_data(wire::Command& command, const void* data, u64 length) {
  command.length = length;
  if (length == 0) return;
  const void* place = data;
  if (!in_data_area(place)) {
    GPU4FS_CHECK_LE(length, fuse_max_write);
    std::memcpy(reply_buffer(), data, length);
    place = reply_buffer();
  }
  command.data = session_->address_of(place);
}

void FuseWorker::want_attributes(wire::Command& command) {
  command.output = session_->address_of(&attributes());
}

bool waits_for_sync(const FuseOptions& options, wire::Opcode opcode) {
  switch (wire::effect_of(opcode)) {
    case wire::Effect::session:
    case wire::Effect::reads:
    case wire::Effect::upkeep:
    case wire::Effect::places:
    case wire::Effect::orphans:  // their names were removed before, and the rest is invisible
      return false;
    case wire::Effect::content:
      return options.synchronous;
    case wire::Effect::names:
      break;
  }
  return options.synchronous || options.synchronous_directories;
}

client::Reply FuseWorker::call(const wire::Command& command) {
  // Another file may have got the number.
  const InodeTable& inodes = shared_.inodes;
  if (inodes.is_lost(command.inode) || inodes.is_lost(command.second_inode)) return {Status::stale, 0};
  const client::Reply reply = call_with_room(command);
  if (reply.status != Status::ok || !waits_for_sync(shared_.options, command.opcode)) return reply;
  const Status synced = sync();
  return synced == Status::ok ? reply : client::Reply{synced, 0};
}

Status FuseWorker::sync() {
  wire::Command request = command(nullptr, wire::Opcode::sync, 0);
  request.deadline_ms = patient_deadline_ms;
  return session_->call(request).status;
}

client::Reply FuseWorker::call_with_room(const wire::Command& command) {
  client::Reply reply = session_->call(command);
  if (reply.status != Status::no_space && reply.status != Status::no_inodes) return reply;
  constexpr int wait_ms_max = 2000;
  for (int waited_ms = 0; waited_ms < wait_ms_max; ++waited_ms) {
    const u64 orphans = shared_.inodes.orphan_count();
    if (orphans <= shared_.orphans_not_freed.load()) return reply;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (shared_.inodes.orphan_count() < orphans) {
      reply = session_->call(command);
      if (reply.status != Status::no_space && reply.status != Status::no_inodes) return reply;
    }
  }
  shared_.orphans_not_freed = shared_.inodes.orphan_count();
  return session_->call(command);
}

u64 FuseWorker::open_file(u64 inode, int flags) {
  if (shared_.opens_without_asking || (flags & O_ACCMODE) == O_RDONLY) return 0;
  return OpenFiles::handle_of(shared_.files.open(inode, shared_.source.write_errors()));
}

void FuseWorker::close_file(u64 handle) {
  if (handle != 0) shared_.files.close(shared_.files.find(handle));
}

void FuseWorker::note_change(u64 handle) {
  if (handle != 0) shared_.files.changed(shared_.files.find(handle), shared_.source.write_errors());
}

bool FuseWorker::take_error(u64 handle) {
  return handle != 0 && shared_.files.take_error(shared_.files.find(handle), shared_.source.write_errors());
}

Status FuseWorker::sync_file(const wire::Command& command, u64 handle) {
  if (handle == 0) return call(command).status;
  shared_.files.begin_sync(shared_.files.find(handle), shared_.source.write_errors());
  const Status status = call(command).status;
  const bool failed =
      shared_.files.end_sync(shared_.files.find(handle), shared_.source.write_errors(), status == Status::ok);
  return failed && status == Status::ok ? Status::io_error : status;
}

void FuseWorker::reclaim(u64 inode) {
  wire::Command request = command(nullptr, wire::Opcode::reclaim, inode);
  request.deadline_ms = patient_deadline_ms;
  const client::Reply reply = session_->call(request);
  // An inode that is not freed here is freed by the next mount: the orphan bit is on the medium.
  if (reply.status != Status::ok && reply.status != Status::stale && reply.status != Status::not_found) {
    log(LogLevel::warning,
        fmt::format("space of deleted inode {} was not freed: {}", inode, status_text(reply.status)));
  }
}

void FuseWorker::forget(u64 inode, u64 count) {
  if (shared_.inodes.forget(inode, count)) {
    reclaim(inode);
    shared_.inodes.reclaimed();
    u64 floor = shared_.orphans_not_freed.load();
    const u64 orphans = shared_.inodes.orphan_count();
    while (floor > orphans && !shared_.orphans_not_freed.compare_exchange_weak(floor, orphans)) {
    }
  }
}

void FuseWorker::orphaned(u64 inode) {
  if (inode == 0 || !shared_.inodes.mark_orphan(inode)) return;
  reclaim(inode);
  shared_.inodes.reclaimed();
}

}  // namespace gpu4fs::frontend
