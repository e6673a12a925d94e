// Answers about one inode without its lock.
#pragma once

#include "engine/optimistic/read_plan.hpp"
#include "engine/session_memory.hpp"
#include "fs/inode/inode.hpp"

namespace gpu4fs::engine {

// By a rank by itself. `destination` is 16-byte aligned.
GPU4FS_FN inline void store_record(u8* destination, const format::AttributeRecord& record) {
  static_assert(sizeof(record) % 16 == 0);
  const u8* bytes = reinterpret_cast<const u8*>(&record);
  GPU4FS_UNROLL
  for (u32 at = 0; at < sizeof(record); at += 16) {
    Vector16 chunk;
    __builtin_memcpy(&chunk, bytes + at, sizeof(chunk));
    store_stream_16(destination + at, chunk);
  }
}

// The attributes go to `destination`, 16-byte aligned, unless it is nullptr. False: the ordinary way is to answer,
// and the client has seen nothing. A rank by itself, inside the step gate.
GPU4FS_FN inline bool answer_getattr(const ReaderContext& reader, const wire::Command& command, u8* destination) {
  const InodeView view = view_inode(reader.views->root.pages, command.inode);
  if (view.inode == nullptr) return false;
  const format::Inode inode = copy_without_content(view);
  if (!is_unchanged(*view.lock, view.version) || !is_usable(inode)) return false;
  GPU4FS_TRACE_POINT(inode);
  if (destination == nullptr) return true;
  format::AttributeRecord record{};
  fs::describe_inode(view.number, inode, inode.access_time, &record);
  store_record(destination, record);
  return true;
}

}  // namespace gpu4fs::engine
