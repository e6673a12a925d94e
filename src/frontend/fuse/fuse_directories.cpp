// Directory streams. The engine returns "." and ".." first, and its cursor is the kernel's offset. A record of the
// engine is as long as the kernel's form of the same entry, so an answer fits the kernel's request.
#include <dirent.h>

#include <cstring>
#include <string>

#include "frontend/fuse/fuse_operations.hpp"

namespace gpu4fs::frontend {
namespace {

using wire::Opcode;

class EntryBuffer {
 public:
  EntryBuffer(fuse_req_t request, FuseWorker& worker, u64 capacity, bool with_attributes)
      : request_(request), worker_(worker), capacity_(capacity), plus_(with_attributes) {}

  // False: no room left.
  bool add(const char* name, u64 inode, u8 type, u64 next_offset, const format::AttributeRecord* record) {
    char* place = reinterpret_cast<char*>(worker_.convert_buffer()) + used_;
    const u64 room = capacity_ - used_;
    u64 length = 0;
    if (plus_) {
      fuse_entry_param entry{};
      entry.attr.st_ino = inode;
      entry.attr.st_mode = DTTOIF(type);
      const u64 wanted = fuse_add_direntry_plus(request_, nullptr, 0, name, nullptr, 0);
      if (wanted > room) return false;
      if (record != nullptr) entry = to_entry(worker_, *record);
      length = fuse_add_direntry_plus(request_, place, room, name, &entry, static_cast<off_t>(next_offset));
    } else {
      struct stat attributes {};
      attributes.st_ino = inode;
      attributes.st_mode = DTTOIF(type);
      length = fuse_add_direntry(request_, place, room, name, &attributes, static_cast<off_t>(next_offset));
      if (length > room) return false;
    }
    used_ += length;
    return true;
  }

  u64 used() const { return used_; }
  u64 room() const { return capacity_ - used_; }
  const char* data() const { return reinterpret_cast<const char*>(worker_.convert_buffer()); }

 private:
  fuse_req_t request_;
  FuseWorker& worker_;
  u64 capacity_;
  u64 used_ = 0;
  bool plus_;
};

// The kernel counts no lookups for these two.
bool is_dot(const std::string& name) {
  return name == "." || name == "..";
}

// Copies the engine's records to the kernel's form. The engine is trusted; its arithmetic is checked.
void convert(const u8* records, u64 length, EntryBuffer& entries) {
  u64 at = 0;
  while (at + sizeof(wire::DirectoryRecord) <= length) {
    wire::DirectoryRecord head;
    std::memcpy(&head, records + at, sizeof(head));
    const bool has_attributes = head.has_attributes != 0;
    const u64 name_at = sizeof(head) + (has_attributes ? sizeof(format::AttributeRecord) : 0);
    GPU4FS_CHECK_LE(name_at + head.name_length, head.record_length);
    GPU4FS_CHECK_LE(at + head.record_length, length);
    const auto* name = reinterpret_cast<const char*>(records + at + name_at);
    const std::string text(name, head.name_length);
    format::AttributeRecord record;
    if (has_attributes) std::memcpy(&record, records + at + sizeof(head), sizeof(record));
    if (!entries.add(text.c_str(), head.inode, head.type, head.next_cursor,
                     has_attributes && !is_dot(text) ? &record : nullptr)) {
      return;
    }
    at += head.record_length;
  }
}

void answer_entries(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, bool plus) {
  FuseWorker& worker = FuseWorker::current();
  EntryBuffer entries(request, worker, size < fuse_max_write ? size : fuse_max_write, plus);
  wire::Command command = worker.command(request, Opcode::readdir, inode);
  command.offset = static_cast<u64>(offset);
  command.mask = plus ? 1 : 0;
  worker.set_data(command, worker.reply_buffer(), entries.room());
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  convert(worker.reply_buffer(), reply.result, entries);
  fuse_reply_buf(request, entries.data(), entries.used());
}

void readdir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  answer_entries(request, inode, size, offset, false);
}

void readdirplus(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  answer_entries(request, inode, size, offset, true);
}

void opendir(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  if (FuseWorker::current().shared().lists_without_asking) {
    fuse_reply_err(request, ENOSYS);
    return;
  }
  info->keep_cache = 1;
  info->cache_readdir = 1;
  fuse_reply_open(request, info);
}

void fsyncdir(fuse_req_t request, fuse_ino_t inode, int data_only, fuse_file_info*) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::fsync, inode);
  command.deadline_ms = patient_deadline_ms;
  command.mask = data_only != 0 ? 1 : 0;
  reply_status(request, worker.call(command).status);
}

}  // namespace

void add_directory_operations(fuse_lowlevel_ops& operations) {
  operations.opendir = opendir;
  operations.readdir = readdir;
  operations.readdirplus = readdirplus;
  operations.fsyncdir = fsyncdir;
}

}  // namespace gpu4fs::frontend
