// Directories compared with a std::map: random insertion and removal, splits, collisions, and the same pages from every
// group.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/emulated_warp.hpp"
#include "support/directory_driver.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

struct Value {
  u64 inode;
  u32 type;
  friend bool operator==(const Value&, const Value&) = default;
};
using Model = std::map<std::string, Value>;

std::string random_name(std::mt19937_64& random, u32 length_max) {
  const u32 length = 1 + static_cast<u32>(random() % length_max);
  std::string name(length, 'a');
  for (char& c : name) c = static_cast<char>(1 + random() % 255);
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

// Every name of the model is found, the enumeration returns exactly the model, and every page is valid.
void expect_equal(DirectoryDriver& directory, const Model& model) {
  EXPECT_EQ(directory.entry_count(), model.size());
  for (const auto& [name, value] : model) {
    fs::FoundName found{};
    ASSERT_EQ(directory.find(Lane{}, directory.hashed(name), &found), Status::ok);
    ASSERT_EQ((Value{found.inode, found.type}), value);
  }
  std::vector<std::string> names;
  u64 cursor = fs::cursor_first_name;
  ASSERT_EQ(directory.enumerate(&cursor, model.size() + 1, &names), Status::not_found);
  ASSERT_EQ(names.size(), model.size());
  u64 previous = 0;
  for (const std::string& name : names) {
    ASSERT_TRUE(model.contains(name));
    const u64 hash = directory.hashed(name).hash;
    ASSERT_LE(previous, hash);
    previous = hash;
  }
  std::sort(names.begin(), names.end());
  ASSERT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  for (u64 page = 0; page < directory.page_count(); ++page) {
    ASSERT_EQ(fs::directory_check_page(Lane{}, directory.page(page), directory.page_count(), page == 0,
                                       directory.small().options().name_hash_seed),
              Status::ok)
        << "page " << page;
  }
}

TEST(NamesDirectory, HundredThousandNamesComeAndGo) {
  DirectoryDriver directory;
  Model model;
  std::mt19937_64 random(1);
  std::vector<std::string> names;
  const u32 count = scaled(100000);
  while (model.size() < count) {
    const std::string name = random_name(random, 24);
    const Value value{random() | 1, static_cast<u32>(random() % 16)};
    const bool is_new = model.emplace(name, value).second;
    ASSERT_EQ(directory.insert(Lane{}, directory.hashed(name), value.inode, value.type),
              is_new ? Status::ok : Status::exists);
    if (is_new) names.push_back(name);
  }
  expect_equal(directory, model);
  std::shuffle(names.begin(), names.end(), random);
  const u64 pages_when_full = directory.page_count();
  for (std::size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(directory.remove(Lane{}, directory.hashed(names[i])), Status::ok);
    ASSERT_EQ(directory.remove(Lane{}, directory.hashed(names[i])), Status::not_found);
    model.erase(names[i]);
    if (i == names.size() / 2) expect_equal(directory, model);
    // 40 bytes of a leaf for each name. Adjacent leaves together fill half a page, and some leaves have no neighbour.
    const u64 pages_needed = model.size() * 40 / page_size;
    if (i % 1000 == 0) {
      ASSERT_LE(directory.page_count(), 6 * pages_needed + 16) << model.size();
    }
  }
  expect_equal(directory, model);
  EXPECT_EQ(directory.page_count(), 1u);
  EXPECT_EQ(directory.dir().inode->height, 0);
  EXPECT_EQ(directory.dir().inode->page_count, 1u);
  // And it grows again.
  for (const std::string& name : names) {
    ASSERT_EQ(directory.insert(Lane{}, directory.hashed(name), 77, 4), Status::ok);
    model[name] = {77, 4};
  }
  expect_equal(directory, model);
  EXPECT_EQ(directory.page_count(), pages_when_full);
}

// In the order in which a directory is listed, and in the opposite order.
TEST(NamesDirectory, IsOnePageAgainInAnyOrderOfRemoval) {
  for (const bool backwards : {false, true}) {
    DirectoryDriver directory;
    for (u32 i = 0; i < 20'000; ++i) {
      ASSERT_EQ(directory.insert(Lane{}, directory.hashed("name " + std::to_string(i)), i + 100, 8), Status::ok);
    }
    std::vector<std::string> names;
    u64 cursor = fs::cursor_first_name;
    ASSERT_EQ(directory.enumerate(&cursor, 30'000, &names), Status::not_found);
    ASSERT_EQ(names.size(), 20'000u);
    if (backwards) std::reverse(names.begin(), names.end());
    for (const std::string& name : names) ASSERT_EQ(directory.remove(Lane{}, directory.hashed(name)), Status::ok);
    EXPECT_EQ(directory.page_count(), 1u);
  }
}

// Names move within the directory to one half of the hashes: the pages of the other half are given back.
TEST(NamesDirectory, RenamingShrinksAsWell) {
  DirectoryDriver directory;
  std::mt19937_64 random(9);
  std::map<std::string, u64> hashes;
  for (u32 i = 0; i < 4000; ++i) hashes.emplace("old " + std::to_string(i) + std::string(random() % 60, 'o'), random());
  for (const auto& [name, hash] : hashes) {
    ASSERT_EQ(directory.insert(Lane{}, DirectoryDriver::with_hash(name, hash), 100, 8), Status::ok);
  }
  const u64 pages_before = directory.page_count();
  std::map<std::string, u64> renamed;
  for (const auto& [name, hash] : hashes) {
    const std::string other = "new " + std::to_string(renamed.size()) + std::string(random() % 60, 'n');
    renamed[other] = random() | u64{1} << 63;
    ASSERT_EQ(directory.rename(Lane{}, DirectoryDriver::with_hash(name, hash),
                               DirectoryDriver::with_hash(other, renamed[other])),
              Status::ok);
    if (renamed.size() % 1000 != 0) continue;
    for (const auto& [there, its_hash] : renamed) {
      fs::FoundName found{};
      ASSERT_EQ(directory.find(Lane{}, DirectoryDriver::with_hash(there, its_hash), &found), Status::ok);
    }
  }
  EXPECT_EQ(directory.entry_count(), renamed.size());
  EXPECT_LT(directory.page_count(), 2 * pages_before);
  for (const auto& [name, hash] : renamed) {
    ASSERT_EQ(directory.remove(Lane{}, DirectoryDriver::with_hash(name, hash)), Status::ok);
  }
  EXPECT_EQ(directory.page_count(), 1u);
  EXPECT_EQ(directory.dir().inode->page_count, 1u);
}

// Nodes below nodes are given back too: hashes that agree in their first bits.
TEST(NamesDirectory, DeepTreesAreOnePageAgain) {
  DirectoryDriver directory;
  std::mt19937_64 random(8);
  std::map<std::string, u64> hashes;
  for (u32 i = 0; i < 3000; ++i) {
    const u64 hash = i % 3 == 0 ? random() : i % 3 == 1 ? random() >> 20 : (random() >> 40) | u64{1} << 63;
    hashes.emplace("deep " + std::to_string(i), hash);
  }
  for (const auto& [name, hash] : hashes) {
    ASSERT_EQ(directory.insert(Lane{}, DirectoryDriver::with_hash(name, hash), 100, 8), Status::ok);
  }
  u32 nodes = 0;
  for (u64 page = 0; page < directory.page_count(); ++page) {
    if (fs::detail::page_header(directory.page(page)).magic == format::directory_node_magic) ++nodes;
  }
  EXPECT_GT(nodes, 3u);
  std::vector<std::string> names;
  for (const auto& [name, hash] : hashes) names.push_back(name);
  std::shuffle(names.begin(), names.end(), random);
  for (std::size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(directory.remove(Lane{}, DirectoryDriver::with_hash(names[i], hashes[names[i]])), Status::ok);
    if (i % 500 != 0) continue;
    for (std::size_t k = i + 1; k < names.size(); ++k) {
      fs::FoundName found{};
      ASSERT_EQ(directory.find(Lane{}, DirectoryDriver::with_hash(names[k], hashes[names[k]]), &found), Status::ok);
    }
  }
  EXPECT_EQ(directory.page_count(), 1u);
  EXPECT_EQ(directory.dir().inode->page_count, 1u);
}

TEST(NamesDirectory, RandomChangesOfAFewNamesOfAnyLength) {
  DirectoryDriver directory;
  Model model;
  std::mt19937_64 random(2);
  std::vector<std::string> pool;
  for (u32 i = 0; i < 400; ++i) pool.push_back(random_name(random, name_length_max));
  for (u32 step = 0; step < scaled(40000); ++step) {
    const std::string& name = pool[random() % pool.size()];
    const bool is_there = model.contains(name);
    const Value value{random() | 1, static_cast<u32>(random() % 16)};
    switch (random() % 3) {
      case 0:
        ASSERT_EQ(directory.insert(Lane{}, directory.hashed(name), value.inode, value.type),
                  is_there ? Status::exists : Status::ok);
        if (!is_there) model[name] = value;
        break;
      case 1:
        ASSERT_EQ(directory.remove(Lane{}, directory.hashed(name)), is_there ? Status::ok : Status::not_found);
        model.erase(name);
        break;
      default:
        ASSERT_EQ(directory.replace(Lane{}, directory.hashed(name), value.inode, value.type),
                  is_there ? Status::ok : Status::not_found);
        if (is_there) model[name] = value;
    }
    if (step % 5000 == 0) expect_equal(directory, model);
  }
  expect_equal(directory, model);
}

// The pages with the names survive a checkpoint and a new mount.
TEST(NamesDirectory, IsTheSameAfterACheckpointAndAMount) {
  DirectoryDriver directory;
  Model model;
  std::mt19937_64 random(3);
  for (u32 i = 0; i < 3000; ++i) {
    const std::string name = random_name(random, 40);
    if (!model.emplace(name, Value{i + 100, 8}).second) continue;
    ASSERT_EQ(directory.insert(Lane{}, directory.hashed(name), i + 100, 8), Status::ok);
  }
  ASSERT_EQ(directory.small().checkpoint(Lane{}), Status::ok);
  SmallFileSystem again(directory.small().options(), directory.small().images());
  ASSERT_EQ(again.load_status(), Status::ok);
  fs::Operation op = again.operation();
  fs::InodeRef root{};
  ASSERT_EQ(fs::get_inode(Lane{}, again.fs(), op, format::inode_number_root, &root), Status::ok);
  ASSERT_EQ(root.inode->entry_count, model.size());
  for (const auto& [name, value] : model) {
    fs::FoundName found{};
    ASSERT_EQ(fs::directory_find(Lane{}, again.fs(), op, root, directory.hashed(name), &found), Status::ok);
    ASSERT_EQ((Value{found.inode, found.type}), value);
  }
}

// Names whose hashes agree in the upper `shared_bits` bits: splits go down through the levels.
class NamesDirectoryPrefix : public testing::TestWithParam<u32> {};

TEST_P(NamesDirectoryPrefix, SplitsDownToTheFirstBitThatDiffers) {
  const u32 shared_bits = GetParam();
  DirectoryDriver directory;
  std::mt19937_64 random(shared_bits);
  const u64 prefix = fs::hash_prefix(0xa5c3f09617e28b4dull, shared_bits);
  std::vector<std::pair<std::string, u64>> names;
  for (u32 i = 0; i < 300; ++i) {
    std::string name = "name" + std::to_string(i);
    name.resize(8 + random() % 120, 'x');
    names.emplace_back(name, prefix | (random() & low_bits(64 - shared_bits)));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& [name, hash] = names[i];
    ASSERT_EQ(directory.insert(Lane{}, DirectoryDriver::with_hash(name, hash), i + 1, 8), Status::ok);
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    fs::FoundName found{};
    ASSERT_EQ(directory.find(Lane{}, DirectoryDriver::with_hash(names[i].first, names[i].second), &found), Status::ok);
    ASSERT_EQ(found.inode, i + 1);
    ASSERT_GE(9 * found.path.level + found.path.depth, shared_bits);
  }
  std::vector<std::string> seen;
  u64 cursor = fs::cursor_first_name;
  ASSERT_EQ(directory.enumerate(&cursor, 1000, &seen), Status::not_found);
  ASSERT_EQ(seen.size(), names.size());
  for (const auto& [name, hash] : names) {
    ASSERT_EQ(directory.remove(Lane{}, DirectoryDriver::with_hash(name, hash)), Status::ok);
  }
  EXPECT_EQ(directory.entry_count(), 0u);
}
INSTANTIATE_TEST_SUITE_P(SharedBits, NamesDirectoryPrefix,
                         testing::Values(0u, 1u, 8u, 9u, 10u, 17u, 18u, 26u, 27u, 44u, 50u));

TEST(NamesDirectory, EqualHashesFillOneLeafAndThenAreRefused) {
  DirectoryDriver directory;
  const u64 hash = 0x123456789abcdef0ull;
  std::vector<std::string> names;
  Status status = Status::ok;
  while (status == Status::ok) {
    std::string name = "collision " + std::to_string(names.size());
    name.resize(60, '.');
    status = directory.insert(Lane{}, DirectoryDriver::with_hash(name, hash), names.size() + 1, 8);
    if (status == Status::ok) names.push_back(name);
  }
  EXPECT_EQ(status, Status::no_space);
  // (4096 - 32) / (16 + 72)
  EXPECT_EQ(names.size(), 46u);
  EXPECT_EQ(directory.page_count(), 1u);
  for (std::size_t i = 0; i < names.size(); ++i) {
    fs::FoundName found{};
    ASSERT_EQ(directory.find(Lane{}, DirectoryDriver::with_hash(names[i], hash), &found), Status::ok);
    ASSERT_EQ(found.inode, i + 1);
  }
  // All share one cursor group; every one is returned.
  std::vector<std::string> seen;
  u64 cursor = fs::cursor_first_name;
  Status last = Status::ok;
  while (last == Status::ok) last = directory.enumerate(&cursor, 1, &seen);
  ASSERT_EQ(last, Status::not_found);
  std::sort(seen.begin(), seen.end());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(seen, names);
  // A name with the opposite first bit splits the root and finds room.
  EXPECT_EQ(directory.insert(Lane{}, DirectoryDriver::with_hash("elsewhere", ~hash), 9, 8), Status::ok);
  for (const std::string& name : names) {
    ASSERT_EQ(directory.remove(Lane{}, DirectoryDriver::with_hash(name, hash)), Status::ok);
  }
  EXPECT_EQ(directory.entry_count(), 1u);
}

// One sequence of changes; names long enough that the leaves split.
struct Change {
  std::string name;
  u64 inode;
  bool inserts;
};

std::vector<Change> make_changes(u32 count) {
  std::mt19937_64 random(5);
  std::vector<Change> changes;
  std::vector<std::string> present;
  for (u32 i = 0; i < count; ++i) {
    if (present.size() > 20 && random() % 4 == 0) {
      const std::size_t victim = random() % present.size();
      changes.push_back({present[victim], 0, false});
      present.erase(present.begin() + static_cast<std::ptrdiff_t>(victim));
      continue;
    }
    std::string name = random_name(random, 200) + std::to_string(i);
    changes.push_back({name, i + 1, true});
    present.push_back(name);
  }
  return changes;
}

TEST(NamesDirectory, AWarpMakesTheSamePagesAsALane) {
  DirectoryDriver by_lane;
  DirectoryDriver by_warp;
  const std::vector<Change> changes = make_changes(150);
  const auto apply = [&changes](auto g, DirectoryDriver& directory) {
    for (const Change& change : changes) {
      const fs::HashedName name = directory.hashed(change.name);
      fs::FoundName found{};
      if (change.inserts) {
        EXPECT_EQ(directory.insert(g, name, change.inode, 8), Status::ok);
        EXPECT_EQ(directory.find(g, name, &found), Status::ok);
        EXPECT_EQ(found.inode, change.inode);
      } else {
        EXPECT_EQ(directory.remove(g, name), Status::ok);
        EXPECT_EQ(directory.find(g, name, &found), Status::not_found);
      }
    }
  };
  apply(Lane{}, by_lane);
  run_emulated_warp([&](EmulatedWarp g) { apply(g, by_warp); });
  ASSERT_GT(by_lane.page_count(), 4u);
  ASSERT_EQ(by_lane.page_count(), by_warp.page_count());
  for (u64 page = 0; page < by_lane.page_count(); ++page) {
    EXPECT_EQ(std::memcmp(by_lane.page(page), by_warp.page(page), page_size), 0) << "page " << page;
  }
}

}  // namespace
}  // namespace gpu4fs::test
