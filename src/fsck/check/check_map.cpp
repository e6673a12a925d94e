// Checks file maps: every slot of every level, every page claimed once, every page's checksum.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <memory>

#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/xxh3.hpp"
#include "format/format_text.hpp"
#include "fsck/check/check_context.hpp"
#include "pool/row_parities.hpp"

namespace gpu4fs::fsck::check {

namespace {

constexpr u64 pages_per_read = 256;

class MapWalker {
 public:
  MapWalker(CheckContext& context, u64 number, const format::Inode& inode, bool is_metadata)
      : context_(context),
        inode_(inode),
        owner_(inode_place(number, inode)),
        is_metadata_(is_metadata),
        is_link_((inode.mode & S_IFMT) == S_IFLNK) {
    const bool has_data_checksums =
        (context.pool.superblock.feature_incompatible & format::feature_data_checksums) != 0;
    verifies_data_ = !is_metadata && context.options.check_data && (has_data_checksums || is_link_);
  }

  void verify_page(u64 address, u64 file_page) {
    buffer_.resize(1);
    verify(address, 1, file_page);
  }

  MapResult walk() {
    if (inode_.height > map_height_max) return std::move(result_);  // inode_field is reported
    for (u32 i = 0; i < format::inode_slot_count; ++i) visit(inode_.slots[i], inode_.height, i);
    flush_run();
    return std::move(result_);
  }

 private:
  std::string slot_text(u32 level, u64 index) const { return fmt::format("slot of level {}, index {}", level, index); }

  // `index` counts slots of this level from the beginning of the file.
  void visit(format::BlockPointer pointer, u32 level, u64 index) {
    if (pointer.raw == 0) return;
    if (!pointer.is_well_formed() || pointer.is_hole() || !fits(pointer, level)) {
      context_.add(FindingId::pointer_malformed, owner_,
                   fmt::format("{}: {}", slot_text(level, index), format::to_text(pointer)));
      return;
    }
    if (pointer.is_indirect()) {
      visit_indirect(pointer.address(), level, index);
    } else {
      visit_content(pointer, level, index);
    }
  }

  bool fits(format::BlockPointer pointer, u32 level) const {
    if (pointer.is_indirect()) return level >= 1;
    if ((is_metadata_ || is_link_) && (level != 0 || pointer.is_unwritten())) return false;
    return static_cast<u32>(pointer.size()) == level + 1;
  }

  void visit_indirect(u64 address, u32 level, u64 index) {
    if (!claim_pages(context_, address, 1, owner_)) return;
    ++result_.page_count;
    const auto page = std::make_unique<PageBuffer>();
    if (!context_.read_metadata(address, owner_, page.get())) return;
    const auto* slots = reinterpret_cast<const format::BlockPointer*>(page->bytes);
    for (u32 i = 0; i < format::slots_per_block; ++i) {
      visit(slots[i], level - 1, index * format::slots_per_block + i);
    }
  }

  void visit_content(format::BlockPointer pointer, u32 level, u64 index) {
    const u64 span = u64{1} << (format::slot_shift * level);
    if (!claim_pages(context_, pointer.address(), span, owner_)) return;
    result_.page_count += span;
    result_.content_end = std::max(result_.content_end, (index + 1) * span);
    if (is_metadata_) {
      result_.pages.emplace(index, pointer.address());
    } else if (verifies_data_ && !pointer.is_unwritten()) {
      add_run(pointer.address(), span, index * span);
    }
  }

  void add_run(u64 address, u64 count, u64 file_page) {
    if (address != run_address_ + run_count_ * page_size ||
        run_place_.page + run_count_ >= context_.reader.chunk_page_count(run_place_.chunk)) {
      flush_run();
    }
    if (run_count_ == 0) {
      run_address_ = address;
      run_file_page_ = file_page;
      run_place_ = *context_.reader.locate(address);
    }
    run_count_ += count;
    if (run_count_ >= pages_per_read) flush_run();
  }

  // Verifies the collected pages.
  void flush_run() {
    // Most files are small.
    const u64 wanted = std::min(pages_per_read, run_count_);
    if (buffer_.size() < wanted) buffer_ = std::vector<PageBuffer>(std::min(pages_per_read, std::bit_ceil(wanted)));
    for (u64 done = 0; done < run_count_;) {
      const u64 count = std::min(pages_per_read, run_count_ - done);
      verify(run_address_ + done * page_size, count, run_file_page_ + done);
      done += count;
      context_.report_progress("files");
    }
    run_count_ = 0;
    run_address_ = ~u64{0};
  }

  void verify(u64 address, u64 count, u64 file_page) {
    const PagePlace place = *context_.reader.locate(address);
    if (!context_.reader.read_raw(place, count, buffer_.data())) {
      if (count > 1) {  // page by page, for an exact report
        for (u64 i = 0; i < count; ++i) verify(address + i * page_size, 1, file_page + i);
      } else if (context_.check_copies(address, owner_text(file_page))) {
        ++context_.result.pages_verified;  // from another copy
      } else {
        context_.add(FindingId::page_unreadable, context_.reader.place_text(address), owner_text(file_page));
      }
      return;
    }
    for (u64 i = 0; i < count; ++i) {
      format::PageDescriptor descriptor{};
      const PagePlace page{place.chunk, place.page + i, place.device, place.device_offset + i * page_size};
      const u64 page_address = address + i * page_size;
      context_.reader.read_descriptor(page, &descriptor);
      if (context_.check_copies(page_address, owner_text(file_page + i))) {
        // At least one copy is good.
      } else if (xxh3_page(Lane{}, &buffer_[i], page_address) != descriptor.checksum) {
        context_.add(FindingId::page_checksum, context_.reader.place_text(page_address), owner_text(file_page + i));
      }
      ++context_.result.pages_verified;
    }
  }

  std::string owner_text(u64 file_page) const {
    return fmt::format("{}, bytes from {}", owner_, file_page * page_size);
  }

  CheckContext& context_;
  const format::Inode& inode_;
  std::string owner_;
  bool is_metadata_;
  bool is_link_;  // its target is read like metadata
  bool verifies_data_ = false;
  MapResult result_;
  u64 run_address_ = ~u64{0};
  u64 run_count_ = 0;
  u64 run_file_page_ = 0;
  PagePlace run_place_{};
  std::vector<PageBuffer> buffer_;
};

}  // namespace

bool claim_pages(CheckContext& context, u64 address, u64 count, const std::string& owner) {
  const std::optional<PagePlace> first = context.reader.locate(address);
  if (!first || first->page + count > context.reader.chunk_page_count(first->chunk)) {
    context.add(FindingId::page_outside, owner, fmt::format("pointer to {:#x}", address));
    return false;
  }
  ChunkUse& use = context.chunks[first->chunk];
  u64 twice = 0;
  u64 not_allocated = 0;
  for (u64 page = first->page; page < first->page + count; ++page) {
    if (GPU4FS_MUTANT(check_passes_second_owner, test_bit(use.reached, page), false)) {
      ++twice;
      continue;
    }
    set_bit(use.reached, page);
    ++context.result.pages_used;
    if (use.has_bitmap && !test_bit(use.allocated, page)) ++not_allocated;
  }
  context.pages_passed += count - twice;
  if (twice > 0) {
    context.add(FindingId::page_used_twice, context.reader.place_text(address),
                fmt::format("{} of {} pages of {} are in use elsewhere too", twice, count, owner));
  }
  if (not_allocated > 0) {
    context.add(FindingId::page_not_allocated, context.reader.place_text(address),
                fmt::format("{} of {} pages of {}", not_allocated, count, owner));
  }
  return twice == 0;
}

bool CheckContext::check_copies(u64 address, const std::string& owner) {
  const u32 chunk = reader.locate(address)->chunk;
  const u32 count = reader.copy_count(chunk);
  PageBuffer page;
  if (count == 1) {
    // The rest of its row may suffice.
    if (pool::parity_count_of(pool.chunks[chunk].descriptor) == 0) return false;
    const bool damaged = reader.read_copy(address, 0, &page) != PageState::good;
    if (damaged && reader.read_page(address, &page) != PageState::good) return false;
    const bool is_here = pool.devices[reader.locate(address)->device].is_here();
    if (damaged && is_here) add(FindingId::copy_damaged, reader.place_text(address), owner);
    return true;
  }
  std::vector<u32> bad;
  u32 here = 0;
  for (u32 copy = 0; copy < count; ++copy) {
    if (!pool.devices[reader.locate(address, copy)->device].is_here()) continue;
    ++here;
    if (reader.read_copy(address, copy, &page) != PageState::good) bad.push_back(copy);
  }
  if (bad.size() == here) return false;
  for (const u32 copy : bad) {
    const PagePlace place = *reader.locate(address, copy);
    add(FindingId::copy_damaged,
        fmt::format("{} offset {:#x} (logical {:#x})", pool.devices[place.device].file.path(), place.device_offset,
                    address),
        owner);
  }
  return true;
}

bool CheckContext::read_metadata(u64 address, const std::string& owner, PageBuffer* page) {
  switch (reader.read_page(address, page)) {
    case PageState::good:
      break;
    case PageState::outside:
      add(FindingId::page_outside, owner, fmt::format("pointer to {:#x}", address));
      return false;
    case PageState::unreadable:
      add(FindingId::page_unreadable, reader.place_text(address), "metadata of " + owner);
      return false;
    case PageState::damaged:
      add(FindingId::page_checksum, reader.place_text(address), "metadata of " + owner);
      return false;
  }
  ++result.pages_verified;
  (void)check_copies(address, "metadata of " + owner);
  format::PageDescriptor descriptor{};
  const std::optional<PagePlace> place = reader.locate(address);
  // A checkpoint writes its pages while the next epoch is open.
  reader.read_descriptor(*place, &descriptor);
  if (descriptor.birth_epoch > static_cast<u32>(pool.superblock.epoch + 1) ||
      (descriptor.flags & ~format::page_flag_known) != 0) {
    add(FindingId::page_epoch, reader.place_text(address),
        fmt::format("born in epoch {}, the pool is at {}", descriptor.birth_epoch, pool.superblock.epoch));
  }
  return true;
}

void check_data_page(CheckContext& context, u64 number, const format::Inode& inode, u64 address, u64 file_page) {
  MapWalker(context, number, inode, false).verify_page(address, file_page);
}

PageAddresses list_pages(CheckContext& context, u64 number, const format::Inode& inode) {
  if (inode.is_inline()) return {};
  CheckResult unused;
  CheckOptions options;
  options.check_data = false;
  CheckContext quiet(options, context.pool, unused, context.reader.headers());
  for (const ChunkUse& use : context.chunks) {
    quiet.chunks.push_back({BitWords(), BitWords(use.reached.size()), false});
  }
  return MapWalker(quiet, number, inode, true).walk().pages;
}

MapResult check_map(CheckContext& context, u64 number, const format::Inode& inode, bool is_metadata) {
  return MapWalker(context, number, inode, is_metadata).walk();
}

}  // namespace gpu4fs::fsck::check
