// The content of a pool before its image is changed, and the expected content afterwards: the manifest.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"

namespace gpu4fs::test::changed_images {

struct ImageItem {
  std::string path;  // "a/b", the root is ""
  u64 inode = 0;
  u32 mode = 0;
  u64 size = 0;
  std::map<u64, std::vector<u8>> parts;  // of regular files, by offset; everything else is zeros
  std::string target;
  std::map<std::string, std::string> attributes;

  bool is_below(const ImageItem& directory) const {
    return directory.path.empty() || path == directory.path || path.starts_with(directory.path + "/");
  }
};

// For an answer that reports damage. A reader would draw conclusions from other answers.
inline bool is_damage(Status status) {
  return to_errno(status) == EIO || to_errno(status) == EUCLEAN;
}

class ImageContent {
 public:
  std::vector<ImageItem> items;

  ImageItem& item(const std::string& path) {
    return *std::find_if(items.begin(), items.end(), [&](const ImageItem& one) { return one.path == path; });
  }

  // One of everything that a pool can contain.
  void populate(FileClient& client) {
    items.push_back({"", format::inode_number_root, S_IFDIR | 0755, 0, {}, {}, {}});
    ImageItem& plain = add_file(client, "plain");
    write(client, plain, 0, 100'000);
    set_attribute(client, "plain", "user.name", std::string(50, 'v'));
    write(client, add_file(client, "inline"), 0, 100);
    write(client, add_file(client, "small"), 0, 3 * page_size);
    add_file(client, "sparse");
    for (u64 i = 0; i < 4; ++i) write(client, item("sparse"), i * (u64{48} << 20) + 4000, 9000);
    ImageItem& allocated = add_file(client, "allocated");
    call(client, operation(wire::Opcode::fallocate, allocated.inode, 0, u64{1} << 20));
    allocated.size = u64{1} << 20;
    write(client, allocated, 100'000, 20'000);
    add_directory(client, "directory");
    for (u32 i = 0; i < 40; ++i) {
      write(client, add_file(client, fmt::format("directory/{}{}", i, std::string(180, 'n'))), 0, 60 + i);
    }
    add_directory(client, "directory/below");
    write(client, add_file(client, "directory/below/deep"), 0, 2 * page_size + 17);
    add_directory(client, "empty");
    add_link(client, "plain", "directory/below/second");
    add_symlink(client, "short-link", "directory/below");
    add_symlink(client, "long-link", std::string(300, 's'));
  }

  // The content of the remaining log: names, bytes in records, pages that records name, attributes.
  void change(FileClient& client) {
    write(client, add_file(client, "logged-bytes"), 0, 2000);
    write(client, add_file(client, "directory/logged-pages"), 0, 5 * page_size);
    write(client, item("small"), 100, 700);
    set_attribute(client, "small", "user.later", "x");
    call(client, operation(wire::Opcode::sync));
  }

  // Reads everything. Touched items may have any answer; the answers about the others must be right. Returns problems,
  // one line each.
  std::vector<std::string> find_problems(FileClient& client, const std::set<u32>& touched, const char* stage) const {
    std::vector<std::string> problems;
    for (u32 i = 0; i < items.size(); ++i) {
      const std::string problem = find_problem(client, items[i]);
      if (!problem.empty() && !touched.contains(i)) {
        problems.push_back(fmt::format("{}: \"{}\": {}", stage, items[i].path.substr(0, 40), problem));
      }
    }
    return problems;
  }

  // Overwrites or creates a file, and updates the item. False: it was refused, and its state is unknown.
  bool try_write(FileClient& client, ImageItem& item, u64 offset, u64 length) {
    const std::vector<u8> bytes = random_bytes(length);
    for (u64 done = 0; done < length;) {
      const u64 count = std::min(length - done, piece_bytes);
      FileOperation op = operation(wire::Opcode::write, item.inode, offset + done, count);
      const client::Reply reply = client.call(op, {bytes.begin() + static_cast<std::ptrdiff_t>(done),
                                                   bytes.begin() + static_cast<std::ptrdiff_t>(done + count)});
      if (reply.status != Status::ok || reply.result != count) return false;
      done += count;
    }
    put(item, offset, bytes);
    return true;
  }
  // Null: refused.
  ImageItem* try_add_file(FileClient& client, const std::string& path) {
    FileOperation op = operation(wire::Opcode::create, inode_of(parent_of(path)));
    op.name = name_of(path);
    op.mode = 0644;
    op.mask = 0200;  // O_EXCL
    const client::Reply reply = client.call(op);
    if (reply.status != Status::ok) return nullptr;
    items.push_back({path, reply.result, S_IFREG | 0644, 0, {}, {}, {}});
    return &items.back();
  }

 private:
  static constexpr u64 piece_bytes = u64{64} << 10;

  static FileOperation operation(wire::Opcode opcode, u64 inode = 0, u64 offset = 0, u64 length = 0) {
    FileOperation op;
    op.opcode = opcode;
    op.inode = inode;
    op.offset = offset;
    op.length = length;
    return op;
  }
  static std::string parent_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash);
  }
  static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  u64 inode_of(const std::string& path) { return item(path).inode; }

  client::Reply call(FileClient& client, const FileOperation& op) {
    const client::Reply reply = client.call(op);
    if (reply.status != Status::ok) throw std::runtime_error(fmt::format("{}: {}", op.name, status_name(reply.status)));
    return reply;
  }
  std::vector<u8> random_bytes(u64 length) {
    std::vector<u8> bytes(length);
    fill_random(bytes.data(), bytes.size(), ++seed_);
    return bytes;
  }
  // Later bytes overwrite earlier ones.
  static void put(ImageItem& item, u64 offset, const std::vector<u8>& bytes) {
    item.size = std::max(item.size, offset + bytes.size());
    for (auto& [begin, part] : item.parts) {
      for (u64 i = 0; i < bytes.size(); ++i) {
        if (offset + i >= begin && offset + i < begin + part.size()) part[offset + i - begin] = bytes[i];
      }
    }
    const auto same = item.parts.find(offset);
    if (same == item.parts.end() || same->second.size() < bytes.size()) item.parts[offset] = bytes;
  }

  ImageItem& add_file(FileClient& client, const std::string& path) {
    ImageItem* const item = try_add_file(client, path);
    if (item == nullptr) throw std::runtime_error("a file cannot be made");
    return *item;
  }
  void write(FileClient& client, ImageItem& item, u64 offset, u64 length) {
    if (!try_write(client, item, offset, length)) throw std::runtime_error("a file cannot be written");
  }
  void add_directory(FileClient& client, const std::string& path) {
    FileOperation op = operation(wire::Opcode::mkdir, inode_of(parent_of(path)));
    op.name = name_of(path);
    op.mode = 0755;
    items.push_back({path, call(client, op).result, S_IFDIR | 0755, 0, {}, {}, {}});
  }
  void add_link(FileClient& client, const std::string& old_path, const std::string& path) {
    FileOperation op = operation(wire::Opcode::link, inode_of(parent_of(path)));
    op.second_inode = inode_of(old_path);
    op.name = name_of(path);
    call(client, op);
    ImageItem linked = item(old_path);
    linked.path = path;
    items.push_back(linked);
  }
  void add_symlink(FileClient& client, const std::string& path, const std::string& target) {
    FileOperation op = operation(wire::Opcode::symlink, inode_of(parent_of(path)));
    op.name = name_of(path);
    op.text = target;
    items.push_back({path, call(client, op).result, S_IFLNK | 0777, target.size(), {}, target, {}});
  }
  void set_attribute(FileClient& client, const std::string& path, const std::string& name, const std::string& value) {
    FileOperation op = operation(wire::Opcode::set_attribute, inode_of(path));
    op.name = name;
    op.text = value;
    call(client, op);
    for (ImageItem& one : items) {
      if (one.inode == inode_of(path)) one.attributes[name] = value;
    }
  }

  static std::string refusal(const std::string& what, Status status) {
    return is_damage(status) ? "" : fmt::format("{}: {}", what, status_name(status));
  }
  static std::string text_in(FileClient& client, u64 length) {
    return {reinterpret_cast<const char*>(client.data()), length};
  }

  // "" if all answers are right; reads everything in any case.
  std::string find_problem(FileClient& client, const ImageItem& item) const {
    u64 inode = format::inode_number_root;
    for (std::size_t begin = 0; begin < item.path.size();) {
      const std::size_t end = std::min(item.path.find('/', begin), item.path.size());
      FileOperation op = operation(wire::Opcode::lookup, inode);
      op.name = item.path.substr(begin, end - begin);
      const client::Reply found = client.call(op);
      if (found.status != Status::ok) return refusal("lookup", found.status);
      inode = found.result;
      begin = end + 1;
    }
    std::string problem = inode == item.inode ? "" : fmt::format("inode {} instead of {}", inode, item.inode);
    const auto add = [&](const std::string& text) {
      if (problem.empty()) problem = text;
    };
    const client::Reply asked = client.simple(wire::Opcode::getattr, inode);
    if (asked.status == Status::ok) {
      const format::AttributeRecord& found = client.attributes();
      if (found.mode != item.mode) add(fmt::format("mode {:o} instead of {:o}", found.mode, item.mode));
      if (!S_ISDIR(item.mode) && found.size_bytes != item.size) {
        add(fmt::format("{} bytes instead of {}", found.size_bytes, item.size));
      }
    } else {
      add(refusal("getattr", asked.status));
    }
    add(find_attribute_problem(client, item, inode));
    if (S_ISLNK(item.mode)) add(find_target_problem(client, item, inode));
    if (S_ISDIR(item.mode)) add(find_list_problem(client, item, inode));
    for (const auto& [offset, bytes] : item.parts) {
      // With the surrounding bytes.
      const u64 begin = offset - std::min(offset, page_size);
      for (u64 at = begin; at < std::min(offset + bytes.size() + page_size, item.size); at += piece_bytes) {
        add(find_content_problem(client, item, inode, at, std::min(piece_bytes, item.size - at)));
      }
    }
    return problem;
  }
  std::string find_attribute_problem(FileClient& client, const ImageItem& item, u64 inode) const {
    for (const auto& [name, value] : item.attributes) {
      FileOperation op = operation(wire::Opcode::get_attribute, inode, 0, 4096);
      op.name = name;
      const client::Reply reply = client.call(op);
      if (is_damage(reply.status)) continue;
      if (reply.status != Status::ok) return refusal(name, reply.status);
      if (text_in(client, reply.result) != value) return name + ": another value";
    }
    return "";
  }
  std::string find_target_problem(FileClient& client, const ImageItem& item, u64 inode) const {
    const client::Reply reply = client.simple(wire::Opcode::readlink, inode, 0, 4096);
    if (reply.status != Status::ok) return refusal("readlink", reply.status);
    return text_in(client, reply.result) == item.target ? "" : "another target";
  }
  // A list that ends regularly has all names.
  std::string find_list_problem(FileClient& client, const ImageItem& item, u64 inode) const {
    std::string refusal;
    const std::map<std::string, ListedName> names = client.list(inode, 4096, false, &refusal);
    if (!refusal.empty()) return "";
    for (const ImageItem& other : items) {
      if (other.path.empty() || parent_of(other.path) != item.path) continue;
      if (!names.contains(name_of(other.path))) return "readdir lacks " + name_of(other.path).substr(0, 20);
    }
    return "";
  }
  std::string find_content_problem(FileClient& client, const ImageItem& item, u64 inode, u64 offset, u64 length) const {
    const client::Reply reply = client.simple(wire::Opcode::read, inode, offset, length);
    if (reply.status != Status::ok) return refusal("read", reply.status);
    if (reply.result != length) return fmt::format("read at {}: {} bytes of {}", offset, reply.result, length);
    std::vector<u8> expected(length);
    for (const auto& [begin, bytes] : item.parts) {
      const u64 from = std::max(begin, offset);
      const u64 to = std::min(begin + bytes.size(), offset + length);
      if (from < to) std::memcpy(expected.data() + (from - offset), bytes.data() + (from - begin), to - from);
    }
    const auto different = std::mismatch(expected.begin(), expected.end(), client.data()).first;
    if (different == expected.end()) return "";
    return fmt::format("WRONG BYTES at {}", offset + static_cast<u64>(different - expected.begin()));
  }

  u64 seed_ = 100;
};

}  // namespace gpu4fs::test::changed_images
