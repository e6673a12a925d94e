// Checks link counts, reachability from the root, and the bitmaps of inodes, orphans and pages.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <unordered_set>

#include "base/mutant.hpp"
#include "fsck/check/check_context.hpp"

namespace gpu4fs::fsck::check {

namespace {

constexpr u64 bits_per_page = format::bits_per_page;
constexpr u64 words_per_page = page_size / 8;

bool is_directory(const InodeRecord& record) {
  return (record.inode.mode & S_IFMT) == S_IFDIR;
}

std::vector<u64> named_numbers(const CheckContext& context) {
  std::vector<u64> numbers;
  for (const auto& [number, record] : context.inodes) {
    if (number == format::inode_number_root || number >= format::inode_number_first_free) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// The bits of a bitmap file as a set of numbers; unreadable pages are skipped.
std::unordered_set<u64> read_bits(CheckContext& context, const PageAddresses& pages, const char* owner) {
  std::unordered_set<u64> bits;
  const auto page = std::make_unique<PageBuffer>();
  for (const auto& [index, address] : pages) {
    if (!context.read_metadata(address, owner, page.get())) continue;
    for (u64 word = 0; word < words_per_page; ++word) {
      u64 value = 0;
      std::memcpy(&value, page->bytes + word * 8, 8);
      for (; value != 0; value &= value - 1) {
        bits.insert(index * bits_per_page + word * 64 + static_cast<u64>(std::countr_zero(value)));
      }
    }
  }
  return bits;
}

void check_link_count(CheckContext& context, u64 number, const InodeRecord& record) {
  u64 expected = record.names;
  if (is_directory(record)) {
    const bool has_name = record.names > 0 || number == format::inode_number_root;
    expected = has_name ? 2 + record.subdirectories : 0;
  }
  if (GPU4FS_MUTANT(check_passes_link_counts, record.inode.link_count != expected, false)) {
    context.add(FindingId::link_count, inode_place(number, record.inode),
                fmt::format("{} links, found {}", record.inode.link_count, expected));
  }
}

// Follows the names up to the root; every directory is followed once.
void check_loops(CheckContext& context, const std::vector<u64>& numbers) {
  std::unordered_set<u64> rooted{format::inode_number_root};
  for (const u64 number : numbers) {
    if (!is_directory(context.inodes.at(number))) continue;
    std::vector<u64> way;
    std::unordered_set<u64> on_way;
    u64 at = number;
    while (!rooted.contains(at) && on_way.insert(at).second) {
      way.push_back(at);
      const auto found = context.inodes.find(at);
      if (found == context.inodes.end() || found->second.names == 0) break;  // lost or an orphan
      at = found->second.named_in;
    }
    if (!rooted.contains(at) && !way.empty() && context.inodes.at(at).names > 0) {
      context.add(FindingId::directory_loop, inode_place(number, context.inodes.at(number).inode),
                  fmt::format("the way up comes back to inode {}", at));
    }
    rooted.insert(way.begin(), way.end());  // reported once
  }
}

void report_leaks(CheckContext& context, u32 chunk) {
  const ChunkUse& use = context.chunks[chunk];
  const u64 page_count = context.reader.chunk_page_count(chunk);
  const u64 base = context.pool.chunks[chunk].descriptor.base_address;
  u64 run_begin = 0;
  u64 run_count = 0;
  for (u64 page = 0; page <= page_count; ++page) {
    const bool leaked = page < page_count && test_bit(use.allocated, page) &&
                        GPU4FS_MUTANT(check_passes_leaks, !test_bit(use.reached, page), false);
    if (leaked) {
      if (run_count++ == 0) run_begin = page;
    } else if (run_count > 0) {
      context.add(FindingId::page_leaked, context.reader.place_text(base + run_begin * page_size),
                  fmt::format("{} pages", run_count));
      run_count = 0;
    }
  }
}

}  // namespace

std::unordered_set<u64> read_orphans(CheckContext& context) {
  return read_bits(context, context.orphan_bitmap_pages, "orphan bitmap");
}

void check_links(CheckContext& context) {
  const std::unordered_set<u64> orphans = read_orphans(context);
  const std::vector<u64> numbers = named_numbers(context);
  for (const u64 number : numbers) {
    const InodeRecord& record = context.inodes.at(number);
    const bool is_orphan = orphans.contains(number);
    const bool has_name = record.names > 0 || number == format::inode_number_root;
    if (has_name && is_orphan) {
      context.add(FindingId::orphan_bitmap, inode_place(number, record.inode), "an orphan with a name");
    } else if (GPU4FS_MUTANT(check_passes_lost_inodes, !has_name && !is_orphan, false)) {
      context.add(FindingId::inode_lost, inode_place(number, record.inode),
                  fmt::format("{} bytes, {} links", record.inode.size_bytes, record.inode.link_count));
      continue;
    }
    if (is_orphan) ++context.result.orphans;
    check_link_count(context, number, record);
  }
  for (const u64 number : orphans) {
    if (!context.inodes.contains(number)) {
      context.add(FindingId::orphan_bitmap, fmt::format("inode {}", number), "an orphan that is not in use");
    }
  }
  if (context.result.orphans > 0) {
    context.add(FindingId::orphan_waiting, "orphan bitmap", fmt::format("{} files", context.result.orphans));
  }
  const auto root = context.inodes.find(format::inode_number_root);
  if (root == context.inodes.end() || !is_directory(root->second)) {
    context.add(FindingId::inode_lost, "inode 1", "there is no root directory");
  } else if (root->second.inode.parent_or_device != format::inode_number_root || root->second.names > 0) {
    context.add(FindingId::directory_parent, "inode 1", "the root is not its own parent");
  }
  check_loops(context, numbers);
}

void check_inode_bitmaps(CheckContext& context) {
  const std::unordered_set<u64> used = read_bits(context, context.inode_bitmap_pages, "inode bitmap");
  const auto in_use = [&](u64 number) {
    const auto mask = context.inode_masks.find(number / format::inodes_per_page);
    return mask != context.inode_masks.end() && ((mask->second >> (number % format::inodes_per_page)) & 1) != 0;
  };
  for (const u64 number : used) {
    if (!in_use(number)) {
      context.add(FindingId::inode_bitmap, fmt::format("inode {}", number), "marked used, but free");
    }
  }
  for (const auto& [index, mask] : context.inode_masks) {
    for (u32 i = 0; i < format::inodes_per_page; ++i) {
      const u64 number = index * format::inodes_per_page + i;
      if (((mask >> i) & 1) != 0 && !used.contains(number)) {
        context.add(FindingId::inode_bitmap, fmt::format("inode {}", number), "in use, but marked free");
      }
    }
  }
}

void check_page_bitmaps(CheckContext& context) {
  for (u32 chunk = 0; chunk < context.chunks.size(); ++chunk) {
    if (context.chunks[chunk].has_bitmap) report_leaks(context, chunk);
  }
}

}  // namespace gpu4fs::fsck::check
