// Answers about one inode without its lock. Each function is for a single rank, inside the step gate. It returns false
// if the ordinary way has to answer. Then the client has seen nothing.
#pragma once

#include "engine/open_flags.hpp"
#include "engine/optimistic/read_plan.hpp"
#include "engine/session_memory.hpp"
#include "fs/inode/inode.hpp"

namespace gpu4fs::engine {

// Writes the attributes of an inode, of which `inode` is a checked copy, to *record unless it is nullptr.
GPU4FS_FN inline void describe(u64 number, const format::Inode& inode, format::AttributeRecord* record) {
  if (record != nullptr) fs::describe_inode(number, inode, inode.access_time, record);
}

// A checked copy of an inode without its content. False: there is none.
GPU4FS_FN inline bool copy_inode(const ReaderContext& reader, u64 number, format::Inode* copy) {
  const InodeView view = view_inode(reader, number);
  if (view.inode == nullptr) return false;
  *copy = copy_without_content(view);
  return is_unchanged(reader, view) && is_usable(*copy);
}

// Whether the inode surely allows the caller the `wanted` access with respect to rights, flags and the mount.
GPU4FS_FN inline bool surely_allows(const ReaderContext& reader, const format::Inode& inode, u32 wanted) {
  if ((wanted & fs::may_write) != 0) {
    if ((inode.flags & format::inode_flags_of_administrators) != 0 || reader.engine->fs.read_only != 0) return false;
  }
  return surely_may(*reader.session, inode, wanted);
}

// getattr. The attributes are written to *record unless it is nullptr.
GPU4FS_FN inline bool answer_getattr(const ReaderContext& reader, const wire::Command& command,
                                     format::AttributeRecord* record) {
  format::Inode inode;
  if (!copy_inode(reader, command.inode, &inode)) return false;
  GPU4FS_TRACE_POINT(inode);
  describe(command.inode, inode, record);
  return true;
}

// access. True: the caller has the rights.
GPU4FS_FN inline bool answer_access(const ReaderContext& reader, const wire::Command& command) {
  format::Inode inode;
  return (command.mode & ~7u) == 0 && copy_inode(reader, command.inode, &inode) &&
         surely_allows(reader, inode, command.mode);
}

// open of an existing file. The attributes are written to *record unless it is nullptr. Refusals are left to the
// ordinary way.
GPU4FS_FN inline bool answer_open(const ReaderContext& reader, const wire::Command& command,
                                  format::AttributeRecord* record) {
  format::Inode inode;
  if (!copy_inode(reader, command.inode, &inode)) return false;
  const u32 wanted = open_rights(command.mask);
  const bool fits = fs::is_directory(inode.mode) ? (wanted & fs::may_write) == 0
                                                 : fs::is_regular(inode.mode) && (command.mask & open_directory) == 0;
  if (!fits || !surely_allows(reader, inode, wanted)) return false;
  if ((command.mask & open_no_access_time) != 0 && !reader.is_trusted) return false;
  describe(command.inode, inode, record);
  return true;
}

namespace detail {

// Copies a range of the content in the inode, if the inode is unchanged and its access time stays.
GPU4FS_FN inline bool give_inline(const ReaderContext& reader, const InodeView& view, const format::Inode& inode,
                                  ByteRange range, u8* destination) {
  if (access_time_is_due(reader.engine->fs, inode, inode.access_time, now_stamp(*reader.engine))) return false;
  if (!is_unchanged(reader, view)) return false;
  GPU4FS_CHECK_LE(range.to, u32{format::inode_inline_capacity});
  const u8* const bytes = inode.inline_data();
  for (u32 i = range.from; i < range.to; ++i) destination[i - range.from] = bytes[i];
  return true;
}

}  // namespace detail

// read of a file with its content in the inode; *result: bytes.
GPU4FS_FN GPU4FS_NOINLINE inline bool answer_inline_read(const ReaderContext& reader, const wire::Command& command,
                                                         u8* destination, u64* result) {
  const InodeView view = view_inode(reader, command.inode);
  if (view.inode == nullptr) return false;
  const format::Inode inode = copy_with_content(view);
  if (!is_usable(inode) || !fs::is_regular(inode.mode) || !inode.is_inline()) return false;
  if (!surely_may(*reader.session, inode, fs::may_read)) return false;
  const u64 begin = minimum(command.offset, inode.size_bytes);
  const u64 end = begin + minimum(command.length, inode.size_bytes - begin);
  *result = end - begin;
  return detail::give_inline(reader, view, inode, {static_cast<u32>(begin), static_cast<u32>(end)}, destination);
}

// readlink of a target in the inode; *result: bytes.
GPU4FS_FN GPU4FS_NOINLINE inline bool answer_readlink(const ReaderContext& reader, const wire::Command& command,
                                                      u8* destination, u64* result) {
  const InodeView view = view_inode(reader, command.inode);
  if (view.inode == nullptr || command.length == 0) return false;
  const format::Inode inode = copy_with_content(view);
  if (!is_usable(inode) || !fs::is_symlink(inode.mode) || !inode.is_inline()) return false;
  *result = minimum(command.length, inode.size_bytes);
  return detail::give_inline(reader, view, inode, {0, static_cast<u32>(*result)}, destination);
}

}  // namespace gpu4fs::engine
