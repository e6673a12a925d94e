// Parts of the kernel's protocol that libfuse 3.14 does not have, implemented on the raw messages of linux/fuse.h:
// O_TMPFILE; STATX; the capability HANDLE_KILLPRIV_V2, without which the kernel requests security.capability before
// every single write; and SETXATTR_EXT, by which the kernel says that a new access control list removes the
// set-group-id bit.
#include <linux/fuse.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "frontend/fuse/fuse_raw.hpp"
#include "frontend/fuse/kernel_cache.hpp"

namespace gpu4fs::frontend {
namespace {

fuse_attr to_raw(const format::AttributeRecord& record) {
  fuse_attr raw{};
  raw.ino = record.inode;
  raw.size = record.size_bytes;
  raw.blocks = record.blocks_512;
  raw.atime = static_cast<u64>(record.access_seconds);
  raw.mtime = static_cast<u64>(record.modification_seconds);
  raw.ctime = static_cast<u64>(record.change_seconds);
  raw.atimensec = record.access_nanoseconds;
  raw.mtimensec = record.modification_nanoseconds;
  raw.ctimensec = record.change_nanoseconds;
  raw.mode = record.mode;
  raw.nlink = record.link_count;
  raw.uid = record.uid;
  raw.gid = record.gid;
  raw.rdev = static_cast<u32>(record.device);
  raw.blksize = page_size;
  return raw;
}

// In the upper half of the flags: FUSE_DIRECT_IO_ALLOW_MMAP of protocol 7.39, FUSE_ALLOW_IDMAP of 7.40.
constexpr u32 direct_io_allow_mmap = u32{1} << (36 - 32);
constexpr u32 allow_idmap = u32{1} << (40 - 32);

// FUSE_STATX of protocol 7.39, which requests the time of birth.
constexpr u32 opcode_statx = 52;

struct StatxTime {
  i64 seconds;
  u32 nanoseconds;
  i32 reserved;
};

struct StatxReply {
  fuse_out_header head;
  u64 attr_valid;
  u32 attr_valid_nsec;
  u32 flags;
  u64 spare[2];
  u32 mask;  // struct fuse_statx
  u32 blksize;
  u64 attributes;
  u32 nlink;
  u32 uid;
  u32 gid;
  u16 mode;
  u16 spare0;
  u64 ino;
  u64 size;
  u64 blocks;
  u64 attributes_mask;
  StatxTime atime;
  StatxTime btime;
  StatxTime ctime;
  StatxTime mtime;
  u32 rdev_major;
  u32 rdev_minor;
  u32 dev_major;
  u32 dev_minor;
  u64 spare2[14];
};
static_assert(sizeof(StatxReply) == sizeof(fuse_out_header) + 32 + 256);

struct CreateReply {
  fuse_out_header head;
  fuse_entry_out entry;
  fuse_open_out open;
};
static_assert(sizeof(CreateReply) == sizeof(fuse_out_header) + sizeof(fuse_entry_out) + sizeof(fuse_open_out));

void answer_error(FuseWorker& worker, u64 unique, int error) {
  const fuse_out_header head{sizeof(fuse_out_header), -error, unique};
  // The request may have been interrupted meanwhile; then nobody waits for the answer.
  [[maybe_unused]] const ssize_t written = ::write(worker.device, &head, sizeof(head));
}

void answer_tmpfile(FuseWorker& worker, const fuse_in_header& head, const fuse_create_in& body) {
  wire::Command command = worker.command(nullptr, wire::Opcode::tmpfile, head.nodeid);
  command.uid = head.uid;
  command.gid = head.gid;
  command.umask_bits = body.umask;
  command.mode = body.mode;
  worker.want_attributes(command);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) {
    return answer_error(worker, head.unique, answered_errno(reply.status));
  }
  const format::AttributeRecord record = worker.attributes();
  worker.shared().inodes.add_lookup(record.inode, record.generation);
  worker.orphaned(record.inode);
  CreateReply answer{};
  answer.head = {sizeof(answer), 0, head.unique};
  answer.entry.nodeid = record.inode;
  answer.entry.generation = record.generation;
  answer.entry.entry_valid = static_cast<u64>(cache_timeout_s);
  answer.entry.attr_valid = static_cast<u64>(attribute_timeout_s(record));
  answer.entry.attr = to_raw(record);
  answer.open.fh = worker.open_file(record.inode, body.flags);
  answer.open.open_flags = FOPEN_KEEP_CACHE;
  if (worker.shared().options.direct_io) answer.open.open_flags |= FOPEN_DIRECT_IO;
  if (::write(worker.device, &answer, sizeof(answer)) < 0 && errno == ENOENT) {
    worker.close_file(answer.open.fh);
    worker.forget(record.inode, 1);
  }
}

void answer_statx(FuseWorker& worker, const fuse_in_header& head) {
  wire::Command command = worker.command(nullptr, wire::Opcode::getattr, head.nodeid);
  worker.want_attributes(command);
  const Status status = worker.call(command).status;
  if (status != Status::ok) return answer_error(worker, head.unique, answered_errno(status));
  const format::AttributeRecord& record = worker.attributes();
  StatxReply answer{};
  answer.head = {sizeof(answer), 0, head.unique};
  answer.attr_valid = static_cast<u64>(attribute_timeout_s(record));
  answer.mask = STATX_BASIC_STATS | STATX_BTIME;
  answer.blksize = page_size;
  answer.nlink = record.link_count;
  answer.uid = record.uid;
  answer.gid = record.gid;
  answer.mode = static_cast<u16>(record.mode);
  answer.ino = record.inode;
  answer.size = record.size_bytes;
  answer.blocks = record.blocks_512;
  answer.atime = {record.access_seconds, record.access_nanoseconds, 0};
  answer.btime = {record.birth_seconds, record.birth_nanoseconds, 0};
  answer.ctime = {record.change_seconds, record.change_nanoseconds, 0};
  answer.mtime = {record.modification_seconds, record.modification_nanoseconds, 0};
  answer.rdev_major = major(record.device);
  answer.rdev_minor = minor(record.device);
  // The request may have been interrupted meanwhile; then nobody waits for the answer.
  [[maybe_unused]] const ssize_t written = ::write(worker.device, &answer, sizeof(answer));
}

// `body` is the part after the header: fuse_setxattr_in, name, value.
void answer_setxattr(FuseWorker& worker, const fuse_in_header& head, const u8* body, u64 length) {
  const u64 values_at = worker.shared().has_long_setxattr ? sizeof(fuse_setxattr_in) : FUSE_COMPAT_SETXATTR_IN_SIZE;
  fuse_setxattr_in values{};
  if (length < values_at) return answer_error(worker, head.unique, EINVAL);
  std::memcpy(&values, body, values_at);
  const auto* const text = reinterpret_cast<const char*>(body + values_at);
  const u64 name_length = ::strnlen(text, length - values_at);
  if (name_length + 1 + values.size > length - values_at) return answer_error(worker, head.unique, EINVAL);
  const std::string_view name(text, name_length);
  if (is_server_name(name)) return answer_error(worker, head.unique, EPERM);
  wire::Command command = worker.command(nullptr, wire::Opcode::set_attribute, head.nodeid);
  command.uid = head.uid;
  command.gid = head.gid;
  worker.set_name(command, name);
  worker.set_data(command, text + name_length + 1, values.size);
  command.mask = values.flags & (XATTR_CREATE | XATTR_REPLACE);
  if ((values.setxattr_flags & FUSE_SETXATTR_ACL_KILL_SGID) != 0) command.mask |= wire::attribute_kill_set_gid;
  answer_error(worker, head.unique, answered_errno(worker.call(command).status));
}

fuse_init_in offer_of(const void* init_request) {
  fuse_init_in offered;
  std::memcpy(&offered, static_cast<const u8*>(init_request) + sizeof(fuse_in_header), sizeof(offered));
  return offered;
}

// `offset` -1: without pages; `length` 0: everything from the offset on.
bool notify_inode_changed(int device, u64 inode, i64 offset, i64 length) {
  struct Message {
    fuse_out_header head;
    fuse_notify_inval_inode_out body;
  };
  Message message{};
  message.head = {sizeof(message), FUSE_NOTIFY_INVAL_INODE, 0};
  message.body = {inode, offset, length};
  return ::write(device, &message, sizeof(message)) == sizeof(message);
}

}  // namespace

bool answer_raw_request(FuseWorker& worker, const void* message, u64 length) {
  fuse_in_header head;
  if (length < sizeof(head)) return false;
  std::memcpy(&head, message, sizeof(head));
  const u8* const body = static_cast<const u8*>(message) + sizeof(head);
  if (head.opcode == FUSE_SETXATTR) {
    answer_setxattr(worker, head, body, length - sizeof(head));
    return true;
  }
  if (head.opcode == opcode_statx) {
    answer_statx(worker, head);
    return true;
  }
  if (head.opcode != FUSE_TMPFILE || length < sizeof(head) + sizeof(fuse_create_in)) return false;
  fuse_create_in values;
  std::memcpy(&values, body, sizeof(values));
  answer_tmpfile(worker, head, values);
  return true;
}

bool offers_long_setxattr(const std::string& init_request) {
  if (init_request.size() < sizeof(fuse_in_header) + sizeof(fuse_init_in)) return false;
  return (offer_of(init_request.data()).flags & FUSE_SETXATTR_EXT) != 0;
}

u64 unique_of(const void* message) {
  fuse_in_header head;
  std::memcpy(&head, message, sizeof(head));
  return head.unique;
}

// The flags of the open file do not show it: a mapping of a file that is open with O_DIRECT is read through the cache.
// But only direct transfers have a lock owner.
bool is_past_cache(const void* message) {
  fuse_in_header head;
  std::memcpy(&head, message, sizeof(head));
  const u8* const body = static_cast<const u8*>(message) + sizeof(head);
  if (head.opcode == FUSE_READ) {
    fuse_read_in values;
    std::memcpy(&values, body, sizeof(values));
    return (values.read_flags & FUSE_READ_LOCKOWNER) != 0;
  }
  if (head.opcode != FUSE_WRITE) return false;
  fuse_write_in values;
  std::memcpy(&values, body, sizeof(values));
  return (values.write_flags & FUSE_WRITE_LOCKOWNER) != 0;
}

void answer_write(int device, u64 unique, u32 length) {
  struct Answer {
    fuse_out_header head;
    fuse_write_out body;
  };
  const Answer answer{{sizeof(answer), 0, unique}, {length, 0}};
  // The request may have been interrupted meanwhile; then nobody waits for the answer.
  [[maybe_unused]] const ssize_t written = ::write(device, &answer, sizeof(answer));
}

void answer_ioctl(int device, u64 unique, int error) {
  struct Answer {
    fuse_out_header head;
    fuse_ioctl_out body;
  };
  Answer answer{};
  const u32 length = error == 0 ? sizeof(answer) : sizeof(answer.head);
  answer.head = {length, -error, unique};
  // The request may have been interrupted meanwhile; then nobody waits for the answer.
  [[maybe_unused]] const ssize_t written = ::write(device, &answer, length);
}

bool takes_set_id_bits(const void* message) {
  fuse_in_header head;
  std::memcpy(&head, message, sizeof(head));
  const u8* const body = static_cast<const u8*>(message) + sizeof(head);
  if (head.opcode == FUSE_WRITE) {
    fuse_write_in values;
    std::memcpy(&values, body, sizeof(values));
    return (values.write_flags & FUSE_WRITE_KILL_SUIDGID) != 0;
  }
  if (head.opcode != FUSE_SETATTR) return true;
  fuse_setattr_in values;
  std::memcpy(&values, body, sizeof(values));
  return (values.valid & FATTR_KILL_SUIDGID) != 0;
}

bool is_init_request(const void* message, u64 length) {
  fuse_in_header head;
  if (length < sizeof(head)) return false;
  std::memcpy(&head, message, sizeof(head));
  return head.opcode == FUSE_INIT;
}

bool notify_attributes_changed(int device, u64 inode) {
  return notify_inode_changed(device, inode, -1, 0);
}

bool notify_pages_changed(int device, u64 inode, u64 offset, u64 length) {
  return notify_inode_changed(device, inode, static_cast<i64>(offset), static_cast<i64>(length));
}

bool notify_names_changed(int device) {
  constexpr int increase_epoch = 8;  // FUSE_NOTIFY_INC_EPOCH of protocol 7.44
  const fuse_out_header message{sizeof(message), increase_epoch, 0};
  return ::write(device, &message, sizeof(message)) == sizeof(message);
}

void extend_init_reply(const void* request, void* reply, u64 reply_length, const FuseOptions& options) {
  const fuse_init_in offered = offer_of(request);
  if (reply_length < offsetof(fuse_init_out, flags) + sizeof(u32)) return;
  auto* answer = static_cast<fuse_init_out*>(reply);
  answer->flags |= offered.flags & (FUSE_HANDLE_KILLPRIV_V2 | FUSE_SETXATTR_EXT);
  if ((answer->flags & FUSE_INIT_EXT) == 0 || (offered.flags & FUSE_INIT_EXT) == 0) return;
  if (reply_length < offsetof(fuse_init_out, flags2) + sizeof(u32)) return;
  if (options.direct_io) answer->flags2 |= offered.flags2 & direct_io_allow_mmap;
  if (options.idmap) answer->flags2 |= offered.flags2 & allow_idmap;
}

}  // namespace gpu4fs::frontend
