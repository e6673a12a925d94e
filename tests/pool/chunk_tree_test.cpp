// The chunk tree compared with a std::map, with its structure checked after each step; crashes between any two of its
// writes; replicas that disagree; many chunks.
#include <gtest/gtest.h>

#include <random>

#include "pool/chunk_tree/chunk_tree.hpp"
#include "support/test_scale.hpp"
#include "support/tree_medium.hpp"

namespace gpu4fs::pool {
namespace {

using gpu4fs::test::make_tree_chunk;
using gpu4fs::test::TreeChecker;
using gpu4fs::test::TreeMedium;
using gpu4fs::test::TreeModel;

std::string check_all(const TreeMedium& medium, const TreeRoot& root, u64 epoch, const TreeModel& model) {
  for (u32 replica = 0; replica < medium.replica_count(); ++replica) {
    if (!medium.is_here(replica)) continue;
    const std::string problem = TreeChecker(medium, replica, root, epoch).check(model);
    if (!problem.empty()) return fmt::format("replica {}: {}", replica, problem);
  }
  return "";
}

TreeModel content_of(ChunkTree& tree) {
  TreeModel content;
  tree.for_each([&](const OpenedChunk& chunk) { content[chunk.descriptor.base_address] = chunk; });
  return content;
}

bool is_same(const TreeModel& a, const TreeModel& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
           return x.first == y.first && gpu4fs::test::is_equal(x.second, y.second);
         });
}

// The model's chunk at an address.
const OpenedChunk* find_in(const TreeModel& model, u64 address) {
  auto above = model.upper_bound(address);
  if (above == model.begin()) return nullptr;
  --above;
  return address < above->second.end() ? &above->second : nullptr;
}

// A tree that is written and committed, with its model.
class TreeWalk {
 public:
  TreeWalk(u32 replicas, u64 pages, u64 seed) : medium(replicas, pages), random_(seed) { open(); }

  void open() {
    tree.reset();
    tree = std::make_unique<ChunkTree>(medium, root, epoch, 16);
  }

  void finish() {
    tree->write(++epoch);
    tree->commit();
    root = tree->root();
  }

  u64 pick(u64 below) { return random_() % below; }

  // One random change of the tree and the model. `grows`: rather inserts.
  void change(u64 granules, u32 columns_max, bool grows) {
    const bool inserts = model.empty() || pick(10) < (grows ? 8 : 2);
    if (!inserts) {
      auto victim = model.lower_bound(pick(granules) * (u64{8} << 20));
      if (victim == model.end()) victim = model.begin();
      ASSERT_TRUE(tree->erase(victim->first));
      model.erase(victim);
      return;
    }
    const u64 granule = 1 + pick(granules);
    const OpenedChunk chunk = make_tree_chunk(granule, 1 + pick(3), 1 + static_cast<u32>(pick(columns_max)), random_());
    const auto above = model.lower_bound(chunk.descriptor.base_address);
    const bool overlaps = find_in(model, chunk.descriptor.base_address) != nullptr ||
                          (above != model.end() && above->first < chunk.end());
    if (overlaps) {
      EXPECT_THROW(tree->insert(chunk), PoolError);
    } else {
      tree->insert(chunk);
      model[chunk.descriptor.base_address] = chunk;
    }
  }

  TreeMedium medium;
  TreeModel model;
  TreeRoot root;
  u64 epoch = 1;
  std::unique_ptr<ChunkTree> tree;

 private:
  std::mt19937_64 random_;
};

void walk_randomly(u32 columns_max, u64 seed, u64 steps) {
  TreeWalk walk(2, 512, seed);
  const u64 granules = columns_max == 1 ? 20'000 : 4'000;
  u32 height_max = 0;
  for (u64 step = 0; step < steps; ++step) {
    const bool grows = step / 300 % 2 == 0;
    for (u64 i = walk.pick(8); i-- > 0;) ASSERT_NO_FATAL_FAILURE(walk.change(granules, columns_max, grows));
    ASSERT_NO_FATAL_FAILURE(walk.change(granules, columns_max, grows));
    for (u32 i = 0; i < 4; ++i) {
      const u64 address = walk.pick(granules + 10) * (u64{8} << 20) + walk.pick(u64{8} << 20);
      const OpenedChunk* expected = find_in(walk.model, address);
      const std::optional<OpenedChunk> found = walk.tree->find(address);
      ASSERT_EQ(found.has_value(), expected != nullptr) << address;
      if (found) {
        ASSERT_TRUE(gpu4fs::test::is_equal(*found, *expected));
      }
    }
    walk.finish();
    height_max = std::max(height_max, walk.root.height);
    ASSERT_EQ(check_all(walk.medium, walk.root, walk.epoch, walk.model), "") << "step " << step << ", seed " << seed;
    ASSERT_EQ(walk.tree->free_node_count() + walk.root.node_count, 512u);
    ASSERT_LE(walk.tree->cached_node_count(), 16u);
    if (walk.pick(40) == 0) walk.open();
  }
  EXPECT_TRUE(is_same(content_of(*walk.tree), walk.model));
  EXPECT_GT(height_max, 1u);
}

TEST(ChunkTreeTest, AgreesWithAMapOverRandomChanges) {
  const u64 steps = gpu4fs::test::scaled(2400);
  walk_randomly(1, 1, steps);
  walk_randomly(6, 2, steps);
  walk_randomly(64, 3, steps);
}

TEST(ChunkTreeTest, TheCheckerSeesWhatIsWrong) {
  TreeWalk walk(2, 256, 5);
  for (u32 i = 0; i < 600; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 3, true));
  walk.finish();
  ASSERT_EQ(check_all(walk.medium, walk.root, walk.epoch, walk.model), "");
  ASSERT_EQ(walk.root.height, 2u);
  TreeModel other = walk.model;
  other.begin()->second.columns[0].raw += 16;
  EXPECT_NE(check_all(walk.medium, walk.root, walk.epoch, other), "");
  other = walk.model;
  other.erase(other.begin());
  EXPECT_NE(check_all(walk.medium, walk.root, walk.epoch, other), "");
  EXPECT_NE(check_all(walk.medium, walk.root, walk.epoch - 1, walk.model), "");
  TreeMedium torn = walk.medium;
  torn.page(1, walk.root.root).entries[5] ^= 1;
  EXPECT_NE(check_all(torn, walk.root, walk.epoch, walk.model), "");
  TreeRoot root = walk.root;
  ++root.node_count;
  EXPECT_NE(check_all(walk.medium, root, walk.epoch, walk.model), "");
}

TEST(ChunkTreeTest, EmptiesAndFillsAgain) {
  TreeWalk walk(1, 64, 7);
  for (u32 round = 0; round < 3; ++round) {
    for (u64 granule = 1; granule <= 1000; ++granule) {
      const OpenedChunk chunk = make_tree_chunk(granule, 1, 1);
      walk.tree->insert(chunk);
      walk.model[chunk.descriptor.base_address] = chunk;
      if (granule % 50 == 0) walk.finish();
    }
    EXPECT_EQ(walk.root.node_count, 13u);  // ascending keys fill the leaves: 84 chunks each
    ASSERT_EQ(check_all(walk.medium, walk.root, walk.epoch, walk.model), "");
    for (u64 granule = 1; granule <= 1000; ++granule) {
      ASSERT_TRUE(walk.tree->erase((round == 1 ? 1001 - granule : granule) * (u64{8} << 20)));
      if (granule % 50 == 0) walk.finish();
    }
    walk.model.clear();
    EXPECT_EQ(walk.root, (TreeRoot{0, 0, 0, 0}));
    EXPECT_EQ(walk.tree->free_node_count(), 64u);
  }
}

TEST(ChunkTreeTest, AFullAreaIsAnAnswerAndChangesNothing) {
  TreeWalk walk(1, 16, 9);
  u64 granule = 0;
  try {
    for (;;) {
      const OpenedChunk chunk = make_tree_chunk(++granule, 1, 1);
      walk.tree->insert(chunk);
      walk.model[chunk.descriptor.base_address] = chunk;
      if (granule % 10 == 0) walk.finish();
    }
  } catch (const PoolError& error) {
    EXPECT_EQ(error.status(), Status::no_space);
  }
  walk.finish();
  EXPECT_GT(walk.model.size(), 500u);
  EXPECT_EQ(check_all(walk.medium, walk.root, walk.epoch, walk.model), "");
}

// The medium after some of the writes, the last of them torn.
TreeMedium after_writes(const TreeMedium& before, const std::vector<gpu4fs::test::TreeWrite>& writes, std::size_t count,
                        bool torn) {
  TreeMedium medium = before;
  for (std::size_t i = 0; i < count; ++i) medium.page(writes[i].replica, writes[i].number) = writes[i].page;
  if (torn && count < writes.size()) {
    std::memcpy(&medium.page(writes[count].replica, writes[count].number), &writes[count].page, page_size / 2);
  }
  return medium;
}

TEST(ChunkTreeTest, ACrashAtAnyWriteLeavesTheOldTreeOrTheNew) {
  TreeWalk walk(2, 256, 11);
  for (u32 i = 0; i < 500; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 4, true));
  walk.finish();
  u64 states = 0;
  for (u32 round = 0; round < 120; ++round) {
    const TreeModel old_model = walk.model;
    const TreeRoot old_root = walk.root;
    TreeMedium before = walk.medium;
    walk.medium.keeps_log = true;
    walk.medium.log.clear();
    for (u32 i = 0; i < 1 + round % 6; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 4, round % 40 < 20));
    walk.finish();
    const std::vector<gpu4fs::test::TreeWrite> writes = walk.medium.log;
    before.keeps_log = false;
    for (std::size_t count = 0; count <= writes.size(); ++count) {
      TreeMedium medium = after_writes(before, writes, count, true);
      ASSERT_EQ(check_all(medium, old_root, walk.epoch - 1, old_model), "") << round << ", write " << count;
      // It continues from there, over the remains of the lost epoch.
      ChunkTree tree(medium, old_root, walk.epoch - 1);
      TreeModel model = old_model;
      tree.erase(model.begin()->first);
      model.erase(model.begin());
      tree.write(walk.epoch + 1);
      tree.commit();
      ASSERT_EQ(check_all(medium, tree.root(), walk.epoch + 1, model), "");
      ASSERT_EQ(tree.report().pages_damaged + tree.report().pages_old, 0u);
      ++states;
    }
    ASSERT_EQ(check_all(walk.medium, walk.root, walk.epoch, walk.model), "") << round;
  }
  EXPECT_GT(states, 300u);
}

TEST(ChunkTreeTest, ARolledBackChangeLeavesNoTrace) {
  TreeWalk walk(2, 128, 13);
  for (u32 i = 0; i < 400; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 2, true));
  walk.finish();
  const TreeModel model = walk.model;
  const u64 free_count = walk.tree->free_node_count();
  for (u32 i = 0; i < 100; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 2, i % 2 == 0));
  walk.tree->write(++walk.epoch);
  walk.tree->roll_back();
  EXPECT_EQ(walk.tree->root(), walk.root);
  EXPECT_EQ(walk.tree->free_node_count(), free_count);
  EXPECT_TRUE(is_same(content_of(*walk.tree), model));
  walk.model = model;
  ASSERT_NO_FATAL_FAILURE(walk.change(3000, 2, true));
  walk.finish();
  EXPECT_EQ(check_all(walk.medium, walk.root, walk.epoch, walk.model), "");
}

// Replica 1 misses the writes of `change`.
TEST(ChunkTreeTest, OfReplicasThatDifferTheNewerIsRightAndTheOtherIsRepaired) {
  TreeWalk walk(2, 64, 17);
  for (u32 i = 0; i < 300; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 2, true));
  walk.finish();
  u64 old_pages = 0;
  for (u32 round = 0; round < 60; ++round) {
    const TreeMedium before = walk.medium;
    const u32 stays = round % 2;
    for (u32 i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 2, round % 3 != 0));
    walk.finish();
    for (u32 number = 0; number < 64; ++number) walk.medium.page(stays, number) = before.page(stays, number);
    walk.open();
    ASSERT_TRUE(is_same(content_of(*walk.tree), walk.model)) << round;
    const TreeReport& report = walk.tree->report();
    ASSERT_GT(report.pages_old + report.pages_damaged, 0u);
    ASSERT_EQ(report.pages_repaired, report.pages_old + report.pages_damaged);
    ASSERT_FALSE(report.lines.empty());
    old_pages += report.pages_old;
    ASSERT_EQ(check_all(walk.medium, walk.root, walk.epoch, walk.model), "") << round;
  }
  EXPECT_GT(old_pages, 0u);  // numbers that had a valid older node
}

TEST(ChunkTreeTest, DamageOfAReplicaIsRepairedOfAllIsAnError) {
  TreeWalk walk(3, 64, 19);
  for (u32 i = 0; i < 300; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 2, true));
  walk.finish();
  std::mt19937 random(3);
  for (u32 round = 0; round < 200; ++round) {
    const u32 number = random() % 64;
    u8* bytes = reinterpret_cast<u8*>(&walk.medium.page(random() % 3, number));
    bytes[random() % page_size] ^= static_cast<u8>(1 + random() % 255);
    walk.medium.unreadable.insert({random() % 3, number});
    walk.open();
    ASSERT_TRUE(is_same(content_of(*walk.tree), walk.model)) << round;
    walk.medium.unreadable.clear();
    ASSERT_EQ(check_all(walk.medium, walk.root, walk.epoch, walk.model), "") << round;
  }
  walk.medium.writable = false;
  walk.medium.page(0, walk.root.root).magic = 0;
  walk.open();
  EXPECT_EQ(walk.tree->report().pages_damaged, 1u);
  EXPECT_EQ(walk.tree->report().pages_repaired, 0u);
  walk.medium.page(1, walk.root.root).magic = 0;
  walk.medium.page(2, walk.root.root).magic = 0;
  EXPECT_THROW(walk.open(), PoolError);
}

TEST(ChunkTreeTest, ANewReplicaGetsEveryNode) {
  TreeWalk walk(2, 64, 23);
  for (u32 i = 0; i < 400; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 2, true));
  walk.finish();
  TreeMedium both(2, 64);
  TreeMedium one(2, 64);
  one.remove(1);
  for (u32 number = 0; number < 64; ++number) one.page(0, number) = walk.medium.page(0, number);
  ChunkTree tree(one, walk.root, walk.epoch);
  const OpenedChunk chunk = make_tree_chunk(5000, 1, 1);
  tree.insert(chunk);
  walk.model[chunk.descriptor.base_address] = chunk;
  tree.write(++walk.epoch);
  tree.write_all_to(one, 1, walk.epoch);
  tree.commit();
  EXPECT_EQ(TreeChecker(one, 1, tree.root(), walk.epoch).check(walk.model), "");
}

// Nodes with right checksums and any content: an error or a tree, nothing else.
TEST(ChunkTreeTest, HostileNodesAreRefused) {
  TreeWalk walk(1, 64, 29);
  for (u32 i = 0; i < 400; ++i) ASSERT_NO_FATAL_FAILURE(walk.change(3000, 3, true));
  walk.finish();
  std::mt19937_64 random(31);
  u32 refused = 0;
  const u64 rounds = gpu4fs::test::scaled(3000);
  for (u64 round = 0; round < rounds; ++round) {
    TreeMedium medium = walk.medium;
    for (u64 i = 1 + random() % 3; i-- > 0;) {
      const u32 number = static_cast<u32>(random() % walk.root.node_count);
      u8* bytes = reinterpret_cast<u8*>(&medium.page(0, number));
      for (u64 k = 1 + random() % 4; k-- > 0;)
        bytes[random() % 200] = static_cast<u8>(random() % 3 == 0 ? random() : 0xff);
      format::ChunkTreeNode& page = medium.page(0, number);
      page.checksum = 0;
      page.checksum = xxh3_64(&page, page_size, number);
    }
    try {
      ChunkTree tree(medium, walk.root, walk.epoch);
      (void)tree.find(random() % 3000 * (u64{8} << 20));
      (void)tree.erase(walk.model.begin()->first);
      tree.insert(make_tree_chunk(4000, 1, 1));
      tree.for_each([](const OpenedChunk&) {});
      tree.write(walk.epoch + 1);
      tree.commit();
    } catch (const PoolError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, rounds / 10);
}

TEST(ChunkTreeTest, AMillionChunksAreInsertedFoundAndErased) {
  const u64 count = gpu4fs::test::scaled(1'000'000);
  constexpr u64 run = 1000;
  TreeMedium medium(2, 40'000);
  ChunkTree tree(medium, {}, 1, 1024);
  u64 epoch = 1;
  const auto finish = [&] {
    tree.write(++epoch);
    tree.commit();
  };
  // Runs of keys in any order.
  std::vector<u64> runs(count / run);
  for (u64 i = 0; i < runs.size(); ++i) runs[i] = i;
  std::mt19937_64 random(37);
  std::shuffle(runs.begin(), runs.end(), random);
  for (const u64 first : runs) {
    for (u64 i = 0; i < run; ++i) tree.insert(make_tree_chunk(1 + first * run + i, 1, 1, first));
    finish();
  }
  EXPECT_EQ(tree.root().chunk_count, runs.size() * run);
  for (u64 i = 0; i < 200'000; ++i) {
    const u64 granule = 1 + random() % (runs.size() * run);
    const std::optional<OpenedChunk> found = tree.find(granule * (u64{8} << 20) + random() % (u64{8} << 20));
    ASSERT_TRUE(found && found->descriptor.base_address == granule * (u64{8} << 20));
  }
  EXPECT_LE(tree.cached_node_count(), 1024u);
  TreeModel model;
  for (u64 i = 1; i <= runs.size() * run; ++i) {
    const OpenedChunk chunk = make_tree_chunk(i, 1, 1, (i - 1) / run);
    model.emplace_hint(model.end(), chunk.descriptor.base_address, chunk);
  }
  EXPECT_EQ(check_all(medium, tree.root(), epoch, model), "");
  for (const u64 first : runs) {
    for (u64 i = 0; i < run; ++i) ASSERT_TRUE(tree.erase((1 + first * run + i) * (u64{8} << 20)));
    finish();
  }
  EXPECT_EQ(tree.root(), (TreeRoot{}));
}

}  // namespace
}  // namespace gpu4fs::pool
