#include "server/pool_control.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <shared_mutex>

#include "base/host/json.hpp"
#include "base/limits.hpp"
#include "base/to_text.hpp"
#include "fmt/format.h"
#include "session/control_socket.hpp"
#include "session/tree_walk.hpp"

namespace gpu4fs::server {
namespace {

std::string one_line(const JsonWriter& json) {
  std::string line = json.text();
  line.pop_back();
  return line;
}

// Why changes are refused, "" if they are accepted.
const char* refusal_text(u32 flags) {
  if ((flags & wire::health_checkpoint_failed) != 0) return "a checkpoint could not be written";
  if ((flags & wire::health_changes_stopped) != 0) return "metadata is damaged";
  return (flags & wire::health_read_only) != 0 ? "mounted read-only" : "";
}

// Removes pages from the table that were freed or rewritten meanwhile. True: there were some.
bool drop_healed_pages(session::PoolInspector& inspector, const pool::OpenedPool& pool,
                       const session::PoolHealth& health) {
  bool dropped = false;
  for (const wire::DamageRecord& record : health.damage) {
    for (u32 chunk = 0; chunk < pool.chunks.size(); ++chunk) {
      const format::ChunkDescriptor& range = pool.chunks[chunk].descriptor;
      if (record.address < range.base_address || record.address - range.base_address >= range.size_bytes) continue;
      const u64 page = (record.address - range.base_address) / page_size;
      const session::PoolInspector::Verified verified = inspector.verify(chunk, page, 1);
      if (verified.status != Status::ok || verified.damaged_count != 0) continue;
      (void)inspector.verify_and_record(chunk, page, 1, record.inode, record.kind);
      dropped = true;
    }
  }
  return dropped;
}

struct DamagedInode {
  u64 page_count = 0;
  u64 count = 0;
  bool is_metadata = false;
};

void add_damaged_files(JsonWriter& json, session::PoolInspector& inspector, const session::PoolHealth& health) {
  std::map<u64, DamagedInode> by_inode;
  for (const wire::DamageRecord& record : health.damage) {
    DamagedInode& inode = by_inode[record.inode];
    ++inode.page_count;
    inode.count += record.count;
    inode.is_metadata = inode.is_metadata || record.kind == wire::DamageKind::metadata;
  }
  std::set<u64> inodes;
  for (const auto& [inode, damage] : by_inode) inodes.insert(inode);
  const std::map<u64, std::string> paths = session::find_paths(inspector, inodes);
  json.begin_array("damaged_files");
  for (const auto& [inode, damage] : by_inode) {
    json.begin_object();
    const auto path = paths.find(inode);
    if (path != paths.end()) json.add("path", path->second);
    if (inode != wire::damage_inode_unknown) json.add("inode", inode);
    json.add("pages", damage.page_count);
    json.add("met", damage.count);
    json.add("metadata", damage.is_metadata);
    json.end();
  }
  json.end();
}

// ok, missing, stale, rebuilding, or failed: it was present at the mount.
const char* device_state(const pool::OpenedDevice& device, const wire::HealthRecord& health, u32 index) {
  if ((health.rebuilding_devices >> index & 1) != 0) return "rebuilding";
  if ((health.failed_devices >> index & 1) == 0) return "ok";
  return device.is_here() ? "failed" : pool::member_state_name(device.state);
}

std::string device_uuid(const pool::OpenedDevice& device) {
  Uuid uuid{};
  std::copy_n(device.part.device_uuid, sizeof(uuid.bytes), uuid.bytes);
  return to_text(uuid);
}

const char* access_name(const session::EngineSetup& setup, u32 index) {
  if (setup.files[index].is_mapped()) return "mapped";
  if (setup.files[index].drive() != nullptr) return "nvme";
  const bool is_emulated = setup.direct != nullptr && setup.direct->has_drives() && !setup.direct->has_bus();
  return is_emulated ? "emulated" : "direct";
}

void add_devices(JsonWriter& json, const ControlContext& context, const session::PoolHealth& health) {
  json.begin_array("devices");
  for (u32 i = 0; i < context.mounted.setup.files.size(); ++i) {
    if (context.mounted.pool.devices[i].state == pool::MemberState::removed) continue;
    json.begin_object();
    json.add("index", i);
    json.add("path", context.mounted.setup.files[i].path());
    json.add("uuid", device_uuid(context.mounted.pool.devices[i]));
    json.add("size_bytes", context.mounted.setup.files[i].size_bytes());
    json.add("unallocated_bytes", pool::unallocated_bytes(context.mounted.pool, i));
    json.add("state", device_state(context.mounted.pool.devices[i], health.record, i));
    json.add("checksum_mismatches", health.record.mismatch_counts[i]);
    json.add("read_errors", health.record.read_errors[i]);
    json.add("write_errors", health.record.write_errors[i]);
    const bool is_mapped = context.mounted.setup.files[i].is_mapped();
    json.add("flush_errors", is_mapped ? context.upcalls.flush_errors(i) : u64{health.record.flush_errors[i]});
    json.add("access", access_name(context.mounted.setup, i));
    json.end();
  }
  json.end();
}

// What was asked of the media of devices that are not mapped.
void add_io(JsonWriter& json, const session::DirectMedia& media) {
  const block::IoStatistics statistics = media.statistics();
  json.begin_array("io");
  for (u32 i = 0; i < device::io_operation_count; ++i) {
    if (statistics[i].requests == 0) continue;
    json.begin_object();
    json.add("operation", device::io_operation_name(static_cast<device::IoOperation>(i)));
    json.add("requests", statistics[i].requests);
    json.add("operations", statistics[i].operations);
    json.add("bytes", statistics[i].bytes);
    json.add("errors", statistics[i].errors);
    json.end();
  }
  json.end();
  json.add("io_cpu_us", static_cast<u64>(media.cpu_seconds() * 1e6));
}

// How pages of devices that are not mapped were found.
void add_page_cache(JsonWriter& json, const device::PageCacheCounters& cache) {
  json.begin_object("page_cache");
  json.add("bytes", cache.frames * page_size);
  json.add("hits", cache.hits);
  json.add("hits_on_the_way", cache.hits_on_the_way);
  json.add("misses", cache.misses);
  json.add("evictions", cache.evictions);
  json.add("waits_for_write_back", cache.waits_for_write_back);
  json.add("waits_for_room", cache.waits_for_room);
  json.add("read_ahead", cache.ahead);
  json.add("read_ahead_used", cache.ahead_used);
  json.add("read_ahead_dropped", cache.ahead_dropped);
  json.end();
}

// Copies of pages in memory of the engine's processor.
void add_page_tier(JsonWriter& json, const device::PageTierCounters& tier) {
  json.begin_object("page_tier");
  json.add("bytes", tier.frames * page_size);
  json.add("hits", tier.hits);
  json.add("promotions", tier.promotions);
  json.add("evictions", tier.evictions);
  json.add("invalidations", tier.invalidations);
  json.end();
}

void add_history(JsonWriter& json, const session::EngineHistory& history) {
  json.add("engine_restarts", history.restart_count);
  if (history.restart_count == 0) return;
  json.add("engine_last_fault", history.last_reason);
  json.add("engine_last_restart", history.last_restart_s);
}

void add_pool(JsonWriter& json, const ControlContext& context, const session::PoolHealth& health) {
  const format::Superblock& superblock = context.mounted.pool.superblock;
  Uuid uuid{};
  std::copy_n(superblock.pool_uuid, 16, uuid.bytes);
  const char* label = reinterpret_cast<const char*>(superblock.label);
  json.add("uuid", to_text(uuid));
  json.add("label", std::string_view(label, ::strnlen(label, sizeof(superblock.label))));
  json.add("engine", context.mounted.setup.host->description());
  json.add("engine_reason", context.mounted.setup.reason);
  json.add("device_access", context.mounted.setup.access_text());
  if (context.mounted.setup.direct != nullptr) add_io(json, *context.mounted.setup.direct);
  const device::PageCacheCounters page_cache = context.mounted.setup.host->page_cache();
  if (page_cache.frames != 0) add_page_cache(json, page_cache);
  const device::PageTierCounters page_tier = context.mounted.setup.host->page_tier();
  if (page_tier.frames != 0) add_page_tier(json, page_tier);
  add_history(json, context.options.history);
  json.add("read_only", context.mounted.pool.read_only);
  json.add("takes_changes", refusal_text(health.record.flags)[0] == '\0');
  json.add("refusal", refusal_text(health.record.flags));
  json.add("degraded", health.record.failed_devices != 0);
  json.add("metadata_damaged", (health.record.flags & wire::health_metadata_damaged) != 0);
  json.add("epoch_open", health.record.epoch_open);
  json.add("epoch_durable", health.record.epoch_durable);
  json.add("pages_total", health.record.page_total);
  json.add("pages_used", health.record.page_used);
  json.add("inodes_used", health.record.inode_used);
  json.add("inode_file_bytes", health.record.inode_file_pages * page_size);
  json.add("write_errors", context.options.write_errors_before + health.record.checkpoint_errors);
  json.add("pages_damaged", health.damage.size());
  json.add("damage_not_listed", health.record.damage_dropped);
}

void add_classes(JsonWriter& json, const session::PoolHealth& health) {
  json.begin_array("classes");
  for (u32 i = 0; i < format::profile_max; ++i) {
    const wire::ClassUsage& usage = health.record.classes[i];
    if (usage.page_total == 0) continue;
    json.begin_object();
    json.add("profile", format::profile_name(static_cast<format::Profile>(i + 1)).text);
    json.add("takes_data", (usage.flags & wire::class_takes_data) != 0);
    json.add("data", (usage.flags & wire::class_is_data) != 0);
    json.add("metadata", (usage.flags & wire::class_is_metadata) != 0);
    json.add("chunks", usage.chunk_count);
    json.add("total_bytes", usage.page_total * page_size);
    json.add("used_bytes", usage.page_used * page_size);
    json.add("free_bytes", usage.page_free * page_size);
    json.add("available_bytes", usage.page_available * page_size);
    json.end();
  }
  json.end();
}

}  // namespace

std::string PoolControl::answer(const JsonValue& request) const {
  const std::string& what = request["request"].text;
  if (what == "status") return status();
  if (is_job_request(what)) return answer_job(context_.jobs, what, request);
  if (what == "device-add") return join_devices(request);
  if (what == "chunks-add") return make_chunks(request);
  if (what == "trim") return trim();
  if (what == "end-engine") return end_engine();
  return session::control_error(fmt::format("unknown request '{}'", what.substr(0, 64)));
}

std::string PoolControl::end_engine() const {
  if (!context_.options.allow_fault) return session::control_error("this mount does not allow it");
  context_.mounted.setup.host->request_death();
  return "{\"ok\": true}";
}

std::string PoolControl::trim() const {
  if (context_.mounted.pool.read_only) return session::control_error("the pool is mounted read-only");
  const maintenance::TrimReport report = context_.trimmer.trim_all();
  if (report.status != Status::ok) return session::control_error(status_text(report.status));
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("ok", true);
  json.add("regions", report.region_count);
  json.add("bytes", report.byte_count);
  json.add("errors", report.failed_count);
  json.begin_array("left_out");
  for (const std::string& obstacle : context_.trimmer.obstacles()) json.add("", obstacle);
  json.end();
  json.end();
  return one_line(json);
}

std::string PoolControl::join_devices(const JsonValue& request) const {
  const JsonValue& paths = request["paths"];
  if (paths.elements.empty()) return session::control_error("'paths' names no device");
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("ok", true);
  std::string problem;
  json.begin_array("devices");
  try {
    for (const JsonValue& path : paths.elements) {
      json.add("", context_.grower.add_device(path.text, request["force"].boolean));
    }
  } catch (const pool::PoolError& error) {
    problem = error.what();
  }
  json.end();
  if (!problem.empty()) return session::control_error(problem);
  try {
    // If several classes share the space, each takes chunks when it needs them.
    json.add("chunks", context_.grower.is_mixed() ? 0 : context_.grower.add_chunks(~u64{0}));
  } catch (const pool::PoolError& error) {
    return session::control_error(
        fmt::format("the devices are members now, but chunks were not made of them: {}", error.what()));
  }
  json.end();
  return one_line(json);
}

std::string PoolControl::make_chunks(const JsonValue& request) const {
  const JsonValue& count = request["count"];
  if (count.kind != JsonValue::Kind::number || !(count.number >= 1 && count.number <= 1e9)) {
    return session::control_error("'count' is no number of chunks");
  }
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("ok", true);
  try {
    json.add("chunks", context_.grower.add_chunks(static_cast<u64>(count.number)));
  } catch (const pool::PoolError& error) {
    return session::control_error(error.what());
  }
  json.end();
  return one_line(json);
}

std::string PoolControl::status() const {
  if (context_.mounted.setup.host->has_died()) {
    return session::control_error("the engine died: " + context_.mounted.setup.host->fault_text());
  }
  const std::shared_lock lock(context_.mounted.tables);
  session::PoolInspector inspector(*context_.mounted.setup.host, context_.mounted.open_close);
  session::PoolHealth health;
  Status asked = inspector.health(&health);
  if (asked == Status::ok && drop_healed_pages(inspector, context_.mounted.pool, health))
    asked = inspector.health(&health);
  if (asked != Status::ok) return session::control_error(status_text(asked));
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("ok", true);
  add_pool(json, context_, health);
  const auto uptime = std::chrono::steady_clock::now() - began_;
  json.add("uptime_seconds", std::chrono::duration<double>(uptime).count());
  add_devices(json, context_, health);
  add_classes(json, health);
  add_damaged_files(json, inspector, health);
  add_jobs(json, context_.jobs);
  json.end();
  return one_line(json);
}

}  // namespace gpu4fs::server
