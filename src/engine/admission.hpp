// Decides which commands may begin. After an error that stops changes (fs/errors.hpp), only commands that change
// nothing.
#pragma once

#include "engine/command_types.hpp"
#include "fs/errors.hpp"
#include "wire/relocate_format.hpp"

namespace gpu4fs::engine {

// Covers the commands with Effect::places.
GPU4FS_FN constexpr bool moves_pages(const wire::Command& command) {
  return wire::is_in(wire::commands_that_move_pages, command.opcode) &&
         (command.mode == static_cast<u32>(wire::RelocateStep::data) ||
          command.mode == static_cast<u32>(wire::RelocateStep::metadata));
}

// Before a command's first step. Leader only.
GPU4FS_FN inline Status admit_command(const fs::FileSystem& fs, const CommandState& c) {
  const bool changes = wire::changes_the_pool(c.command.opcode) || moves_pages(c.command);
  return fs::takes_changes(fs) || !changes ? Status::ok : Status::read_only;
}

}  // namespace gpu4fs::engine
