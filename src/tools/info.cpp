// gpu4fs info: the properties and the usage of a pool, from its newest checkpoint. Takes no lock, so it works on a
// mounted pool.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "pool/growth/free_granules.hpp"
#include "pool/pool_open.hpp"
#include "raid/levels/levels.hpp"
#include "tools/device_text.hpp"
#include "tools/pool_usage.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {

namespace {

struct InfoOptions {
  std::vector<std::string> devices;
  bool chunks = false;
  bool json = false;
};
InfoOptions options;

void add_options(cli::CommandLine app) {
  options = {};
  app.option("devices", options.devices, "Members of the pool; those next to them are found").required();
  app.flag("--chunks", options.chunks, "List every chunk");
  app.flag("--json", options.json, "Print as JSON");
}

struct DeviceUsage {
  u64 chunk_count = 0;
  u64 page_count = 0;
  u64 page_used = 0;
  u64 unallocated_bytes = 0;  // in no chunk
};

std::vector<DeviceUsage> sum_by_device(const pool::OpenedPool& pool, const std::vector<ChunkUsage>& chunks) {
  std::vector<DeviceUsage> devices(pool.devices.size());
  for (u32 i = 0; i < devices.size(); ++i) devices[i].unallocated_bytes = pool::unallocated_bytes(pool, i);
  for (const ChunkUsage& chunk : chunks) {
    for (const format::ColumnAddress column : chunk.columns) {
      DeviceUsage& device = devices[column.device_index()];
      ++device.chunk_count;
      device.page_count += chunk.column_pages;
      // The pages in use of a striped chunk are not examined: an even distribution is assumed.
      device.page_used += chunk.page_used * chunk.column_pages / chunk.page_count;
    }
  }
  return devices;
}

std::string label_of(const format::Superblock& superblock) {
  const std::string_view bytes(reinterpret_cast<const char*>(superblock.label), sizeof(superblock.label));
  return std::string(bytes.substr(0, bytes.find('\0')));
}

void add_classes(JsonWriter& json, const pool::OpenedPool& pool, const std::vector<ChunkUsage>& chunks) {
  json.begin_array("classes");
  for (const ClassSum& sum : sum_by_profile(pool, chunks)) {
    json.begin_object();
    json.add("profile", format::profile_name(sum.profile).text);
    json.add("chunks", sum.chunk_count);
    json.add("total_bytes", sum.page_count * page_size);
    json.add("used_bytes", sum.page_used * page_size);
    json.end();
  }
  json.end();
}

void print_json(const pool::OpenedPool& pool, const std::vector<ChunkUsage>& chunks) {
  const format::Superblock& superblock = pool.superblock;
  const pool::PoolProfiles profiles = pool::profiles_of(pool);
  JsonWriter json;
  json.begin_object();
  json.add("pool_uuid", format::uuid_text(superblock.pool_uuid));
  json.add("label", label_of(superblock));
  json.add("format_version", superblock.version);
  json.add("epoch", superblock.epoch);
  json.add("clean", superblock.clean != 0);
  json.add("degraded", pool.is_degraded());
  json.add("created", format::time_text(superblock.creation_time));
  json.add("checkpoint", format::time_text(superblock.checkpoint_time));
  json.add("data_profile", format::profile_name(profiles.data).text);
  json.add("metadata_profile", format::profile_name(profiles.metadata).text);
  add_classes(json, pool, chunks);
  json.add("data_checksums", (superblock.feature_incompatible & format::feature_data_checksums) != 0);
  json.add("chunk_size_bytes", superblock.chunk_size_bytes);
  json.add("size_bytes", superblock.page_total * page_size);
  json.add("used_bytes", superblock.page_used * page_size);
  json.add("inodes_used", superblock.inode_used);
  json.begin_array("devices");
  const std::vector<DeviceUsage> usage = sum_by_device(pool, chunks);
  for (std::size_t i = 0; i < pool.devices.size(); ++i) {
    const pool::OpenedDevice& device = pool.devices[i];
    json.begin_object();
    json.add("path", device.file.path());
    json.add("uuid", format::uuid_text(device.part.device_uuid));
    json.add("state", pool::member_state_name(device.state));
    if (device.stale_since != 0) json.add("stale_since", device.stale_since);
    json.add("size_bytes", device.part.size_bytes);
    json.add("chunk_count", usage[i].chunk_count);
    json.add("data_bytes", usage[i].page_count * page_size);
    json.add("used_bytes", usage[i].page_used * page_size);
    json.add("unallocated_bytes", usage[i].unallocated_bytes);
    json.add("has_newest_superblock", device.has_newest_superblock);
    json.end();
  }
  json.end();
  if (options.chunks) {
    json.begin_array("chunks");
    for (const ChunkUsage& chunk : chunks) {
      json.begin_object();
      json.add("base_address", chunk.base_address);
      json.add("size_bytes", chunk.page_count * page_size);
      json.add("used_bytes", chunk.page_used * page_size);
      json.add("level", format::to_text(chunk.level));
      json.add("profile", format::profile_name(chunk.profile).text);
      json.begin_array("columns");
      for (const format::ColumnAddress column : chunk.columns) {
        json.begin_object();
        json.add("device", column.device_index());
        json.add("device_offset", column.offset_bytes());
        json.end();
      }
      json.end();
      json.end();
    }
    json.end();
  }
  json.begin_array("warnings");
  for (const std::string& warning : pool.warnings) json.add("", warning);
  json.end();
  json.end();
  fmt::print("{}", json.text());
}

void print_text(const pool::OpenedPool& pool, const std::vector<ChunkUsage>& chunks) {
  const format::Superblock& superblock = pool.superblock;
  const pool::PoolProfiles profiles = pool::profiles_of(pool);
  fmt::print("pool        {}\n", format::uuid_text(superblock.pool_uuid));
  if (!label_of(superblock).empty()) fmt::print("label       {}\n", format::escape_name(label_of(superblock)));
  fmt::print("state       epoch {}, {}, checkpoint {}\n", superblock.epoch,
             superblock.clean != 0 ? "unmounted" : "mounted or not unmounted",
             format::time_text(superblock.checkpoint_time));
  fmt::print("created     {}, format version {}\n", format::time_text(superblock.creation_time), superblock.version);
  fmt::print(
      "profiles    data {}, metadata {}, checksums of {}\n", format::profile_name(profiles.data).text,
      format::profile_name(profiles.metadata).text,
      (superblock.feature_incompatible & format::feature_data_checksums) != 0 ? "data and metadata" : "metadata only");
  fmt::print("usage       {} of {} ({:.1f} %), {} inodes\n", size_text(superblock.page_used * page_size),
             size_text(superblock.page_total * page_size),
             100.0 * static_cast<double>(superblock.page_used) / static_cast<double>(superblock.page_total),
             superblock.inode_used);
  fmt::print("chunks      {} of {}\n", superblock.chunk_count, size_text(superblock.chunk_size_bytes));
  const std::vector<ClassSum> sums = sum_by_profile(pool, chunks);
  for (const ClassSum& sum : sums) {
    if (sums.size() == 1) break;
    fmt::print("{:<11} {} chunks, {} of {} used\n", format::profile_name(sum.profile).text, sum.chunk_count,
               size_text(sum.page_used * page_size), size_text(sum.page_count * page_size));
  }
  const std::vector<DeviceUsage> usage = sum_by_device(pool, chunks);
  for (std::size_t i = 0; i < pool.devices.size(); ++i) {
    if (pool.devices[i].state == pool::MemberState::removed) continue;
    if (!pool.devices[i].is_here()) {
      const std::string state = pool::member_state_name(pool.devices[i].state);
      fmt::print("{}{}, UUID {}, {} chunks\n", device_head(i, pool.devices[i].file.path(), state), state,
                 format::uuid_text(pool.devices[i].part.device_uuid), usage[i].chunk_count);
      continue;
    }
    fmt::print("device {:<4} {}: {}, {} chunks, {} of {} used, {} unallocated\n", i, pool.devices[i].file.path(),
               size_text(pool.devices[i].part.size_bytes), usage[i].chunk_count,
               size_text(usage[i].page_used * page_size), size_text(usage[i].page_count * page_size),
               size_text(usage[i].unallocated_bytes));
  }
  if (options.chunks) {
    for (const ChunkUsage& chunk : chunks) {
      fmt::print("chunk {:#x}: {}, {} used of {}", chunk.base_address, format::profile_name(chunk.profile).text,
                 size_text(chunk.page_used * page_size), size_text(chunk.page_count * page_size));
      for (const format::ColumnAddress column : chunk.columns) {
        fmt::print(", device {} offset {:#x}", column.device_index(), column.offset_bytes());
      }
      fmt::print("\n");
    }
  }
  for (const std::string& warning : pool.warnings) fmt::print("warning: {}\n", warning);
}

int run() {
  const pool::OpenedPool pool = pool::open_pool({options.devices, true, false, true});
  const std::vector<ChunkUsage> chunks = list_chunks(pool);
  if (options.json) {
    print_json(pool, chunks);
  } else {
    print_text(pool, chunks);
  }
  return 0;
}

}  // namespace

const cli::Verb info_verb = {"info", "show a pool, its devices and usage", nullptr, add_options, run, 16, 8};

}  // namespace gpu4fs::tools
