// Names: lookup, creation, removal, renaming, links; and the kernel's FORGET.
#include <cstring>

#include "frontend/fuse/fuse_operations.hpp"

namespace gpu4fs::frontend {
namespace {

using wire::Opcode;

// Submits a command that creates or finds an inode, and answers with its entry.
void answer_entry(fuse_req_t request, FuseWorker& worker, wire::Command& command) {
  worker.want_attributes(command);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  const fuse_entry_param entry = to_entry(worker, worker.attributes());
  if (fuse_reply_entry(request, &entry) == -ENOENT) worker.forget(entry.ino, 1);
}

// For a file whose name the kernel does not know: it may have lost its last name, or another file may have its number,
// and no lock of the kernel prevents this meanwhile. So the number is held first, and the inode checked afterwards.
void answer_number(fuse_req_t request, FuseWorker& worker, u64 inode) {
  worker.shared().inodes.hold(inode);
  wire::Command command = worker.command(request, Opcode::getattr, inode);
  worker.want_attributes(command);
  const Status status = worker.call(command).status;
  const bool is_gone = status == Status::not_found || (status == Status::ok && worker.attributes().link_count == 0);
  if (status != Status::ok || is_gone) {
    reply_status(request, is_gone ? Status::stale : status);
  } else {
    const fuse_entry_param entry = to_entry(worker, worker.attributes());
    if (fuse_reply_entry(request, &entry) == -ENOENT) worker.forget(entry.ino, 1);
  }
  worker.forget(inode, 1);
}

// For file handles (name_to_handle_at(2), NFS), with EXPORT_SUPPORT: "." of any file, ".." of a directory.
void look_up_for_handle(fuse_req_t request, fuse_ino_t inode, bool wants_parent) {
  FuseWorker& worker = FuseWorker::current();
  if (!wants_parent) return answer_number(request, worker, inode);
  wire::Command command = worker.command(request, Opcode::lookup, inode);
  worker.set_name(command, "..");
  const client::Reply parent = worker.call(command);
  if (parent.status == Status::ok) return answer_number(request, worker, parent.result);
  reply_status(request, parent.status == Status::not_found ? Status::stale : parent.status);
}

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const std::string_view text = name;
  if (text == "." || text == "..") return look_up_for_handle(request, parent, text == "..");
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::lookup, parent);
  worker.set_name(command, name);
  worker.want_attributes(command);
  const client::Reply reply = worker.call(command);
  if (reply.status == Status::not_found) {
    fuse_entry_param absent{};  // inode 0: the kernel caches that the name does not exist
    absent.entry_timeout = cache_timeout_s;
    fuse_reply_entry(request, &absent);
    return;
  }
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  const fuse_entry_param entry = to_entry(worker, worker.attributes());
  if (fuse_reply_entry(request, &entry) == -ENOENT) worker.forget(entry.ino, 1);
}

void forget(fuse_req_t request, fuse_ino_t inode, uint64_t count) {
  fuse_reply_none(request);  // frees the request only; a FORGET has no answer
  FuseWorker::current().forget(inode, count);
}

void forget_multi(fuse_req_t request, size_t count, fuse_forget_data* forgets) {
  FuseWorker& worker = FuseWorker::current();
  for (size_t i = 0; i < count; ++i) worker.forget(forgets[i].ino, forgets[i].nlookup);
  fuse_reply_none(request);
}

void mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::mknod, parent);
  worker.set_name(command, name);
  command.mode = mode;
  command.aux = device;
  answer_entry(request, worker, command);
}

void mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::mkdir, parent);
  worker.set_name(command, name);
  command.mode = mode;
  answer_entry(request, worker, command);
}

void symlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::symlink, parent);
  worker.set_name(command, name);
  worker.set_data(command, target, std::strlen(target));
  answer_entry(request, worker, command);
}

void link(fuse_req_t request, fuse_ino_t inode, fuse_ino_t new_parent, const char* new_name) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::link, new_parent);
  command.second_inode = inode;
  worker.set_name(command, new_name);
  worker.want_attributes(command);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  worker.shared().inodes.clear_orphan(inode);
  const fuse_entry_param entry = to_entry(worker, worker.attributes());
  if (fuse_reply_entry(request, &entry) == -ENOENT) worker.forget(entry.ino, 1);
}

// unlink and rmdir: the result is the inode that lost its last name, or 0.
void remove(fuse_req_t request, fuse_ino_t parent, const char* name, Opcode opcode) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, opcode, parent);
  worker.set_name(command, name);
  const client::Reply reply = worker.call(command);
  if (reply.status == Status::ok) worker.orphaned(reply.result);
  reply_status(request, reply.status);
}

void unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  remove(request, parent, name, Opcode::unlink);
}

void rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  remove(request, parent, name, Opcode::rmdir);
}

void rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
            unsigned int flags) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::rename, parent);
  command.second_inode = new_parent;
  command.mask = flags;
  worker.set_names(command, name, new_name);
  const client::Reply reply = worker.call(command);
  if (reply.status == Status::ok) worker.orphaned(reply.result);
  reply_status(request, reply.status);
}

void readlink(fuse_req_t request, fuse_ino_t inode) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::readlink, inode);
  worker.set_data(command, worker.reply_buffer(), path_length_max);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  worker.reply_buffer()[reply.result] = 0;
  fuse_reply_readlink(request, reinterpret_cast<const char*>(worker.reply_buffer()));
}

}  // namespace

void add_name_operations(fuse_lowlevel_ops& operations) {
  operations.lookup = lookup;
  operations.forget = forget;
  operations.forget_multi = forget_multi;
  operations.mknod = mknod;
  operations.mkdir = mkdir;
  operations.symlink = symlink;
  operations.link = link;
  operations.unlink = unlink;
  operations.rmdir = rmdir;
  operations.rename = rename;
  operations.readlink = readlink;
}

}  // namespace gpu4fs::frontend
