// Names the file whose content was found damaged.
#pragma once

#include "base/group.hpp"
#include "engine/engine_types.hpp"
#include "raid/damage.hpp"

namespace gpu4fs::engine {

namespace detail {

// A function of its own, because the loops that move pages must not pay for it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void name_owner(Group g, const Engine& engine, u64 inode, u64 address, u64 page_count) {
  on_leader(g, [&] { raid::name_damage(engine.fs.space, address, page_count, inode, wire::DamageKind::data); });
}

}  // namespace detail

// Returns `status`, the result of an access to [address, address + page_count pages), content of regular file `inode`.
// Names the file if its content is damaged.
template <class Group>
GPU4FS_FN Status with_owner(Group g, const Engine& engine, u64 inode, Status status, u64 address, u64 page_count) {
  if (status == Status::checksum_mismatch) detail::name_owner(g, engine, inode, address, page_count);
  return status;
}

}  // namespace gpu4fs::engine
