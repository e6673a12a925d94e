// Addresses that clients give, and the answers' attribute records.
#pragma once

#include "base/copy.hpp"
#include "base/mutant.hpp"
#include "engine/engine_types.hpp"
#include "fs/names/permissions.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::engine {

// The engine's pointer to [address, address + length) of a session: bad_address unless it lies in one of the
// session's buffers. Needs no leader, because buffers only change while no command of the session uses them. Length 0
// is fine anywhere in a buffer, its end included.
GPU4FS_FN inline Status resolve_in(const Session& session, u64 address, u64 length, u8** pointer) {
  *pointer = nullptr;
  const u32 buffer_index = wire::ring_address_buffer(address);
  if (buffer_index >= session_buffer_max) return Status::bad_address;
  const SessionBuffer& buffer = session.buffers[buffer_index];
  const u64 offset = wire::ring_address_offset(address);
  if (buffer.base == nullptr || offset > buffer.length ||
      GPU4FS_MUTANT(session_bounds_ignored, length > buffer.length - offset, false)) {
    return Status::bad_address;
  }
  *pointer = buffer.base + offset;
  return Status::ok;
}

// The same of the command's session. Uniform.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status resolve(Group /*g*/, const Engine& engine, const CommandState& c, u64 address,
                                         u64 length, u8** pointer) {
  GPU4FS_CHECK_LT(c.session, session_max);
  return resolve_in(engine.sessions[c.session], address, length, pointer);
}

// Copies an engine memory record to the session (16-byte units, address checked before: prepare_command).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void put_record(Group g, u8* destination, const void* source, u32 length) {
  g.sync();
  copy_bytes(g, destination, source, length);
  g.sync();
}

// The attributes of `ref` (an inode whose lock is held, or nobody else's) go to command.output; nothing
// when output is 0. attributes_of(ref, AttributeRecord*) is found beside Ref.
template <class Group, class Ref>
GPU4FS_FN GPU4FS_NOINLINE void put_attributes(Group g, Engine& engine, CommandState& c, const Ref& ref) {
  if (c.command.output == 0) return;
  u8* destination = nullptr;
  const Status status = resolve(g, engine, c, c.command.output, sizeof(format::AttributeRecord), &destination);
  GPU4FS_CHECK_OK(status);
  on_leader(g, [&] { attributes_of(ref, &c.attributes); });
  put_record(g, destination, &c.attributes, sizeof(c.attributes));
}

// Whether the session's front end has checked permissions already.
GPU4FS_FN inline bool session_is_trusted(const Engine& engine, u32 session) {
  return session < session_max && engine.sessions[session].trusted != 0;
}

// Whether the caller's groups contain `gid`, the command's own group included.
GPU4FS_FN inline bool caller_in_group(const Engine& engine, const CommandState& c, u32 gid) {
  if (c.command.gid == gid) return true;
  const Session& session = engine.sessions[c.session];
  if (session.trusted == 0 && session.gid == gid) return true;
  return fs::has_group(session.groups, session.group_count, gid);
}

}  // namespace gpu4fs::engine
