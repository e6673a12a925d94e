#include "pool/pool_open.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/check.hpp"
#include "base/mutant.hpp"
#include "format/format_text.hpp"
#include "pool/block_devices.hpp"
#include "pool/pool_checksum.hpp"

namespace gpu4fs::pool {

namespace {

namespace filesystem = std::filesystem;

// An opened file with its superblocks. It is not yet known to belong to the pool.
struct Member {
  DeviceFile file;
  SuperblockProbe probe;
  bool was_named = true;  // otherwise it was found beside a named one
};

bool is_same_pool(const format::Superblock& a, const format::Superblock& b) {
  return std::memcmp(a.pool_uuid, b.pool_uuid, sizeof(a.pool_uuid)) == 0;
}

std::size_t member_count(const format::Superblock& superblock) {
  std::size_t count = 0;
  for (u32 i = 0; i < superblock.device_count; ++i) count += format::has_device(superblock, i) ? 1 : 0;
  return count;
}

bool is_same_device(const format::Superblock& a, const format::Superblock& b) {
  return std::memcmp(a.device.device_uuid, b.device.device_uuid, 16) == 0;
}

std::string canonical_path(const std::string& path) {
  std::error_code ignored;
  const filesystem::path canonical = filesystem::weakly_canonical(path, ignored);
  return ignored ? path : canonical.string();
}

// Also for two nodes of one block device.
bool is_same_place(const std::string& a, const std::string& b) {
  const u64 number = block_device_number(a);
  return canonical_path(a) == canonical_path(b) || (number != 0 && number == block_device_number(b));
}

// Where a member like `path` may be: the files in its folder; of a block device all block devices; of a drive that
// gpu4fs drives itself nowhere.
std::vector<std::string> list_candidates(const std::string& path) {
  // Each drive would have to be taken into use and reset.
  if (path.starts_with(device::drive_prefix)) return {};
  if (block_device_number(path) != 0) return list_block_devices();
  std::vector<std::string> candidates;
  std::error_code error;
  const filesystem::path folder = filesystem::absolute(path, error).parent_path();
  for (filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const bool candidate = entry->is_regular_file(ignored) || (!ignored && entry->is_block_file(ignored));
    if (candidate) candidates.push_back(entry->path().string());
  }
  return candidates;
}

// Files or block devices beside `path` that hold a superblock of the pool, without `path` itself. They are only read.
std::vector<std::string> list_neighbours(const std::string& path, const format::Superblock& pool) {
  std::vector<std::string> found;
  for (const std::string& candidate : list_candidates(path)) {
    if (is_same_place(candidate, path)) continue;
    try {
      const SuperblockProbe probe = probe_superblocks(candidate);
      const format::Superblock* superblock = probe.newest();
      if (superblock != nullptr && is_same_pool(*superblock, pool)) found.push_back(candidate);
    } catch (const PoolError&) {
      // It is not readable, so it could not be opened as a member either.
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

class PoolOpener {
 public:
  explicit PoolOpener(const OpenPoolOptions& options) : options_(options) {}

  OpenedPool open() {
    if (!options_.lock && !options_.read_only) {
      throw PoolError(Status::invalid_argument, "a pool is opened for writing only with its lock");
    }
    for (const std::string& list : options_.device_paths) {
      for (const std::string& path : split_device_list(list)) try_member(path);
    }
    if (members_.empty() && !unreachable_.empty()) throw unreachable_.front();
    if (members_.empty()) throw PoolError(Status::invalid_argument, "no device given");
    check_one_pool();
    find_missing();
    const format::Superblock newest = choose_superblock();
    OpenedPool pool = order_devices(newest);
    if (!unreachable_.empty() && pool.absent_devices() == 0) throw unreachable_.front();
    require_tree_device(pool);
    std::vector<TreeDevice> tree_devices;
    for (OpenedDevice& device : pool.devices) tree_devices.push_back({&device.file, device.part});
    pool.chunks =
        read_chunk_tree(pool.superblock, tree_devices, warnings_, !options_.read_only && options_.repairs_tree);
    require_enough_columns(pool);
    if (pool.superblock.clean == 0) {
      warnings_.push_back("the pool was not unmounted; it continues from its last checkpoint");
    }
    pool.warnings = std::move(warnings_);
    return pool;
  }

 private:
  // If a member cannot be reached, it is a missing device.
  void try_member(const std::string& path) {
    try {
      add_member(path);
    } catch (const PoolError& error) {
      if (error.status() != Status::no_device && error.status() != Status::io_error) throw;
      unreachable_.push_back(error);
    }
  }

  void add_member(const std::string& path) {
    const auto access = options_.read_only ? DeviceFile::Access::read_only : DeviceFile::Access::read_write;
    // This is checked before the lock is tried, which would fail with a misleading message.
    DeviceFile unlocked = DeviceFile::open(path, access, DeviceFile::Locking::none);
    for (const Member& member : members_) {
      if (member.file.is_same_file(unlocked)) {
        throw PoolError(Status::invalid_argument, fmt::format("{}: the same device as {}", path, member.file.path()));
      }
    }
    DeviceFile file =
        options_.lock ? DeviceFile::open(path, access, DeviceFile::Locking::lock_at_once) : std::move(unlocked);
    SuperblockProbe probe = probe_superblocks(file);
    refuse_invalid(path, probe);
    const format::Superblock* superblock = probe.newest();
    if (superblock == nullptr) {
      const bool blank = !probe.has_magic();
      throw PoolError(
          blank ? Status::not_a_pool : Status::corrupt_superblock,
          fmt::format("{}: {} ({})", path, blank ? "holds no gpu4fs pool" : "no valid superblock", probe.problem()));
    }
    const std::string problem = find_feature_problem(*superblock, options_.read_only);
    if (!problem.empty()) {
      throw PoolError(Status::unsupported_feature, fmt::format("{}: {}", path, problem));
    }
    members_.push_back({std::move(file), std::move(probe)});
  }

  // A slot with a valid checksum was written on purpose. Using the older slot would undo the changes of a newer version
  // or of another tool.
  static void refuse_invalid(const std::string& path, const SuperblockProbe& probe) {
    for (u32 i = 0; i < 2; ++i) {
      const SuperblockSlot& slot = probe.slots[i];
      if (slot.state != SlotState::invalid) continue;
      const Status status =
          slot.superblock.version != format::format_version ? Status::wrong_version : Status::corrupt_superblock;
      throw PoolError(status, fmt::format("{}: superblock slot {}: {}", path, i == 0 ? "A" : "B", slot.problem));
    }
  }

  void check_one_pool() const {
    const format::Superblock& first = *members_.front().probe.newest();
    for (const Member& member : members_) {
      const format::Superblock& own = *member.probe.newest();
      if (!is_same_pool(own, first)) {
        throw PoolError(Status::wrong_pool,
                        fmt::format("{}: belongs to pool {}, not to pool {} like {}", member.file.path(),
                                    format::uuid_text(own.pool_uuid), format::uuid_text(first.pool_uuid),
                                    members_.front().file.path()));
      }
    }
  }

  // The first member with the greatest epoch; others may not know of members that joined with it.
  const Member& newest_member() const {
    const Member* best = &members_.front();
    for (const Member& member : members_) {
      if (member.probe.newest()->epoch > best->probe.newest()->epoch) best = &member;
    }
    return *best;
  }

  void find_missing() {
    const format::Superblock first = *members_.front().probe.newest();
    std::set<std::string> searched;
    for (std::size_t i = 0; i < members_.size() && members_.size() < member_count(*newest_member().probe.newest());
         ++i) {
      const std::string path = members_[i].file.path();
      const bool is_file = block_device_number(path) == 0;
      const std::string folder = filesystem::path(canonical_path(path)).parent_path().string();
      if (!searched.insert(is_file ? folder : "block devices").second) continue;
      for (const std::string& neighbour : list_neighbours(path, first)) {
        const bool known = std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
          return is_same_place(member.file.path(), neighbour);
        });
        if (known) continue;
        add_member(neighbour);
        members_.back().was_named = false;
      }
    }
  }

  // The newest epoch over all members.
  format::Superblock choose_superblock() {
    const Member* best = &newest_member();
    const format::Superblock newest = *best->probe.newest();
    for (const Member& member : members_) {
      const std::string& path = member.file.path();
      const format::Superblock* own = member.probe.newest();
      const u64 since = stale_since(member, newest);
      if (GPU4FS_MUTANT(second_history_opened, since != 0 && own->epoch >= since, false)) {
        throw PoolError(Status::wrong_pool,
                        fmt::format("{} and {}: each was written without the other, from epoch {} on; they are two "
                                    "pools now, give one of them alone and keep the other out of its folder",
                                    path, best->file.path(), since));
      }
      if (since == 0 && own->epoch == newest.epoch && !is_common_part_equal(*own, newest)) {
        throw PoolError(Status::corrupt_superblock, fmt::format("{} and {}: superblocks of epoch {} differ", path,
                                                                best->file.path(), newest.epoch));
      }
      for (u32 slot = 0; slot < 2; ++slot) {
        const SuperblockSlot& state = member.probe.slots[slot];
        if (state.state == SlotState::damaged) {
          warnings_.push_back(fmt::format("{}: superblock slot {}: {}; epoch {} is used", path, slot == 0 ? "A" : "B",
                                          state.problem, newest.epoch));
        }
      }
    }
    return newest;
  }

  // The first epoch that a member lacks according to the newest superblock, 0: none.
  static u64 stale_since(const Member& member, const format::Superblock& newest) {
    const u32 index = member.probe.newest()->device.device_index;
    return index < newest.device_count ? newest.stale_since[index] : 0;
  }

  OpenedPool order_devices(const format::Superblock& newest) {
    OpenedPool pool{newest, {}, {}, {}, options_.read_only};
    const OpenedDevice* first_here = nullptr;
    pool.devices.reserve(newest.device_count);
    for (u32 index = 0; index < newest.device_count; ++index) {
      if (!format::has_device(newest, index)) {
        pool.devices.push_back(absent_device(newest, index, fmt::format("device {}", index), MemberState::removed));
        continue;
      }
      Member* member = find_member(newest, index);
      pool.devices.push_back(member == nullptr ? missing_device(newest, index) : open_device(*member, newest, index));
      if (first_here == nullptr && pool.devices.back().is_here()) first_here = &pool.devices.back();
    }
    for (const Member& member : members_) {
      if (member.file.fd() < 0) continue;  // moved to its place
      // A replaced device may still exist. A removed one may still be named by a member that missed its removal.
      const format::Superblock* own = member.probe.newest();
      const bool was_removed =
          own != nullptr && own->epoch < newest.epoch && !format::has_device(newest, own->device.device_index);
      if (!member.was_named || was_removed) {
        warnings_.push_back(
            fmt::format("{}: is no longer a member of the pool and is passed over", member.file.path()));
        continue;
      }
      throw PoolError(Status::wrong_pool, fmt::format("{}: is no longer a member of pool {}", member.file.path(),
                                                      format::uuid_text(newest.pool_uuid)));
    }
    GPU4FS_CHECK(first_here != nullptr);  // the one with the newest superblock
    pool.superblock.device = first_here->part;
    return pool;
  }

  OpenedDevice open_device(Member& member, const format::Superblock& newest, u32 index) {
    const format::Superblock* own = member.probe.newest();
    if (own->device.device_index != index || own->chunk_size_bytes != newest.chunk_size_bytes) {
      throw PoolError(Status::corrupt_superblock,
                      fmt::format("{}: claims index {} and chunk size {} in place of {} and {}", member.file.path(),
                                  own->device.device_index, own->chunk_size_bytes, index, newest.chunk_size_bytes));
    }
    const u64 since = newest.stale_since[index];
    if (GPU4FS_MUTANT(stale_device_opened, since != 0 || own->epoch + 1 < newest.epoch, false)) {
      return stale_device(member, newest, index);
    }
    const bool current = own->epoch == newest.epoch;
    if (!current) {
      warnings_.push_back(
          fmt::format("{}: lacks the superblock of epoch {}, holds {}", member.file.path(), newest.epoch, own->epoch));
    }
    return {std::move(member.file), own->device, current};
  }

  // The known properties of an absent device.
  static OpenedDevice absent_device(const format::Superblock& newest, u32 index, const std::string& name,
                                    MemberState state) {
    OpenedDevice device{DeviceFile::absent(name), {}, false, state, newest.stale_since[index]};
    std::memcpy(device.part.device_uuid, newest.device_uuids[index], sizeof(device.part.device_uuid));
    device.part.device_index = index;
    return device;
  }

  OpenedDevice stale_device(Member& member, const format::Superblock& newest, u32 index) {
    const std::string path = member.file.path();
    const u64 held = member.probe.newest()->epoch;
    const u64 since = newest.stale_since[index] != 0 ? newest.stale_since[index] : held + 1;
    const std::string what = fmt::format(
        "{}: device {} is stale since epoch {}, the pool is at {}: it has missed writes and needs a rebuild", path,
        index, since, newest.epoch);
    if (!options_.degraded) {
      throw PoolError(Status::device_failed,
                      what + "; the option 'degraded' goes on without it, if nothing is lost by that");
    }
    warnings_.push_back(what + "; going on without it");
    const DeviceFile closed = std::move(member.file);
    OpenedDevice device = absent_device(newest, index, path, MemberState::stale);
    device.stale_since = since;
    return device;
  }

  OpenedDevice missing_device(const format::Superblock& newest, u32 index) {
    std::string what = fmt::format("device {} of {} is missing: UUID {} of pool {}", index, newest.device_count,
                                   format::uuid_text(newest.device_uuids[index]), format::uuid_text(newest.pool_uuid));
    for (const PoolError& error : unreachable_) what += fmt::format(" ({})", error.what());
    if (!options_.degraded) {
      throw PoolError(Status::no_device,
                      what + "; the option 'degraded' goes on without it, if nothing is lost by that");
    }
    warnings_.push_back(what + "; going on without it");
    return absent_device(newest, index, fmt::format("device {}", index), MemberState::missing);
  }

  static void require_tree_device(const OpenedPool& pool) {
    const u32 count = pool.superblock.tree_replica_count;
    bool all_here = true;
    bool any_here = false;
    for (u32 i = 0; i < count; ++i) {
      all_here = all_here && pool.devices[i].is_here();
      any_here = any_here || pool.devices[i].is_here();
    }
    if (!any_here) {
      throw PoolError(Status::no_device,
                      fmt::format("none of devices 0 to {}, which hold the chunk tree, is here", count - 1));
    }
    if (!all_here && format::has_log(pool.superblock) && pool.superblock.log_capacity == 0) {
      throw PoolError(
          Status::no_device,
          "the operation log cannot be read without all devices that hold it: its size is not written down");
    }
  }

  static void require_enough_columns(const OpenedPool& pool) {
    for (const OpenedChunk& chunk : pool.chunks) {
      std::string absent;
      u32 count = 0;
      for (const format::ColumnAddress column : chunk.columns) {
        if (pool.devices[column.device_index()].is_here()) continue;
        const OpenedDevice& device = pool.devices[column.device_index()];
        absent += fmt::format("{}{} ({})", count == 0 ? "" : ", ", device.file.path(), member_state_name(device.state));
        ++count;
      }
      if (count <= chunk.descriptor.redundancy) continue;
      throw PoolError(Status::no_device,
                      fmt::format("chunk at {:#x} of level {} with {} columns can do without {} of them, {} are not "
                                  "here: {}",
                                  chunk.descriptor.base_address, format::to_text(chunk.descriptor.level),
                                  chunk.descriptor.column_count, chunk.descriptor.redundancy, count, absent));
    }
  }

  Member* find_member(const format::Superblock& newest, u32 index) {
    Member* found = nullptr;
    for (Member& member : members_) {
      const u8(&own)[16] = member.probe.newest()->device.device_uuid;
      if (std::memcmp(own, newest.device_uuids[index], sizeof(own)) != 0) continue;
      if (found != nullptr) {
        throw PoolError(Status::invalid_argument,
                        fmt::format("{} and {}: copies of the same device {}", found->file.path(), member.file.path(),
                                    format::uuid_text(own)));
      }
      found = &member;
    }
    return found;
  }

  OpenPoolOptions options_;
  std::vector<Member> members_;
  std::vector<PoolError> unreachable_;  // why given paths lead to no member
  std::vector<std::string> warnings_;
};

}  // namespace

const char* member_state_name(MemberState state) {
  switch (state) {
    case MemberState::here:
      return "ok";
    case MemberState::missing:
      return "missing";
    case MemberState::stale:
      return "stale";
    case MemberState::removed:
      return "removed";
  }
  return "unknown";
}

u64 OpenedPool::absent_devices() const {
  u64 absent = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    absent |= u64{!devices[i].is_here() && devices[i].state != MemberState::removed} << i;
  }
  return absent;
}

bool OpenedPool::is_degraded() const {
  return absent_devices() != 0;
}

OpenedPool open_pool(const OpenPoolOptions& options) {
  return wait_for_locks(options.patience, [&] { return PoolOpener(options).open(); });
}

PoolProfiles profiles_of(const OpenedPool& pool) {
  GPU4FS_CHECK(!pool.chunks.empty());
  if ((pool.superblock.feature_incompatible & format::feature_mixed_profiles) != 0) {
    return {static_cast<format::Profile>(pool.superblock.data_profile),
            static_cast<format::Profile>(pool.superblock.metadata_profile)};
  }
  const auto chunk =
      std::find_if(pool.chunks.begin(), pool.chunks.end(), [](const OpenedChunk& any) { return !any.is_erased(); });
  GPU4FS_CHECK(chunk != pool.chunks.end());
  const format::Profile only = format::profile_of(chunk->descriptor);
  return {only, only};
}

std::vector<std::string> find_members(const std::string& path) {
  const SuperblockProbe probe = probe_superblocks(path);
  const std::string plain = parse_device(path).path;
  const format::Superblock* own = probe.newest();
  if (own == nullptr) {
    throw PoolError(Status::not_a_pool, fmt::format("{}: holds no gpu4fs pool ({})", path, probe.problem()));
  }
  std::vector<std::pair<u32, std::string>> members{{own->device.device_index, path}};
  for (const std::string& neighbour : list_neighbours(plain, *own)) {
    const SuperblockProbe other = probe_superblocks(neighbour);
    const format::Superblock* superblock = other.newest();
    // A copy of a device that was named is not a member.
    if (superblock != nullptr && !is_same_device(*superblock, *own))
      members.emplace_back(superblock->device.device_index, neighbour);
  }
  std::sort(members.begin(), members.end());
  std::vector<std::string> paths;
  for (const auto& [index, member] : members) paths.push_back(member);
  return paths;
}

void complete_superblocks(OpenedPool& pool) {
  GPU4FS_CHECK(!pool.read_only);
  for (OpenedDevice& device : pool.devices) {
    if (GPU4FS_MUTANT(superblock_not_completed, device.has_newest_superblock, true) || !device.is_here()) continue;
    format::Superblock copy = pool.superblock;
    copy.device = device.part;
    seal(copy, superblock_offset(copy.slot));
    device.file.write_at(superblock_offset(copy.slot), &copy, sizeof(copy));
    device.file.flush();
    device.has_newest_superblock = true;
  }
}

}  // namespace gpu4fs::pool
