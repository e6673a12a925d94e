// Random commands on names; their answers and the resulting trees are compared between engines. For any test framework.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/name_commands.hpp"

namespace gpu4fs::test {

using NameTree = std::map<std::string, std::string>;

// One random command after the other. Directories are identified by their order of creation, so the walk does not
// depend on inode numbers.
template <class Connection>
class NameWalk {
 public:
  explicit NameWalk(engine::EngineHost& host) : client_(host) {}

  // The command's answer as text.
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
        done = remove(client_.rename(here, first, there, second, rename_flags()));
    }
    std::string name = "kind " + std::to_string(kind) + " " + status_name(done.status);
    if (reclaim_status_ != Status::ok) name += std::string(", reclaim ") + status_name(reclaim_status_);
    return found.empty() ? name : name + " " + found;
  }

  // Every name below `directory` with its attributes. False: a directory cannot be listed.
  bool describe(u64 directory, const std::string& path, NameTree* tree) {
    std::vector<ListedName> names;
    if (client_.list(directory, &names, 1024, true) != Status::ok) return false;
    for (const ListedName& entry : names) {
      if (entry.name == "." || entry.name == "..") continue;
      const format::AttributeRecord& a = entry.attributes;
      std::string& text = (*tree)[path + "/" + entry.name];
      for (const u64 value : {u64{a.mode}, u64{a.link_count}, a.size_bytes, a.blocks_512, u64{entry.type}}) {
        text += std::to_string(value) + " ";
      }
      if (entry.type == 4 && !describe(entry.inode, path + "/" + entry.name, tree)) return false;
    }
    return true;
  }

 private:
  u32 rename_flags() {
    constexpr u32 flags[] = {0, 1, 2, 4, 5};
    return flags[random_() % 5];
  }
  u64 any_directory() { return directories_[random_() % directories_.size()]; }
  std::string any_name() {
    const char letter = static_cast<char>('a' + random_() % 6);
    return std::string(random_() % 4 == 0 ? 200 : 1, letter);
  }
  ring::Completion remove(const ring::Completion& done) {
    if (done.status == Status::ok && done.result != 0) {
      std::erase(directories_, done.result);
      const Status reclaimed = client_.reclaim(done.result).status;
      if (reclaim_status_ == Status::ok) reclaim_status_ = reclaimed;
    }
    return done;
  }

  BasicNameClient<Connection> client_;
  std::mt19937_64 random_{33};
  std::vector<u64> directories_{format::inode_number_root};
  Status reclaim_status_ = Status::ok;  // the first one that is not ok
};

// The answers to a walk of `steps` commands, and the resulting tree.
struct NameWalkResult {
  std::vector<std::string> answers;
  NameTree tree;
  bool is_complete = false;  // the tree could be listed
};

template <class Connection>
NameWalkResult run_name_walk(NameWalk<Connection>& walk, u32 steps) {
  NameWalkResult result;
  for (u32 i = 0; i < steps; ++i) result.answers.push_back(walk.step());
  result.is_complete = walk.describe(format::inode_number_root, "", &result.tree);
  return result;
}

}  // namespace gpu4fs::test
