// File maps: the parts of the old one that can stay, copies of pages that two files share, and maps of new files.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/xxh3_serial.hpp"
#include "format/directory_format.hpp"
#include "fsck/repair/repair_context.hpp"

namespace gpu4fs::fsck::repair {

namespace {

using format::BlockPointer;
using format::BlockSize;

constexpr u32 least_height = ~u32{0};

u64 span_of(u32 level) {
  return u64{1} << (format::slot_shift * level);
}

class MapRepair {
 public:
  MapRepair(RepairContext& context, u64 number, format::Inode& inode)
      : context_(context),
        number_(number),
        inode_(inode),
        is_directory_((inode.mode & S_IFMT) == S_IFDIR),
        is_link_((inode.mode & S_IFMT) == S_IFLNK) {}

  void run() {
    if (inode_.is_inline()) return;
    for (u32 i = 0; i < format::inode_slot_count; ++i) {
      inode_.slots[i] = visit(inode_.slots[i], inode_.height, i);
    }
    if (cut_ > 0) context_.note_inode(number_, fmt::format("{} pointers were cut out of its map", cut_));
    if (copied_ > 0) context_.note_inode(number_, fmt::format("{} pages in use elsewhere were copied", copied_));
  }
  u64 page_count() const { return page_count_; }
  u64 content_end() const { return content_end_; }

 private:
  BlockPointer cut() {
    ++cut_;
    return BlockPointer::hole();
  }

  bool fits(BlockPointer pointer, u32 level) const {
    if (!pointer.is_well_formed() || pointer.is_hole()) return false;
    if (pointer.is_indirect()) return level >= 1;
    if ((is_directory_ || is_link_) && (level != 0 || pointer.is_unwritten())) return false;
    return static_cast<u32>(pointer.size()) == level + 1;
  }

  BlockPointer visit(BlockPointer pointer, u32 level, u64 index) {
    if (pointer.raw == 0) return pointer;
    if (!fits(pointer, level)) return cut();
    const u64 count = pointer.is_indirect() ? 1 : span_of(level);
    const std::optional<PagePlace> place = context_.old_state.reader.locate(pointer.address());
    if (!place || place->page + count > context_.old_state.reader.chunk_page_count(place->chunk)) return cut();
    return pointer.is_indirect() ? visit_indirect(pointer, level, index) : visit_content(pointer, level, index);
  }

  BlockPointer visit_indirect(BlockPointer pointer, u32 level, u64 index) {
    const auto page = std::make_unique<PageBuffer>();
    if (context_.old_state.reader.read_page(pointer.address(), page.get()) != PageState::good) return cut();
    const bool is_own = context_.pages.claim(pointer.address(), 1);
    return rewrite_slots(is_own ? pointer : BlockPointer::hole(), *page, level, index);
  }

  // `kept` is the block with the content of `page` if it may stay. Empty ones stay.
  BlockPointer rewrite_slots(BlockPointer kept, PageBuffer& page, u32 level, u64 index) {
    auto* slots = reinterpret_cast<BlockPointer*>(page.bytes);
    bool changed = kept.is_hole();
    ++page_count_;
    for (u32 i = 0; i < format::slots_per_block; ++i) {
      const BlockPointer before = slots[i];
      slots[i] = visit(before, level - 1, index * format::slots_per_block + i);
      changed |= slots[i].raw != before.raw;
    }
    if (!changed) return kept;
    if (kept.is_valid()) context_.pages.release(kept.address());
    return BlockPointer::indirect(context_.pages.add(page.bytes));
  }

  BlockPointer visit_content(BlockPointer pointer, u32 level, u64 index) {
    if (is_link_ && index != 0) return cut();  // a target has one page
    const u64 span = span_of(level);
    if (context_.pages.claim(pointer.address(), span)) {
      page_count_ += span;
      content_end_ = std::max(content_end_, (index + 1) * span);
      return pointer;
    }
    if (level > 0) return split(pointer, level, index);
    u64 address = 0;
    if (pointer.is_unwritten()) {
      address = context_.pages.add_unwritten();
    } else {
      const auto page = std::make_unique<PageBuffer>();
      if (context_.old_state.reader.read_page(pointer.address(), page.get()) != PageState::good) return cut();
      address = context_.pages.add(page->bytes);
    }
    ++copied_;
    ++page_count_;
    content_end_ = std::max(content_end_, index + 1);
    const u64 tags = pointer.raw & ~BlockPointer::address_mask;
    return {address | tags};
  }

  // A large block of which a part belongs to another file becomes 512 smaller ones.
  BlockPointer split(BlockPointer pointer, u32 level, u64 index) {
    const auto page = std::make_unique<PageBuffer>();
    auto* slots = reinterpret_cast<BlockPointer*>(page->bytes);
    for (u32 i = 0; i < format::slots_per_block; ++i) {
      const u64 address = pointer.address() + i * span_of(level - 1) * page_size;
      const auto size = static_cast<BlockSize>(level);
      slots[i] = pointer.is_unwritten() ? BlockPointer::unwritten(address, size) : BlockPointer::data(address, size);
    }
    return rewrite_slots(BlockPointer::hole(), *page, level, index);
  }

  RepairContext& context_;
  u64 number_;
  format::Inode& inode_;
  bool is_directory_;
  bool is_link_;
  u64 page_count_ = 0;
  u64 content_end_ = 0;
  u64 cut_ = 0;
  u64 copied_ = 0;
};

void settle_size(RepairContext& context, u64 number, format::Inode& inode, u64 content_end) {
  const u32 type = inode.mode & S_IFMT;
  u64 size = inode.size_bytes;
  if (type == S_IFREG && !inode.is_inline() && size > check::file_size_max) size = content_end * page_size;
  if (type == S_IFREG && inode.is_inline()) size = std::min<u64>(size, format::inode_inline_capacity);
  if (size == inode.size_bytes) return;
  context.note_inode(number, fmt::format("its size becomes {}", size));
  inode.size_bytes = size;
}

void rebuild_directory(RepairContext& context, u64 number, format::Inode& inode, const DirectoryState& directory) {
  context.note_inode(number, fmt::format("is built anew with {} names", directory.names.size()));
  const std::vector<PageBuffer> built = build_directory(directory.names);
  PageAddresses addresses;
  for (const PageBuffer& page : built) addresses.emplace(addresses.size(), context.pages.add(page.bytes));
  build_map(context, addresses, least_height, inode);
  inode.size_bytes = built.size() * page_size;
}

}  // namespace

void build_map(RepairContext& context, const PageAddresses& pages, u32 height, format::Inode& inode) {
  const u64 end = pages.empty() ? 0 : pages.rbegin()->first + 1;
  if (height == least_height) {
    height = 0;
    while (end > format::inode_slot_count * span_of(height)) ++height;
  }
  GPU4FS_CHECK_LE(end, format::inode_slot_count * span_of(height));
  std::map<u64, BlockPointer> level;
  for (const auto& [index, address] : pages) level.emplace(index, BlockPointer::data(address, BlockSize::page_4k));
  inode.page_count = pages.size();
  for (u32 i = 0; i < height; ++i) {
    std::map<u64, BlockPointer> above;
    for (auto at = level.begin(); at != level.end();) {
      const u64 block = at->first / format::slots_per_block;
      PageBuffer page{};
      for (; at != level.end() && at->first / format::slots_per_block == block; ++at) {
        std::memcpy(page.bytes + at->first % format::slots_per_block * sizeof(BlockPointer), &at->second,
                    sizeof(BlockPointer));
      }
      above.emplace(block, BlockPointer::indirect(context.pages.add(page.bytes)));
      ++inode.page_count;
    }
    level = std::move(above);
  }
  std::fill(std::begin(inode.slots), std::end(inode.slots), BlockPointer::hole());
  for (const auto& [index, pointer] : level) inode.slots[index] = pointer;
  inode.height = static_cast<u8>(height);
}

void settle_maps(RepairContext& context) {
  for (auto& [number, inode] : context.inodes) {
    const auto directory = context.directories.find(number);
    const u64 counted = inode.page_count;
    if (directory != context.directories.end() && directory->second.is_rebuilt) {
      rebuild_directory(context, number, inode, directory->second);
    } else {
      MapRepair map(context, number, inode);
      map.run();
      settle_size(context, number, inode, map.content_end());
      inode.page_count = map.page_count();
    }
    inode.page_count += repair_attributes(context, number, inode);
    if (inode.page_count != counted) {
      context.note_inode(number, fmt::format("{} pages instead of {}", inode.page_count, counted));
    }
  }
}

}  // namespace gpu4fs::fsck::repair
