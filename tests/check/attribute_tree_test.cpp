// fsck and repair of extended attributes with more than one page: canaries, and the values that survive.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "check/check_agreement.hpp"
#include "check/pool_image.hpp"
#include "fsck/check/attribute_tree.hpp"

namespace gpu4fs::test::attribute_tree_test {
namespace {

using fsck::AttributePages;
using fsck::CheckResult;
using fsck::FindingId;
using Values = std::map<std::string, std::string>;

struct AttributedFile {
  std::string name;
  u32 great_count;
  u64 inode = 0;
  Values values;
};

std::string bytes(u64 length, u64 seed) {
  std::mt19937_64 random(seed);
  std::string value(length, '\0');
  for (char& byte : value) byte = static_cast<char>(random());
  return value;
}

class AttributeTree : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // One map page, and two levels of them.
    files_ = {{"many", 3, 0, {}}, {"high", 30, 0, {}}};
    image_ = new PoolImage([](bench::BenchClient& client, const PoolImage&) {
      for (AttributedFile& file : files_) fill(client, file);
      client.sync();
    });
  }
  static void TearDownTestSuite() {
    delete image_;
    image_ = nullptr;
  }
  void TearDown() override {
    image_->restore();
    EXPECT_EQ(describe(image_->check()), "");
  }

  static void fill(bench::BenchClient& client, AttributedFile& file) {
    file.inode = client.create(format::inode_number_root, file.name);
    for (u32 i = 0; i < 9; ++i) file.values["user.small" + std::to_string(i)] = bytes(900 + i, i);
    for (u32 i = 0; i < file.great_count; ++i) file.values["user.great" + std::to_string(i)] = bytes(40000 + i, i);
    for (const auto& [name, value] : file.values) {
      wire::Command command = client.named(wire::Opcode::set_attribute, file.inode, name);
      command.data = client.buffer_address(0);
      command.length = value.size();
      std::memcpy(client.buffer(), value.data(), value.size());
      client.call(command, "set_attribute");
    }
  }

  AttributePages pages(const AttributedFile& file) {
    const pool::OpenedPool pool = image_->open();
    fsck::MediumReader reader(pool);
    return fsck::list_attribute_pages(reader, fsck::read_inode(reader, file.inode));
  }
  // The first map page over pages.
  u64 block(const AttributedFile& file) {
    const pool::OpenedPool pool = image_->open();
    fsck::MediumReader reader(pool);
    u64 address = 0;
    fsck::walk_attributes(
        fsck::read_inode(reader, file.inode), [&](const fsck::AttributeBlock& at, fsck::PageBuffer* page) {
          if (at.level == 1 && address == 0) address = at.pointer.address();
          return at.level != 0 && reader.read_page(at.pointer.address(), page) == fsck::PageState::good;
        });
    return address;
  }
  // The entry with that name: its page and offset.
  struct Place {
    u64 address = 0;
    u64 offset = 0;
    format::AttributeEntry entry{};
  };
  Place find(const AttributedFile& file, const std::string& name) {
    for (const auto& [index, address] : pages(file)) {
      Place place{address, sizeof(format::AttributePageHeader), {}};
      if (index >= format::attribute_entry_pages) break;
      alignas(16) u8 page[page_size];
      image_->edit_page(address, [&](u8* content) { std::memcpy(page, content, page_size); });
      format::AttributePageHeader header{};
      std::memcpy(&header, page, sizeof(header));
      while (place.offset < header.used_bytes) {
        std::memcpy(&place.entry, page + place.offset, sizeof(place.entry));
        const char* text = reinterpret_cast<const char*>(page) + place.offset + sizeof(place.entry);
        if (std::string_view(text, place.entry.name_length) == name) return place;
        const u64 inside = place.entry.value_slot == 0 ? place.entry.value_length : 0;
        place.offset += align_up(sizeof(place.entry) + place.entry.name_length + inside, u64{8});
      }
    }
    ADD_FAILURE() << name << " is not there";
    return {};
  }

  // Both checkers find the damage and it can be repaired; all of the file's values except `lost` survive.
  void expect(const AttributedFile& file, FindingId id, const std::vector<std::string>& lost, bool all_may_go = false) {
    const CheckResult result = image_->check();
    EXPECT_GT(result.findings.count(id), 0u) << fsck::finding_kind(id).id << " is missing:\n" << describe(result);
    expect_engines_agree(*image_, result);
    std::string said;
    EXPECT_GT(image_->repair(false, &said).repair_count, 0u);
    const CheckResult after = image_->check();
    EXPECT_EQ(after.findings.error_count(), 0u) << describe(after) << "after\n" << said;
    EXPECT_EQ(image_->repair().repair_count, 0u);
    image_->mount_once();
    EXPECT_EQ(image_->check().findings.error_count(), 0u);
    Values expected = file.values;
    for (const std::string& name : lost) expected.erase(name);
    const Values found = values(file);
    if (!all_may_go) {
      EXPECT_TRUE(found == expected) << found.size() << " values\n" << said;
    }
    for (const auto& [name, value] : found) EXPECT_TRUE(value == file.values.at(name)) << name;
    image_->restore();
  }
  Values values(const AttributedFile& file) {
    const pool::OpenedPool pool = image_->open();
    fsck::MediumReader reader(pool);
    const AttributePages all = fsck::list_attribute_pages(reader, fsck::read_inode(reader, file.inode));
    Values found;
    for (const auto& [index, address] : all) {
      fsck::PageBuffer page{};
      if (index >= format::attribute_entry_pages) break;
      EXPECT_EQ(reader.read_page(address, &page), fsck::PageState::good);
      EXPECT_EQ(fsck::read_attribute_page(page,
                                          [&](const fsck::AttributeItem& item) {
                                            std::string& value = found[std::string(item.name)];
                                            value = item.value;
                                            if (item.value_slot == 0) return;
                                            std::vector<fsck::PageBuffer> parts;
                                            EXPECT_EQ(fsck::read_great_value(reader, all, item, &parts), "");
                                            for (const fsck::PageBuffer& part : parts)
                                              value.append(reinterpret_cast<const char*>(part.bytes), page_size);
                                            value.resize(item.value_length);
                                          }),
                "");
    }
    return found;
  }

  static PoolImage* image_;
  static std::vector<AttributedFile> files_;
};
PoolImage* AttributeTree::image_ = nullptr;
std::vector<AttributedFile> AttributeTree::files_;

TEST_F(AttributeTree, IsSoundAsTheEngineLeavesIt) {
  const CheckResult result = image_->check();
  EXPECT_EQ(result.findings.kept().size(), 0u) << describe(result);
  expect_engines_agree(*image_, result);
  EXPECT_EQ(image_->inode(files_[0].inode).attribute_height, 1u);
  EXPECT_EQ(image_->inode(files_[1].inode).attribute_height, 2u);
  for (const AttributedFile& file : files_) EXPECT_TRUE(values(file) == file.values);
}

TEST_F(AttributeTree, Values) {
  for (const AttributedFile& file : files_) {
    const Place great = find(file, "user.great1");
    const u64 first = u64{great.entry.value_slot} * format::attribute_slot_pages;
    const u64 middle = pages(file).at(first + 3);
    image_->edit_page(middle, [](u8* page) { page[1000] ^= 1; });
    expect(file, FindingId::attribute_page, {"user.great1"});
    // After the end of the value.
    image_->edit_page(pages(file).at(first + 9), [](u8* page) { page[page_size - 1] ^= 1; });
    expect(file, FindingId::attribute_page, {"user.great1"});
    fsck::PagePlace place{};
    {
      const pool::OpenedPool pool = image_->open();
      place = fsck::MediumReader(pool).locate(middle).value();
    }
    image_->flip_bit(place.device, place.device_offset + 5, 2);
    expect(file, FindingId::page_checksum, {"user.great1"});
  }
}

TEST_F(AttributeTree, Entries) {
  for (const AttributedFile& file : files_) {
    const auto edit = [&](const std::string& name, const std::function<void(format::AttributeEntry&)>& change) {
      const Place place = find(file, name);
      image_->edit_page(place.address, [&](u8* page) {
        format::AttributeEntry entry = place.entry;
        change(entry);
        std::memcpy(page + place.offset, &entry, sizeof(entry));
      });
    };
    const u16 other = find(file, "user.great2").entry.value_slot;
    edit("user.great1", [&](format::AttributeEntry& entry) { entry.value_slot = other; });
    expect(file, FindingId::attribute_page, {"user.great1"});
    edit("user.great1", [](format::AttributeEntry& entry) { entry.value_slot = format::attribute_slot_end - 1; });
    expect(file, FindingId::attribute_page, {"user.great1"});
    edit("user.great1", [](format::AttributeEntry& entry) { entry.value_length -= page_size; });
    expect(file, FindingId::attribute_page, {"user.great1"});
    edit("user.great1", [](format::AttributeEntry& entry) { entry.value_slot = 1; });
    expect(file, FindingId::attribute_page, {}, true);
    edit("user.small3", [](format::AttributeEntry& entry) { entry.value_hash ^= 1; });
    expect(file, FindingId::attribute_page, {"user.small3"});
    // Two entries with one name: the one in the earlier page is kept, and one of the two values is right.
    const Place place = find(file, "user.small8");
    image_->edit_page(place.address, [&](u8* page) { page[place.offset + sizeof(format::AttributeEntry) + 10] = '0'; });
    expect(file, FindingId::attribute_page, {"user.small8"});
  }
}

TEST_F(AttributeTree, MapPages) {
  for (const AttributedFile& file : files_) {
    const u64 address = block(file);
    const u64 first = u64{find(file, "user.great1").entry.value_slot} * format::attribute_slot_pages;
    ASSERT_LT(first, u64{format::slots_per_block});
    const auto edit = [&](const std::function<void(u64&)>& change) {
      image_->edit_page(address, [&](u8* page) {
        u64 pointer = 0;
        std::memcpy(&pointer, page + first * sizeof(pointer), sizeof(pointer));
        change(pointer);
        std::memcpy(page + first * sizeof(pointer), &pointer, sizeof(pointer));
      });
    };
    edit([](u64& pointer) { pointer = 0; });
    expect(file, FindingId::attribute_page, {"user.great1"});
    edit([](u64& pointer) { pointer |= format::BlockPointer::unwritten_bit; });
    expect(file, FindingId::pointer_malformed, {"user.great1"});
    edit([](u64& pointer) { pointer += u64{1} << 50; });
    expect(file, FindingId::page_outside, {"user.great1"});
    const u64 taken = image_->inode(image_->content().attribute_file).attributes.raw;
    edit([&](u64& pointer) { pointer = taken; });
    expect(file, FindingId::page_used_twice, {"user.great1"});
    // A page that no entry names.
    image_->edit_page(address, [&](u8* page) {
      std::memcpy(page + (first + 15) * sizeof(u64), page + first * sizeof(u64), sizeof(u64));
    });
    expect(file, FindingId::attribute_page, {});
  }
}

TEST_F(AttributeTree, Inodes) {
  for (const AttributedFile& file : files_) {
    for (const u8 height : {u8{0}, u8{3}, u8{255}}) {
      image_->edit_inode(file.inode, [&](format::Inode& inode) { inode.attribute_height = height; });
      expect(file, height == 0 ? FindingId::pointer_malformed : FindingId::inode_field, {}, true);
    }
    image_->edit_inode(file.inode, [](format::Inode& inode) { inode.attributes = format::BlockPointer::hole(); });
    expect(file, FindingId::inode_field, {}, true);
  }
  image_->edit_inode(image_->content().attribute_file, [](format::Inode& inode) { inode.attribute_height = 1; });
  const CheckResult result = image_->check();
  EXPECT_GT(result.findings.count(FindingId::pointer_malformed), 0u) << describe(result);
  expect_engines_agree(*image_, result);
}

}  // namespace
}  // namespace gpu4fs::test::attribute_tree_test
