// Checks every directory: its hash tree page by page, its names, and their targets.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_set>

#include "base/xxh3_serial.hpp"
#include "format/directory_format.hpp"
#include "format/format_text.hpp"
#include "fsck/check/check_context.hpp"

namespace gpu4fs::fsck::check {

namespace {

constexpr u32 hash_bits = 64;

u64 prefix_of(u64 hash, u32 bit_count) {
  return bit_count == 0 ? 0 : hash & ~((bit_count >= hash_bits ? u64{0} : ~u64{0} >> bit_count));
}

// Slots [first, first + count) of a node that name the same child.
struct Span {
  u32 first;
  u32 count;
};

class DirectoryCheck {
 public:
  // `counts`: names are counted at their inodes; otherwise they were already counted.
  DirectoryCheck(CheckContext& context, u64 number, InodeRecord& record, bool counts)
      : context_(context),
        number_(number),
        record_(record),
        counts_(counts),
        place_(inode_place(number, record.inode)) {}

  void run() {
    visited_.resize((record_.pages.size() + 63) / 64);
    if (record_.pages.empty()) return;  // inode_size was reported, or it is an orphan without pages
    visit_page(0, nullptr, {});
    for (u64 index = 0; index < record_.pages.size(); ++index) {
      if (!test_bit(visited_, index) && record_.pages[index] != 0) check_unreached(index);
    }
    if (complete_ && name_count_ != record_.inode.entry_count) {
      context_.add(FindingId::directory_count, place_,
                   fmt::format("{} names, the inode says {}", name_count_, record_.inode.entry_count));
    }
  }

 private:
  using Header = format::DirectoryPageHeader;

  void fail(FindingId id, u64 index, const std::string& text) {
    context_.add(id, fmt::format("{}, page {}", place_, index), text);
  }
  void fail_page(u64 index, const std::string& text) {
    fail(FindingId::directory_page, index, text);
    complete_ = false;
  }

  // An orphan loses its pages from the last one on. A node that was created after the pages below it is removed before
  // them, so these are unreached.
  void check_unreached(u64 index) {
    if (!orphan_lacks_pages_) return fail(FindingId::directory_page, index, "no node leads to it");
    const auto page = std::make_unique<PageBuffer>();
    (void)context_.read_metadata(record_.pages[index], place_, page.get());
  }

  // `parent` is the header of the node above, null for the root page.
  void visit_page(u64 index, const Header* parent, Span span) {
    if (index >= record_.pages.size() || record_.pages[index] == 0) {
      if (record_.inode.link_count != 0) return fail_page(index, "the page does not exist");
      // An orphan loses its pages before it is freed.
      orphan_lacks_pages_ = true;
      complete_ = false;
      return;
    }
    if (test_bit(visited_, index)) return fail_page(index, "two places lead to it");
    set_bit(visited_, index);
    const auto page = std::make_unique<PageBuffer>();
    if (!context_.read_metadata(record_.pages[index], place_, page.get())) {
      complete_ = false;
      return;
    }
    Header header{};
    std::memcpy(&header, page->bytes, sizeof(header));
    if (header.magic == format::directory_node_magic) {
      visit_node(index, header, *page, parent, span);
    } else if (header.magic == format::directory_leaf_magic) {
      visit_leaf(index, header, *page, parent, span);
    } else {
      fail_page(index, "neither leaf nor node");
    }
  }

  // The prefix of the hashes below a page according to the slots that lead to it.
  static u64 expected_prefix(const Header* parent, Span span) {
    if (parent == nullptr) return 0;
    const u32 shift = hash_bits - format::directory_node_bits * (u32{parent->level} + 1);
    return parent->prefix | (u64{span.first} << shift);
  }

  void visit_node(u64 index, const Header& header, const PageBuffer& page, const Header* parent, Span span) {
    const u32 level = parent == nullptr ? 0 : u32{parent->level} + 1;
    if (header.version != 1 || header.level != level || level >= format::directory_level_max || header.depth != 0 ||
        header.entry_count != 0 || header.heap_begin != 0 || header.heap_garbage != 0 || header.reserved0 != 0 ||
        header.reserved1 != 0 || (parent != nullptr && span.count != 1) ||
        header.prefix != expected_prefix(parent, span)) {
      return fail_page(index, "a node with an impossible header for its place");
    }
    u32 children[format::directory_node_slots];
    std::memcpy(children, page.bytes + format::directory_node_children_offset, sizeof(children));
    for (u32 first = 0; first < format::directory_node_slots;) {
      u32 end = first + 1;
      while (end < format::directory_node_slots && children[end] == children[first]) ++end;
      if (children[first] == 0) {
        fail_page(index, fmt::format("slot {} leads to the root", first));
      } else {
        visit_page(children[first], &header, {first, end - first});
      }
      first = end;
    }
  }

  void visit_leaf(u64 index, const Header& header, const PageBuffer& page, const Header* parent, Span span) {
    const u32 level = parent == nullptr ? 0 : parent->level;
    const u32 depth = header.depth;
    const bool span_fits = parent == nullptr ? depth == 0
                                             : depth <= format::directory_node_bits &&
                                                   span.count == format::directory_node_slots >> depth &&
                                                   span.first % span.count == 0;
    const std::size_t slots_end =
        format::directory_leaf_slots_offset + std::size_t{header.entry_count} * sizeof(format::DirectorySlot);
    if (header.version != 1 || header.level != level || !span_fits || header.reserved0 != 0 || header.reserved1 != 0 ||
        header.prefix != expected_prefix(parent, span) || header.heap_begin > page_size || header.heap_begin % 8 != 0 ||
        slots_end > header.heap_begin || header.heap_garbage > page_size - header.heap_begin) {
      return fail_page(index, "a leaf with an impossible header for its place");
    }
    prefix_bits_ = parent == nullptr ? 0 : format::directory_node_bits * level + depth;
    prefix_ = header.prefix;
    check_leaf(index, header, page);
  }

  void check_leaf(u64 index, const Header& header, const PageBuffer& page) {
    u64 last_hash = 0;
    std::string_view last_name;
    u64 heap_bytes = 0;
    for (u32 i = 0; i < header.entry_count; ++i) {
      format::DirectorySlot slot{};
      std::memcpy(&slot, page.bytes + format::directory_leaf_slots_offset + i * sizeof(slot), sizeof(slot));
      const u32 size = format::directory_entry_size(slot.name_length);
      if (slot.name_length == 0 || slot.reserved != 0 || slot.entry_offset % 8 != 0 ||
          slot.entry_offset < header.heap_begin || slot.entry_offset + size > page_size) {
        fail_page(index, fmt::format("slot {} leads outside the heap", i));
        continue;
      }
      heap_bytes += size;
      u64 target = 0;
      std::memcpy(&target, page.bytes + slot.entry_offset, sizeof(target));
      const auto* bytes =
          reinterpret_cast<const char*>(page.bytes + slot.entry_offset + sizeof(format::DirectoryEntry));
      const std::string_view name(bytes, slot.name_length);
      if (i > 0 && (slot.hash < last_hash || (slot.hash == last_hash && name <= last_name))) {
        fail(FindingId::directory_order, index, name_text(name));
      }
      last_hash = slot.hash;
      last_name = name;
      check_name(index, slot, name, target);
    }
    if (heap_bytes + header.heap_garbage != page_size - header.heap_begin) {
      fail_page(index, fmt::format("{} bytes of names and {} of garbage in a heap of {}", heap_bytes,
                                   header.heap_garbage, page_size - header.heap_begin));
    }
  }

  static std::string name_text(std::string_view name) { return fmt::format("name \"{}\"", format::escape_name(name)); }

  void check_name(u64 index, const format::DirectorySlot& slot, std::string_view name, u64 target) {
    ++name_count_;
    if (counts_) ++context_.result.names;
    if (name == "." || name == ".." || name.find('/') != std::string_view::npos ||
        name.find('\0') != std::string_view::npos) {
      fail(FindingId::directory_name, index, name_text(name));
    }
    const u64 hash = xxh3_64(name.data(), name.size(), context_.pool.superblock.name_hash_seed);
    if (hash != slot.hash) {
      fail(FindingId::directory_hash, index,
           fmt::format("{}: hash {:#x} instead of {:#x}", name_text(name), slot.hash, hash));
    } else if (prefix_of(hash, prefix_bits_) != prefix_) {
      fail(FindingId::directory_hash, index, fmt::format("{}: belongs to another page", name_text(name)));
    }
    const auto found = context_.inodes.find(target);
    const bool may_be_named = target >= format::inode_number_first_free;
    if (found == context_.inodes.end() || !may_be_named) {
      fail(FindingId::directory_target, index, fmt::format("{}: inode {}", name_text(name), target));
      return;
    }
    InodeRecord& child = found->second;
    const u32 type = (child.inode.mode & S_IFMT) >> 12;
    if (type != slot.type) {
      fail(FindingId::directory_type, index,
           fmt::format("{}: type {}, inode {} has {}", name_text(name), slot.type, target, type));
    }
    if (counts_ && child.names++ == 0) child.named_in = number_;
    if (type != S_IFDIR >> 12) return;
    if (counts_) ++record_.subdirectories;
    const bool is_first = named_here_.insert(target).second && child.named_in == number_;
    if (!is_first) {
      fail(FindingId::directory_parent, index,
           fmt::format("{}: directory {} has a second name", name_text(name), target));
    } else if (child.inode.parent_or_device != number_) {
      fail(
          FindingId::directory_parent, index,
          fmt::format("{}: directory {} says its parent is {}", name_text(name), target, child.inode.parent_or_device));
    }
  }

  CheckContext& context_;
  u64 number_;
  InodeRecord& record_;
  bool counts_;
  std::string place_;
  BitWords visited_;
  std::unordered_set<u64> named_here_;  // directories
  u64 name_count_ = 0;
  u64 prefix_ = 0;  // of the current leaf
  u32 prefix_bits_ = 0;
  bool complete_ = true;
  bool orphan_lacks_pages_ = false;
};

}  // namespace

void explain_directory(CheckContext& context, u64 number, const format::Inode& inode) {
  InodeRecord& record = context.inodes.at(number);
  record.inode = InodeSummary::of(inode);
  set_directory_pages(record, list_pages(context, number, inode));
  DirectoryCheck(context, number, record, false).run();
}

void check_directory(CheckContext& context, u64 number) {
  DirectoryCheck(context, number, context.inodes.at(number), true).run();
}

void check_directories(CheckContext& context) {
  std::vector<u64> numbers;
  for (const auto& [number, record] : context.inodes) {
    if ((record.inode.mode & S_IFMT) == S_IFDIR) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  for (const u64 number : numbers) {
    context.report_progress("directories");
    check_directory(context, number);
  }
}

}  // namespace gpu4fs::fsck::check
