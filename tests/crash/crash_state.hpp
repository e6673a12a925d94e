// The state of a tree as a text without anything that a crash may change: no times, no inode numbers. Trees are equal
// if their texts are. One line for each name: path, type, rights, owner, links, content, extended attributes. Another
// name of a file names the first one.
#pragma once

#include <map>
#include <string>

#include "base/xxh3.hpp"
#include "fmt/format.h"
#include "support/file_client.hpp"

namespace gpu4fs::test {

inline u64 text_hash(const void* bytes, u64 length, u64 seed = 0) {
  const u8 none = 0;
  return xxh3_64(length == 0 ? &none : bytes, length, seed);
}

// Contents are hashed in units, each with the hash of the previous one as its seed.
inline constexpr u64 content_unit = u64{24} << 10;

inline std::string content_text(const SparseBytes& content) {
  u64 hash = 0;
  for (u64 at = 0; at < content.size(); at += content_unit) {
    const std::vector<u8> bytes = content.read(at, content_unit);
    hash = text_hash(bytes.data(), bytes.size(), hash);
  }
  return fmt::format(" {} bytes {:x}", content.size(), hash);
}

// The state of the model, without orphans.
class ModelText {
 public:
  explicit ModelText(const PosixModel& model) : model_(model) { add("/", PosixModel::root); }
  const std::string& text() const { return text_; }

 private:
  void add(const std::string& path, u64 number) {
    const ModelNode& node = model_.nodes.at(number);
    const auto [first, is_new] = seen_.try_emplace(number, path);
    if (!is_new) {
      text_ += fmt::format("{} is {}\n", path, first->second);
      return;
    }
    text_ += fmt::format("{} {:o} {}:{} {}", path, node.mode, node.uid, node.gid, node.link_count);
    if (node.flags != 0) text_ += fmt::format(" flags {:x}", node.flags);
    if (node.is_symlink()) text_ += " -> " + node.target;
    if (node.is_regular()) text_ += content_text(node.content);
    if (node.device != 0) text_ += fmt::format(" device {:x}", node.device);
    for (const auto& [name, value] : node.attributes) {
      text_ += fmt::format(" {}={:x}", name, text_hash(value.data(), value.size()));
    }
    text_ += "\n";
    for (const auto& [name, child] : node.entries) add(path == "/" ? "/" + name : path + "/" + name, child);
  }

  const PosixModel& model_;
  std::map<u64, std::string> seen_;
  std::string text_;
};

// The state according to an engine. Failures are part of the text.
class PoolText {
 public:
  explicit PoolText(client::Session& session, u64 root = PosixModel::root) : client_(session) { add("/", root); }
  const std::string& text() const { return text_; }

 private:
  void add(const std::string& path, u64 number) {
    const auto [first, is_new] = seen_.try_emplace(number, path);
    if (!is_new) {
      text_ += fmt::format("{} is {}\n", path, first->second);
      return;
    }
    const client::Reply reply = client_.simple(wire::Opcode::getattr, number);
    if (reply.status != Status::ok) return fail(path, "getattr", reply.status);
    const format::AttributeRecord a = client_.attributes();
    text_ += fmt::format("{} {:o} {}:{} {}", path, a.mode, a.uid, a.gid, a.link_count);
    if (a.flags != 0) text_ += fmt::format(" flags {:x}", a.flags);
    if (S_ISLNK(a.mode)) add_target(path, number);
    if (S_ISREG(a.mode)) add_content(path, number, a.size_bytes);
    if (a.device != 0) text_ += fmt::format(" device {:x}", a.device);
    add_attributes(path, number);
    text_ += "\n";
    if (S_ISDIR(a.mode)) add_entries(path, number);
  }

  void add_target(const std::string& path, u64 number) {
    const client::Reply reply = client_.simple(wire::Opcode::readlink, number, 0, 4096);
    if (reply.status != Status::ok) return fail(path, "readlink", reply.status);
    text_ += " -> " + std::string(reinterpret_cast<const char*>(client_.data()), reply.result);
  }

  void add_content(const std::string& path, u64 number, u64 size) {
    u64 hash = 0;
    u64 length = 0;
    while (length < size) {
      const u64 part = std::min<u64>(size - length, content_unit);
      const client::Reply reply = client_.simple(wire::Opcode::read, number, length, part);
      if (reply.status != Status::ok || reply.result == 0) return fail(path, "read", reply.status);
      hash = text_hash(client_.data(), reply.result, hash);
      length += reply.result;
    }
    text_ += fmt::format(" {} bytes {:x}", length, hash);
  }

  void add_attributes(const std::string& path, u64 number) {
    FileOperation op;
    op.opcode = wire::Opcode::list_attributes;
    op.inode = number;
    op.length = 70000;
    client::Reply reply = client_.call(op);
    if (reply.status != Status::ok) return fail(path, "list_attributes", reply.status);
    std::set<std::string> names;
    for (u64 at = 0; at < reply.result;) {
      const std::string name(reinterpret_cast<const char*>(client_.data()) + at);
      names.insert(name);
      at += name.size() + 1;
    }
    for (const std::string& name : names) {
      op.opcode = wire::Opcode::get_attribute;
      op.name = name;
      reply = client_.call(op);
      if (reply.status != Status::ok) return fail(path, "get_attribute", reply.status);
      text_ += fmt::format(" {}={:x}", name, text_hash(client_.data(), reply.result));
    }
  }

  void add_entries(const std::string& path, u64 number) {
    std::string problem;
    const auto names = client_.list(number, 8000, false, &problem);
    if (!problem.empty()) text_ += path + " " + problem + "\n";
    for (const auto& [name, entry] : names) {
      if (name == "." || name == "..") continue;
      if (entry.count != 1) text_ += path + "/" + name + " is listed twice\n";
      add(path == "/" ? "/" + name : path + "/" + name, entry.inode);
    }
  }

  void fail(const std::string& path, const char* what, Status status) {
    text_ += fmt::format(" {}: {} answers {}\n", path, what, status_name(status));
  }

  FileClient client_;
  std::map<u64, std::string> seen_;
  std::string text_;
};

}  // namespace gpu4fs::test
