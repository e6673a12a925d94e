// Many clients change one small tree at once, with checkpoints in between: no command hangs or fails in a wrong way,
// and the result is a valid tree.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/name_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

bool is_expected(Status status) {
  switch (status) {
    case Status::ok:
    case Status::not_found:
    case Status::exists:
    case Status::not_directory:
    case Status::is_directory:
    case Status::directory_not_empty:
    case Status::would_orphan:
    case Status::stale:
    case Status::permission:
    case Status::loop:
      return true;
    default:
      return false;
  }
}

class Changer {
 public:
  Changer(FileEngine& engine, u64 seed) : client_(engine), random_(seed) {}

  void run(u32 steps) {
    std::vector<u64> directories{root};
    for (u32 step = 0; step < steps; ++step) {
      const u64 here = directories[random_() % directories.size()];
      const u64 there = directories[random_() % directories.size()];
      const ring::Completion done = change(here, there, name(), name());
      if (!is_expected(done.status)) {
        ADD_FAILURE() << status_name(done.status);
        return;
      }
      const ring::Completion child = client_.lookup(here, name());
      if (child.status == Status::ok && (client_.attributes().mode & 0170000) == 0040000) {
        directories.push_back(child.result);
      }
      if (directories.size() > 30) directories.erase(directories.begin() + 1);
    }
  }

 private:
  std::string name() { return std::string(1, static_cast<char>('a' + random_() % 5)); }

  ring::Completion change(u64 here, u64 there, const std::string& first, const std::string& second) {
    switch (random_() % 12) {
      case 0:
      case 1:
        return client_.mkdir(here, first);
      case 2:
        return client_.create(here, first);
      case 3:
        return client_.symlink(here, first, "../" + second + "/" + name());
      case 4:
        return freeing(client_.unlink(here, first));
      case 5:
        return freeing(client_.rmdir(here, first));
      case 6: {
        const ring::Completion found = client_.lookup(here, first);
        return found.status == Status::ok ? client_.link(found.result, there, second) : found;
      }
      case 7: {
        std::vector<ListedName> names;
        return {client_.list(here, &names, 1024, true), 0};
      }
      case 8:
        return client_.lookup_path(here, first + "/../" + second + "/" + name() + "/..");
      case 9:
        return client_.lookup(here, "..");
      default:
        return freeing(client_.rename(here, first, there, second, random_() % 4 == 0 ? 2 : 0));
    }
  }

  // No file is kept open here: a file that has lost its last name is freed at once.
  ring::Completion freeing(const ring::Completion& done) {
    if (done.status == Status::ok && done.result != 0) {
      EXPECT_EQ(client_.reclaim(done.result).status, Status::ok);
    }
    return done;
  }

  NameClient client_;
  std::mt19937_64 random_;
};

struct TreeCount {
  std::map<u64, u32> names;  // of files, by inode
  std::set<u64> directories;
};

// Every directory is found once, its parent is the directory where it was found, and link counts are right.
void check_tree(NameClient& client, u64 directory, u64 parent, TreeCount* count) {
  ASSERT_TRUE(count->directories.insert(directory).second) << "directory " << directory << " has two names";
  std::vector<ListedName> names;
  ASSERT_EQ(client.list(directory, &names, 4096, true), Status::ok);
  u32 subdirectories = 0;
  for (const ListedName& entry : names) {
    if (entry.name == ".") continue;
    if (entry.name == "..") {
      ASSERT_EQ(entry.inode, parent);
      continue;
    }
    ASSERT_TRUE(entry.has_attributes) << entry.name;
    ASSERT_EQ(entry.attributes.mode >> 12, entry.type);
    if (entry.type == 4) {
      ++subdirectories;
      check_tree(client, entry.inode, directory, count);
      if (::testing::Test::HasFatalFailure()) return;
    } else {
      ++count->names[entry.inode];
    }
  }
  ASSERT_EQ(client.getattr(directory).status, Status::ok);
  ASSERT_EQ(client.attributes().link_count, 2 + subdirectories);
}

void check_whole_tree(FileEngine& engine) {
  NameClient client(engine);
  TreeCount count;
  check_tree(client, root, root, &count);
  for (const auto& [inode, names] : count.names) {
    ASSERT_EQ(client.getattr(inode).status, Status::ok);
    ASSERT_EQ(client.attributes().link_count, names) << inode;
  }
}

void remove_tree(NameClient& client, u64 directory) {
  std::vector<ListedName> names;
  ASSERT_EQ(client.list(directory, &names), Status::ok);
  for (const ListedName& entry : names) {
    if (entry.name == "." || entry.name == "..") continue;
    if (entry.type == 4) remove_tree(client, entry.inode);
    if (::testing::Test::HasFatalFailure()) return;
    const ring::Completion done =
        entry.type == 4 ? client.rmdir(directory, entry.name) : client.unlink(directory, entry.name);
    ASSERT_EQ(done.status, Status::ok) << status_name(done.status);
    if (done.result == 0) continue;
    ASSERT_EQ(client.reclaim(done.result).status, Status::ok);
  }
}

// With only the root left, every page in use belongs to one of the first four inodes.
void expect_no_leak(FileEngine& engine) {
  FileClient client(engine);
  // Twice: pages that one checkpoint frees are free when the next one is durable.
  for (u32 i = 0; i < 2; ++i) {
    ASSERT_EQ(client.checkpoint().status, Status::ok);
  }
  u64 owned = engine.fs().inode_file.page_count;
  fs::Operation op{};
  for (const u64 inode :
       {format::inode_number_root, format::inode_number_inode_bitmap, format::inode_number_orphan_bitmap}) {
    fs::InodeRef ref{};
    ASSERT_EQ(fs::get_inode(Lane{}, engine.fs(), op, inode, &ref), Status::ok);
    owned += ref.inode->page_count;
  }
  ASSERT_EQ(client.statfs().status, Status::ok);
  EXPECT_EQ(
      engine.fs().data_counters().total - engine.fs().data_counters().free - engine.fs().data_counters().freed_pending,
      owned);
  EXPECT_EQ(client.space().inode_used, format::inode_number_first_free);
}

TEST(NamespaceStress, ConcurrentChangesLeaveATree) {
  FileEngineOptions options;
  options.pool.chunk_bytes = u64{64} << 20;
  options.worker_count = 3;
  FileEngine engine(options);
  std::atomic<bool> stop{false};
  std::thread checkpoints([&] {
    FileClient client(engine);
    while (!stop.load()) EXPECT_EQ(client.checkpoint().status, Status::ok);
  });
  std::vector<std::thread> threads;
  for (u64 seed = 0; seed < 6; ++seed) {
    threads.emplace_back([&engine, seed] { Changer(engine, seed).run(scaled(3000)); });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  checkpoints.join();
  check_whole_tree(engine);
  FileClient client(engine);
  EXPECT_EQ(client.reclaim_orphans().status, Status::ok);
  EXPECT_EQ(client.checkpoint().status, Status::ok);
  // The same tree after a crash that follows the last checkpoint.
  FileEngine again(options, engine.images());
  check_whole_tree(again);
  NameClient last(again);
  remove_tree(last, root);
  expect_no_leak(again);
}

TEST(NamespaceStress, ADirectoryOfManyNamesIsFilledByAll) {
  FileEngineOptions options;
  options.pool.frame_count = 2048;
  options.pool.staging_count = 1024;
  FileEngine engine(options);
  NameClient client(engine);
  const u64 directory = client.mkdir(root, "many").result;
  constexpr u32 thread_count = 4;
  const u32 each = scaled(1500);
  std::vector<std::thread> threads;
  for (u32 t = 0; t < thread_count; ++t) {
    threads.emplace_back([&engine, directory, t, each] {
      NameClient own(engine);
      for (u32 i = 0; i < each; ++i) {
        const std::string name = "thread " + std::to_string(t) + " file " + std::to_string(i);
        EXPECT_EQ(own.create(directory, name).status, Status::ok);
        if (i % 3 != 0) continue;
        const ring::Completion gone = own.unlink(directory, name);
        EXPECT_EQ(gone.status, Status::ok);
        EXPECT_EQ(own.reclaim(gone.result).status, Status::ok);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<ListedName> names;
  ASSERT_EQ(client.list(directory, &names, 65536, true), Status::ok);
  EXPECT_EQ(names.size(), 2 + thread_count * (each - (each + 2) / 3));
  std::set<u64> inodes;
  for (const ListedName& entry : names) inodes.insert(entry.inode);
  EXPECT_EQ(inodes.size(), names.size());
}

}  // namespace
}  // namespace gpu4fs::test
