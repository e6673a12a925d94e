// Extended attributes: pages of entries, and whether the tree has exactly the pages that its entries name.
#include <fmt/format.h>

#include <memory>
#include <set>

#include "format/format_text.hpp"
#include "fsck/check/check_context.hpp"

namespace gpu4fs::fsck::check {

namespace {

class AttributeCheck {
 public:
  AttributeCheck(CheckContext& context, const format::Inode& inode, std::string place, AttributePages pages)
      : context_(context), pages_(std::move(pages)), place_(std::move(place)), is_going_(inode.link_count == 0) {}

  void run() {
    for (const auto& [index, address] : pages_) {
      if (index >= format::attribute_entry_pages) break;
      const auto page = std::make_unique<PageBuffer>();
      if (context_.reader.read_page(address, page.get()) == PageState::good) check_page(*page);
    }
    if (names_length_ > format::attribute_names_max) fail(fmt::format("{} bytes of names", names_length_));
    if (!is_going_) check_owners();
  }

  void check_page(const PageBuffer& page) {
    const std::string problem = read_attribute_page(page, [&](const AttributeItem& item) { check_item(item); });
    if (!problem.empty()) fail(problem);
  }

 private:
  void fail(std::string text) { context_.add(FindingId::attribute_page, place_, std::move(text)); }

  void check_item(const AttributeItem& item) {
    const std::string shown = format::escape_name(item.name);
    names_length_ += item.name.size() + 1;
    if (!names_.insert(std::string(item.name)).second || item.name.find('\0') != std::string_view::npos) {
      fail(fmt::format("name \"{}\" is there twice or not allowed", shown));
    }
    if (item.value_slot != 0) return check_great(item, shown);
    if (attribute_hash(item.value) != item.value_hash) {
      fail(fmt::format("the value of \"{}\" does not match its hash", shown));
    }
    if (!is_valid_attribute(item.name, item.value)) fail(fmt::format("\"{}\" is no valid access control list", shown));
  }

  void check_great(const AttributeItem& item, const std::string& shown) {
    if (!slots_.emplace(item.value_slot, item.value_length).second) {
      return fail(fmt::format("the value of \"{}\" is where another is", shown));
    }
    // When an inode is being freed, its values are removed before their entries.
    std::vector<PageBuffer> value;
    const std::string problem = is_going_ ? "" : read_great_value(context_.reader, pages_, item, &value);
    if (!problem.empty()) fail(fmt::format("the value of \"{}\" {}", shown, problem));
  }

  void check_owners() {
    for (auto at = pages_.lower_bound(format::attribute_entry_pages); at != pages_.end(); ++at) {
      const auto slot = slots_.find(static_cast<u32>(at->first / format::attribute_slot_pages));
      const u64 inside = at->first % format::attribute_slot_pages;
      if (slot != slots_.end() && inside * page_size < slot->second) continue;
      fail(fmt::format("page {} of the attributes is of no value", at->first));
    }
  }

  CheckContext& context_;
  AttributePages pages_;
  std::string place_;
  bool is_going_;
  u64 names_length_ = 0;
  std::set<std::string> names_;
  std::map<u32, u32> slots_;  // of large values: lengths
};

}  // namespace

void check_attribute_page(CheckContext& context, const std::string& place, const PageBuffer& page) {
  AttributeCheck(context, format::Inode{}, place, {}).check_page(page);
}

void check_attribute_tree(CheckContext& context, u64 number, const format::Inode& inode) {
  AttributeCheck(context, inode, inode_place(number, inode), list_attribute_pages(context.reader, inode)).run();
}

u64 check_attributes(CheckContext& context, u64 number, const format::Inode& inode) {
  const std::string place = inode_place(number, inode);
  u64 page_count = 0;
  walk_attributes(inode, [&](const AttributeBlock& block, PageBuffer* content) {
    if (!block.is_well_formed()) {
      context.add(FindingId::pointer_malformed, place, "attributes: " + format::to_text(block.pointer));
      return false;
    }
    ++page_count;
    const u64 address = block.pointer.address();
    if (!claim_pages(context, address, 1, place) || !context.read_metadata(address, place, content)) return false;
    if (inode.attribute_height == 0) check_attribute_page(context, place, *content);
    return block.level != 0;
  });
  if (inode.attribute_height != 0) check_attribute_tree(context, number, inode);
  return page_count;
}

}  // namespace gpu4fs::fsck::check
