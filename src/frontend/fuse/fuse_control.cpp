// ioctl(2): the inode flags that chattr(1), lsattr(1) and xfs_io(8) show and set, and fstrim(8).
//
// The kernel has checked who may change flags: the owner, and with CAP_LINUX_IMMUTABLE append-only and immutable.
#include <linux/fs.h>

#include <cstring>
#include <exception>
#include <memory>

#include "base/host/log.hpp"
#include "fmt/format.h"
#include "frontend/fuse/caller.hpp"
#include "frontend/fuse/fuse_operations.hpp"
#include "frontend/fuse/fuse_raw.hpp"

namespace gpu4fs::frontend {
namespace {

using wire::Opcode;

// A flag of the engine, of FS_IOC_GETFLAGS, and of FS_IOC_FSGETXATTR.
struct Flag {
  u32 inode;
  u32 file;
  u32 extended;
};
constexpr Flag flag_table[] = {{format::inode_flag_append_only, FS_APPEND_FL, FS_XFLAG_APPEND},
                               {format::inode_flag_immutable, FS_IMMUTABLE_FL, FS_XFLAG_IMMUTABLE},
                               {format::inode_flag_no_dump, FS_NODUMP_FL, FS_XFLAG_NODUMP},
                               {format::inode_flag_no_access_time, FS_NOATIME_FL, FS_XFLAG_NOATIME}};

u32 shown_flags(u32 inode_flags, u32 Flag::*kind) {
  u32 shown = 0;
  for (const Flag& flag : flag_table) {
    if ((inode_flags & flag.inode) != 0) shown |= flag.*kind;
  }
  return shown;
}

// False: there are other flags among them.
bool inode_flags_of(u32 shown, u32 Flag::*kind, u32* inode_flags) {
  *inode_flags = 0;
  for (const Flag& flag : flag_table) {
    if ((shown & flag.*kind) != 0) *inode_flags |= flag.inode;
    shown &= ~(flag.*kind);
  }
  return shown == 0;
}

// The caller's data, if it has the required length.
template <class T>
bool take(const void* bytes, size_t length, T* value) {
  if (length != sizeof(T)) return false;
  std::memcpy(value, bytes, sizeof(T));
  return true;
}

template <class T>
void answer(fuse_req_t request, const T& value, size_t room) {
  if (room < sizeof(T)) {
    fuse_reply_err(request, EINVAL);
  } else {
    fuse_reply_ioctl(request, 0, &value, sizeof(T));
  }
}

void get_flags(fuse_req_t request, fuse_ino_t inode, bool is_extended, size_t room) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::getattr, inode);
  worker.want_attributes(command);
  const Status status = worker.call(command).status;
  if (status != Status::ok) return reply_status(request, status);
  const u32 flags = worker.attributes().flags;
  if (!is_extended) return answer(request, shown_flags(flags, &Flag::file), room);
  fsxattr values{};
  values.fsx_xflags = shown_flags(flags, &Flag::extended);
  answer(request, values, room);
}

// A request for a change of an inode's flags that has to be answered.
struct FlagChange {
  int device;
  u64 unique;
  u64 inode;
  u32 flags;
  u32 uid;
};

Status store_flags(FuseWorker& worker, const FlagChange& change) {
  wire::Command command = worker.command(nullptr, Opcode::setattr, change.inode);
  // The engine requires the superuser. With idmapped mounts the kernel does not name the caller, but has checked the
  // permission itself.
  command.uid = change.uid == unknown_user ? 0 : change.uid;
  command.mask = format::set_flags;
  format::AttributeRecord& record = worker.attributes_in();
  record = {};
  record.flags = change.flags;
  command.data = worker.session().address_of(&record);
  const Status status = worker.call(command).status;
  // The kernel does not know that the change time has changed.
  if (status == Status::ok) notify_attributes_changed(change.device, change.inode);
  return status;
}

// In the thread that drops pages. Content that was stored through mappings is written first, because it would be
// refused afterwards. This removes the mappings' pages; the kernel sends later stores again, and they are refused.
void write_back_and_store_flags(FuseShared& shared, const FlagChange& change) {
  Status status = Status::too_many_sessions;
  try {
    if (!shared.flag_setter) {
      shared.flag_setter = std::make_unique<FuseWorker>(shared, shared.source.open_session(scratch_bytes));
    }
    notify_pages_changed(change.device, change.inode, 0, 0);
    status = store_flags(*shared.flag_setter, change);
  } catch (const std::exception& error) {
    log(LogLevel::warning, fmt::format("no session to set flags by: {}", error.what()));
  }
  answer_ioctl(change.device, change.unique, answered_errno(status));
}

void set_flags(fuse_req_t request, fuse_ino_t inode, u32 flags) {
  FuseWorker& worker = FuseWorker::current();
  FuseShared& shared = worker.shared();
  const bool forbids = (flags & format::inode_flags_of_administrators) != 0;
  // The kernel would hold back changes that the engine then refuses.
  if (shared.options.writeback && forbids) {
    fuse_reply_err(request, EOPNOTSUPP);
    return;
  }
  const FlagChange change{worker.device, unique_of(worker.receive_buffer()), inode, flags, fuse_req_ctx(request)->uid};
  if (forbids) {
    fuse_reply_none(request);  // frees the request only
    shared.cached.run([&shared, change] { write_back_and_store_flags(shared, change); });
    return;
  }
  const Status status = store_flags(worker, change);
  if (status != Status::ok) return reply_status(request, status);
  fuse_reply_ioctl(request, 0, nullptr, 0);
}

void set_plain_flags(fuse_req_t request, fuse_ino_t inode, const void* bytes, size_t length) {
  u32 shown = 0;
  u32 flags = 0;
  if (!take(bytes, length, &shown)) {
    fuse_reply_err(request, EINVAL);
  } else if (!inode_flags_of(shown, &Flag::file, &flags)) {
    fuse_reply_err(request, EOPNOTSUPP);
  } else {
    set_flags(request, inode, flags);
  }
}

// There are no projects and no extent hints.
void set_extended_flags(fuse_req_t request, fuse_ino_t inode, const void* bytes, size_t length) {
  fsxattr values{};
  u32 flags = 0;
  if (!take(bytes, length, &values)) {
    fuse_reply_err(request, EINVAL);
  } else if (!inode_flags_of(values.fsx_xflags, &Flag::extended, &flags) || values.fsx_extsize != 0 ||
             values.fsx_projid != 0 || values.fsx_cowextsize != 0) {
    fuse_reply_err(request, EOPNOTSUPP);
  } else {
    set_flags(request, inode, flags);
  }
}

// Devices are memory and return free memory automatically: there is nothing to do.
void trim(fuse_req_t request, const void* bytes, size_t length, size_t room) {
  FuseWorker& worker = FuseWorker::current();
  wire::Command command = worker.command(request, Opcode::statfs, format::inode_number_root);
  command.output = worker.session().address_of(&worker.statfs());
  fstrim_range range{};
  if (!take(bytes, length, &range)) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  const u32 user = known_user(command.uid, static_cast<u32>(fuse_req_ctx(request)->pid));
  Status status = user != 0 ? Status::permission : worker.call(command).status;
  if (status == Status::ok && worker.shared().options.read_only) status = Status::read_only;
  if (status != Status::ok) return reply_status(request, status);
  if (range.len < page_size || range.start / page_size >= worker.statfs().page_total) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  range.len = 0;
  answer(request, range, room);
}

void control(fuse_req_t request, fuse_ino_t inode, unsigned number, void*, fuse_file_info*, unsigned, const void* bytes,
             size_t length, size_t room) {
  // The numbers contain the sizes of the caller's types, and the kernel passes u32 for the flags regardless of them.
  switch (number) {
    case static_cast<unsigned>(FS_IOC_GETFLAGS):
      return get_flags(request, inode, false, room);
    case static_cast<unsigned>(FS_IOC_SETFLAGS):
      return set_plain_flags(request, inode, bytes, length);
    case static_cast<unsigned>(FS_IOC_FSGETXATTR):
      return get_flags(request, inode, true, room);
    case static_cast<unsigned>(FS_IOC_FSSETXATTR):
      return set_extended_flags(request, inode, bytes, length);
    case static_cast<unsigned>(FITRIM):
      return trim(request, bytes, length, room);
    default:
      fuse_reply_err(request, ENOTTY);
  }
}

}  // namespace

void add_control_operations(fuse_lowlevel_ops& operations) {
  operations.ioctl = control;
}

}  // namespace gpu4fs::frontend
