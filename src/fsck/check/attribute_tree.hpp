// Extended attributes of an inode on the medium, for fsck, repair and dump. Host only; shares no code with the engine.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/attribute_format.hpp"
#include "format/inode_format.hpp"
#include "fsck/check/medium_reader.hpp"

namespace gpu4fs::fsck {

// A pointer of the tree that is not a hole; `level` 0: to a page.
struct AttributeBlock {
  format::BlockPointer pointer;
  u32 level;
  u64 index;  // among those of its level

  bool is_well_formed() const;
};

// Calls `visit` for each pointer, from the root down. If it returns true after it has filled `block` with the content
// of a map page, the pointers in that page are visited.
using AttributeVisitor = std::function<bool(const AttributeBlock& block, PageBuffer* content)>;
void walk_attributes(const format::Inode& inode, const AttributeVisitor& visit);

// Addresses of all reachable pages of the tree, without map pages, by their index.
using AttributePages = std::map<u64, u64>;
AttributePages list_attribute_pages(MediumReader& reader, const format::Inode& inode);

// One entry. The views point into the page from which it was read.
struct AttributeItem {
  std::string_view name;
  std::string_view value;  // if it is in the page
  u32 value_length;
  u32 value_hash;
  u32 value_slot;
};

// Reads the entries of a page. Returns what is impossible about the page, "" if nothing is.
std::string read_attribute_page(const PageBuffer& page, const std::function<void(const AttributeItem&)>& visit);

// Access control lists have a format of their own, other attributes do not.
bool is_access_list_name(std::string_view name);
bool is_valid_attribute(std::string_view name, std::string_view value);
u32 attribute_hash(std::string_view value);
// Whether the value has pages of its own.
bool is_great_attribute(std::string_view name, u64 length);
u32 great_value_hash(const std::vector<PageBuffer>& pages);
// Reads its pages. Returns what is wrong, "" if nothing is.
std::string read_great_value(MediumReader& reader, const AttributePages& pages, const AttributeItem& item,
                             std::vector<PageBuffer>* value);

}  // namespace gpu4fs::fsck
