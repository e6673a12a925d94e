// Which commands begin at all: after an error that stops changes (fs/errors.hpp), those that change nothing.
#pragma once

#include "engine/command_types.hpp"
#include "format/relocate_format.hpp"
#include "fs/errors.hpp"

namespace gpu4fs::engine {

// Commands of clients that may change the pool. fsync, sync and checkpoints make durable what has been changed
// before; reading moves access times, which it does without where it may not.
GPU4FS_FN constexpr bool changes_the_pool(format::Opcode opcode) {
  switch (opcode) {
    case format::Opcode::setattr:
    case format::Opcode::mknod:
    case format::Opcode::mkdir:
    case format::Opcode::unlink:
    case format::Opcode::rmdir:
    case format::Opcode::symlink:
    case format::Opcode::rename:
    case format::Opcode::link:
    case format::Opcode::create:
    case format::Opcode::tmpfile:
    case format::Opcode::write:
    case format::Opcode::truncate:
    case format::Opcode::fallocate:
    case format::Opcode::copy_range:
    case format::Opcode::set_attribute:
    case format::Opcode::remove_attribute:
    case format::Opcode::reclaim:
    case format::Opcode::reclaim_orphans:
      return true;
    default:
      return false;
  }
}

// Of the management process's command `relocate`.
GPU4FS_FN constexpr bool moves_pages(const format::Command& command) {
  return command.opcode == format::Opcode::relocate &&
         (command.mode == static_cast<u32>(format::RelocateStep::data) ||
          command.mode == static_cast<u32>(format::RelocateStep::metadata));
}

// Before a command's first step. Leader only.
GPU4FS_FN inline Status admit_command(const fs::FileSystem& fs, const CommandState& c) {
  const bool changes = changes_the_pool(c.command.opcode) || moves_pages(c.command);
  return fs::takes_changes(fs) || !changes ? Status::ok : Status::read_only;
}

}  // namespace gpu4fs::engine
