#include "daemon/mount_options.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>

#include "base/host/size_text.hpp"
#include "pool/pool_device_file.hpp"
#include "session/engine_setup.hpp"

namespace gpu4fs::daemon {
namespace {

using session::AccessTimes;
using session::EngineChoice;

// An option's name and value as they were given.
struct Option {
  std::string_view name;
  std::string_view value;
  bool has_value;
};

struct Rule {
  std::string_view name;
  bool wants_value;
  void (*apply)(MountOptions&, const Option&);
};

unsigned parse_count(const Option& option, unsigned least, unsigned most) {
  unsigned number = 0;
  const char* end = option.value.data() + option.value.size();
  const auto [stop, error] = std::from_chars(option.value.data(), end, number);
  if (error != std::errc{} || stop != end || number < least || number > most) {
    throw MountUsageError(
        fmt::format("option '{}' needs a number from {} to {}, not '{}'", option.name, least, most, option.value));
  }
  return number;
}

void apply_engine(MountOptions& options, const Option& option) {
  if (option.value == "auto") {
    options.server.engine = EngineChoice::automatic;
  } else if (option.value == "cpu") {
    options.server.engine = EngineChoice::cpu;
  } else if (option.value == "cuda" || option.value == "gpu") {
    options.server.engine = EngineChoice::cuda;
  } else {
    throw MountUsageError(fmt::format("option 'engine' is auto, cpu or cuda, not '{}'", option.value));
  }
}

template <u64 session::ServerOptions::*member>
void apply_size(MountOptions& options, const Option& option) {
  try {
    options.server.*member = parse_size(std::string(option.value));
  } catch (const std::invalid_argument& error) {
    throw MountUsageError(fmt::format("option '{}': {}", option.name, error.what()));
  }
}

void apply_access(MountOptions& options, const Option& option) {
  if (option.value == "mapped") {
    options.server.device_access = session::DeviceAccess::mapped;
  } else if (option.value == "direct") {
    options.server.device_access = session::DeviceAccess::direct;
  } else if (option.value == "emulated") {
    options.server.device_access = session::DeviceAccess::emulated;
  } else {
    throw MountUsageError(fmt::format("option 'access' is mapped, direct or emulated, not '{}'", option.value));
  }
}

void apply_drive(MountOptions& options, const Option& option) {
  if (!session::choose_drives(std::string(option.value), &options.server.drives)) {
    throw MountUsageError(fmt::format("option 'drive' is {}, not '{}'", session::emulated_drive_names(), option.value));
  }
  options.has_drive = true;
}

void apply_damaged_log(MountOptions& options, const Option& option) {
  if (option.value != "drop" && option.value != "refuse") {
    throw MountUsageError(fmt::format("option 'damaged_log' is refuse or drop, not '{}'", option.value));
  }
  options.server.drop_damaged_log = option.value == "drop";
}

void apply_errors(MountOptions& options, const Option& option) {
  if (option.value != "remount-ro" && option.value != "continue") {
    throw MountUsageError(fmt::format("option 'errors' is remount-ro or continue, not '{}'", option.value));
  }
  options.server.stop_on_error = option.value == "remount-ro";
}

void apply_nothing(MountOptions&, const Option&) {}

void apply_kernel_flag(MountOptions& options, const Option& option) {
  options.fuse.kernel_flags.emplace_back(option.name);
}

template <AccessTimes value>
void apply_access_times(MountOptions& options, const Option&) {
  options.server.access_times = value;
}

template <bool value>
void apply_read_only(MountOptions& options, const Option&) {
  options.server.read_only = value;
  options.fuse.read_only = value;
  options.access = value ? MountAccess::read_only : MountAccess::read_write;
}

template <bool frontend::FuseOptions::*member>
void apply_fuse(MountOptions& options, const Option&) {
  options.fuse.*member = true;
}

constexpr Rule rules[] = {
    {"ro", false, apply_read_only<true>},
    {"rw", false, apply_read_only<false>},
    {"remount", false, [](MountOptions& options, const Option&) { options.is_remount = true; }},
    {"noatime", false, apply_access_times<AccessTimes::never>},
    {"relatime", false, apply_access_times<AccessTimes::relative>},
    {"strictatime", false, apply_access_times<AccessTimes::strict>},
    {"atime", false, apply_access_times<AccessTimes::relative>},
    {"nodiratime", false, apply_access_times<AccessTimes::directories_never>},
    {"allow_other", false, apply_fuse<&frontend::FuseOptions::allow_other>},
    {"default_permissions", false, apply_nothing},
    {"direct_io", false, apply_fuse<&frontend::FuseOptions::direct_io>},
    {"idmap", false, apply_fuse<&frontend::FuseOptions::idmap>},
    {"writeback", false, apply_fuse<&frontend::FuseOptions::writeback>},
    {"fast_close", false, apply_fuse<&frontend::FuseOptions::fast_close>},
    {"errors", true, apply_errors},
    {"engine", true, apply_engine},
    {"workers", true,
     [](MountOptions& options, const Option& option) { options.server.worker_count = parse_count(option, 1, 256); }},
    {"threads", true,
     [](MountOptions& options, const Option& option) { options.fuse.threads = parse_count(option, 1, 56); }},
    {"commit", true,
     [](MountOptions& options, const Option& option) {
       options.server.commit_interval_s = parse_count(option, 0, 86400);
     }},
    {"cache", true, apply_size<&session::ServerOptions::cache_bytes>},
    {"page_cache", true, apply_size<&session::ServerOptions::page_cache_bytes>},
    {"host_cache", true, apply_size<&session::ServerOptions::host_cache_bytes>},
    {"page_readahead", true, apply_size<&session::ServerOptions::page_readahead_bytes>},
    {"access", true, apply_access},
    {"drive", true, apply_drive},
    {"discard", false,
     [](MountOptions& options, const Option&) { options.server.discard = session::DiscardScope::all; }},
    {"nodiscard", false,
     [](MountOptions& options, const Option&) { options.server.discard = session::DiscardScope::none; }},
    {"sessions", false, [](MountOptions& options, const Option&) { options.server.has_process_sessions = true; }},
    {"readahead", true,
     [](MountOptions& options, const Option& option) {
       options.fuse.readahead_kib = parse_count(option, 0, 1u << 20);
     }},
    {"sync", false, apply_fuse<&frontend::FuseOptions::synchronous>},
    {"dirsync", false, apply_fuse<&frontend::FuseOptions::synchronous_directories>},
    {"norecovery", false, [](MountOptions& options, const Option&) { options.server.ignore_log = true; }},
    {"damaged_log", true, apply_damaged_log},
    {"degraded", false, [](MountOptions& options, const Option&) { options.server.degraded = true; }},
    {"spare", true,
     [](MountOptions& options, const Option& option) {
       options.server.spare_paths.push_back(pool::absolute_device_path(std::string(option.value)));
     }},
    {"allow_fault", false, [](MountOptions& options, const Option&) { options.server.allow_fault = true; }},
    {"fsname", true, [](MountOptions& options, const Option& option) { options.fuse.source = option.value; }},
    {"subtype", true, apply_nothing},
    {"debug", false, apply_fuse<&frontend::FuseOptions::debug>},
    // The kernel's own options.
    {"suid", false, apply_kernel_flag},
    {"nosuid", false, apply_kernel_flag},
    {"dev", false, apply_kernel_flag},
    {"nodev", false, apply_kernel_flag},
    {"exec", false, apply_kernel_flag},
    {"noexec", false, apply_kernel_flag},
    {"async", false, apply_kernel_flag},
    // Options in the kernel's table, from which mount(8) takes them for a remount.
    {"user_id", true, apply_nothing},
    {"group_id", true, apply_nothing},
    // Options for mount(8), fstab and the init system; nothing to do here.
    {"defaults", false, apply_nothing},
    {"auto", false, apply_nothing},
    {"noauto", false, apply_nothing},
    {"nofail", false, apply_nothing},
    {"_netdev", false, apply_nothing},
    {"user", false, apply_nothing},
    {"users", false, apply_nothing},
    {"nouser", false, apply_nothing},
    {"owner", false, apply_nothing},
    {"group", false, apply_nothing},
};

void add_option(MountOptions& options, const Option& option) {
  if (option.name.starts_with("x-") || option.name.starts_with("comment")) return;
  for (const Rule& rule : rules) {
    if (rule.name != option.name) continue;
    // mount(8) passes "user" on with the name of the user.
    const bool is_user = option.name == "user";
    if (option.has_value != rule.wants_value && !is_user) {
      throw MountUsageError(
          fmt::format("option '{}' {} a value", option.name, rule.wants_value ? "needs" : "takes no"));
    }
    rule.apply(options, option);
    return;
  }
  throw MountUsageError(fmt::format("unknown option '{}'", option.name));
}

}  // namespace

void add_mount_options(MountOptions& options, std::string_view list) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view word = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    const bool has_value = equals != std::string_view::npos;
    add_option(options,
               Option{word.substr(0, equals), has_value ? word.substr(equals + 1) : std::string_view{}, has_value});
  }
}

void check_mount_options(const MountOptions& options) {
  if (options.server.host_cache_bytes != 0 && options.server.engine == session::EngineChoice::cpu) {
    throw MountUsageError("option 'host_cache' is for the GPU engine; the CPU engine's page cache is page_cache=SIZE");
  }
  // Tests say it by the environment.
  if (!options.has_drive || session::resolve_access(options.server.device_access) == session::DeviceAccess::emulated) {
    return;
  }
  throw MountUsageError("option 'drive' needs access=emulated: other devices are as fast as they are");
}

}  // namespace gpu4fs::daemon
