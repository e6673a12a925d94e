// Checks every inode: its fields, its map, its attributes. Fills CheckContext::inodes.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "format/directory_format.hpp"
#include "format/format_text.hpp"
#include "fsck/check/check_context.hpp"

namespace gpu4fs::fsck::check {

namespace {

constexpr u64 symlink_length_max = path_length_max - 1;

bool is_zero(const void* bytes, std::size_t length) {
  const auto* begin = static_cast<const u8*>(bytes);
  return std::all_of(begin, begin + length, [](u8 byte) { return byte == 0; });
}

// Inodes of the pool's own files have no name.
bool is_hidden(u64 number) {
  return number < format::inode_number_first_free && number != format::inode_number_root;
}

class InodeCheck {
 public:
  InodeCheck(CheckContext& context, u64 number, const format::Inode& inode)
      : context_(context), number_(number), inode_(inode), place_(inode_place(number, inode)) {}

  MapResult run() {
    run_fields();
    MapResult map;
    if (!inode_.is_inline()) map = check_map(context_, number_, inode_, is_metadata_);
    const u64 attribute_pages = check_attributes(context_, number_, inode_);
    check_summary({map.page_count + attribute_pages, map.pages.size(), map.content_end});
    return map;
  }

  // The checks that need only the inode's own bytes.
  void run_fields() {
    type_ = inode_.mode & S_IFMT;
    is_metadata_ = is_hidden(number_) || type_ == S_IFDIR;
    check_fields();
    if (inode_.is_inline() && (is_metadata_ || (type_ != S_IFREG && type_ != S_IFLNK))) {
      fail(FindingId::inode_field, "content is inline");
    }
  }

  struct Summary {
    u64 page_count;     // including those of attributes
    u64 content_pages;  // of metadata files
    u64 content_end;
  };
  void check_summary(const Summary& found) {
    type_ = inode_.mode & S_IFMT;
    is_metadata_ = is_hidden(number_) || type_ == S_IFDIR;
    if (found.page_count != inode_.page_count) {
      fail(FindingId::inode_page_count,
           fmt::format("{} pages, the inode says {}", found.page_count, inode_.page_count));
    }
    check_size(found);
  }

 private:
  void fail(FindingId id, std::string text) { context_.add(id, place_, std::move(text)); }

  void check_fields() {
    if (inode_.version != 1) fail(FindingId::inode_field, fmt::format("version {}", inode_.version));
    if (format::inode_type_text(inode_.mode) == "unknown") {
      fail(FindingId::inode_field, fmt::format("mode {:07o}", inode_.mode));
    }
    const u32 known = is_hidden(number_) ? u32{format::inode_flag_inline} : u32{format::inode_flag_known};
    if ((inode_.flags & ~known) != 0) {
      fail(FindingId::inode_field, fmt::format("flags {:#x}", inode_.flags));
    }
    const bool is_bitmap =
        number_ == format::inode_number_inode_bitmap || number_ == format::inode_number_orphan_bitmap;
    if (inode_.height > map_height_max || (is_bitmap && inode_.height != format::inode_bitmap_height)) {
      fail(FindingId::inode_field, fmt::format("height {}", inode_.height));
    }
    if (inode_.profile > format::profile_max) {
      fail(FindingId::inode_field, fmt::format("profile {}", inode_.profile));
    }
    const bool has_tree = inode_.attribute_height == 0 || inode_.attributes.is_valid();
    if (inode_.attribute_height > format::attribute_height_max || !has_tree) {
      fail(FindingId::inode_field, fmt::format("height {} of attributes", inode_.attribute_height));
    }
    for (const u64 time : {inode_.access_time, inode_.modification_time, inode_.change_time, inode_.birth_time}) {
      if (!format::is_time(time)) {
        fail(FindingId::inode_field, fmt::format("time stamp {:#x}", time));
      }
    }
    if (type_ != S_IFDIR && inode_.entry_count != 0) {
      fail(FindingId::inode_field, fmt::format("{} entries in no directory", inode_.entry_count));
    }
    if (!is_zero(inode_.reserved, sizeof(inode_.reserved)))
      fail(FindingId::inode_reserved, "behind the height of attributes");
    if (!inode_.is_inline() && !is_zero(inode_.inline_tail, sizeof(inode_.inline_tail))) {
      fail(FindingId::inode_reserved, "space of inline content");
    }
  }

  void check_size(const Summary& found) {
    const u64 size = inode_.size_bytes;
    bool good = true;
    // Freeing an orphan first removes its pages, beginning with the last, in as many commits as necessary; a checkpoint
    // may come in between.
    const bool may_lack_pages = inode_.link_count == 0;
    const bool is_dense = found.content_pages == found.content_end;
    if (is_metadata_) {
      // Every page below the size exists: a directory has no holes, and a page beyond its size would never be read.
      good =
          size % page_size == 0 && found.content_end <= size / page_size &&
          (is_hidden(number_) || (size > 0 && is_dense && (found.content_pages == size / page_size || may_lack_pages)));
    } else if (inode_.is_inline()) {
      good = size <= format::inode_inline_capacity;
    } else if (type_ == S_IFLNK) {
      good = found.content_end == 1 || (found.content_end == 0 && may_lack_pages);
    } else if (type_ != S_IFREG) {
      good = size == 0 && inode_.height == 0 && found.content_end == 0;
    } else {
      good = size <= file_size_max;
    }
    if (type_ == S_IFLNK && (size == 0 || size > symlink_length_max)) good = false;
    if (!good) {
      fail(FindingId::inode_size, fmt::format("{} bytes with {} pages of content up to page {}", size,
                                              found.content_pages, found.content_end));
    }
  }

  CheckContext& context_;
  u64 number_;
  const format::Inode& inode_;
  std::string place_;
  u32 type_ = 0;
  bool is_metadata_ = false;
};

void check_free_inode(CheckContext& context, u64 number, const format::Inode& inode) {
  format::Inode expected{};
  expected.version = inode.version;
  expected.generation = inode.generation;
  const bool never_used = inode.version == 0;
  if (std::memcmp(&inode, &expected, sizeof(inode)) != 0 || inode.version > 1 ||
      (never_used && inode.generation != 0)) {
    context.add(FindingId::inode_reserved, fmt::format("inode {}", number), "a free inode is not zero");
  }
}

bool is_unused(u64 number) {
  return number == format::inode_number_inode_file ||
         (is_hidden(number) && number > format::inode_number_orphan_bitmap);
}

}  // namespace

std::string inode_place(u64 number, u16 mode) {
  switch (number) {
    case format::inode_number_inode_file:
      return "inode file";
    case format::inode_number_inode_bitmap:
      return "inode bitmap";
    case format::inode_number_orphan_bitmap:
      return "orphan bitmap";
    default:
      return fmt::format("inode {} ({})", number, format::inode_type_text(mode));
  }
}

void check_inode_fields(CheckContext& context, u64 number, const format::Inode& inode) {
  if (is_unused(number)) {
    if (is_zero(&inode, sizeof(inode))) return;
    context.add(FindingId::inode_reserved, fmt::format("inode {}", number), "a reserved inode is not zero");
  } else if (inode.mode == 0) {
    check_free_inode(context, number, inode);
  } else {
    InodeCheck(context, number, inode).run_fields();
  }
}

void check_inode_summary(CheckContext& context, u64 number, const format::Inode& inode, u64 page_count,
                         u64 content_pages, u64 content_end) {
  InodeCheck(context, number, inode).check_summary({page_count, content_pages, content_end});
}

void take_inode(CheckContext& context, u64 number, const format::Inode& inode) {
  if (context.inodes.contains(number)) return;
  if (is_unused(number) || inode.mode == 0) return check_inode_fields(context, number, inode);
  InodeRecord& record = context.inodes[number];
  record.inode = InodeSummary::of(inode);
  if (number >= format::inode_number_first_free) ++context.result.inodes;
  MapResult map = InodeCheck(context, number, inode).run();
  if ((inode.mode & S_IFMT) == S_IFDIR) {
    ++context.result.directories;
    set_directory_pages(record, map.pages);
  }
  if (number == format::inode_number_inode_bitmap) context.inode_bitmap_pages = std::move(map.pages);
  if (number == format::inode_number_orphan_bitmap) context.orphan_bitmap_pages = std::move(map.pages);
}

// A manipulated size must not cost memory: the number of pages is limited to the existing ones.
void set_directory_pages(InodeRecord& record, const PageAddresses& pages) {
  const u64 content_end = pages.empty() ? 0 : pages.rbegin()->first + 1;
  const u64 count = std::min<u64>(record.inode.size_bytes / page_size, content_end);
  if (pages.size() < count / 2) return;
  record.pages.resize(count);
  for (const auto& [index, address] : pages) {
    if (index < count) record.pages[index] = address;
  }
}

PageAddresses check_inode_file(CheckContext& context) {
  const format::Inode& inode_file = context.pool.superblock.inode_file;
  return InodeCheck(context, format::inode_number_inode_file, inode_file).run().pages;
}

void check_inode_count(CheckContext& context) {
  const u64 in_use = context.result.inodes + format::inode_number_first_free;
  if (in_use == context.pool.superblock.inode_used) return;
  context.add(FindingId::superblock_count, context.pool.devices.front().file.path(),
              fmt::format("{} inodes in use, found {}", context.pool.superblock.inode_used, in_use));
}

void check_inodes(CheckContext& context, const PageAddresses& pages) {
  const auto page = std::make_unique<PageBuffer>();
  for (const auto& [index, address] : pages) {
    context.report_progress("inodes");
    if (!context.read_metadata(address, "inode file", page.get())) continue;
    u16 mask = 0;
    for (u32 i = 0; i < format::inodes_per_page; ++i) {
      format::Inode inode{};
      std::memcpy(&inode, page->bytes + i * sizeof(inode), sizeof(inode));
      if (inode.mode != 0) mask = static_cast<u16>(mask | (1u << i));
      take_inode(context, index * format::inodes_per_page + i, inode);
    }
    if (index == 0) mask = 0xffff;  // reserved numbers count as used
    context.inode_masks[index] = mask;
  }
  check_inode_count(context);
}

}  // namespace gpu4fs::fsck::check
