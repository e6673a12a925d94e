// All handlers of names.
#pragma once

#include "engine/handlers/namespace_create.hpp"
#include "engine/handlers/namespace_lookup.hpp"
#include "engine/handlers/namespace_path.hpp"
#include "engine/handlers/namespace_readdir.hpp"
#include "engine/handlers/namespace_remove.hpp"
#include "engine/handlers/namespace_rename.hpp"
