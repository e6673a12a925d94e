// user.gpu4fs.raid and user.gpu4fs.raid.effective: the profile of a file's new blocks, as extended attributes.
//
// The first one is the inode's own field. Files and directories get it from the directory in which they are created.
// Its values are the profile names of mkfs. It can be set on files with data too: existing blocks stay in place. The
// status is not_supported for a profile without data chunks in the pool. The second one is the profile of new blocks.
// It cannot be changed. It is not listed, because copying tools would try to set it.
#pragma once

#include "engine/handlers/namespace_common.hpp"

namespace gpu4fs::engine {
namespace detail {

enum class ProfileAttribute : u32 { none, own, effective };

inline constexpr u32 profile_attribute_length = 16;
GPU4FS_FN constexpr const char* profile_attribute_name() {
  return "user.gpu4fs.raid";
}

// Leader.
GPU4FS_FN inline ProfileAttribute profile_attribute(NameBytes name) {
  const char* effective = ".effective";
  constexpr u32 effective_length = 10;
  if (name.length < profile_attribute_length) return ProfileAttribute::none;
  for (u32 i = 0; i < profile_attribute_length; ++i) {
    if (name.bytes[i] != static_cast<u8>(profile_attribute_name()[i])) return ProfileAttribute::none;
  }
  if (name.length == profile_attribute_length) return ProfileAttribute::own;
  if (name.length != profile_attribute_length + effective_length) return ProfileAttribute::none;
  for (u32 i = 0; i < effective_length; ++i) {
    if (name.bytes[profile_attribute_length + i] != static_cast<u8>(effective[i])) return ProfileAttribute::none;
  }
  return ProfileAttribute::effective;
}

// The format::Profile with that name, 0: none.
GPU4FS_FN inline u32 find_profile(const u8* bytes, u32 length) {
  for (u32 profile = 1; profile <= format::profile_max; ++profile) {
    const format::ProfileName found = format::profile_name(static_cast<format::Profile>(profile));
    const char* name = found.text;
    u32 i = 0;
    while (i < length && name[i] != 0 && static_cast<u8>(name[i]) == bytes[i]) ++i;
    if (i == length && name[i] == 0) return profile;
  }
  return 0;
}

// Reserves everything that a change of the inode's profile needs, and enters the gate. Access was checked. Status:
// permission for an inode that has no profile, or for an attribute that cannot be changed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status reserve_profile_change(Group g, Engine& engine, CommandState& c,
                                                        const fs::InodeRef& file, ProfileAttribute kind) {
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  GPU4FS_CHECK(kind != ProfileAttribute::none);
  if (kind == ProfileAttribute::effective) return Status::permission;
  if (!fs::is_regular(file.inode->mode) && !fs::is_directory(file.inode->mode)) return Status::permission;
  GPU4FS_TRY(fs::reserve_metadata(g, engine.fs, c.operation, {1, 0, 0}));
  const bool removes = c.command.opcode == wire::Opcode::remove_attribute;
  GPU4FS_TRY(reserve_record(g, engine, c, removes ? 0 : c.command.length));
  return enter_gate(g, engine, c);
}

// The profile that an attribute of `length` bytes in c.buffer requests. Status: exists, no_attribute (by
// c.command.mask), invalid_argument, not_supported.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status plan_profile(Group g, Engine& engine, CommandState& c, const fs::InodeRef& file,
                                              u32 length, u32* profile) {
  GPU4FS_CHECK_LE(length, u32{command_buffer_size});
  const u32 asked = on_leader(g, [&] { return find_profile(c.buffer, length); });
  *profile = asked;
  if (asked == 0) return Status::invalid_argument;
  const bool is_set = file.inode->profile != 0;
  if (is_set && (c.command.mask & fs::attribute_create) != 0) return Status::exists;
  if (!is_set && (c.command.mask & fs::attribute_replace) != 0) return Status::no_attribute;
  return on_leader(g, [&] { return space::has_data_profile(engine.fs, asked) ? Status::ok : Status::not_supported; });
}

// Writes the value to `data`, which has c.command.length bytes. A length of 0 requests only the value's length.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step read_profile(Group g, Engine& engine, CommandState& c, const fs::InodeRef& file,
                                            ProfileAttribute kind, u8* data) {
  GPU4FS_CHECK(kind != ProfileAttribute::none);
  GPU4FS_CHECK(data != nullptr || c.command.length == 0);
  const u32 own = file.inode->profile;
  if (kind == ProfileAttribute::own && own == 0) return Step::end(Status::no_attribute);
  const u32 length = on_leader(g, [&] {
    const u32 profile = kind == ProfileAttribute::own ? own : space::effective_profile(engine.fs, own);
    const format::ProfileName found = format::profile_name(static_cast<format::Profile>(profile));
    const char* name = found.text;
    u32 count = 0;
    for (; name[count] != 0; ++count) {
      if (count < c.command.length) data[count] = static_cast<u8>(name[count]);
    }
    return count;
  });
  g.sync();
  if (c.command.length != 0 && length > c.command.length) return Step::end(Status::attribute_range);
  return Step::complete(length);
}

// Adds the name to a list of `*length` bytes in `data`. nullptr requests only the list's length.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status list_profile(Group g, const CommandState& c, const fs::InodeRef& file, u8* data,
                                              u64* length) {
  GPU4FS_CHECK(data == nullptr || *length <= c.command.length);
  if (file.inode->profile == 0) return Status::ok;
  const u64 begin = *length;
  *length += profile_attribute_length + 1;
  if (data == nullptr) return Status::ok;
  if (*length > c.command.length) return Status::attribute_range;
  on_leader(g, [&] {
    for (u32 i = 0; i <= profile_attribute_length; ++i) data[begin + i] = static_cast<u8>(profile_attribute_name()[i]);
  });
  g.sync();
  return Status::ok;
}

}  // namespace detail
}  // namespace gpu4fs::engine
