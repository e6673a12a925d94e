// For tests of handlers of names: an engine (FileEngine) and clients.
#pragma once

#include "engine/file_fixture.hpp"
#include "support/name_commands.hpp"

namespace gpu4fs::test {

inline constexpr u64 root = format::inode_number_root;

using NameClient = BasicNameClient<Client>;

}  // namespace gpu4fs::test
