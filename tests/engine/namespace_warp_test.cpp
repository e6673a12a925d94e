// Name commands carried out by an emulated warp and by a lane: the same answers and the same tree.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/name_fixture.hpp"
#include "engine/warp_workers.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

constexpr u64 root = format::inode_number_root;

// One random command after the other. Directories are named by their place in the order of
// creation, so that the walk does not depend on inode numbers.
template <class Connection>
class NameWalk {
 public:
  explicit NameWalk(FileEngine& engine) : client_(engine) {}

  // What the command answered, as text.
  std::string step() {
    const u64 here = any_directory();
    const u64 there = any_directory();
    const std::string first = any_name();
    const std::string second = any_name();
    const u32 kind = static_cast<u32>(random_() % 14);
    ring::Completion done{};
    std::string found;
    switch (kind) {
      case 0:
      case 1:
      case 2:
        done = client_.mkdir(here, first, 0777);
        if (done.status == Status::ok) directories_.push_back(done.result);
        break;
      case 3:
        done = client_.create(here, first);
        break;
      case 4:
        done = client_.symlink(here, first, std::string(random_() % 300 + 1, 't'));
        break;
      case 5:
        done = remove(client_.unlink(here, first));
        break;
      case 6:
        done = remove(client_.rmdir(here, first));
        break;
      case 7:
        done = client_.lookup(here, first);
        if (done.status == Status::ok) done = client_.link(done.result, there, second);
        break;
      case 8:
        done = client_.lookup(here, first);
        if (done.status == Status::ok) done = client_.readlink(done.result, &found);
        break;
      case 9:
        done = client_.lookup_path(here, first + "/../" + second + "/..//" + any_name());
        break;
      case 10:
        done = client_.set_attribute(here, "user." + first, std::string(random_() % 1500, 'v'));
        break;
      case 11:
        done = client_.get_attribute(here, "user." + first, &found);
        break;
      default:
        done = remove(client_.rename(here, first, there, second, static_cast<u32>(random_() % 3)));
    }
    const std::string name = "kind " + std::to_string(kind) + " " + status_name(done.status);
    return found.empty() ? name : name + " " + found;
  }

  // Every name below `directory` with what its attributes say.
  void describe(u64 directory, const std::string& path, std::map<std::string, std::string>* tree) {
    std::vector<ListedName> names;
    ASSERT_EQ(client_.list(directory, &names, 1024, true), Status::ok);
    for (const ListedName& entry : names) {
      if (entry.name == "." || entry.name == "..") continue;
      const format::AttributeRecord& a = entry.attributes;
      std::string& text = (*tree)[path + "/" + entry.name];
      for (const u64 value :
           {u64{a.mode}, u64{a.link_count}, a.size_bytes, a.blocks_512, u64{entry.type}}) {
        text += std::to_string(value) + " ";
      }
      if (entry.type == 4) describe(entry.inode, path + "/" + entry.name, tree);
    }
  }

 private:
  u64 any_directory() { return directories_[random_() % directories_.size()]; }
  std::string any_name() {
    const char letter = static_cast<char>('a' + random_() % 6);
    return std::string(random_() % 4 == 0 ? 200 : 1, letter);
  }
  ring::Completion remove(const ring::Completion& done) {
    if (done.status == Status::ok && done.result != 0) {
      std::erase(directories_, done.result);
      EXPECT_EQ(client_.reclaim(done.result).status, Status::ok);
    }
    return done;
  }

  BasicNameClient<Connection> client_;
  std::mt19937_64 random_{33};
  std::vector<u64> directories_{root};
};

using Tree = std::map<std::string, std::string>;

template <class Connection>
void run_walk(FileEngine& engine, u32 steps, std::vector<std::string>* answers, Tree* tree) {
  NameWalk<Connection> walk(engine);
  for (u32 i = 0; i < steps; ++i) answers->push_back(walk.step());
  walk.describe(root, "", tree);
}

TEST(NamespaceWarp, AnswersAsALaneDoes) {
  const u32 steps = scaled(150);
  std::vector<std::string> lane_answers;
  Tree lane_tree;
  {
    FileEngine engine;
    run_walk<Client>(engine, steps, &lane_answers, &lane_tree);
  }
  std::vector<std::string> warp_answers;
  Tree warp_tree;
  {
    FileEngineOptions options;
    options.start = false;
    FileEngine engine(options);
    WarpWorkers workers(engine.engine(), 1);
    run_walk<WaitingClient>(engine, steps, &warp_answers, &warp_tree);
  }
  EXPECT_EQ(warp_answers, lane_answers);
  EXPECT_EQ(warp_tree, lane_tree);
  EXPECT_FALSE(lane_tree.empty());
}

}  // namespace
}  // namespace gpu4fs::test
