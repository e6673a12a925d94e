// Extended attributes. Names under "user.gpu4fs.server." belong to the mount: their values describe the running server
// and cannot be changed. SETXATTR is among the raw requests (fuse_raw.cpp).
#include <unistd.h>

#include <cstring>
#include <string>

#include "frontend/fuse/caller.hpp"
#include "frontend/fuse/fuse_operations.hpp"

namespace gpu4fs::frontend {
namespace {

using wire::Opcode;

constexpr std::string_view server_prefix = "user.gpu4fs.server.";

void answer_value(fuse_req_t request, const char* value, u64 length, size_t size) {
  if (size == 0) {
    fuse_reply_xattr(request, length);
  } else if (length > size) {
    fuse_reply_err(request, ERANGE);
  } else {
    fuse_reply_buf(request, value, length);
  }
}

void answer_server_name(fuse_req_t request, FuseWorker& worker, std::string_view name, size_t size) {
  const std::string_view what = name.substr(server_prefix.size());
  std::string value;
  if (what == "pid") {
    value = std::to_string(getpid());
  } else if (what == "socket" && !worker.shared().source.control_path().empty()) {
    value = worker.shared().source.control_path();
  } else if (what == "statistics") {
    value = worker.shared().source.statistics_json();
  } else {
    fuse_reply_err(request, ENODATA);
    return;
  }
  answer_value(request, value.data(), value.size(), size);
}

// getxattr and listxattr: size 0 asks only for the length.
void answer_from_engine(fuse_req_t request, FuseWorker& worker, wire::Command& command, size_t size) {
  worker.set_data(command, worker.reply_buffer(), size < fuse_max_write ? size : fuse_max_write);
  const client::Reply reply = worker.call(command);
  if (reply.status != Status::ok) return reply_status(request, reply.status);
  answer_value(request, reinterpret_cast<const char*>(worker.reply_buffer()), reply.result, size);
}

void getxattr(fuse_req_t request, fuse_ino_t inode, const char* name, size_t size) {
  FuseWorker& worker = FuseWorker::current();
  if (is_server_name(name)) return answer_server_name(request, worker, name, size);
  wire::Command command = worker.command(request, Opcode::get_attribute, inode);
  worker.set_name(command, name);
  answer_from_engine(request, worker, command, size);
}

void listxattr(fuse_req_t request, fuse_ino_t inode, size_t size) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::list_attributes, inode);
  // The kernel checks who may read and change names under "trusted.", but file systems decide who sees them.
  command.uid = known_user(command.uid, static_cast<u32>(fuse_req_ctx(request)->pid));
  answer_from_engine(request, worker, command, size);
}

void removexattr(fuse_req_t request, fuse_ino_t inode, const char* name) {
  FuseWorker& worker = FuseWorker::current();
  if (is_server_name(name)) {
    fuse_reply_err(request, EPERM);
    return;
  }
  wire::Command command = worker.command(request, Opcode::remove_attribute, inode);
  worker.set_name(command, name);
  reply_status(request, worker.call(command).status);
}

}  // namespace

bool is_server_name(std::string_view name) {
  return name.starts_with(server_prefix);
}

void add_attribute_operations(fuse_lowlevel_ops& operations) {
  operations.getxattr = getxattr;
  operations.listxattr = listxattr;
  operations.removexattr = removexattr;
}

}  // namespace gpu4fs::frontend
