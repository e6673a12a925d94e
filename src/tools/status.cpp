// gpu4fs status: the state of a pool. For a mounted pool it asks the server, for others it reads the medium.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "pool/pool_open.hpp"
#include "tools/device_text.hpp"
#include "tools/job_text.hpp"
#include "tools/mounted_pool.hpp"
#include "tools/reshape_command.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_damaged = 4;  // as fsck(8): errors left uncorrected
constexpr int status_failure = 8;
constexpr int status_usage = 16;

struct Arguments {
  std::vector<std::string> places;
  bool json = false;
};
Arguments line;

void add_options(cli::CommandLine app) {
  line = {};
  app.option("place", line.places, "The directory of a mount, or devices of a pool").required();
  app.flag("--json", line.json, "Print JSON");
}

void print_damage(const JsonValue& status) {
  for (const JsonValue& device : status["devices"].elements) {
    const bool is_here = device["state"].text == "ok";
    fmt::print("{}{}{}, {} checksum mismatches, {} read errors, {} write errors, {} flush errors\n",
               device_head(count_of(device["index"]), device["path"].text, device["state"].text),
               is_here ? "" : fmt::format("{}, UUID {}, ", device["state"].text, device["uuid"].text),
               size_text(count_of(device["size_bytes"])), count_of(device["checksum_mismatches"]),
               count_of(device["read_errors"]), count_of(device["write_errors"]), count_of(device["flush_errors"]));
  }
  if (status["damaged_files"].elements.empty()) {
    fmt::print("damage      none met since the mount\n");
    return;
  }
  fmt::print("damage      {} pages met since the mount\n", count_of(status["pages_damaged"]));
  for (const JsonValue& file : status["damaged_files"].elements) {
    std::string name = "of no file that is known";
    if (file["path"].kind == JsonValue::Kind::text) {
      name = "of " + format::escape_name(file["path"].text);
    } else if (file["inode"].kind == JsonValue::Kind::number) {
      name = fmt::format("of inode {}, which has no name any more", count_of(file["inode"]));
    }
    fmt::print("  {} pages {}{}\n", count_of(file["pages"]), name, file["metadata"].boolean ? " (metadata)" : "");
  }
  if (count_of(status["damage_not_listed"]) != 0) {
    fmt::print("  and {} times pages that the table has no room for\n", count_of(status["damage_not_listed"]));
  }
}

void print_page_cache(const JsonValue& cache) {
  if (count_of(cache["bytes"]) == 0) return;
  const u64 hits = count_of(cache["hits"]) + count_of(cache["hits_on_the_way"]);
  const u64 looks = hits + count_of(cache["misses"]);
  fmt::print(
      "page cache  {}, {} hits, {} misses{}\n", size_text(count_of(cache["bytes"])), hits, count_of(cache["misses"]),
      looks == 0 ? ""
                 : fmt::format(" ({:.1f} % found)", 100.0 * static_cast<double>(hits) / static_cast<double>(looks)));
  if (count_of(cache["read_ahead"]) == 0) return;
  fmt::print("read-ahead  {} pages, {} used, {} dropped unused\n", count_of(cache["read_ahead"]),
             count_of(cache["read_ahead_used"]), count_of(cache["read_ahead_dropped"]));
}

void print_page_tier(const JsonValue& tier) {
  if (count_of(tier["bytes"]) == 0) return;
  fmt::print("page copies {}, {} hits, {} promotions, {} evictions, {} invalidations\n",
             size_text(count_of(tier["bytes"])), count_of(tier["hits"]), count_of(tier["promotions"]),
             count_of(tier["evictions"]), count_of(tier["invalidations"]));
}

void print_mounted(const std::string& mountpoint, const JsonValue& status) {
  fmt::print("pool        {}{}{}\n", status["uuid"].text, status["label"].text.empty() ? "" : ", ",
             format::escape_name(status["label"].text));
  fmt::print("mounted     {}{}, for {}\n", format::escape_name(mountpoint),
             status["read_only"].boolean ? " read-only" : "", duration_text(status["uptime_seconds"].number));
  fmt::print("engine      {} ({})\n", status["engine"].text, status["engine_reason"].text);
  fmt::print("devices     {}\n", status["device_access"].text);
  for (const JsonValue& io : status["io"].elements) {
    fmt::print("  {}: {} requests in {} operations, {}, {} failed\n", io["operation"].text, count_of(io["requests"]),
               count_of(io["operations"]), size_text(count_of(io["bytes"])), count_of(io["errors"]));
  }
  print_page_cache(status["page_cache"]);
  print_page_tier(status["page_tier"]);
  if (count_of(status["engine_restarts"]) != 0) {
    fmt::print("restarts    {}, the last at {}, because the engine died: {}\n", count_of(status["engine_restarts"]),
               format::time_text(format::encode_time(static_cast<i64>(count_of(status["engine_last_restart"])), 0)),
               status["engine_last_fault"].text);
  }
  fmt::print("epochs      {} is durable, {} is open\n", count_of(status["epoch_durable"]),
             count_of(status["epoch_open"]));
  fmt::print("usage       {} of {}\n", size_text(count_of(status["pages_used"]) * page_size),
             size_text(count_of(status["pages_total"]) * page_size));
  if (status["takes_changes"].boolean) {
    fmt::print("changes     are taken\n");
  } else {
    fmt::print("changes     are refused: {}\n", status["refusal"].text);
  }
  if (count_of(status["write_errors"]) != 0) {
    fmt::print("lost        {} times changes could not be written\n", count_of(status["write_errors"]));
  }
  if (status["degraded"].boolean)
    fmt::print("redundancy  degraded: devices are missing, what is lost now may be lost for good\n");
  print_damage(status);
  fmt::print("{}{}{}{}", rebuild_text(status["rebuild"]), spares_text(status["spares"]),
             relocation_text(status["relocation"]), scrub_text(status["scrub"]));
  if (status["reshape"]["state"].text != "never") fmt::print("{}", reshape_text(status["reshape"]));
}

int show_mounted(const std::string& mountpoint) {
  const std::string text = ask_server_text(mountpoint, "{\"request\": \"status\"}");
  const JsonValue status = parse_json(text);
  if (!status["ok"].boolean) throw ControlError(fmt::format("{}: {}", mountpoint, status["error"].text));
  if (line.json) {
    fmt::print("{}\n", text);
  } else {
    print_mounted(mountpoint, status);
  }
  const bool is_sound = !status["degraded"].boolean && status["damaged_files"].elements.empty() &&
                        count_of(status["write_errors"]) == 0 && !status["metadata_damaged"].boolean &&
                        count_of(status["scrub"]["pages_damaged"]) == 0;
  return is_sound ? 0 : status_damaged;
}

std::string device_note(const pool::OpenedDevice& device) {
  if (!device.is_here()) {
    return fmt::format(", {}, UUID {}", pool::member_state_name(device.state),
                       format::uuid_text(device.part.device_uuid));
  }
  return device.has_newest_superblock ? "" : ", holds the epoch before";
}

int show_medium() {
  const pool::OpenedPool pool = pool::open_pool({line.places, true, false, true});
  const format::Superblock& superblock = pool.superblock;
  if (line.json) {
    JsonWriter json;
    json.begin_object();
    json.add("ok", true);
    json.add("mounted", false);
    json.add("uuid", format::uuid_text(superblock.pool_uuid));
    json.add("epoch_durable", superblock.epoch);
    json.add("clean", superblock.clean != 0);
    json.add("degraded", pool.is_degraded());
    json.add("pages_total", superblock.page_total);
    json.add("pages_used", superblock.page_used);
    json.begin_array("devices");
    for (const pool::OpenedDevice& device : pool.devices) {
      json.begin_object();
      json.add("path", device.file.path());
      json.add("uuid", format::uuid_text(device.part.device_uuid));
      json.add("state", pool::member_state_name(device.state));
      json.add("size_bytes", device.part.size_bytes);
      json.add("has_newest_superblock", device.has_newest_superblock);
      json.end();
    }
    json.end();
    json.begin_array("warnings");
    for (const std::string& warning : pool.warnings) json.add("", warning);
    json.end();
    json.end();
    fmt::print("{}", json.text());
    return pool.is_degraded() ? status_damaged : 0;
  }
  fmt::print("pool        {}\n", format::uuid_text(superblock.pool_uuid));
  fmt::print("mounted     no; {}\n",
             superblock.clean != 0 ? "it was unmounted" : "it was not unmounted, or is mounted elsewhere");
  fmt::print("epochs      {} is durable, written {}\n", superblock.epoch,
             format::time_text(superblock.checkpoint_time));
  fmt::print("usage       {} of {}\n", size_text(superblock.page_used * page_size),
             size_text(superblock.page_total * page_size));
  for (std::size_t i = 0; i < pool.devices.size(); ++i) {
    const pool::OpenedDevice& device = pool.devices[i];
    if (device.state == pool::MemberState::removed) continue;
    const char* state = pool::member_state_name(device.state);
    fmt::print("{}{}{}\n", device_head(i, device.file.path(), state), size_text(device.part.size_bytes),
               device_note(device));
  }
  for (const std::string& warning : pool.warnings) fmt::print("warning     {}\n", warning);
  fmt::print("damage      is counted while a pool is mounted; 'gpu4fs fsck' looks for it now\n");
  return pool.is_degraded() ? status_damaged : 0;
}

int run() {
  const std::string mountpoint = find_mountpoint(line.places.front());
  return mountpoint.empty() ? show_medium() : show_mounted(mountpoint);
}

}  // namespace

const cli::Verb status_verb = {
    "status",      "show how a pool is: errors, damaged files, scrub", nullptr, add_options, run, status_usage,
    status_failure};

}  // namespace gpu4fs::tools
