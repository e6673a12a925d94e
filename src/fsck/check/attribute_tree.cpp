#include "fsck/check/attribute_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/xxh3_serial.hpp"
#include "format/format_text.hpp"

namespace gpu4fs::fsck {

namespace {

void walk_below(const AttributeBlock& block, const AttributeVisitor& visit) {
  const auto content = std::make_unique<PageBuffer>();
  if (!visit(block, content.get()) || block.level == 0) return;
  for (u64 i = 0; i < format::slots_per_block; ++i) {
    format::BlockPointer pointer{};
    std::memcpy(&pointer, content->bytes + i * sizeof(pointer), sizeof(pointer));
    if (pointer.raw == 0) continue;
    walk_below({pointer, block.level - 1, block.index * format::slots_per_block + i}, visit);
  }
}

}  // namespace

bool AttributeBlock::is_well_formed() const {
  return pointer.is_well_formed() && pointer.is_valid() && pointer.is_indirect() == (level != 0) &&
         !pointer.is_unwritten() && pointer.size() == format::BlockSize::page_4k;
}

void walk_attributes(const format::Inode& inode, const AttributeVisitor& visit) {
  if (inode.attributes.raw == 0 || inode.attribute_height > format::attribute_height_max) return;
  walk_below({inode.attributes, inode.attribute_height, 0}, visit);
}

AttributePages list_attribute_pages(MediumReader& reader, const format::Inode& inode) {
  AttributePages pages;
  walk_attributes(inode, [&](const AttributeBlock& block, PageBuffer* content) {
    if (!block.is_well_formed()) return false;
    if (block.level == 0) pages.emplace(block.index, block.pointer.address());
    return block.level != 0 && reader.read_page(block.pointer.address(), content) == PageState::good;
  });
  return pages;
}

std::string read_attribute_page(const PageBuffer& page, const std::function<void(const AttributeItem&)>& visit) {
  format::AttributePageHeader header{};
  std::memcpy(&header, page.bytes, sizeof(header));
  const bool has_reserved =
      std::any_of(std::begin(header.reserved), std::end(header.reserved), [](u16 word) { return word != 0; });
  if (header.magic != format::attribute_page_magic || header.version != format::attribute_page_version ||
      header.used_bytes > page_size || header.used_bytes < sizeof(header) || has_reserved) {
    return "impossible header";
  }
  std::size_t offset = sizeof(header);
  for (u32 i = 0; i < header.entry_count; ++i) {
    format::AttributeEntry entry{};
    if (offset + sizeof(entry) > header.used_bytes) return fmt::format("entry {} is cut off", i);
    std::memcpy(&entry, page.bytes + offset, sizeof(entry));
    const auto* name = reinterpret_cast<const char*>(page.bytes) + offset + sizeof(entry);
    const u64 inside = entry.value_slot == 0 ? entry.value_length : 0;
    const u64 length = sizeof(entry) + entry.name_length + inside;
    if (entry.name_length == 0 || entry.reserved != 0 || entry.value_length > format::attribute_value_max ||
        offset + length > header.used_bytes) {
      return fmt::format("entry {} is impossible", i);
    }
    const std::string_view text(name, entry.name_length);
    const bool has_slot =
        entry.value_slot >= format::attribute_slot_first && entry.value_slot < format::attribute_slot_end;
    const bool fits = is_great_attribute(text, entry.value_length) ? has_slot : entry.value_slot == 0;
    if (!fits) {
      return fmt::format("the value of \"{}\", {} bytes, is at {}", format::escape_name(text), entry.value_length,
                         entry.value_slot);
    }
    visit({text,
           {name + entry.name_length, static_cast<std::size_t>(inside)},
           entry.value_length,
           entry.value_hash,
           entry.value_slot});
    offset += align_up(length, u64{8});
  }
  if (offset == header.used_bytes) return "";
  return fmt::format("entries end at {}, the header says {}", offset, header.used_bytes);
}

bool is_access_list_name(std::string_view name) {
  return name == "system.posix_acl_access" || name == "system.posix_acl_default";
}

bool is_valid_attribute(std::string_view name, std::string_view value) {
  if (!is_access_list_name(name)) return true;
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

u32 attribute_hash(std::string_view value) {
  return static_cast<u32>(xxh3_64(value.data(), value.size(), 0));
}

bool is_great_attribute(std::string_view name, u64 length) {
  return length > format::attribute_inline_max && !is_access_list_name(name);
}

u32 great_value_hash(const std::vector<PageBuffer>& pages) {
  u64 hash = 0;
  for (const PageBuffer& page : pages) hash = xxh3_64(page.bytes, page_size, hash);
  return static_cast<u32>(hash);
}

std::string read_great_value(MediumReader& reader, const AttributePages& pages, const AttributeItem& item,
                             std::vector<PageBuffer>* value) {
  GPU4FS_CHECK_NE(item.value_slot, 0u);
  value->resize(divide_up(u64{item.value_length}, page_size));
  for (u64 i = 0; i < value->size(); ++i) {
    const auto found = pages.find(u64{item.value_slot} * format::attribute_slot_pages + i);
    if (found == pages.end()) return "has no page " + std::to_string(i);
    if (reader.read_page(found->second, &(*value)[i]) != PageState::good) return "has a page that cannot be read";
  }
  const std::size_t end = item.value_length % page_size;
  const u8* const last = value->back().bytes;
  const bool is_padded = end == 0 || std::all_of(last + end, last + page_size, [](u8 byte) { return byte == 0; });
  if (!is_padded) return "has bytes behind its end";
  return great_value_hash(*value) == item.value_hash ? "" : "does not match its hash";
}

}  // namespace gpu4fs::fsck
