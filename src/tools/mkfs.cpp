// gpu4fs mkfs: makes an empty pool.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_make.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {

namespace {

// Exit statuses of mkfs(8).
constexpr int status_failure = 8;
constexpr int status_usage = 16;

struct MkfsOptions {
  std::vector<std::string> devices;
  std::string size;
  std::string chunk_size;
  std::string log_size;
  std::string label;
  std::string data_profile = "single";
  std::string metadata_profile;
  std::string metadata_share;
  std::vector<std::string> profiles;
  std::string stripe_length;
  u32 initial_share = 100;
  bool no_data_checksums = false;
  bool force = false;
  bool quiet = false;
  bool json = false;
};
MkfsOptions options;

void add_options(cli::CommandLine app) {
  options = {};
  app.option("devices", options.devices, "Regular files or block devices, several or one list with colons").required();
  app.option("-s,--size", options.size, "Size of each file that does not exist yet (64M, 2GiB)");
  app.option("-L,--label", options.label, "Name of the pool, at most 64 bytes");
  app.option("-d,--data", options.data_profile,
             "Profile of file data: single, raid0, raid1 (two copies), raid1c3, raid1c4, raid5, raid6, raid7");
  app.option("-m,--metadata", options.metadata_profile, "Profile of metadata, default that of the data");
  app.option("--metadata-share", options.metadata_share,
             "Of the space, for chunks of metadata where they have a profile of their own, default 10%");
  app.option("--profile", options.profiles,
             "A further profile for files that ask for it, with its share of the space: raid0=20%")
      .one_value_each();
  app.option("--stripe-length", options.stripe_length,
             "Bytes of a stripe on one device, a power of two from 4K to 1M, default 64K");
  app.option("--log-size", options.log_size,
             "Of the operation log on each device, default a 64th of it from 1M to 256M");
  app.option("--chunk-size", options.chunk_size,
             "Unit of allocation of the logical space, a power of two from 8M to 1G");
  app.option("--initial-share", options.initial_share,
             "Percent of the space that chunks are made of now; more are made of the rest when they are needed")
      .in_range(1, 100);
  app.flag("--no-data-checksums", options.no_data_checksums,
           "Checksums for metadata only; damaged file data is not noticed");
  app.flag("-f,--force", options.force, "Overwrite devices that hold something");
  app.flag("-q,--quiet", options.quiet, "Print nothing on success");
  app.flag("--json", options.json, "Print the result as JSON");
}

std::string label_of(const format::Superblock& superblock) {
  const std::string_view bytes(reinterpret_cast<const char*>(superblock.label), sizeof(superblock.label));
  return std::string(bytes.substr(0, bytes.find('\0')));
}

void print_result(const format::Superblock& superblock, const std::vector<std::string>& paths) {
  if (options.json) {
    JsonWriter json;
    json.begin_object();
    json.add("pool_uuid", format::uuid_text(superblock.pool_uuid));
    json.add("label", label_of(superblock));
    json.add("chunk_size_bytes", superblock.chunk_size_bytes);
    json.add("chunk_count", superblock.chunk_count);
    json.add("size_bytes", superblock.page_total * page_size);
    json.add("data_profile", options.data_profile);
    json.add("metadata_profile", options.metadata_profile.empty() ? options.data_profile : options.metadata_profile);
    json.add("data_checksums", (superblock.feature_incompatible & format::feature_data_checksums) != 0);
    json.begin_array("devices");
    for (const std::string& path : paths) json.add("", path);
    json.end();
    json.end();
    fmt::print("{}", json.text());
  } else if (!options.quiet) {
    fmt::print("gpu4fs pool {}{}{}: {} on {} device{}, {} chunks of {}\n", format::uuid_text(superblock.pool_uuid),
               label_of(superblock).empty() ? "" : " ", format::escape_name(label_of(superblock)),
               size_text(superblock.page_total * page_size), paths.size(), paths.size() == 1 ? "" : "s",
               superblock.chunk_count, size_text(superblock.chunk_size_bytes));
  }
}

// "20%" or "20".
double parse_share(const std::string& text) {
  const std::string digits = text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
  std::size_t used = 0;
  double percent = -1;
  try {
    percent = std::stod(digits, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != digits.size() || !(percent >= 0 && percent <= 100)) {
    throw std::invalid_argument(fmt::format("'{}' is no share: a number of percent is wanted", text));
  }
  return percent / 100;
}

int run() {
  pool::MakePoolOptions make;
  for (const std::string& list : options.devices) {
    for (const std::string& path : pool::split_device_list(list)) make.device_paths.push_back(path);
  }
  try {
    if (!options.size.empty()) make.size_bytes = parse_size(options.size);
    if (!options.chunk_size.empty()) make.chunk_size_bytes = parse_size(options.chunk_size);
    if (!options.log_size.empty()) make.log_bytes = parse_size(options.log_size);
    if (!options.metadata_share.empty()) make.metadata_share = parse_share(options.metadata_share);
    for (const std::string& text : options.profiles) {
      const std::size_t equals = text.find('=');
      if (equals == std::string::npos)
        throw std::invalid_argument("--profile takes NAME=SHARE, as raid0=20%, not " + text);
      make.more_profiles.emplace_back(text.substr(0, equals), parse_share(text.substr(equals + 1)));
    }
    if (!options.stripe_length.empty()) {
      make.stripe_length_bytes = static_cast<u32>(std::min<u64>(parse_size(options.stripe_length), UINT32_MAX));
    }
  } catch (const std::invalid_argument& error) {
    fmt::print(stderr, "mkfs.gpu4fs: {}\n", error.what());
    return status_usage;
  }
  make.data_profile = options.data_profile;
  make.metadata_profile = options.metadata_profile.empty() ? options.data_profile : options.metadata_profile;
  make.label = options.label;
  make.force = options.force;
  make.initial_share = options.initial_share;
  make.data_checksums = !options.no_data_checksums;
  const format::Superblock superblock = pool::make_pool(make);
  print_result(superblock, make.device_paths);
  return 0;
}

}  // namespace

const cli::Verb mkfs_verb = {"mkfs", "make an empty pool", "mkfs.gpu4fs", add_options,
                             run,    status_usage,         status_failure};

}  // namespace gpu4fs::tools
