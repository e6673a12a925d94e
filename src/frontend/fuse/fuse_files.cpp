// Files: attributes, content, space.
//
// The kernel keeps its page cache over opens, which is right because nobody else writes this pool. It checks
// permissions (default_permissions) and sends O_TRUNC as a SETATTR of the size. Files opened for writing get a handle,
// so fsync and close report lost changes (open_files.hpp). For files opened for reading, a close sends no request. With
// `fast_close` OPEN and FLUSH are answered with ENOSYS: the kernel then opens and closes without requests.
#include <fcntl.h>

#include "frontend/fuse/fuse_operations.hpp"
#include "frontend/fuse/fuse_raw.hpp"

namespace gpu4fs::frontend {
namespace {

using wire::Opcode;

void answer_attributes(fuse_req_t request, FuseWorker& worker, wire::Command& command) {
  worker.want_attributes(command);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  const struct stat attributes = to_stat(worker.attributes());
  fuse_reply_attr(request, &attributes, attribute_timeout_s(worker.attributes()));
}

// A change of content removes set-id bits, except for callers with CAP_FSETID. The kernel says who has it (with
// HANDLE_KILLPRIV_V2; otherwise it removes the bits itself); the engine tests for the superuser.
void set_changer(const FuseWorker& worker, wire::Command& command) {
  constexpr u32 nobody = 65534;
  if (!takes_set_id_bits(worker.receive_buffer())) {
    command.uid = 0;
  } else if (command.uid == 0) {
    command.uid = nobody;
  }
}

void getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::getattr, inode);
  answer_attributes(request, worker, command);
}

u32 set_mask(int to_set) {
  struct Pair {
    int fuse;
    u32 mask;
  };
  constexpr Pair pairs[] = {
      {FUSE_SET_ATTR_MODE, format::set_mode},
      {FUSE_SET_ATTR_UID, format::set_uid},
      {FUSE_SET_ATTR_GID, format::set_gid},
      {FUSE_SET_ATTR_SIZE, format::set_size},
      {FUSE_SET_ATTR_ATIME, format::set_access_time},
      {FUSE_SET_ATTR_MTIME, format::set_modification_time},
      {FUSE_SET_ATTR_ATIME_NOW, format::set_access_time_now},
      {FUSE_SET_ATTR_MTIME_NOW, format::set_modification_time_now},
      {FUSE_SET_ATTR_CTIME, format::set_change_time},
  };
  u32 mask = 0;
  for (const Pair& pair : pairs) {
    if ((to_set & pair.fuse) != 0) mask |= pair.mask;
  }
  // "now" comes together with the plain bit; the engine gets one of the two.
  if ((mask & format::set_access_time_now) != 0) mask &= ~u32{format::set_access_time};
  if ((mask & format::set_modification_time_now) != 0) mask &= ~u32{format::set_modification_time};
  return mask;
}

void setattr(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int to_set, fuse_file_info* info) {
  FuseWorker& worker = FuseWorker::current();
  if (info != nullptr) worker.note_change(info->fh);
  wire::Command command = worker.command(request, Opcode::setattr, inode);
  command.deadline_ms = patient_deadline_ms;
  command.mask = set_mask(to_set);
  if ((command.mask & format::set_size) != 0) set_changer(worker, command);
  format::AttributeRecord& record = worker.attributes_in();
  record = {};
  record.mode = wanted->st_mode;
  record.uid = wanted->st_uid;
  record.gid = wanted->st_gid;
  record.size_bytes = static_cast<u64>(wanted->st_size);
  record.access_seconds = wanted->st_atim.tv_sec;
  record.access_nanoseconds = static_cast<u32>(wanted->st_atim.tv_nsec);
  record.modification_seconds = wanted->st_mtim.tv_sec;
  record.modification_nanoseconds = static_cast<u32>(wanted->st_mtim.tv_nsec);
  record.change_seconds = wanted->st_ctim.tv_sec;
  record.change_nanoseconds = static_cast<u32>(wanted->st_ctim.tv_nsec);
  command.data = worker.session().address_of(&record);
  answer_attributes(request, worker, command);
}

void access(fuse_req_t request, fuse_ino_t inode, int mask) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::access, inode);
  command.mode = static_cast<u32>(mask);
  reply_status(request, worker.call(command).status);
}

// Fills `info` for the kernel. `past_cache`: nothing that is written stays in the kernel's pages, and the file cannot
// be mapped for writing.
void set_open(FuseWorker& worker, fuse_ino_t inode, fuse_file_info* info, bool past_cache = false) {
  info->direct_io = worker.shared().options.direct_io || past_cache ? 1 : 0;
  info->keep_cache = 1;
  info->fh = worker.open_file(inode, info->flags);
  info->noflush = info->fh == 0 ? 1 : 0;
}

// The kernel has checked permissions, but it does not know the flags append-only and immutable. So a mapping could
// change what others read of an append-only file, and pages that the kernel holds back would begin before the file's
// end.
Status check_open(fuse_req_t request, FuseWorker& worker, fuse_ino_t inode, int flags, bool* past_cache) {
  if ((flags & O_ACCMODE) == O_RDONLY) return Status::ok;
  wire::Command command = worker.command(request, Opcode::open, inode);
  command.mask = static_cast<u32>(flags);
  worker.want_attributes(command);
  const Status status = worker.call(command).status;
  *past_cache = status == Status::ok && (worker.attributes().flags & format::inode_flag_append_only) != 0;
  return status;
}

void open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  FuseWorker& worker = FuseWorker::current();
  const FuseShared& shared = worker.shared();
  if (shared.opens_without_asking) {
    fuse_reply_err(request, ENOSYS);
    return;
  }
  bool past_cache = false;
  const Status status = check_open(request, worker, inode, info->flags, &past_cache);
  if (status != Status::ok) return reply_status(request, status);
  set_open(worker, inode, info, past_cache);
  if (fuse_reply_open(request, info) == -ENOENT) worker.close_file(info->fh);
}

void flush(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  FuseWorker& worker = FuseWorker::current();
  if (worker.shared().opens_without_asking) {
    fuse_reply_err(request, ENOSYS);
    return;
  }
  reply_status(request, worker.take_error(info->fh) ? Status::io_error : Status::ok);
}

void create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::create, parent);
  worker.set_name(command, name);
  command.mode = mode;
  command.mask = static_cast<u32>(info->flags);
  worker.want_attributes(command);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  const fuse_entry_param entry = to_entry(worker, worker.attributes());
  set_open(worker, entry.ino, info);
  worker.note_change(info->fh);
  if (fuse_reply_create(request, &entry, info) != -ENOENT) return;
  worker.close_file(info->fh);
  worker.forget(entry.ino, 1);
}

void release(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  FuseWorker::current().close_file(info->fh);
  fuse_reply_err(request, 0);
}

void read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  FuseWorker& worker = FuseWorker::current();
  if (!is_past_cache(worker.receive_buffer())) worker.shared().cached.note(inode);
  wire::Command command = worker.command(request, Opcode::read, inode);
  command.offset = static_cast<u64>(offset);
  worker.set_data(command, worker.reply_buffer(), size < fuse_max_write ? size : fuse_max_write);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  fuse_reply_buf(request, reinterpret_cast<const char*>(worker.reply_buffer()), reply.result);
}

void write(fuse_req_t request, fuse_ino_t inode, const char* data, size_t size, off_t offset, fuse_file_info* info) {
  FuseWorker& worker = FuseWorker::current();
  worker.note_change(info->fh);
  wire::Command command = worker.command(request, Opcode::write, inode);
  set_changer(worker, command);
  command.offset = static_cast<u64>(offset);
  worker.set_data(command, data, size);
  CachedPages& cached = worker.shared().cached;
  const bool is_direct = is_past_cache(worker.receive_buffer());
  if (!is_direct) cached.note(inode);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  if (!is_direct || !cached.may_hold(inode)) {
    fuse_reply_write(request, reply.result);
    return;
  }
  const u64 unique = unique_of(worker.receive_buffer());
  fuse_reply_none(request);  // frees the request only
  cached.answer({worker.device, unique, inode, command.offset, static_cast<u32>(reply.result)});
}

void fsync(fuse_req_t request, fuse_ino_t inode, int data_only, fuse_file_info* info) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::fsync, inode);
  command.deadline_ms = patient_deadline_ms;
  command.mask = data_only != 0 ? 1 : 0;
  reply_status(request, worker.sync_file(command, info->fh));
}

void statfs(fuse_req_t request, fuse_ino_t) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::statfs, format::inode_number_root);
  command.output = worker.session().address_of(&worker.statfs());
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  const wire::StatfsRecord& record = worker.statfs();
  struct statvfs values {};
  values.f_bsize = page_size;
  values.f_frsize = page_size;
  values.f_blocks = record.page_total;
  values.f_bfree = record.page_free;
  values.f_bavail = record.page_available;
  values.f_files = record.inode_used + record.inode_free;
  values.f_ffree = record.inode_free;
  values.f_favail = record.inode_free;
  values.f_namemax = name_length_max;
  fuse_reply_statfs(request, &values);
}

void fallocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length, fuse_file_info* info) {
  FuseWorker& worker = FuseWorker::current();
  worker.note_change(info->fh);
  wire::Command command = worker.command(request, Opcode::fallocate, inode);
  command.deadline_ms = patient_deadline_ms;
  command.mode = static_cast<u32>(mode);
  command.offset = static_cast<u64>(offset);
  command.length = static_cast<u64>(length);
  reply_status(request, worker.call(command).status);
}

void lseek(fuse_req_t request, fuse_ino_t inode, off_t offset, int whence, fuse_file_info*) {
  FuseWorker& worker = FuseWorker::current();
  if (whence != SEEK_DATA && whence != SEEK_HOLE) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  wire::Command command = worker.command(request, Opcode::seek, inode);
  command.offset = static_cast<u64>(offset);
  command.mode = static_cast<u32>(whence);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  fuse_reply_lseek(request, static_cast<off_t>(reply.result));
}

void copy_file_range(fuse_req_t request, fuse_ino_t from, off_t from_offset, fuse_file_info*, fuse_ino_t to,
                     off_t to_offset, fuse_file_info* to_info, size_t length, int flags) {
  FuseWorker& worker = FuseWorker::current();
  worker.note_change(to_info->fh);
  if (flags != 0) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  // The answer is 32 bits wide, and a bounded piece keeps the kernel's inode lock short.
  constexpr u64 piece_max = u64{1} << 30;
  wire::Command command = worker.command(request, Opcode::copy_range, from);
  command.deadline_ms = patient_deadline_ms;
  command.offset = static_cast<u64>(from_offset);
  command.second_inode = to;
  command.aux = static_cast<u64>(to_offset);
  command.length = length < piece_max ? length : piece_max;
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  fuse_reply_write(request, reply.result);
}

}  // namespace

void add_file_operations(fuse_lowlevel_ops& operations) {
  operations.getattr = getattr;
  operations.setattr = setattr;
  operations.access = access;
  operations.create = create;
  operations.release = release;
  operations.read = read;
  operations.write = write;
  operations.fsync = fsync;
  operations.statfs = statfs;
  operations.fallocate = fallocate;
  operations.lseek = lseek;
  operations.copy_file_range = copy_file_range;
  operations.open = open;
  operations.flush = flush;
}

}  // namespace gpu4fs::frontend
