// A folder that several clients change at once: names that are created exclusively, moved and removed, and a log to
// which all append.
//
// Independent of the order, the successes for each name add up: the number of creations and moves to it, minus removals
// and moves away from it, is 0 or 1, and says whether the name exists. The log has every acknowledged record once, and
// those of one client in order.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "crash/crash_state.hpp"
#include "model/operation_source.hpp"

namespace gpu4fs::test {

class SharedFolder {
 public:
  static constexpr u64 name_count = 3;
  static constexpr u64 record_bytes = 64;

  SharedFolder(u64 folder, u64 log_file, u64 client_count)
      : folder_(folder), log_file_(log_file), logs_(client_count) {}

  u64 folder() const { return folder_; }
  u64 records_done(u64 client) const { return logs_[client].done; }
  void promise_records(u64 client, u64 count) { logs_[client].promised = std::max(logs_[client].promised, count); }

  FileOperation next(Sequence& random, u64 client) {
    using wire::Opcode;
    FileOperation op;
    op.inode = folder_;
    op.name = name(random.next());
    switch (random.next() % 8) {
      case 0:
      case 1:
        op.opcode = Opcode::create;
        op.mode = 0644;
        op.mask = 0200;  // O_EXCL
        break;
      case 2:
        op.opcode = Opcode::unlink;
        break;
      case 3:
      case 4:
        op.opcode = Opcode::rename;
        op.second_inode = folder_;
        op.second_name = name(random.next());
        op.mask = 1;  // RENAME_NOREPLACE
        break;
      default:
        op.opcode = Opcode::write;
        op.inode = log_file_;
        op.append = true;
        op.name.clear();
        op.length = record_bytes;
        logs_[client].begun = logs_[client].done + 1;
    }
    return op;
  }
  std::vector<u8> content(const FileOperation& op, u64 client) const {
    return op.opcode == wire::Opcode::write ? record(client, logs_[client].done) : std::vector<u8>{};
  }

  // "" or the fault of the answer.
  std::string end(const FileOperation& op, u64 client, const client::Reply& reply) {
    using wire::Opcode;
    const int error = to_errno(reply.status);
    if (error != 0) {
      const bool may = op.opcode == Opcode::create   ? error == EEXIST
                       : op.opcode == Opcode::unlink ? error == ENOENT
                       : op.opcode == Opcode::rename ? error == ENOENT || error == EEXIST
                                                     : false;
      return may ? "" : fmt::format("in the shared folder {} answers {}", to_text(op), status_name(reply.status));
    }
    if (op.opcode == Opcode::create) ++net_[op.name];
    if (op.opcode == Opcode::unlink) --net_[op.name];
    if (op.opcode == Opcode::rename) {
      --net_[op.name];
      ++net_[op.second_name];
    }
    if (op.opcode == Opcode::write) ++logs_[client].done;
    return "";
  }
  // It is unknown whether it happened; the next check of the folder shows it.
  void doubt(const FileOperation& op) {
    if (op.opcode != wire::Opcode::write) counts_are_known_ = false;
  }

  // While no operation is in progress. After a crash (`crashed`) any state of names is accepted, and records may be
  // missing at the end.
  std::string check(FileClient& client, bool crashed) {
    std::string problem;
    const auto listed = client.list(folder_, 8000, false, &problem);
    if (!problem.empty()) return "the shared folder: " + problem;
    for (u64 i = 0; i < name_count; ++i) {
      const i64 there = listed.count(name(i)) != 0 ? 1 : 0;
      if (!crashed && counts_are_known_ && net_[name(i)] != there) {
        return fmt::format("shared name {}: {} made, {} there", name(i), net_[name(i)], there);
      }
      net_[name(i)] = there;
    }
    counts_are_known_ = true;
    return check_log(client, crashed);
  }

 private:
  struct Log {
    u64 begun = 0;
    u64 done = 0;
    u64 promised = 0;
  };

  static std::string name(u64 number) { return std::string(1, static_cast<char>('a' + number % name_count)); }
  static std::vector<u8> record(u64 client, u64 number) {
    std::vector<u8> bytes(record_bytes, static_cast<u8>(client + 1));
    std::memcpy(bytes.data(), &client, sizeof(client));
    std::memcpy(bytes.data() + 8, &number, sizeof(number));
    return bytes;
  }

  std::string check_log(FileClient& client, bool crashed) {
    std::vector<u64> found(logs_.size());
    const u64 unit = content_unit / record_bytes * record_bytes;
    for (u64 at = 0;; at += unit) {
      const client::Reply reply = client.simple(wire::Opcode::read, log_file_, at, unit);
      if (reply.status != Status::ok) return fmt::format("the shared log: {}", status_name(reply.status));
      for (u64 i = 0; i < reply.result; i += record_bytes) {
        u64 owner = 0;
        std::memcpy(&owner, client.data() + i, sizeof(owner));
        if (owner >= logs_.size()) return fmt::format("the shared log has a record of nobody at {}", at + i);
        const std::vector<u8> expected = record(owner, found[owner]++);
        if (reply.result - i < record_bytes || std::memcmp(client.data() + i, expected.data(), record_bytes) != 0) {
          return fmt::format("the shared log has another record than {} of client {} at {}", found[owner] - 1, owner,
                             at + i);
        }
      }
      if (reply.result < unit) break;
    }
    for (u64 i = 0; i < logs_.size(); ++i) {
      const u64 least = crashed ? logs_[i].promised : logs_[i].done;
      const u64 most = std::max(logs_[i].done, logs_[i].begun);
      if (found[i] < least || found[i] > most) {
        return fmt::format("the shared log has {} records of client {}, not {} to {}", found[i], i, least, most);
      }
      logs_[i] = {found[i], found[i], crashed ? found[i] : logs_[i].promised};
    }
    return "";
  }

  u64 folder_;
  u64 log_file_;
  std::map<std::string, i64> net_;
  bool counts_are_known_ = true;
  std::vector<Log> logs_;
};

}  // namespace gpu4fs::test
