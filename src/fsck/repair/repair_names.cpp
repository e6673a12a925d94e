// Directories: which names stay, what is moved to lost+found, and the pages of rebuilt directories.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "base/xxh3_serial.hpp"
#include "format/directory_format.hpp"
#include "format/format_text.hpp"
#include "fsck/check/tree_reader.hpp"
#include "fsck/repair/repair_context.hpp"

namespace gpu4fs::fsck::repair {

namespace {

constexpr u64 root = format::inode_number_root;

bool is_directory(const format::Inode& inode) {
  return (inode.mode & S_IFMT) == S_IFDIR;
}

bool is_allowed(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

class NamesRepair {
 public:
  explicit NamesRepair(RepairContext& context) : context_(context) {}

  void run() {
    ensure_root();
    for (const auto& [number, inode] : context_.inodes) {
      if (is_directory(inode)) collect(number, inode);
    }
    for (auto& [number, directory] : context_.directories) drop_dead_names(number, directory);
    drop_second_names();
    find_parents();
    reach(root);
    save_lost();
    set_counts();
  }

 private:
  using Names = std::vector<Name>;

  void ensure_root() {
    const auto found = context_.inodes.find(root);
    if (found != context_.inodes.end() && is_directory(found->second)) return;
    context_.inodes[root] = new_directory(root, 0755);
    context_.directories[root].is_rebuilt = true;
    context_.note_inode(root, "a new root directory");
  }

  format::Inode new_directory(u64 number, u16 permissions) const {
    format::Inode inode{};
    inode.mode = static_cast<u16>(S_IFDIR | permissions);
    inode.version = 1;
    const u64 now = context_.pool.superblock.checkpoint_time;
    inode.access_time = inode.modification_time = inode.change_time = inode.birth_time = now;
    try {
      inode.generation = format::generation_after(read_inode(context_.old_state.reader, number).generation, 0);
    } catch (const pool::PoolError&) {
      inode.generation = format::generation_after(context_.pool.superblock.inode_file.generation, 0);
    }
    return inode;
  }

  void drop(u64 number, const Name& name, const std::string& why) {
    context_.directories[number].is_rebuilt = true;
    context_.note_inode(number, fmt::format("name \"{}\": {}", format::escape_name(name.text), why));
  }

  // Names in every readable leaf, independent of the path to it.
  void collect(u64 number, const format::Inode& inode) {
    DirectoryState& directory = context_.directories[number];
    directory.is_rebuilt |= context_.suspects.contains(number);
    const auto page = std::make_unique<PageBuffer>();
    const check::PageAddresses pages = check::list_pages(context_.old_state, number, inode);
    directory.lacks_pages = pages.size() < inode.size_bytes / page_size;
    for (const auto& [index, address] : pages) {
      if (context_.old_state.reader.read_page(address, page.get()) == PageState::good) {
        collect_leaf(number, *page, directory.names);
      }
    }
  }

  void collect_leaf(u64 number, const PageBuffer& page, Names& names) {
    format::DirectoryPageHeader header{};
    std::memcpy(&header, page.bytes, sizeof(header));
    if (header.magic == format::directory_node_magic) return;
    for (u32 i = 0; i < header.entry_count; ++i) {
      format::DirectorySlot slot{};
      const u64 at = format::directory_leaf_slots_offset + u64{i} * sizeof(slot);
      if (at + sizeof(slot) > page_size) break;
      std::memcpy(&slot, page.bytes + at, sizeof(slot));
      const u32 size = format::directory_entry_size(slot.name_length);
      if (slot.name_length == 0 || slot.entry_offset % 8 != 0 || slot.entry_offset < sizeof(header) ||
          slot.entry_offset + size > page_size) {
        continue;
      }
      Name name{};
      std::memcpy(&name.inode, page.bytes + slot.entry_offset, sizeof(name.inode));
      name.text.assign(reinterpret_cast<const char*>(page.bytes) + slot.entry_offset + sizeof(format::DirectoryEntry),
                       slot.name_length);
      if (!is_allowed(name.text)) {
        drop(number, name, "is not allowed and goes");
        continue;
      }
      name.hash = hash_of(name.text);
      names.push_back(std::move(name));
    }
  }

  u64 hash_of(const std::string& text) const {
    return xxh3_64(text.data(), text.size(), context_.pool.superblock.name_hash_seed);
  }

  void drop_dead_names(u64 number, DirectoryState& directory) {
    Names kept;
    std::set<std::string> seen;
    for (Name& name : directory.names) {
      const bool leads = name.inode >= format::inode_number_first_free && context_.inodes.contains(name.inode);
      if (!leads) {
        drop(number, name, fmt::format("inode {} is not in use; the name goes", name.inode));
      } else if (!seen.insert(name.text).second) {
        drop(number, name, "is there twice; one goes");
      } else {
        kept.push_back(std::move(name));
      }
    }
    directory.names = std::move(kept);
  }

  // A directory keeps the name in the parent that it records, otherwise its first name.
  void drop_second_names() {
    std::map<u64, u64> homes;
    for (const auto& [number, directory] : context_.directories) {
      for (const Name& name : directory.names) {
        const format::Inode& inode = context_.inodes.at(name.inode);
        if (!is_directory(inode)) continue;
        const auto [home, is_first] = homes.emplace(name.inode, number);
        if (!is_first && inode.parent_or_device == number) home->second = number;
      }
    }
    std::set<u64> named;
    for (auto& [number, directory] : context_.directories) {
      Names kept;
      for (Name& name : directory.names) {
        const auto home = homes.find(name.inode);
        if (home == homes.end() || (home->second == number && named.insert(name.inode).second)) {
          kept.push_back(std::move(name));
        } else {
          drop(number, name, fmt::format("is a second name of directory {} and goes", name.inode));
        }
      }
      directory.names = std::move(kept);
    }
  }

  void find_parents() {
    for (const auto& [number, directory] : context_.directories) {
      for (const Name& name : directory.names) {
        if (is_directory(context_.inodes.at(name.inode))) parents_[name.inode] = number;
        ++name_counts_[name.inode];
      }
    }
  }

  // Everything below `number` can be reached.
  void reach(u64 number) {
    std::vector<u64> waiting{number};
    while (!waiting.empty()) {
      const u64 at = waiting.back();
      waiting.pop_back();
      if (!reached_.insert(at).second) continue;
      for (const Name& name : context_.directories[at].names) {
        if (is_directory(context_.inodes.at(name.inode))) waiting.push_back(name.inode);
      }
    }
  }

  void save_lost() {
    std::vector<u64> numbers;
    for (const auto& [number, inode] : context_.inodes) numbers.push_back(number);
    // Trees without a name first: everything below them is not lost.
    for (const u64 number : numbers) {
      const bool is_tree = context_.directories.contains(number);
      if (number != root && name_counts_[number] == 0 && !context_.orphans.contains(number) && is_tree) save(number);
      if (context_.orphans.contains(number) && name_counts_[number] == 0 && is_tree) reach(number);
    }
    for (const u64 number : numbers) {
      const bool is_tree = context_.directories.contains(number);
      if (is_tree && !reached_.contains(number)) {
        leave_parent(number);
        save(number);
      } else if (!is_tree && name_counts_[number] == 0 && !context_.orphans.contains(number)) {
        save(number);
      }
    }
  }

  // For a directory that contains itself.
  void leave_parent(u64 number) {
    const u64 parent = parents_.at(number);
    Names& names = context_.directories[parent].names;
    const auto found = std::find_if(names.begin(), names.end(), [&](const Name& name) { return name.inode == number; });
    drop(parent, *found, fmt::format("directory {} contains itself; the name goes", number));
    names.erase(found);
    --name_counts_[number];
  }

  void save(u64 number) {
    const u64 home = lost_and_found();
    Name name{0, fmt::format("#{}", number), number};
    auto& names = context_.directories[home].names;
    while (std::any_of(names.begin(), names.end(), [&](const Name& other) { return other.text == name.text; })) {
      name.text += '~';
    }
    name.hash = hash_of(name.text);
    context_.note_inode(number, fmt::format("has no name and is now lost+found/{}", name.text));
    names.push_back(name);
    context_.directories[home].is_rebuilt = true;
    ++name_counts_[number];
    if (context_.directories.contains(number)) {
      parents_[number] = home;
      reach(number);
    }
  }

  u64 lost_and_found() {
    if (lost_and_found_ != 0) return lost_and_found_;
    std::string text = "lost+found";
    auto& names = context_.directories[root].names;
    for (;; text += '~') {
      const auto found = std::find_if(names.begin(), names.end(), [&](const Name& name) { return name.text == text; });
      if (found == names.end()) break;
      if (context_.directories.contains(found->inode)) return lost_and_found_ = found->inode;
    }
    u64 number = format::inode_number_first_free;
    while (context_.inodes.contains(number)) ++number;
    context_.inodes[number] = new_directory(number, 0700);
    context_.directories[number].is_rebuilt = true;
    names.push_back({hash_of(text), text, number});
    context_.directories[root].is_rebuilt = true;
    parents_[number] = root;
    ++name_counts_[number];
    reached_.insert(number);
    context_.note_inode(number, "is made as /" + text);
    return lost_and_found_ = number;
  }

  void set_counts() {
    parents_[root] = root;
    std::map<u64, u32> subdirectories;
    for (const auto& [number, parent] : parents_) {
      if (number != root) ++subdirectories[parent];
    }
    for (auto& [number, inode] : context_.inodes) {
      const bool has_name = number == root || name_counts_[number] > 0;
      u32 links = name_counts_[number];
      if (is_directory(inode)) {
        links = has_name ? 2 + subdirectories[number] : 0;
        set_directory(number, inode);
        // A directory that looks like an orphan may lack pages without being damaged; with names in it, or a name of
        // its own, it is not an orphan.
        DirectoryState& directory = context_.directories[number];
        const bool is_emptied = !has_name && directory.names.empty();
        if (inode.link_count == 0 && directory.lacks_pages && !is_emptied) directory.is_rebuilt = true;
      }
      if (links != inode.link_count) {
        context_.note_inode(number, fmt::format("{} links instead of {}", links, inode.link_count));
        inode.link_count = links;
      }
    }
  }

  void set_directory(u64 number, format::Inode& inode) {
    DirectoryState& directory = context_.directories[number];
    std::sort(directory.names.begin(), directory.names.end(),
              [](const Name& a, const Name& b) { return a.hash != b.hash ? a.hash < b.hash : a.text < b.text; });
    for (Name& name : directory.names) name.type = static_cast<u8>(context_.inodes.at(name.inode).mode >> 12);
    inode.entry_count = directory.names.size();
    const auto parent = parents_.find(number);
    if (parent == parents_.end() || parent->second == inode.parent_or_device) return;
    context_.note_inode(number, fmt::format("its parent is inode {}", parent->second));
    inode.parent_or_device = parent->second;
  }

  RepairContext& context_;
  std::map<u64, u64> parents_;  // of directories that have one
  std::map<u64, u32> name_counts_;
  std::set<u64> reached_;
  u64 lost_and_found_ = 0;
};

// Builds the hash tree of docs/internals/format.md, section 9.
class DirectoryBuilder {
 public:
  explicit DirectoryBuilder(const std::vector<Name>& names) : names_(names) {
    pages_.emplace_back();
    if (fits(0, names_.size())) {
      write_leaf(0, {0, 0, 0}, 0, names_.size());
    } else {
      write_node(0, 0, 0, 0, names_.size());
    }
  }
  std::vector<PageBuffer> take() { return std::move(pages_); }

 private:
  struct Place {
    u32 level;
    u32 depth;
    u64 prefix;
  };

  bool fits(std::size_t begin, std::size_t end) const {
    std::size_t bytes = format::directory_leaf_slots_offset;
    for (std::size_t i = begin; i < end && bytes <= page_size; ++i) {
      bytes += sizeof(format::DirectorySlot) + format::directory_entry_size(static_cast<u32>(names_[i].text.size()));
    }
    return bytes <= page_size;
  }

  void write_leaf(u32 index, const Place& place, std::size_t begin, std::size_t end) {
    PageBuffer& page = pages_[index];
    format::DirectoryPageHeader header{};
    header.magic = format::directory_leaf_magic;
    header.version = 1;
    header.level = static_cast<u8>(place.level);
    header.depth = static_cast<u8>(place.depth);
    header.prefix = place.prefix;
    u32 heap = page_size;
    for (std::size_t i = begin; i < end; ++i) {
      const Name& name = names_[i];
      const u32 length = static_cast<u32>(name.text.size());
      heap -= format::directory_entry_size(length);
      std::memcpy(page.bytes + heap, &name.inode, sizeof(name.inode));
      std::memcpy(page.bytes + heap + sizeof(name.inode), name.text.data(), length);
      const format::DirectorySlot slot{name.hash, static_cast<u16>(heap), static_cast<u8>(length), name.type, 0};
      std::memcpy(page.bytes + format::directory_leaf_slots_offset + (i - begin) * sizeof(slot), &slot, sizeof(slot));
    }
    header.entry_count = static_cast<u16>(end - begin);
    header.heap_begin = static_cast<u16>(heap);
    std::memcpy(page.bytes, &header, sizeof(header));
  }

  void write_node(u32 index, u32 level, u64 prefix, std::size_t begin, std::size_t end) {
    if (level >= format::directory_level_max) {
      throw pool::PoolError(Status::corrupt_structure, "too many names of a directory have the same hash");
    }
    format::DirectoryPageHeader header{};
    header.magic = format::directory_node_magic;
    header.version = 1;
    header.level = static_cast<u8>(level);
    header.prefix = prefix;
    std::vector<u32> children(format::directory_node_slots);
    fill(children, {level, 0, prefix}, 0, begin, end);
    std::memcpy(pages_[index].bytes, &header, sizeof(header));
    std::memcpy(pages_[index].bytes + format::directory_node_children_offset, children.data(),
                children.size() * sizeof(u32));
  }

  // Slots [first, first + 512 >> depth) of a node lead to names [begin, end).
  void fill(std::vector<u32>& children, const Place& place, u32 first, std::size_t begin, std::size_t end) {
    const u32 count = format::directory_node_slots >> place.depth;
    if (!fits(begin, end) && place.depth < format::directory_node_bits) {
      const u32 bit = 63 - format::directory_node_bits * place.level - place.depth;
      const u64 upper = place.prefix | u64{1} << bit;
      std::size_t middle = begin;
      while (middle < end && names_[middle].hash < upper) ++middle;
      fill(children, {place.level, place.depth + 1, place.prefix}, first, begin, middle);
      fill(children, {place.level, place.depth + 1, upper}, first + count / 2, middle, end);
      return;
    }
    const u32 index = static_cast<u32>(pages_.size());
    pages_.emplace_back();
    std::fill_n(children.begin() + first, count, index);
    if (fits(begin, end)) {
      write_leaf(index, place, begin, end);
    } else {
      write_node(index, place.level + 1, place.prefix, begin, end);
    }
  }

  const std::vector<Name>& names_;
  std::vector<PageBuffer> pages_;
};

}  // namespace

void settle_names(RepairContext& context) {
  NamesRepair(context).run();
}

std::vector<PageBuffer> build_directory(const std::vector<Name>& names) {
  return DirectoryBuilder(names).take();
}

}  // namespace gpu4fs::fsck::repair
