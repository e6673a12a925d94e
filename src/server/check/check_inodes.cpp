// Every inode: its fields, its map, its attributes. Fills CheckContext::inodes.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "base/xxh3_serial.hpp"
#include "format/directory_format.hpp"
#include "format/format_text.hpp"
#include "server/check/check_context.hpp"

namespace gpu4fs::server::check {

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
    const u64 attribute_pages = check_attributes();
    check_summary({map.page_count + attribute_pages, map.pages.size(), map.content_end});
    return map;
  }

  // As far as the inode's own bytes go.
  void run_fields() {
    type_ = inode_.mode & S_IFMT;
    is_metadata_ = is_hidden(number_) || type_ == S_IFDIR;
    check_fields();
    if (inode_.is_inline() && (is_metadata_ || (type_ != S_IFREG && type_ != S_IFLNK))) {
      fail(FindingId::inode_field, "content is inline");
    }
  }

  struct Summary {
    u64 page_count;     // with the page of attributes
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
    if (inode_.version != 1)
      fail(FindingId::inode_field, fmt::format("version {}", inode_.version));
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
    for (const u64 time :
         {inode_.access_time, inode_.modification_time, inode_.change_time, inode_.birth_time}) {
      if (!format::is_time(time)) {
        fail(FindingId::inode_field, fmt::format("time stamp {:#x}", time));
      }
    }
    if (type_ != S_IFDIR && inode_.entry_count != 0) {
      fail(FindingId::inode_field, fmt::format("{} entries in no directory", inode_.entry_count));
    }
    if (!is_zero(inode_.reserved, sizeof(inode_.reserved)))
      fail(FindingId::inode_reserved, "after the profile");
    if (!inode_.is_inline() && !is_zero(inode_.inline_tail, sizeof(inode_.inline_tail))) {
      fail(FindingId::inode_reserved, "space of inline content");
    }
  }

  u64 check_attributes() {
    const format::BlockPointer pointer = inode_.attributes;
    if (pointer.raw == 0) return 0;
    if (!pointer.is_well_formed() || pointer.is_hole() || pointer.is_indirect() ||
        pointer.is_unwritten() || pointer.size() != format::BlockSize::page_4k) {
      fail(FindingId::pointer_malformed, "attributes: " + format::to_text(pointer));
      return 0;
    }
    if (!claim_pages(context_, pointer.address(), 1, place_)) return 1;
    const auto page = std::make_unique<PageBuffer>();
    if (context_.read_metadata(pointer.address(), place_, page.get())) {
      check_attribute_page(context_, place_, *page);
    }
    return 1;
  }

  void check_size(const Summary& found) {
    const u64 size = inode_.size_bytes;
    bool good = true;
    // Freeing an orphan takes its pages first, from the last on, in as many commits as they need: a checkpoint may
    // come between.
    const bool may_lack_pages = inode_.link_count == 0;
    const bool is_dense = found.content_pages == found.content_end;
    if (is_metadata_) {
      // Every page below the size; a directory has no holes, and a page beyond it would never be
      // read.
      good = size % page_size == 0 && found.content_end <= size / page_size &&
             (is_hidden(number_) ||
              (size > 0 && is_dense && (found.content_pages == size / page_size || may_lack_pages)));
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
      fail(FindingId::inode_size, fmt::format("{} bytes with {} pages of content up to page {}",
                                              size, found.content_pages, found.content_end));
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
    context.add(FindingId::inode_reserved, fmt::format("inode {}", number),
                "a free inode is not zero");
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
  if (number == format::inode_number_inode_bitmap)
    context.inode_bitmap_pages = std::move(map.pages);
  if (number == format::inode_number_orphan_bitmap)
    context.orphan_bitmap_pages = std::move(map.pages);
}

// A hostile size must not cost memory: pages are bounded by what exists.
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
  context.add(
      FindingId::superblock_count, context.pool.devices.front().file.path(),
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

bool is_valid_attribute(std::string_view name, std::string_view value) {
  if (name != "system.posix_acl_access" && name != "system.posix_acl_default") return true;
  constexpr std::size_t header_size = 4;
  constexpr std::size_t entry_size = 8;
  constexpr std::string_view version("\2\0\0\0", header_size);
  if (value.size() % entry_size != header_size || !value.starts_with(version)) return false;
  constexpr unsigned owner = 1, user = 2, owning_group = 4, group = 8, mask = 16, other = 32;
  std::map<unsigned, unsigned> counts;
  unsigned last = 0;
  for (value.remove_prefix(header_size); !value.empty(); value.remove_prefix(entry_size)) {
    const auto* bytes = reinterpret_cast<const u8*>(value.data());
    const unsigned tag = bytes[0];
    const bool is_known =
        tag == owner || tag == user || tag == owning_group || tag == group || tag == mask || tag == other;
    if (!is_known || bytes[1] != 0 || bytes[2] > 7 || bytes[3] != 0 || tag < last) return false;
    last = tag;
    ++counts[tag];
  }
  if (counts[owner] != 1 || counts[owning_group] != 1 || counts[other] != 1 || counts[mask] > 1) return false;
  return counts[mask] == 1 || counts[user] + counts[group] == 0;
}

void check_attribute_page(CheckContext& context, const std::string& place, const PageBuffer& page) {
  format::AttributePageHeader header{};
  std::memcpy(&header, page.bytes, sizeof(header));
  const auto fail = [&](std::string text) {
    context.add(FindingId::attribute_page, place, std::move(text));
  };
  if (header.magic != format::attribute_page_magic || header.version != 1 ||
      header.used_bytes > page_size || header.used_bytes < sizeof(header) ||
      !is_zero(header.reserved, sizeof(header.reserved))) {
    return fail("impossible header");
  }
  std::set<std::string_view> names;
  std::size_t offset = sizeof(header);
  for (u32 i = 0; i < header.entry_count; ++i) {
    format::AttributeEntry entry{};
    if (offset + sizeof(entry) > header.used_bytes)
      return fail(fmt::format("entry {} is cut off", i));
    std::memcpy(&entry, page.bytes + offset, sizeof(entry));
    const std::size_t length = sizeof(entry) + entry.name_length + entry.value_length;
    if (entry.name_length == 0 || entry.reserved != 0 || offset + length > header.used_bytes) {
      return fail(fmt::format("entry {} is impossible", i));
    }
    const u8* name = page.bytes + offset + sizeof(entry);
    const std::string_view text(reinterpret_cast<const char*>(name), entry.name_length);
    if (!names.insert(text).second || text.find('\0') != std::string_view::npos) {
      fail(fmt::format("name \"{}\" is there twice or not allowed", format::escape_name(text)));
    }
    if (static_cast<u32>(xxh3_64(name + entry.name_length, entry.value_length, 0)) !=
        entry.value_hash) {
      fail(fmt::format("the value of \"{}\" does not match its hash", format::escape_name(text)));
    }
    const std::string_view value(text.data() + text.size(), entry.value_length);
    if (!is_valid_attribute(text, value)) {
      fail(fmt::format("\"{}\" is no valid access control list", text));
    }
    offset += (length + 7) & ~std::size_t{7};
  }
  if (offset != header.used_bytes) {
    fail(fmt::format("entries end at {}, the header says {}", offset, header.used_bytes));
  }
}

}  // namespace gpu4fs::server::check
