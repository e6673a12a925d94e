// Access control lists in storage: inheritance by new inodes, chmod, replacement of a list.
//
// The mode's group bits and a stored list are two views of one thing, so both change in the same commit.
#pragma once

#include "fs/names/set_attribute.hpp"

namespace gpu4fs::fs {

// The initial access of a new inode in a directory. `list.entry_offset` 0: the directory has no default list.
struct InheritedAccess {
  FoundAttribute list;  // the directory's default list
  u32 mode;             // of the new inode
  u32 keeps_default;    // the new inode is a directory and gets the default list too
  u32 keeps_access;     // the list contains more than the mode
  u32 needs_two;        // both lists do not fit into one page
  u32 new_pages;
};

// The mode that the caller requests.
struct AskedMode {
  u32 mode;        // with the type
  u32 umask_bits;  // apply only without a default list
};

// Prepare. The directory is locked exclusively or shared. Status: corrupt_structure, as
// get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_inherited_access(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                          AskedMode asked, InheritedAccess* inherited) {
  const u32 mode = asked.mode;
  *inherited = {};
  inherited->mode = mode;
  if (is_symlink(mode)) return Status::ok;
  const Status status = attribute_find(g, fs, op, dir, acl_default_name(), &inherited->list);
  if (status == Status::no_attribute) {
    inherited->list = FoundAttribute::none();
    inherited->mode = mode & ~(asked.umask_bits & 0777);
    return Status::ok;
  }
  GPU4FS_TRY(status);
  const FoundAttribute list = inherited->list;
  inherited->mode = on_leader(g, [&] {
    const u8* value = page_data(fs, list.frame) + list.value_offset;
    return acl_is_valid(value, list.value_length) ? acl_inherited_mode(value, list.value_length, mode) : u32{0};
  });
  if (inherited->mode == 0) return Status::corrupt_structure;
  inherited->keeps_access = !acl_is_minimal(list.value_length);
  inherited->keeps_default = is_directory(mode);
  const u32 used = detail::attributes_begin + detail::attribute_size(acl_access_name().length, list.value_length) +
                   detail::attribute_size(acl_default_name().length, list.value_length);
  const u32 count = inherited->keeps_access + inherited->keeps_default;
  inherited->needs_two = count == 2 && used > page_size;
  inherited->new_pages = minimum(count, 1 + inherited->needs_two);
  return Status::ok;
}

// Gate: stores the lists of the new inode, which was created with inherited.mode.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_inherited_access(Group g, FileSystem& fs, Operation& op, const InodeRef& child,
                                                       const InheritedAccess& inherited) {
  if (inherited.new_pages == 0) return;
  const FoundAttribute& list = inherited.list;
  const u8* value = page_data(fs, list.frame) + list.value_offset;
  AttributePlan plan{FoundAttribute::none(), 0, no_frame, 0, 0, 0};
  if (inherited.keeps_access != 0) {
    const FoundAttribute place =
        attribute_commit_set(g, fs, op, child, plan, {acl_access_name(), list.value_length, 0, nullptr, value});
    on_leader(
        g, [&] { acl_set_mode(page_data(fs, place.frame) + place.value_offset, place.value_length, inherited.mode); });
    attribute_rehash(g, fs, place);
    plan.page = inherited.needs_two;
    plan.frame = inherited.needs_two != 0 ? no_frame : place.frame;
  }
  if (inherited.keeps_default != 0) {
    attribute_commit_set(g, fs, op, child, plan, {acl_default_name(), list.value_length, 0, nullptr, value});
  }
}

// chmod, prepare: finds the inode's access list, which has to follow the mode; `found->entry_offset` 0: there is none.
// If there is one, one existing page changes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_mode_change(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                     FoundAttribute* found) {
  const Status status = attribute_find(g, fs, op, file, acl_access_name(), found);
  if (status == Status::no_attribute) {
    found->entry_offset = 0;
    return Status::ok;
  }
  GPU4FS_TRY(status);
  const FoundAttribute list = *found;
  const bool valid =
      on_leader(g, [&] { return acl_is_valid(page_data(fs, list.frame) + list.value_offset, list.value_length); });
  return valid ? Status::ok : Status::corrupt_structure;
}

// chmod, gate: the list follows `mode`; the inode's mode is left to the caller.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_mode_change(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                  const FoundAttribute& found, u32 mode) {
  if (found.entry_offset == 0) return;
  on_leader(g, [&] { acl_set_mode(page_data(fs, found.frame) + found.value_offset, found.value_length, mode); });
  attribute_rehash(g, fs, found);
  mark_dirty(g, fs, op, file, found.frame);
}

}  // namespace gpu4fs::fs
