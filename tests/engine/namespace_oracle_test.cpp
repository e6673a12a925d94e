// Random changes of a tree of names, by the engine and by the kernel on a temporary file system at the same time: the
// answers and the trees are the same.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/name_fixture.hpp"
#include "support/memory_folder.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

// A directory that both sides know.
struct Place {
  u64 inode;
  int descriptor;
};

int rename_at(int from, const std::string& name, int to, const std::string& second, u32 flags) {
  return static_cast<int>(::syscall(SYS_renameat2, from, name.c_str(), to, second.c_str(), flags));
}

class NamespaceOracle : public ::testing::TestWithParam<u32> {
 protected:
  void SetUp() override {
    path_ = memory_folder() + "/gpu4fs_names_XXXXXX";
    ASSERT_NE(::mkdtemp(path_.data()), nullptr);
    places_.push_back({format::inode_number_root, open_directory(AT_FDCWD, path_)});
    ::umask(0);
  }
  void TearDown() override {
    for (const Place& place : places_) ::close(place.descriptor);
    std::filesystem::remove_all(path_);
  }

  static int open_directory(int at, const std::string& name) {
    return ::openat(at, name.c_str(), O_DIRECTORY | O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  }
  std::string any_name() { return std::string(1, static_cast<char>('a' + random_() % 6)); }
  Place any_place() { return places_[random_() % places_.size()]; }

  // The engine's errno and the kernel's.
  void compare(const char* what, Status status, int result) {
    const int expected = result >= 0 ? 0 : errno;
    ASSERT_EQ(to_errno(status), expected) << what << " " << status_name(status) << " step " << step_;
    ++answers_[expected];
  }

  void make_directory() {
    const Place at = any_place();
    const std::string name = any_name();
    const ring::Completion done = client_.mkdir(at.inode, name, 0755);
    compare("mkdir", done.status, ::mkdirat(at.descriptor, name.c_str(), 0755));
    if (done.status == Status::ok) places_.push_back({done.result, open_directory(at.descriptor, name)});
  }
  void make_file() {
    const Place at = any_place();
    const std::string name = any_name();
    const u32 kind = static_cast<u32>(random_() % 3);
    if (kind == 0) {
      const int file = ::openat(at.descriptor, name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
      compare("create", client_.create(at.inode, name).status, file);
      if (file >= 0) ::close(file);
    } else if (kind == 1) {
      compare("mknod", client_.mknod(at.inode, name, S_IFIFO | 0600).status,
              ::mknodat(at.descriptor, name.c_str(), S_IFIFO | 0600, 0));
    } else {
      compare("symlink", client_.symlink(at.inode, name, "target").status,
              ::symlinkat("target", at.descriptor, name.c_str()));
    }
  }
  void remove() {
    const Place at = any_place();
    const std::string name = any_name();
    const bool directory = random_() % 2 == 0;
    const ring::Completion done = directory ? client_.rmdir(at.inode, name) : client_.unlink(at.inode, name);
    compare(directory ? "rmdir" : "unlink", done.status,
            ::unlinkat(at.descriptor, name.c_str(), directory ? AT_REMOVEDIR : 0));
    if (directory && done.status == Status::ok) forget(done.result);
  }
  void link() {
    const Place from = any_place();
    const Place to = any_place();
    const std::string name = any_name();
    const std::string second = any_name();
    const ring::Completion found = client_.lookup(from.inode, name);
    const Status status =
        found.status == Status::ok ? client_.link(found.result, to.inode, second).status : found.status;
    compare("link", status, ::linkat(from.descriptor, name.c_str(), to.descriptor, second.c_str(), 0));
  }
  void rename() {
    const Place from = any_place();
    const Place to = any_place();
    const std::string name = any_name();
    const std::string second = any_name();
    constexpr u32 some_flags[] = {1, 2, 4, 4, 5, 6};
    const u32 flags = random_() % 2 == 0 ? 0 : some_flags[random_() % 6];
    const ring::Completion done = client_.rename(from.inode, name, to.inode, second, flags);
    compare("rename", done.status, rename_at(from.descriptor, name, to.descriptor, second, flags));
    if (done.status == Status::ok && done.result != 0) forget(done.result);
  }
  // A directory that lost its name is not used any more.
  void forget(u64 inode) {
    for (std::size_t i = 1; i < places_.size(); ++i) {
      if (places_[i].inode != inode) continue;
      ::close(places_[i].descriptor);
      places_.erase(places_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }

  void compare_tree(const Place& at, u64 parent) {
    std::vector<ListedName> listed;
    ASSERT_EQ(client_.list(at.inode, &listed, 4096, true), Status::ok);
    std::map<std::string, ListedName> names;
    for (const ListedName& entry : listed) names[entry.name] = entry;
    ASSERT_EQ(names.size(), listed.size());
    ASSERT_EQ(names[".."].inode, parent);
    DIR* stream = ::fdopendir(::openat(at.descriptor, ".", O_DIRECTORY | O_RDONLY | O_CLOEXEC));
    ASSERT_NE(stream, nullptr);
    std::size_t count = 0;
    while (const dirent* entry = ::readdir(stream)) {
      const std::string name = entry->d_name;
      ++count;
      ASSERT_TRUE(names.contains(name)) << name;
      if (name == "." || name == "..") continue;
      struct stat expected {};
      ASSERT_EQ(::fstatat(at.descriptor, entry->d_name, &expected, AT_SYMLINK_NOFOLLOW), 0);
      const format::AttributeRecord& found = names[name].attributes;
      ASSERT_EQ(found.mode, expected.st_mode) << name;
      ASSERT_EQ(found.link_count, expected.st_nlink) << name;
      ASSERT_EQ(names[name].type, entry->d_type) << name;
      if (!S_ISDIR(expected.st_mode)) continue;
      const int below = open_directory(at.descriptor, name);
      compare_tree({names[name].inode, below}, at.inode);
      ::close(below);
    }
    ::closedir(stream);
    ASSERT_EQ(count, names.size());
  }

  std::mt19937_64 random_{GetParam()};
  FileEngine engine_;
  NameClient client_{engine_};
  std::string path_;
  std::vector<Place> places_;
  std::map<int, u32> answers_;
  u32 step_ = 0;
};

TEST_P(NamespaceOracle, TheKernelAgrees) {
  const u32 steps = scaled(4000);
  for (step_ = 0; step_ < steps; ++step_) {
    switch (random_() % 8) {
      case 0:
        make_directory();
        break;
      case 1:
        make_file();
        break;
      case 2:
        remove();
        break;
      case 3:
        link();
        break;
      default:
        rename();
    }
    if (HasFatalFailure()) return;
    if (step_ % 200 == 0) compare_tree(places_[0], format::inode_number_root);
    if (HasFatalFailure()) return;
  }
  compare_tree(places_[0], format::inode_number_root);
  if (steps < 4000) return;
  for (const int expected : {0, ENOENT, EEXIST, ENOTDIR, EISDIR, ENOTEMPTY, EINVAL}) {
    EXPECT_GT(answers_[expected], 0u) << "the walk never met " << expected;
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, NamespaceOracle, ::testing::Range(0u, 4u));

}  // namespace
}  // namespace gpu4fs::test
