// Damaged directory pages: reads end with an answer, and if prepare accepts a page, commit survives.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/directory_driver.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

bool is_answer(Status status) {
  return status == Status::ok || status == Status::not_found || status == Status::exists ||
         status == Status::corrupt_structure || status == Status::no_space;
}

std::vector<std::string> fill(DirectoryDriver& directory, std::mt19937_64& random, u32 count) {
  std::vector<std::string> names;
  for (u32 i = 0; i < count; ++i) {
    names.push_back(std::to_string(i) + std::string(1 + random() % 100, 'n'));
    EXPECT_EQ(directory.insert(Lane{}, directory.hashed(names.back()), i + 1, 8), Status::ok);
  }
  return names;
}

// Changes 1 to 8 bytes, more often in headers, slots and children than in the heap.
void damage(u8* page, std::mt19937_64& random) {
  const u32 count = 1 + static_cast<u32>(random() % 8);
  for (u32 i = 0; i < count; ++i) {
    const u32 range = random() % 4 == 0 ? 32u : random() % 3 == 0 ? 512u : u32{page_size};
    u8 value = static_cast<u8>(random());
    if (random() % 4 == 0) value = random() % 2 == 0 ? 0 : 0xff;
    page[random() % range] = value;
  }
}

// Calls all reading functions. They end, whatever the pages contain.
void read_all(DirectoryDriver& directory, const std::vector<std::string>& names, std::mt19937_64& random) {
  for (u32 i = 0; i < 8; ++i) {
    const fs::HashedName name = directory.hashed(names[random() % names.size()]);
    fs::FoundName found{};
    ASSERT_TRUE(is_answer(directory.find(Lane{}, name, &found)));
    fs::RemovePlan removal{};
    ASSERT_TRUE(is_answer(
        fs::directory_prepare_remove(Lane{}, directory.fs(), directory.op(), directory.dir(), name, &removal)));
    fs::InsertPlan plan{};
    const std::string other = "other" + std::to_string(random());
    ASSERT_TRUE(is_answer(fs::directory_prepare_insert(Lane{}, directory.fs(), directory.op(), directory.dir(),
                                                       directory.hashed(other), &plan)));
  }
  std::vector<std::string> seen;
  u64 cursor = fs::cursor_first_name;
  ASSERT_TRUE(is_answer(directory.enumerate(&cursor, 100000, &seen)));
  for (u64 page = 0; page < directory.page_count(); ++page) {
    ASSERT_TRUE(
        is_answer(fs::directory_check_page(Lane{}, directory.page(page), directory.page_count(), page == 0, 1)));
  }
}

TEST(NamesDamage, ReadersGiveAnAnswer) {
  std::mt19937_64 random(11);
  DirectoryDriver directory;
  const std::vector<std::string> names = fill(directory, random, 500);
  ASSERT_GT(directory.page_count(), 3u);
  for (u32 round = 0; round < scaled(4000); ++round) {
    u8* page = directory.page(random() % directory.page_count());
    u8 saved[page_size];
    std::memcpy(saved, page, page_size);
    if (random() % 50 == 0) {
      for (u64 i = 0; i < page_size; ++i) page[i] = static_cast<u8>(random());
    } else {
      damage(page, random);
    }
    read_all(directory, names, random);
    std::memcpy(page, saved, page_size);
  }
  std::vector<std::string> seen;
  u64 cursor = fs::cursor_first_name;
  EXPECT_EQ(directory.enumerate(&cursor, 1000, &seen), Status::not_found);
  EXPECT_EQ(seen.size(), names.size());
}

TEST(NamesDamage, WhatPrepareAcceptsCommitSurvives) {
  SmallPoolOptions options;
  options.frame_count = 1024;
  for (u32 round = 0; round < scaled(300); ++round) {
    std::mt19937_64 random(round);
    DirectoryDriver directory(options);
    const std::vector<std::string> names = fill(directory, random, 60 + static_cast<u32>(random() % 60));
    damage(directory.page(random() % directory.page_count()), random);
    for (u32 i = 0; i < 60; ++i) {
      const std::string& name = names[random() % names.size()];
      const Status removed = directory.remove(Lane{}, directory.hashed(name));
      ASSERT_TRUE(is_answer(removed)) << round << " " << status_name(removed);
      const Status inserted =
          directory.insert(Lane{}, directory.hashed("new" + std::to_string(i) + std::string(200, 'x')), 7, 8);
      ASSERT_TRUE(is_answer(inserted)) << round << " " << status_name(inserted);
    }
  }
}

// A reader of one name does not notice these; a writer of the leaf would.
TEST(NamesDamage, ChangesLookAtTheWholeLeaf) {
  std::mt19937_64 random(17);
  DirectoryDriver directory;
  const std::vector<std::string> names = fill(directory, random, 500);
  const fs::HashedName name = directory.hashed(names[0]);
  fs::FoundName found{};
  ASSERT_EQ(directory.find(Lane{}, name, &found), Status::ok);
  const u64 index = found.path.leaf_index;
  const auto expect_refused = [&](auto&& change) {
    u8* const leaf = directory.page(index);
    u8 saved[page_size];
    std::memcpy(saved, leaf, page_size);
    auto& header = *reinterpret_cast<format::DirectoryPageHeader*>(leaf);
    auto* slots = reinterpret_cast<format::DirectorySlot*>(leaf + format::directory_leaf_slots_offset);
    ASSERT_GT(header.entry_count, 2u);
    change(header, slots[found.slot == 0 ? 1 : 0]);
    EXPECT_EQ(directory.find(Lane{}, name, &found), Status::ok);
    EXPECT_EQ(directory.remove(Lane{}, name), Status::corrupt_structure);
    EXPECT_EQ(directory.replace(Lane{}, name, 9, 8), Status::corrupt_structure);
    fs::InsertPlan plan{};
    const std::string other_name = "beside";
    const fs::HashedName beside = DirectoryDriver::with_hash(other_name, name.hash);
    EXPECT_EQ(fs::directory_prepare_insert(Lane{}, directory.fs(), directory.op(), directory.dir(), beside, &plan),
              Status::corrupt_structure);
    std::memcpy(directory.page(index), saved, page_size);
  };
  expect_refused([](auto& header, auto&) { header.heap_garbage = static_cast<u16>(header.heap_garbage + 8); });
  expect_refused([](auto&, auto& other) { other.name_length = static_cast<u8>(other.name_length + 40); });
  expect_refused([](auto&, auto& other) { other.entry_offset = static_cast<u16>(other.entry_offset + 8); });
  expect_refused([](auto&, auto& other) { other.reserved = 1; });
  EXPECT_EQ(directory.remove(Lane{}, name), Status::ok);
}

// With each of these a trusting reader would go wrong.
TEST(NamesDamage, IsRecognised) {
  std::mt19937_64 random(13);
  DirectoryDriver directory;
  const std::vector<std::string> names = fill(directory, random, 500);
  fs::FoundName found{};
  const fs::HashedName name = directory.hashed(names[0]);
  ASSERT_EQ(directory.find(Lane{}, name, &found), Status::ok);
  u8* leaf = directory.page(found.path.leaf_index);
  u8* node = directory.page(found.path.node_index);
  u8 saved[page_size];
  const auto expect_corrupt = [&](u8* page, auto&& change) {
    std::memcpy(saved, page, page_size);
    change();
    EXPECT_EQ(directory.find(Lane{}, name, &found), Status::corrupt_structure);
    std::memcpy(page, saved, page_size);
  };
  auto& header = *reinterpret_cast<format::DirectoryPageHeader*>(leaf);
  auto* slots = reinterpret_cast<format::DirectorySlot*>(leaf + format::directory_leaf_slots_offset);
  auto* children = reinterpret_cast<u32*>(node + format::directory_node_children_offset);
  const u32 child = fs::node_slot(name.hash, found.path.level);
  const u32 slot = found.slot;
  expect_corrupt(leaf, [&] { header.magic ^= 1; });
  expect_corrupt(leaf, [&] { header.version = 2; });
  expect_corrupt(leaf, [&] { header.level = 1; });
  expect_corrupt(leaf, [&] { header.depth = 10; });
  expect_corrupt(leaf, [&] { header.prefix ^= u64{1} << 63; });
  expect_corrupt(leaf, [&] { header.entry_count = 500; });
  expect_corrupt(leaf, [&] { header.heap_begin = 4097; });
  expect_corrupt(leaf, [&] { header.heap_garbage = 4096; });
  expect_corrupt(leaf, [&] { slots[slot].entry_offset = 4092; });
  expect_corrupt(leaf, [&] { slots[slot].entry_offset = 0; });
  expect_corrupt(leaf, [&] { slots[slot].name_length = 0; });
  expect_corrupt(node, [&] { children[child] = 0; });
  expect_corrupt(node, [&] { children[child] = 1u << 30; });
  // A node below itself: the levels do not match, so no walk loops.
  std::memcpy(saved, node, page_size);
  std::memcpy(leaf, node, page_size);
  EXPECT_EQ(directory.find(Lane{}, name, &found), Status::corrupt_structure);
}

}  // namespace
}  // namespace gpu4fs::test
