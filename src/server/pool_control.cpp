#include "server/pool_control.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "base/limits.hpp"
#include "base/to_text.hpp"
#include "fmt/format.h"
#include "server/control_socket.hpp"
#include "server/json.hpp"
#include "server/tree_walk.hpp"

namespace gpu4fs::server {
namespace {

constexpr double rate_limit_max = 1e15;  // bytes/s

std::string one_line(const JsonWriter& json) {
  std::string line = json.text();
  line.pop_back();
  return line;
}

// Why no changes are taken, "" if they are.
const char* refusal_text(u32 flags) {
  if ((flags & format::health_checkpoint_failed) != 0) return "a checkpoint could not be written";
  if ((flags & format::health_changes_stopped) != 0) return "metadata is damaged";
  return (flags & format::health_read_only) != 0 ? "mounted read-only" : "";
}

void add_scrub(JsonWriter& json, const ScrubReport& report) {
  const ScrubProgress& p = report.progress;
  json.begin_object("scrub");
  json.add("state", scrub_state_name(p.state));
  json.add("looks_for_owners", report.looks_for_owners);
  json.add("pages_total", p.page_total);
  json.add("pages_verified", p.page_count);
  json.add("pages_damaged", p.damaged_count);
  json.add("pages_without_owner", p.ownerless_count);
  json.add("pages_suspect", report.suspect_count);
  json.add("pages_unreached", p.unreached_count);
  json.add("position", p.position);
  json.add("rate_limit", p.rate_limit);
  json.add("rate", p.rate());
  json.add("started", p.started_s);
  json.add("ended", p.ended_s);
  json.add("active_seconds", static_cast<double>(p.active_ms) / 1000);
  if (const auto left = p.seconds_left()) json.add("seconds_left", *left);
  json.add("problem", report.problem);
  json.begin_array("damaged_files");
  for (const DamagedFile& file : report.files) {
    json.begin_object();
    json.add("path", file.path);
    json.add("inode", file.inode);
    json.add("pages", file.page_count);
    json.end();
  }
  json.end();
  json.end();
}

// Pages of the table that have been freed or written anew since leave it. True: some have.
bool drop_healed_pages(PoolInspector& inspector, const OpenedPool& pool, const PoolHealth& health) {
  bool dropped = false;
  for (const format::DamageRecord& record : health.damage) {
    for (u32 chunk = 0; chunk < pool.chunks.size(); ++chunk) {
      const format::ChunkDescriptor& range = pool.chunks[chunk].descriptor;
      if (record.address < range.base_address || record.address - range.base_address >= range.size_bytes) continue;
      const u64 page = (record.address - range.base_address) / page_size;
      const PoolInspector::Verified verified = inspector.verify(chunk, page, 1);
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

void add_damaged_files(JsonWriter& json, PoolInspector& inspector, const PoolHealth& health) {
  std::map<u64, DamagedInode> by_inode;
  for (const format::DamageRecord& record : health.damage) {
    DamagedInode& inode = by_inode[record.inode];
    ++inode.page_count;
    inode.count += record.count;
    inode.is_metadata = inode.is_metadata || record.kind == format::DamageKind::metadata;
  }
  std::set<u64> inodes;
  for (const auto& [inode, damage] : by_inode) inodes.insert(inode);
  const std::map<u64, std::string> paths = find_paths(inspector, inodes);
  json.begin_array("damaged_files");
  for (const auto& [inode, damage] : by_inode) {
    json.begin_object();
    const auto path = paths.find(inode);
    if (path != paths.end()) json.add("path", path->second);
    if (inode != format::damage_inode_unknown) json.add("inode", inode);
    json.add("pages", damage.page_count);
    json.add("met", damage.count);
    json.add("metadata", damage.is_metadata);
    json.end();
  }
  json.end();
}

void add_devices(JsonWriter& json, const ControlContext& context, const PoolHealth& health) {
  json.begin_array("devices");
  for (u32 i = 0; i < context.setup.files.size(); ++i) {
    json.begin_object();
    json.add("index", i);
    json.add("path", context.setup.files[i].path());
    json.add("size_bytes", context.setup.files[i].size_bytes());
    json.add("checksum_mismatches", health.record.mismatch_counts[i]);
    json.add("flush_errors", context.flush_errors(i));
    json.end();
  }
  json.end();
}

void add_history(JsonWriter& json, const EngineHistory& history) {
  json.add("engine_restarts", history.restart_count);
  if (history.restart_count == 0) return;
  json.add("engine_last_fault", history.last_reason);
  json.add("engine_last_restart", history.last_restart_s);
}

void add_pool(JsonWriter& json, const ControlContext& context, const PoolHealth& health) {
  const format::Superblock& superblock = context.pool.superblock;
  Uuid uuid{};
  std::copy_n(superblock.pool_uuid, 16, uuid.bytes);
  const char* label = reinterpret_cast<const char*>(superblock.label);
  json.add("uuid", to_text(uuid));
  json.add("label", std::string_view(label, ::strnlen(label, sizeof(superblock.label))));
  json.add("engine", context.setup.host->description());
  json.add("engine_reason", context.setup.reason);
  add_history(json, context.options.history);
  json.add("read_only", context.pool.read_only);
  json.add("takes_changes", refusal_text(health.record.flags)[0] == '\0');
  json.add("refusal", refusal_text(health.record.flags));
  json.add("metadata_damaged", (health.record.flags & format::health_metadata_damaged) != 0);
  json.add("epoch_open", health.record.epoch_open);
  json.add("epoch_durable", health.record.epoch_durable);
  json.add("pages_total", health.record.page_total);
  json.add("pages_used", health.record.page_used);
  json.add("write_errors", context.options.write_errors_before + health.record.write_errors);
  json.add("pages_damaged", health.damage.size());
  json.add("damage_not_listed", health.record.damage_dropped);
}

}  // namespace

std::string PoolControl::answer(const JsonValue& request) const {
  const std::string& what = request["request"].text;
  if (what == "status") return status();
  if (what == "scrub-status") return scrub_status();
  if (what == "scrub-start") return scrub_start(request);
  if (what == "scrub-pause") return scrub_change(context_.scrubber.pause());
  if (what == "scrub-resume") return scrub_change(context_.scrubber.resume());
  if (what == "scrub-cancel") return scrub_change(context_.scrubber.cancel());
  if (what == "end-engine") return end_engine();
  return control_error(fmt::format("unknown request '{}'", what.substr(0, 64)));
}

std::string PoolControl::end_engine() const {
  if (!context_.options.allow_fault) return control_error("this mount does not allow it");
  context_.setup.host->request_death();
  return "{\"ok\": true}";
}

std::string PoolControl::status() const {
  if (context_.setup.host->has_died()) {
    return control_error("the engine died: " + context_.setup.host->fault_text());
  }
  PoolInspector inspector(*context_.setup.host, context_.open_close);
  PoolHealth health;
  Status asked = inspector.health(&health);
  if (asked == Status::ok && drop_healed_pages(inspector, context_.pool, health)) asked = inspector.health(&health);
  if (asked != Status::ok) return control_error(status_text(asked));
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("ok", true);
  add_pool(json, context_, health);
  const auto uptime = std::chrono::steady_clock::now() - began_;
  json.add("uptime_seconds", std::chrono::duration<double>(uptime).count());
  add_devices(json, context_, health);
  add_damaged_files(json, inspector, health);
  add_scrub(json, context_.scrubber.report());
  json.end();
  return one_line(json);
}

std::string PoolControl::scrub_status() const {
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("ok", true);
  add_scrub(json, context_.scrubber.report());
  json.end();
  return one_line(json);
}

std::string PoolControl::scrub_change(const std::string& problem) const {
  return problem.empty() ? scrub_status() : control_error(problem);
}

std::string PoolControl::scrub_start(const JsonValue& request) const {
  const JsonValue& rate = request["rate"];
  const bool is_number = rate.kind == JsonValue::Kind::number;
  if (rate.kind != JsonValue::Kind::null && !is_number) return control_error("'rate' is no number");
  // Not a number is not in the range either.
  if (is_number && !(rate.number >= 0 && rate.number <= rate_limit_max)) return control_error("'rate' is out of range");
  return scrub_change(context_.scrubber.start(is_number ? static_cast<u64>(rate.number) : 0));
}

}  // namespace gpu4fs::server
