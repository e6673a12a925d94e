// Continues a mount in another process, see saved_mount.hpp.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/host/log.hpp"
#include "fmt/format.h"
#include "frontend/fuse/fuse_mount.hpp"
#include "frontend/fuse/fuse_operations.hpp"
#include "frontend/fuse/fuse_raw.hpp"

namespace gpu4fs::frontend {
namespace {

// The kernel ended the mount by itself.
bool is_disconnected(int device) {
  pollfd place{device, 0, 0};
  return ::poll(&place, 1, 0) == 1 && (place.revents & POLLERR) != 0;
}

// The same as libfuse does for a mount of its own: detaches the directory from the tree, at once or when nobody uses
// it.
void take_down(const std::string& mountpoint) {
  if (::geteuid() == 0) {
    ::umount2(mountpoint.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    return;
  }
  std::vector<std::string> words = {"fusermount3", "-u", "-q", "-z", "--", mountpoint};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t child = 0;
  if (::posix_spawnp(&child, pointers[0], nullptr, nullptr, pointers.data(), environ) == 0) {
    ::waitpid(child, nullptr, 0);
  }
}

// A remount with unchanged flags: Linux drops the names that are not in use.
bool drop_unused_names(const std::string& mountpoint) {
  struct statvfs state {};
  if (::geteuid() != 0 || ::statvfs(mountpoint.c_str(), &state) != 0) return false;
  // Those of statvfs(3) that have the same numbers in mount(2).
  constexpr unsigned long alike =
      ST_RDONLY | ST_NOSUID | ST_NODEV | ST_NOEXEC | ST_SYNCHRONOUS | ST_NOATIME | ST_NODIRATIME;
  const unsigned long flags = (state.f_flag & alike) | ((state.f_flag & ST_RELATIME) != 0 ? MS_RELATIME : 0);
  return ::mount(nullptr, mountpoint.c_str(), nullptr, MS_REMOUNT | flags, nullptr) == 0;
}

}  // namespace

int FuseMount::device() const {
  return fuse_session_fd(fuse_);
}

SavedMount FuseMount::save() const {
  return {shared_.init_request, shared_.source.write_errors(), shared_.inodes.save(), shared_.files.save()};
}

void FuseMount::resume(int device, const SavedMount& saved) {
  is_resumed_ = true;
  ::fcntl(device, F_SETFD, FD_CLOEXEC);
  open_sessions();
  open_channel(fmt::format("/dev/fd/{}", device));
  workers_[0]->make_current();
  shared_.cached.note_all();
  restore(saved);
  replay_init(saved.init_request);
  // Before any request is answered.
  names_are_told_ = notify_names_changed(device);
  for (const u64 inode : told_inodes_) notify_attributes_changed(device, inode);
}

void FuseMount::restore(const SavedMount& saved) {
  u64 lost = 0;
  told_inodes_.push_back(format::inode_number_root);
  for (SavedInode inode : saved.inodes) {
    if (!inode.lost) check_inode(inode);
    if (inode.lost) ++lost;
    shared_.inodes.restore(inode);
    told_inodes_.push_back(inode.inode);
  }
  for (const SavedDescription& description : saved.descriptions) {
    shared_.files.restore(description, saved.write_errors);
  }
  if (lost == 0) return;
  log(LogLevel::warning,
      fmt::format("{} files and directories that were in use had not been made durable and are gone", lost));
}

// Whether the pool still has it, and its name.
void FuseMount::check_inode(SavedInode& inode) {
  FuseWorker& worker = *workers_[0];
  wire::Command command = worker.command(nullptr, wire::Opcode::getattr, inode.inode);
  worker.want_attributes(command);
  const Status status = worker.session().call(command).status;
  // An inode that cannot be read at this time is not another inode.
  if (status != Status::ok && status != Status::stale && status != Status::not_found) return;
  inode.lost = status != Status::ok || worker.attributes().generation != inode.generation;
  inode.orphan = !inode.lost && worker.attributes().link_count == 0;
}

// libfuse accepts nothing before an INIT. The kernel already has its answer.
void FuseMount::replay_init(const std::string& request) {
  if (request.empty()) return;  // it has not arrived yet
  FuseWorker& worker = *workers_[0];
  shared_.init_request = request;
  std::string message = request;
  fuse_buf buffer{};
  buffer.mem = message.data();
  buffer.size = message.size();
  worker.answers_nobody = true;
  fuse_session_process_buf(fuse_, &buffer);
  worker.answers_nobody = false;
  worker.answering_init = false;
}

// In parallel with the threads that answer, because the kernel waits for pages that are being read or written.
void FuseMount::tell_kernel() {
  if (!names_are_told_ && !drop_unused_names(options_.mountpoint)) {
    log(LogLevel::warning,
        "the kernel may still show names as they were before the engine died; mount again to be sure");
  }
  for (const u64 inode : told_inodes_) {
    if (stopping_) return;
    notify_pages_changed(device(), inode, 0, 0);
  }
}

void FuseMount::unmount() {
  own_.reset();
  if (!is_resumed_) return fuse_session_unmount(fuse_);
  const bool is_gone = is_disconnected(device());
  // libfuse closes this number later; until then it must not be reused.
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0 || ::dup3(nothing, device(), O_CLOEXEC) < 0) {
    log(LogLevel::error, fmt::format("{}: the channel cannot be closed", options_.mountpoint));
  }
  ::close(nothing);
  if (!is_gone) take_down(options_.mountpoint);
}

}  // namespace gpu4fs::frontend
