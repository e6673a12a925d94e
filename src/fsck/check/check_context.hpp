// State shared by the parts of a check. Private to src/fsck/check.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "format/inode_format.hpp"
#include "fsck/check/attribute_tree.hpp"
#include "fsck/check/check_pool.hpp"
#include "fsck/check/medium_reader.hpp"

namespace gpu4fs::fsck::check {

struct CheckContext;

// The greatest height of a file map: higher maps would exceed page numbers. And the number of pages in seven slots of
// this height.
inline constexpr u32 map_height_max = 5;
inline constexpr u64 file_size_max = u64{7} << (9 * map_height_max + 12);

using BitWords = std::vector<u64>;

inline bool test_bit(const BitWords& words, u64 bit) {
  return ((words[bit / 64] >> (bit % 64)) & 1) != 0;
}
inline void set_bit(BitWords& words, u64 bit) {
  words[bit / 64] |= u64{1} << (bit % 64);
}

struct ChunkUse {
  BitWords allocated;  // of the current bitmap slot; all zero without one
  BitWords reached;
  bool has_bitmap = false;
  u32 slot = 0;  // if there is a bitmap: the current one
};

// The properties of an inode that later phases need; named as in format::Inode.
struct InodeSummary {
  u64 size_bytes = 0;
  u64 parent_or_device = 0;
  u64 entry_count = 0;
  u32 link_count = 0;
  u16 mode = 0;

  static InodeSummary of(const format::Inode& inode) {
    return {inode.size_bytes, inode.parent_or_device, inode.entry_count, inode.link_count, inode.mode};
  }
};

// An inode in use.
struct InodeRecord {
  InodeSummary inode;
  u64 names = 0;           // that lead to it
  u64 subdirectories = 0;  // names of directories in it
  u64 named_in = 0;        // directory of the first name
  std::vector<u64> pages;  // directories: address of each page, 0: missing
};

// Level-0 pages of the inode file and of the bitmap files by index.
using PageAddresses = std::map<u64, u64>;

// Checks inodes and directories on an engine, given the pages of the inode file. False: it could not.
using EngineRunner = std::function<bool(CheckContext& context, const PageAddresses& pages)>;

struct CheckContext {
  const CheckOptions& options;
  const pool::OpenedPool& pool;
  MediumReader reader;
  CheckResult& result;
  std::vector<ChunkUse> chunks;
  std::unordered_map<u64, InodeRecord> inodes;
  std::map<u64, u16> inode_masks;    // by page of the inode file: those of the sixteen in use
  std::vector<u32> chunk_map_slots;  // by device: the current one, 2: none
  PageAddresses inode_bitmap_pages;
  PageAddresses orphan_bitmap_pages;
  u64 pages_passed = 0;
  EngineRunner run_engine;  // empty: no engine

  CheckContext(const CheckOptions& check_options, const pool::OpenedPool& opened, CheckResult& check_result,
               std::shared_ptr<HeaderReader> headers = nullptr)
      : options(check_options), pool(opened), reader(opened, std::move(headers)), result(check_result) {}

  void add(FindingId id, std::string place, std::string text) {
    result.findings.add(id, std::move(place), std::move(text));
  }
  void report_progress(const char* phase) {
    if (options.on_progress) options.on_progress({phase, pages_passed, pool.superblock.page_used});
  }
  // Verifies a metadata page and reports its faults. False: its content must not be used.
  bool read_metadata(u64 address, const std::string& owner, PageBuffer* page);
  // For a page with several copies, at least one of them good: reports the bad ones. False: none is good, or it has no
  // copies.
  bool check_copies(u64 address, const std::string& owner);
};

// check_pool() with an engine that the caller provides.
CheckResult check_pool_with(const CheckOptions& options, const EngineRunner& run_engine);

std::string device_place(const pool::DeviceFile& file, u64 offset);
std::string inode_place(u64 number, u16 mode);
inline std::string inode_place(u64 number, const format::Inode& inode) {
  return inode_place(number, inode.mode);
}
inline std::string inode_place(u64 number, const InodeSummary& inode) {
  return inode_place(number, inode.mode);
}

// The pages of a map. Regular files report only their blocks, the others every page of content.
struct MapResult {
  u64 page_count = 0;   // content and indirect blocks
  u64 content_end = 0;  // index after the last page of content
  PageAddresses pages;  // of metadata files
};

void check_superblocks(CheckContext& context);
void check_tree_replicas(CheckContext& context);
void check_chunk_maps(CheckContext& context);
// Granules of the device that belong to columns.
BitWords expected_chunk_map(const CheckContext& context, u32 device);
void check_log(CheckContext& context);
void check_chunks(CheckContext& context);
// The header areas of a chunk: chunk headers, slots, tables, pages of descriptors, in all columns.
void check_header_areas(CheckContext& context, u32 chunk);
// Claims all pages of the inode's map. `is_metadata`: content pages are metadata pages of 4 KiB;
// they are claimed, not read.
MapResult check_map(CheckContext& context, u64 number, const format::Inode& inode, bool is_metadata);
// The same pages for a metadata file, without claims and findings.
PageAddresses list_pages(CheckContext& context, u64 number, const format::Inode& inode);
// Claims `count` pages from `address`; reports pages that are outside, used twice or not allocated. False: the caller
// must not read them.
bool claim_pages(CheckContext& context, u64 address, u64 count, const std::string& owner);
// The inode file's own map: addresses of its pages by index.
PageAddresses check_inode_file(CheckContext& context);
void set_directory_pages(InodeRecord& record, const PageAddresses& pages);
// `pages`: the result of check_inode_file(). Inodes that were already checked are skipped.
void check_inodes(CheckContext& context, const PageAddresses& pages);
// Checks inodes and directories, on an engine if requested.
void check_files(CheckContext& context);
// The engine that options.engine names.
bool run_server_engine(CheckContext& context, const PageAddresses& pages);
// One inode that is not free: enters it into context.inodes and checks it completely.
void take_inode(CheckContext& context, u64 number, const format::Inode& inode);
void check_inode_count(CheckContext& context);
// The parts of take_inode() without side effects: findings on the inode's fields (also of a free one), and on its size
// and page count, given the content of its map.
void check_inode_fields(CheckContext& context, u64 number, const format::Inode& inode);
void check_inode_summary(CheckContext& context, u64 number, const format::Inode& inode, u64 page_count,
                         u64 content_pages, u64 content_end);
// Verifies a page of a regular file.
void check_data_page(CheckContext& context, u64 number, const format::Inode& inode, u64 address, u64 file_page);
// Findings on a directory whose names have already been counted.
void explain_directory(CheckContext& context, u64 number, const format::Inode& inode);
// Checks all attributes of an inode. Returns the number of their pages.
u64 check_attributes(CheckContext& context, u64 number, const format::Inode& inode);
// The parts of it without side effects: findings on one page of entries, and on all pages together.
void check_attribute_tree(CheckContext& context, u64 number, const format::Inode& inode);
void check_attribute_page(CheckContext& context, const std::string& place, const PageBuffer& page);
// Checks one directory in context.inodes, or all of them.
void check_directory(CheckContext& context, u64 number);
void check_directories(CheckContext& context);
// Numbers in the orphan bitmap.
std::unordered_set<u64> read_orphans(CheckContext& context);
void check_links(CheckContext& context);
void check_inode_bitmaps(CheckContext& context);
void check_page_bitmaps(CheckContext& context);

}  // namespace gpu4fs::fsck::check
