// The option list of a mount: "-o a,b=c". Host only.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "frontend/fuse/fuse_options.hpp"
#include "session/server_options.hpp"

namespace gpu4fs::daemon {

// A wrong command line; the message names the option.
struct MountUsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class MountAccess { read_only, read_write };

struct MountOptions {
  session::ServerOptions server;
  frontend::FuseOptions fuse;
  std::optional<MountAccess> access;  // if "ro" or "rw" was given
  bool is_remount = false;
  bool has_drive = false;  // option "drive"
};

// Adds a comma-separated list to `options`; a later option overrides an earlier one.
void add_mount_options(MountOptions& options, std::string_view list);

// When all lists were added: MountUsageError if an option needs another one.
void check_mount_options(const MountOptions& options);

}  // namespace gpu4fs::daemon
