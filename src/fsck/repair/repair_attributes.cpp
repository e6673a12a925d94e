// Extended attributes: kept unchanged or, if there is any fault, rebuilt in a new tree from the valid ones.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "fsck/repair/repair_context.hpp"

namespace gpu4fs::fsck::repair {

namespace {

using format::BlockPointer;
using format::BlockSize;

struct SoundAttribute {
  std::string name;
  std::string value;              // in its entry
  std::vector<PageBuffer> pages;  // of a large value
  u32 value_length;
  u32 value_hash;
};

// All readable and valid attributes, each name once.
std::vector<SoundAttribute> read_sound_attributes(MediumReader& reader, const format::Inode& inode) {
  const AttributePages pages = list_attribute_pages(reader, inode);
  std::vector<SoundAttribute> found;
  std::set<std::string> names;
  u64 names_length = 0;
  const auto take = [&](const AttributeItem& item) {
    SoundAttribute attribute{std::string(item.name), std::string(item.value), {}, item.value_length, item.value_hash};
    const bool is_good = item.value_slot != 0 ? read_great_value(reader, pages, item, &attribute.pages).empty()
                                              : attribute_hash(item.value) == item.value_hash &&
                                                    is_valid_attribute(item.name, item.value);
    const bool has_room = names_length + item.name.size() + 1 <= format::attribute_names_max;
    if (!is_good || !has_room || item.name.find('\0') != std::string_view::npos || !names.insert(attribute.name).second)
      return;
    names_length += item.name.size() + 1;
    found.push_back(std::move(attribute));
  };
  for (const auto& [index, address] : pages) {
    const auto page = std::make_unique<PageBuffer>();
    if (index >= format::attribute_entry_pages) break;
    if (reader.read_page(address, page.get()) == PageState::good) (void)read_attribute_page(*page, take);
  }
  return found;
}

class TreeBuilder {
 public:
  explicit TreeBuilder(RepairContext& context) : context_(context) {}

  // Builds the inode's new tree. Returns the number of its pages.
  u64 build(const std::vector<SoundAttribute>& attributes, format::Inode& inode) {
    for (const SoundAttribute& attribute : attributes) add(attribute);
    if (!attributes.empty()) end_page();
    const u64 end = level_.empty() ? 0 : level_.rbegin()->first + 1;
    u32 height = 0;
    for (u64 reach = 1; reach < end; reach *= format::slots_per_block) ++height;
    GPU4FS_CHECK_LE(height, u32{format::attribute_height_max});
    for (u32 i = 0; i < height; ++i) put_level_on_top();
    inode.attributes = level_.empty() ? BlockPointer::hole() : level_.begin()->second;
    inode.attribute_height = static_cast<u8>(height);
    return page_count_;
  }

 private:
  BlockPointer add_page(const PageBuffer& page, bool is_map_page) {
    ++page_count_;
    const u64 address = context_.pages.add(page.bytes);
    return is_map_page ? BlockPointer::indirect(address) : BlockPointer::data(address, BlockSize::page_4k);
  }

  void add(const SoundAttribute& attribute) {
    format::AttributeEntry entry{};
    entry.value_length = attribute.value_length;
    entry.value_hash = attribute.value_hash;
    entry.name_length = static_cast<u8>(attribute.name.size());
    if (!attribute.pages.empty()) {
      GPU4FS_CHECK_LT(slot_, u32{format::attribute_slot_end});
      entry.value_slot = static_cast<u16>(slot_++);
      const u64 first = u64{entry.value_slot} * format::attribute_slot_pages;
      for (u64 i = 0; i < attribute.pages.size(); ++i) level_.emplace(first + i, add_page(attribute.pages[i], false));
    }
    const u64 length = align_up(sizeof(entry) + attribute.name.size() + attribute.value.size(), u64{8});
    if (used_ + length > page_size) end_page();
    GPU4FS_CHECK_LE(used_ + length, page_size);
    u8* const to = page_.bytes + used_;
    std::memcpy(to, &entry, sizeof(entry));
    std::memcpy(to + sizeof(entry), attribute.name.data(), attribute.name.size());
    std::memcpy(to + sizeof(entry) + attribute.name.size(), attribute.value.data(), attribute.value.size());
    used_ += length;
    ++entry_count_;
  }

  // Packing in the old order takes no more pages than before, except for the unused rest of each page.
  void end_page() {
    format::AttributePageHeader header{};
    header.magic = format::attribute_page_magic;
    header.version = format::attribute_page_version;
    header.entry_count = static_cast<u16>(entry_count_);
    header.used_bytes = static_cast<u16>(used_);
    std::memcpy(page_.bytes, &header, sizeof(header));
    GPU4FS_CHECK_LT(next_page_, u64{format::attribute_entry_pages});
    level_.emplace(next_page_++, add_page(page_, false));
    page_ = {};
    used_ = sizeof(header);
    entry_count_ = 0;
  }

  void put_level_on_top() {
    std::map<u64, BlockPointer> above;
    for (auto at = level_.begin(); at != level_.end();) {
      const u64 block = at->first / format::slots_per_block;
      PageBuffer page{};
      for (; at != level_.end() && at->first / format::slots_per_block == block; ++at) {
        std::memcpy(page.bytes + at->first % format::slots_per_block * sizeof(BlockPointer), &at->second,
                    sizeof(BlockPointer));
      }
      above.emplace(block, add_page(page, true));
    }
    level_ = std::move(above);
  }

  RepairContext& context_;
  std::map<u64, BlockPointer> level_;
  PageBuffer page_{};
  u64 used_ = sizeof(format::AttributePageHeader);
  u32 entry_count_ = 0;
  u64 next_page_ = 0;
  u32 slot_ = format::attribute_slot_first;
  u64 page_count_ = 0;
};

// Claims the whole tree in place. Returns its pages, or 0; then nothing of it is claimed.
u64 claim_tree(RepairContext& context, const format::Inode& inode) {
  std::vector<u64> claimed;
  bool is_whole = true;
  walk_attributes(inode, [&](const AttributeBlock& block, PageBuffer* content) {
    const u64 address = block.pointer.address();
    is_whole = is_whole && block.is_well_formed() &&
               context.old_state.reader.read_page(address, content) == PageState::good &&
               context.pages.claim(address, 1);
    if (is_whole) claimed.push_back(address);
    return is_whole;
  });
  if (is_whole) return claimed.size();
  for (const u64 address : claimed) context.pages.release(address);
  return 0;
}

}  // namespace

u64 repair_attributes(RepairContext& context, u64 number, format::Inode& inode) {
  if (inode.attributes.raw == 0 && inode.attribute_height == 0) return 0;
  CheckResult result;
  check::CheckContext quiet(context.old_state.options, context.pool, result);
  check::check_attribute_tree(quiet, number, inode);
  const bool is_sound = result.findings.error_count() == 0 && inode.attribute_height <= format::attribute_height_max;
  if (is_sound) {
    const u64 page_count = claim_tree(context, inode);
    if (page_count != 0) return page_count;
  }
  const std::vector<SoundAttribute> attributes = read_sound_attributes(context.old_state.reader, inode);
  if (attributes.empty()) {
    context.note_inode(number, "its extended attributes are damaged and gone");
  } else {
    context.note_inode(number, fmt::format("{} extended attributes are in new pages", attributes.size()));
  }
  return TreeBuilder(context).build(attributes, inode);
}

}  // namespace gpu4fs::fsck::repair
