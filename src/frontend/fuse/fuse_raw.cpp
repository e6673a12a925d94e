// What the kernel's protocol has and libfuse 3.14 has not, spoken on the raw messages of
// linux/fuse.h: O_TMPFILE, and the capability HANDLE_KILLPRIV_V2, without which the kernel asks for
// security.capability before every single write.
#include <linux/fuse.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "frontend/fuse/fuse_raw.hpp"

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

// FUSE_DIRECT_IO_ALLOW_MMAP of protocol 7.39, in the upper half of the flags.
constexpr u32 direct_io_allow_mmap = u32{1} << (36 - 32);

struct CreateReply {
  fuse_out_header head;
  fuse_entry_out entry;
  fuse_open_out open;
};
static_assert(sizeof(CreateReply) ==
              sizeof(fuse_out_header) + sizeof(fuse_entry_out) + sizeof(fuse_open_out));

void answer_error(FuseWorker& worker, u64 unique, int error) {
  const fuse_out_header head{sizeof(fuse_out_header), -error, unique};
  // The request may have been interrupted meanwhile; then nobody waits for the answer.
  [[maybe_unused]] const ssize_t written = ::write(worker.device, &head, sizeof(head));
}

void answer_tmpfile(FuseWorker& worker, const fuse_in_header& head, const fuse_create_in& body,
                    double timeout_s) {
  format::Command command = worker.command(nullptr, format::Opcode::tmpfile, head.nodeid);
  command.uid = head.uid;
  command.gid = head.gid;
  command.umask_bits = body.umask;
  command.mode = body.mode;
  worker.want_attributes(command);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) {
    return answer_error(worker, head.unique, to_errno(reply.status));
  }
  const format::AttributeRecord record = worker.attributes();
  worker.shared().inodes.add_lookup(record.inode, record.generation);
  worker.orphaned(record.inode);
  CreateReply answer{};
  answer.head = {sizeof(answer), 0, head.unique};
  answer.entry.nodeid = record.inode;
  answer.entry.generation = record.generation;
  answer.entry.entry_valid = static_cast<u64>(timeout_s);
  answer.entry.attr_valid = static_cast<u64>(timeout_s);
  answer.entry.attr = to_raw(record);
  answer.open.fh = worker.open_file(record.inode, body.flags);
  answer.open.open_flags = FOPEN_KEEP_CACHE;
  if (worker.shared().options.direct_io) answer.open.open_flags |= FOPEN_DIRECT_IO;
  if (::write(worker.device, &answer, sizeof(answer)) < 0 && errno == ENOENT) {
    worker.close_file(answer.open.fh);
    worker.forget(record.inode, 1);
  }
}

}  // namespace

bool answer_raw_request(FuseWorker& worker, const void* message, u64 length, double timeout_s) {
  fuse_in_header head;
  if (length < sizeof(head)) return false;
  std::memcpy(&head, message, sizeof(head));
  if (head.opcode != FUSE_TMPFILE || length < sizeof(head) + sizeof(fuse_create_in)) return false;
  fuse_create_in body;
  std::memcpy(&body, static_cast<const u8*>(message) + sizeof(head), sizeof(body));
  answer_tmpfile(worker, head, body, timeout_s);
  return true;
}

bool is_init_request(const void* message, u64 length) {
  fuse_in_header head;
  if (length < sizeof(head)) return false;
  std::memcpy(&head, message, sizeof(head));
  return head.opcode == FUSE_INIT;
}

bool notify_inode_changed(int device, u64 inode, bool with_pages) {
  struct Message {
    fuse_out_header head;
    fuse_notify_inval_inode_out body;
  };
  Message message{};
  message.head = {sizeof(message), FUSE_NOTIFY_INVAL_INODE, 0};
  message.body.ino = inode;
  message.body.off = with_pages ? 0 : -1;
  return ::write(device, &message, sizeof(message)) == sizeof(message);
}

bool notify_names_changed(int device) {
  constexpr int increase_epoch = 8;  // FUSE_NOTIFY_INC_EPOCH of protocol 7.44
  const fuse_out_header message{sizeof(message), increase_epoch, 0};
  return ::write(device, &message, sizeof(message)) == sizeof(message);
}

void extend_init_reply(const void* request, void* reply, u64 reply_length, bool direct_io) {
  fuse_init_in offered;
  std::memcpy(&offered, static_cast<const u8*>(request) + sizeof(fuse_in_header), sizeof(offered));
  if (reply_length < offsetof(fuse_init_out, flags) + sizeof(u32)) return;
  auto* answer = static_cast<fuse_init_out*>(reply);
  answer->flags |= offered.flags & FUSE_HANDLE_KILLPRIV_V2;
  if ((answer->flags & FUSE_INIT_EXT) == 0 || (offered.flags & FUSE_INIT_EXT) == 0) return;
  if (reply_length < offsetof(fuse_init_out, flags2) + sizeof(u32)) return;
  if (direct_io) answer->flags2 |= offered.flags2 & direct_io_allow_mmap;
}

}  // namespace gpu4fs::frontend
