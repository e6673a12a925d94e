// Serves a mount until its end, across deaths of its engine (mount_restart.hpp). Host only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/mount_options.hpp"
#include "daemon/mount_restart.hpp"

namespace gpu4fs::daemon {

struct MountService {
  MountOptions options;
  std::vector<std::string> words;  // those of this program, for another execution
  bool is_background = false;
  bool is_verbose = false;
  // The directory is usable; `text` is for the user. Goes into the background if requested.
  std::function<void(const std::string& text)> announce;
  std::optional<RestartState> resumed = std::nullopt;
};

// True: unmounted, and everything is on the medium. Throws if a first mount does not become usable.
bool serve(MountService service);

}  // namespace gpu4fs::daemon
