// gpu4fs df: the content of the chunks of each profile, the space that is left, and the size of the inode file. For a
// mounted pool it asks the server, for others it reads the newest checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "tools/mounted_pool.hpp"
#include "tools/pool_usage.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

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

struct Row {
  std::string profile;
  bool takes_data;
  bool is_data;
  bool is_metadata;
  u64 total;
  u64 used;
  u64 available;
};

struct Usage {
  std::vector<Row> rows;
  u64 inodes_used;
  u64 inode_file;  // bytes
};

Usage usage_of_mount(const std::string& mountpoint) {
  const JsonValue answer = ask_server(mountpoint, "{\"request\": \"status\"}");
  const auto number = [](const JsonValue& value) { return static_cast<u64>(std::max(value.number, 0.0)); };
  Usage usage{{}, number(answer["inodes_used"]), number(answer["inode_file_bytes"])};
  for (const JsonValue& entry : answer["classes"].elements) {
    const auto bytes = [&](const char* name) { return number(entry[name]); };
    usage.rows.push_back({entry["profile"].text, entry["takes_data"].boolean, entry["data"].boolean,
                          entry["metadata"].boolean, bytes("total_bytes"), bytes("used_bytes"),
                          bytes("available_bytes")});
  }
  return usage;
}

Usage usage_of_medium() {
  const pool::OpenedPool pool = pool::open_pool({line.places, true, false, true});
  const pool::PoolProfiles profiles = pool::profiles_of(pool);
  Usage usage{{}, pool.superblock.inode_used, pool.superblock.inode_file.page_count * page_size};
  const std::vector<ClassSum> sums = sum_by_profile(pool, list_chunks(pool));
  const auto metadata =
      std::find_if(sums.begin(), sums.end(), [&](const ClassSum& sum) { return sum.profile == profiles.metadata; });
  if (metadata == sums.end()) throw pool::PoolError(Status::corrupt_structure, "no chunk has the profile of metadata");
  for (const ClassSum& sum : sums) {
    const bool has_metadata = sum.profile == profiles.metadata;
    usage.rows.push_back({format::profile_name(sum.profile).text, (sum.flags & format::chunk_flag_data) != 0,
                          sum.profile == profiles.data, has_metadata, (sum.page_count + sum.page_growable) * page_size,
                          sum.page_used * page_size, available_pages(sum, *metadata) * page_size});
  }
  return usage;
}

const char* use_text(const Row& row) {
  if (row.is_data) return row.is_metadata ? "data, metadata" : "data";
  if (row.is_metadata) return row.takes_data ? "metadata, files that ask for it" : "metadata";
  return "files that ask for it";
}

void print_json(const Usage& usage) {
  JsonWriter json;
  json.begin_object();
  json.begin_array("classes");
  for (const Row& row : usage.rows) {
    json.begin_object();
    json.add("profile", row.profile);
    json.add("takes_data", row.takes_data);
    json.add("data", row.is_data);
    json.add("metadata", row.is_metadata);
    json.add("total_bytes", row.total);
    json.add("used_bytes", row.used);
    json.add("available_bytes", row.available);
    json.end();
  }
  json.end();
  json.add("inodes_used", usage.inodes_used);
  json.add("inode_file_bytes", usage.inode_file);
  json.end();
  fmt::print("{}", json.text());
}

int run() {
  const std::string mountpoint = find_mountpoint(line.places.front());
  const Usage usage = mountpoint.empty() ? usage_of_medium() : usage_of_mount(mountpoint);
  if (line.json) {
    print_json(usage);
    return 0;
  }
  fmt::print("{:<11} {:>11} {:>11} {:>11}  {}\n", "profile", "total", "used", "available", "for");
  for (const Row& row : usage.rows) {
    fmt::print("{:<11} {:>11} {:>11} {:>11}  {}\n", row.profile, size_text(row.total), size_text(row.used),
               size_text(row.available), use_text(row));
  }
  fmt::print("inode file {:>12}{:>12}{:>12}  {} inodes, part of metadata\n", "", size_text(usage.inode_file), "",
             usage.inodes_used);
  return 0;
}

}  // namespace

const cli::Verb df_verb = {"df", "show what is used and free, by profile", nullptr, add_options, run, 16, 8};

}  // namespace gpu4fs::tools
