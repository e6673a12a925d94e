// Addresses given by clients, and the attribute records of answers.
#pragma once

#include "base/copy.hpp"
#include "base/mutant.hpp"
#include "engine/engine_types.hpp"
#include "fs/names/permissions.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::engine {

// The same as resolve_in(), for an address in a known buffer.
GPU4FS_FN inline Status resolve_in_buffer(const SessionBuffer& buffer, u64 address, u64 length, u8** pointer) {
  *pointer = nullptr;
  const u64 offset = wire::ring_address_offset(address);
  if (buffer.base == nullptr || offset > buffer.length ||
      GPU4FS_MUTANT(session_bounds_ignored, length > buffer.length - offset, false)) {
    return Status::bad_address;
  }
  *pointer = buffer.base + offset;
  return Status::ok;
}

// The engine's pointer to [address, address + length) of a session. Status bad_address unless the range is inside one
// of the session's buffers. Needs no leader, because buffers change only while no command of the session uses them.
// Length 0 is valid anywhere in a buffer, including its end.
GPU4FS_FN inline Status resolve_in(const Session& session, u64 address, u64 length, u8** pointer) {
  *pointer = nullptr;
  const u32 buffer_index = wire::ring_address_buffer(address);
  if (buffer_index >= session_buffer_max) return Status::bad_address;
  return resolve_in_buffer(session.buffers[buffer_index], address, length, pointer);
}

// The same for the session of the command. Uniform.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status resolve(Group /*g*/, const Engine& engine, const CommandState& c, u64 address,
                                         u64 length, u8** pointer) {
  GPU4FS_CHECK_LT(c.session, session_max);
  return resolve_in(engine.sessions[c.session], address, length, pointer);
}

// Copies an engine memory record to the session (16-byte units; prepare_command has checked the address).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void put_record(Group g, u8* destination, const void* source, u32 length) {
  g.sync();
  copy_bytes(g, destination, source, length);
  g.sync();
}

// Stores the attributes of `ref` at command.output. The inode's lock is held, or no other command uses the inode. Does
// nothing if output is 0. attributes_of(ref, AttributeRecord*) is declared in the namespace of Ref.
template <class Group, class Ref>
GPU4FS_FN GPU4FS_NOINLINE void put_attributes(Group g, Engine& engine, CommandState& c, const Ref& ref) {
  if (c.command.output == 0) return;
  u8* destination = nullptr;
  const Status status = resolve(g, engine, c, c.command.output, sizeof(format::AttributeRecord), &destination);
  GPU4FS_CHECK_OK(status);
  on_leader(g, [&] { attributes_of(ref, &c.attributes); });
  put_record(g, destination, &c.attributes, sizeof(c.attributes));
}

// Whether the session's front end has already checked permissions.
GPU4FS_FN inline bool session_is_trusted(const Engine& engine, u32 session) {
  return session < session_max && engine.sessions[session].trusted != 0;
}

// Whether the caller's groups, including the command's own group, contain `gid`.
GPU4FS_FN inline bool caller_in_group(const Engine& engine, const CommandState& c, u32 gid) {
  if (c.command.gid == gid) return true;
  const Session& session = engine.sessions[c.session];
  if (session.trusted == 0 && session.gid == gid) return true;
  return fs::has_group(session.groups, session.group_count, gid);
}

}  // namespace gpu4fs::engine
