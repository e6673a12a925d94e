// Extended attributes compared with a std::map, their limits, damaged attribute pages, access control lists.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/emulated_warp.hpp"
#include "fs/names/stored_access_lists.hpp"
#include "support/small_file_system.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

class NamesAttributes : public testing::Test {
 protected:
  NamesAttributes() : op_(small_.operation()) {
    GPU4FS_CHECK_OK(fs::get_inode(Lane{}, small_.fs(), op_, format::inode_number_root, &file_));
  }

  static fs::AttributeName named(const std::string& name) {
    return {reinterpret_cast<const u8*>(name.data()), static_cast<u32>(name.size()), 0};
  }
  // Begins the next epoch and evicts everything.
  void settle() {
    GPU4FS_CHECK_OK(small_.checkpoint(Lane{}));
    fs::evict_frames(Lane{}, small_.fs(), small_.fs().pages.frame_count);
    GPU4FS_CHECK_OK(fs::get_inode(Lane{}, small_.fs(), op_, format::inode_number_root, &file_));
  }
  template <class Group>
  Status set(Group g, const std::string& name, const std::string& value, u32 mask = 0) {
    fs::AttributePlan plan{};
    const u32 length = static_cast<u32>(value.size());
    GPU4FS_TRY(
        fs::attribute_prepare_set(g, small_.fs(), op_, file_, {named(name), length, mask, work_, nullptr}, &plan));
    GPU4FS_TRY(fs::reserve_attributes(g, small_.fs(), op_, plan.touched_pages, plan.new_pages));
    fs::attribute_commit_set(g, small_.fs(), op_, file_, plan,
                             {named(name), length, 0, nullptr, reinterpret_cast<const u8*>(value.data())});
    on_leader(g, [&] { fs::release_reservations(small_.fs(), op_); });
    return Status::ok;
  }
  template <class Group>
  Status remove(Group g, const std::string& name) {
    fs::FoundAttribute found{};
    GPU4FS_TRY(fs::attribute_find(g, small_.fs(), op_, file_, named(name), &found));
    GPU4FS_TRY(fs::attribute_prepare_remove(g, small_.fs(), op_, file_, found));
    GPU4FS_TRY(fs::reserve_attributes(g, small_.fs(), op_, fs::attribute_removal_pages, 0));
    fs::attribute_commit_remove(g, small_.fs(), op_, file_, found);
    on_leader(g, [&] { fs::release_reservations(small_.fs(), op_); });
    return Status::ok;
  }
  Status get(const std::string& name, std::string* value) {
    fs::FoundAttribute found{};
    GPU4FS_TRY(fs::attribute_find(Lane{}, small_.fs(), op_, file_, named(name), &found));
    value->assign(found.value_length, '\xee');
    GPU4FS_TRY(fs::attribute_read(Lane{}, small_.fs(), op_, file_, found, reinterpret_cast<u8*>(value->data())));
    return fs::attribute_check_page(fs::page_data(small_.fs(), found.frame));
  }
  std::map<std::string, u32> list(bool hide_trusted) {
    std::string bytes(format::attribute_value_max, '\xee');
    fs::NameList list{reinterpret_cast<u8*>(bytes.data()), bytes.size(), 0, hide_trusted};
    EXPECT_EQ(fs::attributes_list(Lane{}, small_.fs(), op_, file_, &list), Status::ok);
    std::map<std::string, u32> names;
    for (u64 at = 0; at < list.length; at += std::strlen(&bytes[at]) + 1) ++names[&bytes[at]];
    return names;
  }
  void expect_equal(const std::map<std::string, std::string>& model) {
    const std::map<std::string, u32> names = list(false);
    ASSERT_EQ(names.size(), model.size());
    for (const auto& [name, value] : model) {
      EXPECT_EQ(names.at(name), 1u);
      if (small_.fs().pages.free_count < 128) settle();
      std::string found;
      ASSERT_EQ(get(name, &found), Status::ok) << name;
      EXPECT_TRUE(found == value) << name;
    }
  }

  alignas(16) u8 work_[page_size];
  SmallFileSystem small_;
  fs::Operation op_;
  fs::InodeRef file_{};
};

// Small and large values, and enough names for several pages; from time to time all pages are read from the medium.
TEST_F(NamesAttributes, FollowAMap) {
  std::mt19937_64 random(21);
  std::map<std::string, std::string> model;
  const u64 page_count = file_.inode->page_count;
  u32 greatest_height = 0;
  for (u32 step = 0; step < scaled(20000); ++step) {
    const std::string name = "user.n" + std::to_string(random() % 40);
    const bool is_there = model.contains(name);
    if (step % 2000 == 1999) {
      // All are removed, so trees of every height are built anew.
      for (const auto& [gone, value] : model) ASSERT_EQ(remove(Lane{}, gone), Status::ok);
      model.clear();
    } else if (random() % 3 == 0) {
      ASSERT_EQ(remove(Lane{}, name), is_there ? Status::ok : Status::no_attribute);
      model.erase(name);
    } else {
      const u64 kind = random() % 20;
      const u64 bound = kind == 0 ? 65537 : kind < 3 ? 9000 : 1100;
      const std::string value(random() % bound, static_cast<char>(random()));
      const u32 mask = static_cast<u32>(random() % 3);
      Status expected = Status::ok;
      if (mask == fs::attribute_create && is_there) expected = Status::exists;
      if (mask == fs::attribute_replace && !is_there) expected = Status::no_attribute;
      ASSERT_EQ(set(Lane{}, name, value, mask), expected);
      if (expected == Status::ok) model[name] = value;
    }
    std::string value;
    ASSERT_EQ(get(name, &value), model.contains(name) ? Status::ok : Status::no_attribute);
    if (model.contains(name)) {
      ASSERT_TRUE(value == model[name]);
    }
    ASSERT_EQ(file_.inode->attributes.is_valid(), !model.empty());
    greatest_height = std::max(greatest_height, u32{file_.inode->attribute_height});
    if (model.empty()) {
      ASSERT_EQ(file_.inode->page_count, page_count);
      ASSERT_EQ(file_.inode->attribute_height, 0u);
    }
    if (random() % 4 == 0 || small_.fs().dirty.count > 100) settle();
    if (step % 500 == 0) expect_equal(model);
  }
  EXPECT_GE(greatest_height, 1u);
  EXPECT_EQ(small_.fs().had_error, 0u);
  expect_equal(model);
}

TEST_F(NamesAttributes, AWarpSetsAndRemoves) {
  run_emulated_warp([&](EmulatedWarp g) {
    EXPECT_EQ(set(g, "user.a", std::string(3000, 'a')), Status::ok);
    EXPECT_EQ(set(g, "user.b", std::string(20000, 'b')), Status::ok);
    EXPECT_EQ(set(g, "user.c", std::string(1024, 'c')), Status::ok);
    EXPECT_EQ(set(g, "user.b", std::string(9000, 'B')), Status::ok);
    EXPECT_EQ(set(g, "user.a", "now short too"), Status::ok);
    EXPECT_EQ(remove(g, "user.c"), Status::ok);
    EXPECT_EQ(remove(g, "user.c"), Status::no_attribute);
  });
  std::string value;
  EXPECT_EQ(get("user.a", &value), Status::ok);
  EXPECT_EQ(value, "now short too");
  EXPECT_EQ(get("user.b", &value), Status::ok);
  EXPECT_EQ(value, std::string(9000, 'B'));
  // A page of entries, three of the value, a map page; one of content.
  EXPECT_EQ(file_.inode->page_count, 1 + 1 + 3 + 1u);
}

TEST_F(NamesAttributes, ValuesOfEverySize) {
  for (const u64 size :
       {u64{0}, u64{1}, u64{1024}, u64{1025}, page_size - 1, page_size, page_size + 1, u64{65535}, u64{65536}}) {
    const std::string value(size, static_cast<char>('a' + size % 26));
    ASSERT_EQ(set(Lane{}, "user.x", value), Status::ok) << size;
    settle();
    expect_equal({{"user.x", value}});
    const u64 pages = size > 1024 ? divide_up(size, page_size) + 1 : file_.inode->attribute_height;
    EXPECT_EQ(file_.inode->page_count, 2 + pages) << size;
  }
  // A large value replaced by a small one, and back.
  ASSERT_EQ(set(Lane{}, "user.x", "small"), Status::ok);
  EXPECT_EQ(file_.inode->page_count, 3u) << "the map page stays";
  settle();
  ASSERT_EQ(set(Lane{}, "user.x", std::string(5000, 'g')), Status::ok);
  expect_equal({{"user.x", std::string(5000, 'g')}});
  EXPECT_EQ(remove(Lane{}, "user.x"), Status::ok);
  EXPECT_EQ(file_.inode->page_count, 1u);
  EXPECT_EQ(file_.inode->attribute_height, 0u);
}

// More large values than one map page has room for.
TEST_F(NamesAttributes, ManyGreatValues) {
  std::map<std::string, std::string> model;
  for (u32 i = 0; i < 40; ++i) {
    const std::string name = "user.great" + std::to_string(i);
    model[name] = std::string(65536 - i, static_cast<char>('0' + i));
    ASSERT_EQ(set(Lane{}, name, model[name]), Status::ok) << name;
    settle();
  }
  EXPECT_EQ(file_.inode->attribute_height, 2u);
  EXPECT_EQ(file_.inode->page_count, 1 + 1 + 40 * 16 + 2 + 1u);
  expect_equal(model);
  for (const auto& [name, value] : model) {
    ASSERT_EQ(remove(Lane{}, name), Status::ok);
    settle();
  }
  EXPECT_EQ(file_.inode->page_count, 1u);
  EXPECT_EQ(file_.inode->attribute_height, 0u);
}

TEST_F(NamesAttributes, NamesOf64KiB) {
  std::map<std::string, std::string> model;
  u32 length = 0;
  for (u32 i = 0; length + 256 <= format::attribute_names_max; ++i) {
    const std::string name = "user." + std::to_string(i) + std::string(i < 10 ? 249 : i < 100 ? 248 : 247, 'n');
    ASSERT_EQ(name.size(), 255u);
    model[name] = std::string(i % 7 == 0 ? 2000 : 20, 'v');
    ASSERT_EQ(set(Lane{}, name, model[name]), Status::ok) << i;
    length += 256;
    settle();
  }
  const u32 left = format::attribute_names_max - length;
  EXPECT_EQ(set(Lane{}, "user." + std::string(left - 5, 'x'), ""), Status::no_space);
  const std::string last = "user." + std::string(left - 6, 'x');
  EXPECT_EQ(set(Lane{}, last, "fits"), Status::ok);
  model[last] = "fits";
  EXPECT_EQ(set(Lane{}, "u", ""), Status::no_space);
  EXPECT_EQ(set(Lane{}, last, std::string(3000, 'y')), Status::ok) << "the name is there";
  model[last] = std::string(3000, 'y');
  expect_equal(model);
}

// Values inside of their entries have room in 64 pages.
TEST_F(NamesAttributes, EntriesOf256KiB) {
  u32 count = 0;
  Status status = Status::ok;
  while (status == Status::ok) {
    status = set(Lane{}, "user.n" + std::to_string(count), std::string(1000, 'v'));
    if (status == Status::ok) ++count;
    settle();
  }
  EXPECT_EQ(status, Status::no_space);
  EXPECT_EQ(count, 64 * 3u);
  EXPECT_EQ(set(Lane{}, "user.n", std::string(1025, 'v')), Status::ok) << "in pages of its own";
  EXPECT_EQ(set(Lane{}, "user.n5", std::string(999, 'w')), Status::ok);
}

TEST_F(NamesAttributes, TrustedNamesAreHiddenFromOthers) {
  ASSERT_EQ(set(Lane{}, "trusted.a", "1"), Status::ok);
  ASSERT_EQ(set(Lane{}, "user.a", "2"), Status::ok);
  EXPECT_EQ(list(false).size(), 2u);
  EXPECT_EQ(list(true), (std::map<std::string, u32>{{"user.a", 1}}));
  u8 small[8];
  fs::NameList list{small, sizeof(small), 0, false};
  EXPECT_EQ(fs::attributes_list(Lane{}, small_.fs(), op_, file_, &list), Status::attribute_range);
  EXPECT_EQ(list.length, 17u);
}

TEST_F(NamesAttributes, DamagedPagesGiveAnAnswer) {
  std::mt19937_64 random(22);
  for (u32 i = 0; i < 20; ++i) {
    ASSERT_EQ(set(Lane{}, "user.name" + std::to_string(i), std::string(random() % 150, 'v')), Status::ok);
  }
  u32 frame = fs::no_frame;
  u32 index = 0;
  ASSERT_EQ(fs::next_attribute_page(Lane{}, small_.fs(), op_, file_, &index, &frame), Status::ok);
  u8* page = fs::page_data(small_.fs(), frame);
  u8 saved[page_size];
  std::memcpy(saved, page, page_size);
  u32 recognised = 0;
  for (u32 round = 0; round < scaled(20000); ++round) {
    const u32 range = random() % 2 == 0 ? 64u : u32{page_size};
    for (u32 i = 0; i < 1 + random() % 6; ++i) page[random() % range] = static_cast<u8>(random());
    fs::FoundAttribute found{};
    const Status status = fs::attribute_find(Lane{}, small_.fs(), op_, file_, named("user.name7"), &found);
    ASSERT_TRUE(status == Status::ok || status == Status::no_attribute || status == Status::corrupt_structure);
    recognised += status == Status::corrupt_structure;
    if (status == Status::ok && found.value_slot == 0) {
      ASSERT_LE(found.value_offset + found.value_length, page_size);
    }
    if (status != Status::corrupt_structure) {
      (void)set(Lane{}, "user.name7", std::string(random() % 400, 'w'));
      u8 names[page_size];
      // A damaged entry refers to a value in pages of its own that do not exist.
      std::string value;
      (void)get("user.name7", &value);
      fs::NameList list{names, sizeof(names), 0, true};
      (void)fs::attributes_list(Lane{}, small_.fs(), op_, file_, &list);
    }
    std::memcpy(page, saved, page_size);
  }
  EXPECT_GT(recognised, 0u);
}

TEST_F(NamesAttributes, ACountThatIsTooSmallIsNoted) {
  ASSERT_EQ(set(Lane{}, "user.name", "value"), Status::ok);
  file_.inode->page_count = 0;
  EXPECT_EQ(remove(Lane{}, "user.name"), Status::ok);
  EXPECT_EQ(file_.inode->page_count, 0u);
  EXPECT_EQ(small_.fs().had_error, 1u);
}

struct ListEntry {
  u32 tag;
  u32 permissions;
  u32 id;
};

std::string encode(const std::vector<ListEntry>& entries) {
  std::string value("\2\0\0\0", 4);
  for (const ListEntry& e : entries) {
    for (const u32 byte : {e.tag, 0u, e.permissions, 0u, e.id & 255, e.id >> 8 & 255, e.id >> 16 & 255, e.id >> 24}) {
      value.push_back(static_cast<char>(byte));
    }
  }
  return value;
}
const u8* bytes(const std::string& value) {
  return reinterpret_cast<const u8*>(value.data());
}
bool is_valid(const std::string& value) {
  return fs::acl_is_valid(bytes(value), static_cast<u32>(value.size()));
}

constexpr u32 nobody = 0xffffffff;

TEST(NamesAccessList, ValidityFollowsAclValid) {
  const std::vector<ListEntry> minimal{{1, 6, nobody}, {4, 4, nobody}, {0x20, 0, nobody}};
  EXPECT_TRUE(is_valid(encode(minimal)));
  EXPECT_TRUE(is_valid(encode({{1, 6, nobody}, {2, 7, 5}, {4, 4, nobody}, {0x10, 7, nobody}, {0x20, 0, nobody}})));
  EXPECT_FALSE(is_valid(encode({{1, 6, nobody}, {2, 7, 5}, {4, 4, nobody}, {0x20, 0, nobody}}))) << "no mask";
  EXPECT_FALSE(is_valid(encode({{1, 6, nobody}, {4, 4, nobody}, {4, 4, nobody}, {0x20, 0, nobody}}))) << "twice";
  EXPECT_FALSE(is_valid(encode({{4, 4, nobody}, {1, 6, nobody}, {0x20, 0, nobody}}))) << "order";
  EXPECT_FALSE(is_valid(encode({{1, 6, nobody}, {4, 4, nobody}}))) << "no other";
  EXPECT_FALSE(is_valid(encode({{1, 9, nobody}, {4, 4, nobody}, {0x20, 0, nobody}}))) << "permissions";
  EXPECT_FALSE(is_valid(encode({{1, 6, nobody}, {3, 4, nobody}, {0x20, 0, nobody}}))) << "tag";
  EXPECT_FALSE(is_valid(encode(minimal).substr(0, 27))) << "length";
  EXPECT_FALSE(is_valid(std::string("\3", 1) + encode(minimal).substr(1))) << "version";
}

TEST(NamesAccessList, ModeAndListFollowEachOther) {
  std::string value = encode({{1, 7, nobody}, {2, 6, 5}, {4, 5, nobody}, {0x10, 4, nobody}, {0x20, 1, nobody}});
  const u32 length = static_cast<u32>(value.size());
  EXPECT_EQ(fs::acl_mode(bytes(value), length), 0741u);
  fs::acl_set_mode(reinterpret_cast<u8*>(value.data()), length, 0652);
  EXPECT_EQ(fs::acl_mode(bytes(value), length), 0652u);
  EXPECT_EQ(fs::acl_entry(bytes(value), 2).permissions, 5u) << "the owning group's entry stays behind the mask";
  EXPECT_EQ(fs::acl_inherited_mode(bytes(value), length, 0100666), 0100642u);
}

TEST(NamesAccessList, GrantsAsPosixDraftSays) {
  const std::string value =
      encode({{1, 6, nobody}, {2, 7, 5}, {4, 4, nobody}, {8, 2, 30}, {0x10, 6, nobody}, {0x20, 1, nobody}});
  format::Inode inode{};
  inode.uid = 1;
  inode.gid = 10;
  const auto allowed = [&](u32 uid, u32 gid, u32 wanted) {
    const fs::Credentials who{nullptr, uid, gid, 0, 0};
    return fs::acl_allows(bytes(value), static_cast<u32>(value.size()), inode, who, wanted);
  };
  EXPECT_TRUE(allowed(1, 99, 6));  // owner
  EXPECT_FALSE(allowed(1, 99, 1));
  EXPECT_TRUE(allowed(5, 99, 6));  // named user, masked
  EXPECT_FALSE(allowed(5, 99, 1));
  EXPECT_TRUE(allowed(7, 10, 4));  // owning group
  EXPECT_FALSE(allowed(7, 10, 2));
  EXPECT_TRUE(allowed(7, 30, 2));  // named group
  EXPECT_FALSE(allowed(7, 30, 1)) << "a matching group excludes the entry for others";
  EXPECT_TRUE(allowed(7, 99, 1));  // others
  EXPECT_FALSE(allowed(7, 99, 4));
}

TEST_F(NamesAttributes, ANewDirectoryInheritsTheDefaultList) {
  const std::string defaults =
      encode({{1, 7, nobody}, {2, 6, 5}, {4, 5, nobody}, {0x10, 7, nobody}, {0x20, 0, nobody}});
  ASSERT_EQ(set(Lane{}, "system.posix_acl_default", defaults), Status::ok);
  fs::InheritedAccess inherited{};
  ASSERT_EQ(fs::prepare_inherited_access(Lane{}, small_.fs(), op_, file_, {0040775, 022}, &inherited), Status::ok);
  EXPECT_EQ(inherited.mode, 0040770u) << "the umask does not count beside a default list";
  EXPECT_EQ(inherited.new_pages, 1u);
  u64 number = 0;
  ASSERT_EQ(fs::claim_inode(Lane{}, small_.fs(), op_, &number), Status::ok);
  ASSERT_EQ(fs::prepare_new_inode(Lane{}, small_.fs(), op_, number), Status::ok);
  ASSERT_EQ(fs::reserve_metadata(Lane{}, small_.fs(), op_, {2, 0, 1}), Status::ok);
  fs::NewInode values{};
  values.mode = static_cast<u16>(inherited.mode);
  const fs::InodeRef child = fs::commit_new_inode(Lane{}, small_.fs(), op_, number, values);
  fs::commit_inherited_access(Lane{}, small_.fs(), op_, child, inherited);
  fs::release_reservations(small_.fs(), op_);
  file_ = child;
  std::string value;
  ASSERT_EQ(get("system.posix_acl_default", &value), Status::ok);
  EXPECT_EQ(value, defaults);
  ASSERT_EQ(get("system.posix_acl_access", &value), Status::ok);
  EXPECT_EQ(fs::acl_mode(bytes(value), static_cast<u32>(value.size())), 0770u);
  // chmod changes the list.
  fs::FoundAttribute found{};
  ASSERT_EQ(fs::prepare_mode_change(Lane{}, small_.fs(), op_, child, &found), Status::ok);
  ASSERT_EQ(fs::reserve_metadata(Lane{}, small_.fs(), op_, {1, 1, 0}), Status::ok);
  fs::commit_mode_change(Lane{}, small_.fs(), op_, child, found, 0040701);
  fs::release_reservations(small_.fs(), op_);
  ASSERT_EQ(get("system.posix_acl_access", &value), Status::ok);
  EXPECT_EQ(fs::acl_mode(bytes(value), static_cast<u32>(value.size())), 0701u);
}

}  // namespace
}  // namespace gpu4fs::test
