#include "pool/pool_make.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <set>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/random.hpp"
#include "format/log_format.hpp"
#include "pool/chunk_area.hpp"
#include "pool/chunk_reach.hpp"
#include "pool/pool_checksum.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_foreign.hpp"
#include "pool/pool_initial_tree.hpp"
#include "pool/pool_layout.hpp"
#include "pool/row_parities.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {

namespace {

constexpr u64 first_epoch = 1;

u64 current_time() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return format::encode_time(now.tv_sec, static_cast<u32>(now.tv_nsec));
}

// A device that passed the checks. Without a file it still has to be created.
struct Candidate {
  std::string path;
  u64 size_bytes;
  std::optional<DeviceFile> file;
};

void check_options(const MakePoolOptions& options) {
  if (options.device_paths.empty() || options.device_paths.size() > device_count_max) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("a pool has 1 to {} devices, not {}", device_count_max, options.device_paths.size()));
  }
  if (options.initial_share < 1 || options.initial_share > 100) {
    throw PoolError(Status::invalid_argument, fmt::format("an initial share of {} percent", options.initial_share));
  }
  if (options.label.size() > sizeof(format::Superblock::label) || options.label.find('\0') != std::string::npos) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("the label has {} bytes, at most {} without zeros are possible", options.label.size(),
                                sizeof(format::Superblock::label)));
  }
}

// The chunks' profiles, that of metadata first, and their shares.
std::vector<ChunkShare> choose_shares(const MakePoolOptions& options) {
  const auto has_stripes = [](const std::string& name) { return parse_profile(name, 0).stripe_length_bytes != 0; };
  bool uses_length = options.stripe_length_bytes == 0;
  const auto parse = [&](const std::string& name) {
    const bool is_mixed = options.data_profile != options.metadata_profile || !options.more_profiles.empty();
    // In a pool of several profiles the length applies to those that have stripes.
    uses_length = uses_length || has_stripes(name);
    return parse_profile(name, is_mixed && !has_stripes(name) ? 0 : options.stripe_length_bytes);
  };
  const auto check_share = [](const std::string& name, double share) {
    if (share >= chunk_share_min && share <= 1 - chunk_share_min) return;
    throw PoolError(Status::invalid_argument,
                    fmt::format("a share of {:.4g} % for profile '{}': it is 1 to 99 %", share * 100, name));
  };
  for (const std::string& name : {options.data_profile, options.metadata_profile}) {
    if (!parse_profile(name, 0).device) continue;
    throw PoolError(Status::invalid_argument,
                    fmt::format("profile '{}' is for files that ask for it: give it a share", name));
  }
  std::vector<ChunkShare> shares;
  double data_share = 1;
  if (options.metadata_profile != options.data_profile) {
    check_share(options.metadata_profile, options.metadata_share);
    shares.push_back({parse(options.metadata_profile), format::chunk_flag_metadata, options.metadata_share});
    data_share -= options.metadata_share;
  }
  const bool is_split = !shares.empty();
  shares.push_back(
      {parse(options.data_profile), is_split ? u32{format::chunk_flag_data} : u32{format::chunk_flag_any_content}, 0});
  const std::size_t data = shares.size() - 1;
  for (const auto& [name, share] : options.more_profiles) {
    check_share(name, share);
    const ChunkProfile profile = parse(name);
    data_share -= share;
    const auto same = std::find_if(shares.begin(), shares.end(), [&](const ChunkShare& other) {
      return profile_number(other.profile) == profile_number(profile);
    });
    const bool is_metadata = is_split && same == shares.begin();
    if (same != shares.end() && (!is_metadata || (same->flags & format::chunk_flag_data) != 0)) {
      throw PoolError(Status::invalid_argument, fmt::format("profile '{}' is named twice", name));
    }
    if (is_metadata) {
      same->flags |= format::chunk_flag_data;
      same->share += share;
    } else {
      shares.push_back({profile, format::chunk_flag_data, share});
    }
  }
  if (data_share < chunk_share_min) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("{:.4g} % are left for data of profile '{}', 1 % at least is needed",
                                std::max(data_share, 0.0) * 100, options.data_profile));
  }
  shares[data].share = data_share;
  if (!uses_length) {
    throw PoolError(Status::invalid_argument, "none of the profiles has stripes to give a length to");
  }
  return shares;
}

Candidate check_existing(const std::string& path, const MakePoolOptions& options) {
  DeviceFile file = DeviceFile::open(path, DeviceFile::Access::read_write, DeviceFile::Locking::lock);
  u64 size = file.size_bytes();
  if (options.size_bytes != 0 && size != options.size_bytes && file.is_regular()) {
    if (size != 0 && !options.force) {
      throw PoolError(Status::exists,
                      fmt::format("{}: exists with {} bytes, not the {} asked for", path, size, options.size_bytes));
    }
    size = options.size_bytes;
  }
  const std::string content = describe_content(file);
  if (!content.empty() && !options.force) {
    const std::string_view verb = content == "data" ? "holds data" : "holds ";
    throw PoolError(Status::exists, fmt::format("{}: {}{}; it is overwritten only by force", path, verb,
                                                content == "data" ? "" : content));
  }
  return {path, size, std::move(file)};
}

// Whether the folder is /dev or below it.
bool is_below_dev(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::string place = std::filesystem::weakly_canonical(folder, ignored).string() + "/";
  return place.starts_with("/dev/");
}

Candidate check_missing(const std::string& path, const MakePoolOptions& options) {
  if (options.size_bytes == 0) {
    throw PoolError(Status::no_device, fmt::format("{}: does not exist, and no size is given to create it", path));
  }
  const std::filesystem::path parent = std::filesystem::absolute(parse_device(path).path).parent_path();
  std::error_code ignored;
  if (!std::filesystem::is_directory(parent, ignored)) {
    throw PoolError(Status::no_device, fmt::format("{}: the folder {} does not exist", path, parent.string()));
  }
  // A file there would be memory of the kernel that looks like a disk.
  struct stat folder {};
  struct stat devices {};
  const bool is_known = ::stat(parent.c_str(), &folder) == 0 && ::stat("/dev", &devices) == 0;
  if (is_known && folder.st_dev == devices.st_dev && is_below_dev(parent)) {
    throw PoolError(Status::no_device, fmt::format("{}: there is no such block device", path));
  }
  return {path, options.size_bytes, std::nullopt};
}

// All checks that need no write.
std::vector<Candidate> check_devices(const MakePoolOptions& options) {
  std::vector<Candidate> candidates;
  for (const std::string& text : options.device_paths) {
    const device::DeviceSpec spec = parse_device(text);
    const std::string& path = spec.path;
    if (spec.is_null()) {
      candidates.push_back(check_existing(text, options));
      continue;
    }
    // The lock of a device that is given twice would fail with a misleading message, so names are compared first.
    for (const Candidate& earlier : candidates) {
      std::error_code ignored;
      const std::string other = parse_device(earlier.path).path;
      if (std::filesystem::weakly_canonical(path, ignored) == std::filesystem::weakly_canonical(other, ignored) ||
          std::filesystem::equivalent(path, other, ignored)) {
        throw PoolError(Status::invalid_argument, fmt::format("{}: the same device as {}", path, earlier.path));
      }
    }
    struct stat state {};
    const bool missing = !spec.is_drive() && ::stat(path.c_str(), &state) != 0 && errno == ENOENT;
    candidates.push_back(missing ? check_missing(text, options) : check_existing(text, options));
  }
  return candidates;
}

// Opens the files that are still missing. Removes them again unless keep() was called.
class CreatedFiles {
 public:
  ~CreatedFiles() {
    for (const std::string& path : paths_) ::unlink(path.c_str());
  }
  DeviceFile create(const std::string& path, u64 size_bytes) {
    DeviceFile file = DeviceFile::create(path, size_bytes);
    paths_.push_back(file.path());
    return file;
  }
  void keep() { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

// Device byte offset of a column.
u64 column_offset(const PoolLayout& layout, const ChunkPlacement& chunk, u32 column) {
  const ColumnPlacement& place = chunk.columns[column];
  return layout.parts[place.device_index].chunk_area_offset + place.first_granule * format::physical_granule_bytes;
}

// The bulk-built chunk tree as node pages in order of their numbers: leaves first, the root last.
std::vector<format::ChunkTreeNode> build_chunk_tree(const PoolLayout& layout, u32& height) {
  std::vector<format::ChunkTreeNode> nodes;
  std::vector<format::ChunkTreeBranch> level;  // first key and number of every node of one level
  u64 widest = 1;
  for (const ChunkPlacement& placement : layout.chunks) widest = std::max<u64>(widest, placement.columns.size());
  const auto begin_node = [&](u8 node_level, u64 first_key) {
    level.push_back({first_key, static_cast<u32>(nodes.size()), 0});
    format::ChunkTreeNode node{};
    node.magic = format::chunk_tree_magic;
    node.version = 1;
    node.level = node_level;
    node.epoch = first_epoch;
    nodes.push_back(node);
  };
  const auto append = [&](const void* entry, u32 length) {
    format::ChunkTreeNode& node = nodes.back();
    std::memcpy(node.entries + node.used_bytes, entry, length);
    node.used_bytes += length;
  };
  u64 entries_left = 0;
  for (const ChunkPlacement& placement : layout.chunks) {
    // As many entries in a leaf as would fit with the greatest number of columns.
    if (entries_left == 0) {
      begin_node(0, placement.descriptor.base_address);
      entries_left = entries_per_leaf(widest);
    }
    --entries_left;
    format::ChunkDescriptor descriptor = placement.descriptor;
    append(&descriptor, sizeof(descriptor));
    for (u32 i = 0; i < placement.columns.size(); ++i) {
      const auto column =
          format::ColumnAddress::make(placement.columns[i].device_index, column_offset(layout, placement, i));
      append(&column, sizeof(column));
    }
    ++nodes.back().entry_count;
  }
  for (height = 1; level.size() > 1; ++height) {
    const std::vector<format::ChunkTreeBranch> children = std::move(level);
    level.clear();
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (i % entries_per_branch_node == 0) {
        begin_node(static_cast<u8>(height), children[i].base_address);
      }
      append(&children[i], sizeof(children[i]));
      ++nodes.back().entry_count;
    }
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) seal(nodes[i], i);
  return nodes;
}

std::vector<u8> leading_bits(u64 set_count, u64 page_count) {
  std::vector<u8> bitmap(page_count * page_size);
  for (u64 bit = 0; bit < set_count; ++bit) {
    bitmap[bit / 8] = static_cast<u8>(bitmap[bit / 8] | (1u << (bit % 8)));
  }
  return bitmap;
}

// Slot A has epoch 1; slot B is not valid. Returns the checksum of slot A.
u64 write_bitmap_slots(DeviceFile& file, const BitmapPlace& place, u64 set_count, const void* table) {
  const u64 checksum =
      write_bitmap_slot(file, place, 0, leading_bits(set_count, place.bitmap_pages).data(), table, first_epoch);
  clear_bitmap_slot(file, place, 1);
  return checksum;
}

std::vector<format::PageDescriptor> describe_pages(const format::ChunkDescriptor& chunk,
                                                   const std::vector<InitialPage>& pages) {
  std::vector<format::PageDescriptor> descriptors(align_up(pages.size(), format::descriptors_per_page));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    GPU4FS_CHECK_EQ(pages[i].address, chunk.base_address + i * page_size);
    descriptors[i].checksum = xxh3_64(pages[i].bytes.data(), page_size, pages[i].address);
    descriptors[i].birth_epoch = static_cast<u32>(first_epoch);
    if (parity_count_of(chunk) != 0) descriptors[i].flags = format::page_flag_in_parity;
  }
  return descriptors;
}

// One copy of a chunk's header area; `pages` are the chunk's first data pages. Returns the checksum of its slot.
u64 write_header_area(DeviceFile& file, u64 offset, const format::ChunkDescriptor& chunk, u32 column,
                      const u8 (&pool_uuid)[16], const std::vector<InitialPage>& pages) {
  const format::ChunkLayout layout = format::chunk_layout(chunk.size_bytes / page_size);
  const format::ChunkHeader header = make_chunk_header(chunk, column, pool_uuid);
  file.write_at(offset, &header, sizeof(header));
  const std::vector<format::PageDescriptor> descriptors = describe_pages(chunk, pages);
  std::vector<u64> table(layout.table_pages * format::descriptor_entries_per_page);
  for (u64 index = 0; index < descriptors.size() / format::descriptors_per_page; ++index) {
    const format::PageDescriptor* page = &descriptors[index * format::descriptors_per_page];
    table[index] =
        format::descriptor_entry(xxh3_64(page, page_size, format::descriptor_page_seed(chunk.base_address, index)), 0);
    file.write_at(offset + layout.descriptor_page(index, 0) * page_size, page, page_size);
  }
  return write_bitmap_slots(file, chunk_bitmap_place(chunk, offset), pages.size(), table.data());
}

// The parities of the rows with the initial pages.
void write_parities(std::vector<DeviceFile>& files, const PoolLayout& layout, const ChunkPlacement& chunk,
                    const std::vector<InitialPage>& pages) {
  const format::ChunkDescriptor& descriptor = chunk.descriptor;
  const u64 header_bytes = format::chunk_layout(descriptor.size_bytes / page_size).header_pages * page_size;
  for (u64 page = 0; page < pages.size(); ++page) {
    const RowOfPages row = row_of_page(descriptor, page);
    if (row.pages.front() != page) continue;  // once for each row: the first pages of a chunk begin with slot 0
    std::vector<const u8*> slots;
    for (const u64 other : row.pages) slots.push_back(other < pages.size() ? pages[other].bytes.data() : nullptr);
    const std::vector<std::vector<u8>> parities = compute_parities(parity_count_of(descriptor), slots);
    for (u32 j = 0; j < parities.size(); ++j) {
      const u32 column = row.columns[row.data_slots + j];
      files[chunk.columns[column].device_index].write_at(
          column_offset(layout, chunk, column) + header_bytes + row.row * page_size, parities[j].data(), page_size);
    }
  }
}

// Header areas and initial pages of one chunk. Returns the checksum of its slot.
u64 write_chunk(std::vector<DeviceFile>& files, const PoolLayout& layout, const ChunkPlacement& chunk,
                const u8 (&pool_uuid)[16], const std::vector<InitialPage>& pages) {
  const format::ChunkDescriptor& descriptor = chunk.descriptor;
  u64 slot_checksum = 0;
  for (u32 column = 0; column <= descriptor.redundancy; ++column) {
    slot_checksum = write_header_area(files[chunk.columns[column].device_index], column_offset(layout, chunk, column),
                                      descriptor, column, pool_uuid, pages);
  }
  const raid::Geometry geometry = raid::geometry_of(descriptor);
  const u64 header_bytes = format::chunk_layout(geometry.page_count).header_pages * page_size;
  raid::with_level(descriptor.level, [&](auto level) {
    for (u64 i = 0; i < pages.size(); ++i) {
      for (u32 copy = 0; copy < level.copies(geometry.column_count); ++copy) {
        const raid::PagePlace place = level.map(geometry, i, copy);
        files[chunk.columns[place.column].device_index].write_at(
            column_offset(layout, chunk, place.column) + header_bytes + place.page * page_size, pages[i].bytes.data(),
            page_size);
      }
    }
  });
  if (parity_count_of(descriptor) != 0) write_parities(files, layout, chunk, pages);
  return slot_checksum;
}

format::Superblock make_superblock(const MakePoolOptions& options, const PoolLayout& layout,
                                   const std::vector<ChunkShare>& shares, u64 now) {
  format::Superblock superblock{};
  superblock.magic = format::superblock_magic;
  superblock.version = format::format_version;
  superblock.slot = first_epoch & 1;
  superblock.epoch = first_epoch;
  std::memcpy(superblock.pool_uuid, random_uuid().bytes, sizeof(superblock.pool_uuid));
  if (options.data_checksums) {
    superblock.feature_incompatible = u64{format::feature_data_checksums} | format::feature_operation_log;
  }
  superblock.log_start = format::log_record_granule;
  fill_random(&superblock.log_seed, sizeof(superblock.log_seed));
  superblock.chunk_size_bytes = layout.chunk_size_bytes;
  fill_random(&superblock.name_hash_seed, sizeof(superblock.name_hash_seed));
  superblock.creation_time = superblock.checkpoint_time = now;
  superblock.device_count = static_cast<u32>(layout.parts.size());
  superblock.chunk_count = static_cast<u32>(layout.chunks.size());
  u64 replicas = 2;
  for (const ChunkPlacement& chunk : layout.chunks) {
    replicas = std::max<u64>(replicas, u64{chunk.descriptor.redundancy} + 1);
  }
  superblock.tree_replica_count = static_cast<u8>(std::min<u64>(replicas, layout.parts.size()));
  if (options.data_checksums)
    superblock.log_capacity = format::log_capacity(layout.parts.data(), superblock.tree_replica_count);
  superblock.clean = 1;
  superblock.page_total = layout.page_total();
  if (shares.size() == 1) {
    superblock.data_profile = superblock.metadata_profile = static_cast<u16>(shares[0].profile.level);
  } else {
    const bool is_split = options.metadata_profile != options.data_profile;
    superblock.feature_incompatible |= format::feature_mixed_profiles;
    const bool is_physical =
        std::any_of(shares.begin(), shares.end(), [](const auto& share) { return share.profile.device; });
    if (is_physical) superblock.feature_incompatible |= format::feature_physical;
    superblock.metadata_profile = static_cast<u16>(profile_number(shares[0].profile));
    superblock.data_profile = static_cast<u16>(profile_number(shares[is_split ? 1 : 0].profile));
  }
  std::memcpy(superblock.label, options.label.data(), options.label.size());
  for (u32 i = 0; i < superblock.device_count; ++i) {
    std::memcpy(superblock.device_uuids[i], random_uuid().bytes, sizeof(superblock.device_uuids[i]));
  }
  return superblock;
}

// The parts that every mount needs: everything before the chunks, the front of the chunks' header areas, and the first
// chunk, which holds the root directory.
void reserve_fixed_areas(std::vector<DeviceFile>& files, const PoolLayout& layout) {
  for (u32 i = 0; i < files.size(); ++i) {
    files[i].reserve_range(0, layout.parts[i].chunk_area_offset);
  }
  for (const ChunkPlacement& chunk : layout.chunks) {
    const bool first = &chunk == layout.chunks.data();
    const u64 length = first ? raid::column_length(chunk.descriptor) : header_front_bytes(chunk.descriptor);
    for (u32 column = 0; column < chunk.columns.size(); ++column) {
      files[chunk.columns[column].device_index].reserve_range(column_offset(layout, chunk, column), length);
    }
  }
}

void write_chunk_maps(std::vector<DeviceFile>& files, const PoolLayout& layout) {
  for (u32 i = 0; i < files.size(); ++i) {
    const format::DevicePart& part = layout.parts[i];
    u64 used = 0;  // columns are contiguous from granule 0
    for (const ChunkPlacement& chunk : layout.chunks) {
      for (const ColumnPlacement& column : chunk.columns) {
        if (column.device_index == i) used += chunk.column_granules();
      }
    }
    write_bitmap_slots(files[i], chunk_map_place(part), used, nullptr);
  }
}

void write_superblocks(std::vector<DeviceFile>& files, const PoolLayout& layout, format::Superblock& superblock) {
  static_assert((first_epoch & 1) == 1, "epoch 1 belongs to slot B");
  for (u32 i = static_cast<u32>(files.size()); i-- > 0;) {
    superblock.device = layout.parts[i];
    std::memcpy(superblock.device.device_uuid, superblock.device_uuids[i], sizeof(superblock.device.device_uuid));
    seal(superblock, format::superblock_offset_b);
    files[i].write_at(format::superblock_offset_b, &superblock, sizeof(superblock));
  }
  for (DeviceFile& file : files) file.flush();
}

// Leaves a part of the space without chunks; each profile keeps at least one.
void leave_out_chunks(PoolLayout& layout, u32 initial_share) {
  const auto profile = [](const ChunkPlacement& chunk) { return format::profile_of(chunk.descriptor); };
  std::set<format::Profile> all;
  for (const ChunkPlacement& chunk : layout.chunks) all.insert(profile(chunk));
  std::set<format::Profile> kept;
  u64 least = 0;
  while (kept.size() < all.size()) kept.insert(profile(layout.chunks[least++]));
  layout.chunks.resize(std::max<u64>(least, layout.chunks.size() * initial_share / 100));
}

}  // namespace

format::Superblock make_pool(const MakePoolOptions& options) {
  check_options(options);
  std::vector<Candidate> candidates = check_devices(options);
  std::vector<NamedSize> sizes;
  for (const Candidate& candidate : candidates) {
    sizes.push_back({candidate.path, candidate.size_bytes});
  }
  const std::vector<ChunkShare> shares = choose_shares(options);
  PoolLayout layout = compute_layout(sizes, options.chunk_size_bytes, options.log_bytes, shares);
  leave_out_chunks(layout, options.initial_share);
  for (ChunkPlacement& chunk : layout.chunks) chunk.descriptor.epoch_created = first_epoch;
  const u64 now = current_time();
  format::Superblock superblock = make_superblock(options, layout, shares, now);

  CreatedFiles created;
  std::vector<DeviceFile> files;
  for (Candidate& candidate : candidates) {
    files.push_back(candidate.file ? std::move(*candidate.file) : created.create(candidate.path, candidate.size_bytes));
    if (files.back().size_bytes() != candidate.size_bytes) {
      files.back().resize(candidate.size_bytes);
    }
  }
  reserve_fixed_areas(files, layout);
  // This destroys the old content.
  for (DeviceFile& file : files) {
    file.zero_range(0, format::layout_area_offset);
    file.clear_end();
    file.flush();
  }
  u32 height = 0;
  const std::vector<format::ChunkTreeNode> nodes = build_chunk_tree(layout, height);
  superblock.tree_root = static_cast<u32>(nodes.size() - 1);
  superblock.tree_height = static_cast<u8>(height);
  superblock.tree_node_count = nodes.size();
  for (u32 i = 0; i < superblock.tree_replica_count; ++i) {
    GPU4FS_CHECK_LE(nodes.size(), layout.parts[i].tree_pages);
    files[i].write_at(layout.parts[i].tree_offset, nodes.data(), nodes.size() * page_size);
  }
  write_chunk_maps(files, layout);
  const InitialTree tree = build_initial_tree(layout.chunks.front().descriptor.base_address, now,
                                              {options.root_uid, options.root_gid, options.root_permissions});
  superblock.inode_file = tree.inode_file;
  superblock.inode_used = tree.inode_used;
  superblock.page_used = tree.pages.size();
  for (const ChunkPlacement& chunk : layout.chunks) {
    const bool first = &chunk == layout.chunks.data();
    superblock.slot_sum +=
        write_chunk(files, layout, chunk, superblock.pool_uuid, first ? tree.pages : std::vector<InitialPage>{});
  }
  for (DeviceFile& file : files) file.flush();
  write_superblocks(files, layout, superblock);
  created.keep();
  return superblock;
}

}  // namespace gpu4fs::pool
