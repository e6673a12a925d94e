// For tests of handlers of names: an engine (FileEngine) and clients.
#pragma once

#include "engine/file_fixture.hpp"
#include "support/name_commands.hpp"

namespace gpu4fs::test {

using NameClient = BasicNameClient<Client>;

}  // namespace gpu4fs::test
