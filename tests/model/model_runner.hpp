// Runs operations on a pool and on the model in parallel and compares after each.
#pragma once

#include <ctime>
#include <deque>
#include <optional>

#include "model/operation_source.hpp"
#include "support/basic_test_pool.hpp"
#include "support/file_client.hpp"

namespace gpu4fs::test {

// `Pool`: a BasicTestPool.
template <class Pool>
class ModelRunner {
 public:
  // `tight`: the pool may become full where the model does not.
  ModelRunner(Pool& pool, bool tight) : pool_(pool), tight_(tight), start_seconds_(std::time(nullptr)) {
    open();
    durable_model_ = model_;
    epoch_seen_ = pool_.durable_epoch();
  }

  PosixModel& model() { return model_; }
  u64 refused_count() const { return refused_count_; }
  // The difference, empty: none. The operations before it are in history().
  const std::string& difference() const { return difference_; }
  std::string history() const {
    std::string text;
    for (const std::string& line : recent_) text += "  " + line + "\n";
    return text;
  }

  // False if engine and model differ.
  bool step(const FileOperation& op) {
    recent_.push_back(to_text(op));
    if (recent_.size() > 12) recent_.pop_front();
    const std::set<int> expected = model_.expect(op);
    const std::vector<u8> content = op.opcode == wire::Opcode::write ? content_of(op) : std::vector<u8>{};
    const client::Reply reply = client_->call(op, content);
    const int error = to_errno(reply.status);
    recent_.back() += fmt::format(" = {} {}", status_name(reply.status), reply.result);
    const bool refused = tight_ && error == ENOSPC && expected.count(error) == 0;
    if (refused) follow_refused(op);
    if (op.opcode == wire::Opcode::reclaim) {
      // For an inode that is not an orphan: any answer is right, and nothing happens.
      const ModelNode* node = model_.find(op.inode);
      if (node != nullptr && node->link_count == 0 && error != 0) return differ("reclaim fails");
    } else if (expected.count(error) == 0 && !refused) {
      std::string text;
      for (const int value : expected) text += fmt::format(" {}", value);
      return differ(fmt::format("status {} (errno {}), expected errno{}", status_name(reply.status), error, text));
    }
    if (error == 0 && !follow(op, reply.result, content)) return false;
    if (!check_touched(op, reply)) return false;
    return follow_epoch(op);
  }

  // Compares all.
  bool check_tree() {
    const std::string found = tree_difference();
    return found.empty() ? true : differ(found);
  }

  bool sync() {
    if (pool_.checkpoint() != Status::ok) return differ("a checkpoint fails");
    durable_model_ = model_;
    epoch_seen_ = pool_.durable_epoch();
    return true;
  }

  bool remount() {
    close();
    pool_.unmount();
    return reopen(model_);
  }
  bool crash() {
    // The comparison reads, and updating access times may have needed a checkpoint; nothing else has happened since.
    close();
    if (pool_.crash() != epoch_seen_) durable_model_ = model_;
    return reopen(durable_model_);
  }
  bool check_medium() {
    close();
    pool_.unmount();
    const fsck::CheckResult result = pool_.check();
    const bool clean = result.findings.error_count() == 0;
    const bool same = reopen(model_);
    return clean ? same : differ("fsck finds errors:" + findings_text(result));
  }

  u64 replayed_count() const { return replayed_count_; }

  void close() {
    client_.reset();
    session_.reset();
  }

 private:
  struct Times {
    i64 seconds[3];
    u32 nanoseconds[3];
  };

  bool differ(const std::string& what) {
    if (difference_.empty()) difference_ = what;
    return false;
  }

  void open() {
    session_ = pool_.open_session();
    client_.emplace(*session_);
  }
  bool reopen(const PosixModel& state) {
    const ModelFlaw flaw = model_.flaw;
    const PosixModel copy = state;
    model_ = copy;
    model_.flaw = flaw;
    model_.drop_orphans();
    pool_.mount();
    replayed_count_ += pool_.recovery().records_replayed;
    open();
    observed_.clear();
    if (!check_tree()) {
      difference_ = "after mounting: " + difference_;
      return false;
    }
    return sync();
  }

  // Before the space was exhausted, times may have changed and set-id bits may have been removed, as on Linux.
  void follow_refused(const FileOperation& op) {
    ++refused_count_;
    for (const u64 number : {op.inode, op.second_inode}) {
      observed_.erase(number);
      const auto at = model_.nodes.find(number);
      if (at == model_.nodes.end() || op.uid == 0) continue;
      if (client_->simple(wire::Opcode::getattr, number).status != Status::ok) continue;
      const u32 lost = at->second.mode & ~client_->attributes().mode;
      at->second.mode &= ~(lost & (S_ISUID | S_ISGID));
    }
  }

  bool follow(const FileOperation& op, u64 result, const std::vector<u8>& content) {
    using wire::Opcode;
    const bool creates = op.opcode == Opcode::create || op.opcode == Opcode::mkdir || op.opcode == Opcode::mknod ||
                         op.opcode == Opcode::symlink || op.opcode == Opcode::tmpfile;
    const std::string problem = result_difference(op, result);
    if (!problem.empty()) return differ(problem);
    const std::map<u64, TimeRule> rules = model_.times(op, result);
    const bool is_new = creates && model_.find(result) == nullptr;
    if (creates && !is_new && !names_existing(op, result)) return differ("a number that is in use was given again");
    model_.commit(op, result, content, client_->attributes());
    for (const auto& [number, rule] : rules) {
      if (!check_times(number, rule, op)) return false;
    }
    return true;
  }

  bool names_existing(const FileOperation& op, u64 number) const {
    if (op.opcode != wire::Opcode::create) return false;
    const auto& entries = model_.nodes.at(op.inode).entries;
    const auto at = entries.find(op.name);
    return at != entries.end() && at->second == number;
  }

  // Reads the part of a read in its first page, twice: at the latest the second time the file's lock is not needed.
  std::string page_difference(const FileOperation& op, const ModelNode& node) {
    const u64 length = std::min<u64>(op.length, page_size - op.offset % page_size);
    const u64 size = node.content.size();
    const u64 expected = op.offset >= size ? 0 : std::min(length, size - op.offset);
    for (u32 i = 0; i < 2; ++i) {
      const client::Reply reply = client_->simple(wire::Opcode::read, op.inode, op.offset, length);
      if (reply.status != Status::ok) return fmt::format("a read of one page answers {}", status_name(reply.status));
      if (reply.result != expected) return fmt::format("{} bytes of a page read, expected {}", reply.result, expected);
      if (node.content.first_difference(op.offset, client_->data(), expected)) return "other bytes of a page are read";
    }
    return "";
  }

  // The expected result of a successful operation.
  std::string result_difference(const FileOperation& op, u64 result) {
    using wire::Opcode;
    const ModelNode* node = model_.find(op.inode);
    switch (op.opcode) {
      case Opcode::write:
        if (result == op.length || (tight_ && result < op.length && result > 0)) return "";
        return fmt::format("{} of {} bytes written", result, op.length);
      case Opcode::read: {
        const u64 size = node->content.size();
        const u64 expected = op.offset >= size ? 0 : std::min(op.length, size - op.offset);
        if (result != expected) return fmt::format("{} bytes read, expected {}", result, expected);
        if (node->content.first_difference(op.offset, client_->data(), result)) return "other bytes are read";
        return page_difference(op, *node);
      }
      case Opcode::copy_range: {
        const u64 size = node->content.size();
        const u64 most = op.offset >= size ? 0 : std::min(op.length, size - op.offset);
        return result > most || (most > 0 && result == 0) ? fmt::format("{} of {} bytes copied", result, most) : "";
      }
      case Opcode::seek:
        return seek_difference(op, *node, result);
      case Opcode::lookup:
        return result == node->entries.at(op.name) ? "" : "lookup finds another inode";
      case Opcode::unlink:
      case Opcode::rmdir: {
        const u64 number = node->entries.at(op.name);
        const ModelNode& gone = model_.nodes.at(number);
        const bool is_last = gone.is_directory() || gone.link_count == 1;
        return result == (is_last ? number : 0) ? "" : fmt::format("answers {} as orphan", result);
      }
      case Opcode::readlink: {
        const std::string expected = node->target.substr(0, op.length);
        const std::string found(reinterpret_cast<const char*>(client_->data()), result);
        return found == expected ? "" : "another target";
      }
      case Opcode::get_attribute: {
        const std::string& expected = node->attributes.at(op.name);
        if (result != expected.size()) return fmt::format("an attribute of {} bytes", result);
        if (op.length == 0) return "";
        return result == 0 || std::memcmp(client_->data(), expected.data(), result) == 0 ? ""
                                                                                         : "another attribute value";
      }
      case Opcode::list_attributes:
        return list_difference(op, *node, result);
      case Opcode::readdir:
        return directory_difference(op.inode, op.length, op.mask != 0);
      case Opcode::statfs: {
        const wire::StatfsRecord& s = client_->statistics();
        if (s.inode_used != 15 + model_.nodes.size()) {
          return fmt::format("{} inodes in use, expected {}", s.inode_used, 15 + model_.nodes.size());
        }
        return s.page_free <= s.page_total && s.page_available <= s.page_free ? "" : "free space does not add up";
      }
      default:
        return "";
    }
  }

  static std::string seek_difference(const FileOperation& op, const ModelNode& node, u64 result) {
    const u64 size = node.content.size();
    if (result < op.offset || result > size) return fmt::format("seek answers {}", result);
    if (op.mode == 3) {  // SEEK_DATA
      return result < size && node.content.is_zero(op.offset, result) ? "" : "data were passed over";
    }
    if (result == size) return "";
    const u64 end = std::min(size, result / page_size * page_size + page_size);
    return node.content.is_zero(result, end) ? "" : "a hole that holds data";
  }

  std::string list_difference(const FileOperation& op, const ModelNode& node, u64 result) {
    u64 bytes = 0;
    for (const auto& [name, value] : node.attributes) bytes += name.size() + 1;
    if (result != bytes) return fmt::format("a list of {} bytes, expected {}", result, bytes);
    if (op.length == 0) return "";
    std::set<std::string> found;
    for (u64 at = 0; at < result;) {
      const std::string name(reinterpret_cast<const char*>(client_->data()) + at);
      found.insert(name);
      at += name.size() + 1;
    }
    for (const auto& [name, value] : node.attributes) {
      if (found.erase(name) == 0) return "an attribute is not listed";
    }
    return found.empty() ? "" : "a listed attribute does not exist";
  }

  std::string directory_difference(u64 number, u64 buffer_bytes, bool with_attributes) {
    const ModelNode& node = model_.nodes.at(number);
    std::string problem;
    const auto names = client_->list(number, buffer_bytes, with_attributes, &problem);
    if (!problem.empty()) return problem;
    std::map<std::string, u64> expected = node.entries;
    if (node.link_count != 0) {  // a removed directory that is still open lists nothing
      expected["."] = number;
      expected[".."] = node.parent;
    }
    for (const auto& [name, entry] : names) {
      const auto at = expected.find(name);
      if (at == expected.end()) return "lists \"" + name + "\", which does not exist";
      if (entry.count != 1) return "lists \"" + name + "\" twice";
      if (entry.inode != at->second) return fmt::format("\"{}\" is listed as inode {}", name, entry.inode);
      const ModelNode* child = model_.find(at->second);
      if (child != nullptr && entry.type != child->mode >> 12) return "\"" + name + "\" is listed with another type";
      expected.erase(at);
    }
    return expected.empty() ? "" : "\"" + expected.begin()->first + "\" is not listed";
  }

  // Attributes of one inode.
  std::string attribute_difference(u64 number, const ModelNode& node) {
    const client::Reply reply = client_->simple(wire::Opcode::getattr, number);
    if (reply.status != Status::ok) return fmt::format("getattr answers {}", status_name(reply.status));
    const format::AttributeRecord& a = client_->attributes();
    if (a.inode != number) return "attributes of another inode";
    if (a.mode != node.mode) return fmt::format("mode {:#o}, expected {:#o}", a.mode, node.mode);
    if (a.uid != node.uid || a.gid != node.gid) return fmt::format("owner {}:{}", a.uid, a.gid);
    if (a.link_count != node.link_count) return fmt::format("{} links, expected {}", a.link_count, node.link_count);
    if (a.flags != node.flags) return fmt::format("flags {:#x}, expected {:#x}", a.flags, node.flags);
    if (a.device != node.device) return fmt::format("device {:#x}", a.device);
    if (node.is_directory() && a.parent != node.parent) return fmt::format("parent {}", a.parent);
    if (node.is_symlink() && a.size_bytes != node.target.size()) return fmt::format("size {}", a.size_bytes);
    if (!node.is_regular()) return "";
    if (a.size_bytes != node.content.size()) {
      return fmt::format("size {}, expected {}", a.size_bytes, node.content.size());
    }
    const u64 least = node.content.size() > format::inode_inline_capacity ? node.content.nonzero_page_count() : 0;
    if (a.blocks_512 < least * 8) return fmt::format("{} blocks for {} pages", a.blocks_512, least);
    return "";
  }

  // Updates the observed times; `rule` says what had to change since the last observation.
  bool check_times(u64 number, const TimeRule& rule, const FileOperation& op) {
    if (model_.find(number) == nullptr) return true;
    if (client_->simple(wire::Opcode::getattr, number).status != Status::ok) return differ("getattr fails");
    const format::AttributeRecord a = client_->attributes();
    const Times now = times_of(a);
    const auto before = observed_.find(number);
    for (u32 i = 0; i < 3; ++i) {
      const u32 bit = 1u << i;
      if ((rule.must & bit) != 0 && now.seconds[i] < start_seconds_ - 2) {
        return differ(fmt::format("time {} of inode {} is {}, an old one", i, number, now.seconds[i]));
      }
      // Reads for the comparison change access times.
      const bool may_change = ((rule.must | rule.may) & bit) != 0 || bit == time_access;
      if (may_change || before == observed_.end()) continue;
      if (before->second.seconds[i] != now.seconds[i] || before->second.nanoseconds[i] != now.nanoseconds[i]) {
        return differ(fmt::format("time {} of inode {} changed", i, number));
      }
    }
    observed_[number] = now;
    if (op.opcode != wire::Opcode::setattr) return true;
    const bool modification_set = (op.mask & format::set_modification_time) != 0;
    if (modification_set && (a.modification_seconds != op.attributes.modification_seconds ||
                             a.modification_nanoseconds != op.attributes.modification_nanoseconds)) {
      return differ("another modification time than was set");
    }
    const bool access_set = (op.mask & format::set_access_time) != 0;
    if (access_set && (a.access_seconds != op.attributes.access_seconds ||
                       a.access_nanoseconds != op.attributes.access_nanoseconds)) {
      return differ("another access time than was set");
    }
    return true;
  }

  static Times times_of(const format::AttributeRecord& a) {
    return {{a.access_seconds, a.modification_seconds, a.change_seconds},
            {a.access_nanoseconds, a.modification_nanoseconds, a.change_nanoseconds}};
  }

  // Bytes [begin, end) of a file.
  std::string range_difference(u64 number, const ModelNode& node, u64 begin, u64 end) {
    const u64 unit = std::min<u64>(client_->data_bytes(), u64{1} << 20);
    for (u64 at = begin; at < std::min(end, node.content.size()); at += unit) {
      const u64 wanted = std::min(unit, end - at);
      const u64 expected = std::min(wanted, node.content.size() - at);
      const client::Reply reply = client_->simple(wire::Opcode::read, number, at, wanted);
      if (reply.status != Status::ok) return fmt::format("reading at {} answers {}", at, status_name(reply.status));
      if (reply.result != expected) return fmt::format("{} bytes at {}", reply.result, at);
      const std::optional<u64> difference = node.content.first_difference(at, client_->data(), expected);
      if (!difference) continue;
      return fmt::format("byte {} is {:#x}, expected {:#x}", at + *difference, client_->data()[*difference],
                         node.content.read(at + *difference, 1).front());
    }
    return "";
  }

  // The whole file: the parts near data, and that the engine has nothing elsewhere.
  std::string content_difference(u64 number, const ModelNode& node) {
    constexpr u64 dense = u64{6} << 20;
    const std::string found = range_difference(number, node, 0, dense);
    if (!found.empty()) return found;
    u64 checked = dense;
    for (const auto& [page, bytes] : node.content.pages()) {
      const u64 begin = std::max(checked, page * page_size - std::min(page * page_size, page_size));
      const u64 end = (page + 2) * page_size;
      if (end <= checked) continue;
      const std::string here = range_difference(number, node, begin, end);
      if (!here.empty()) return here;
      checked = end;
    }
    for (u64 at = dense; at < node.content.size();) {
      const client::Reply data = client_->simple(wire::Opcode::seek, number, at, 0, 3);
      if (data.status != Status::ok) return data.status == Status::no_such_data ? "" : "seek fails";
      const client::Reply hole = client_->simple(wire::Opcode::seek, number, data.result, 0, 4);
      if (hole.status != Status::ok || hole.result <= data.result) return "seek does not move";
      const std::string here = range_difference(number, node, data.result, hole.result);
      if (!here.empty()) return here;
      at = hole.result;
    }
    return "";
  }

  std::string attribute_value_difference(u64 number, const ModelNode& node) {
    FileOperation op;
    op.opcode = wire::Opcode::list_attributes;
    op.inode = number;
    op.length = 70000;
    client::Reply reply = client_->call(op);
    if (reply.status != Status::ok) return "list_attributes fails";
    const std::string listed = list_difference(op, node, reply.result);
    if (!listed.empty()) return listed;
    for (const auto& [name, value] : node.attributes) {
      op.opcode = wire::Opcode::get_attribute;
      op.name = name;
      reply = client_->call(op);
      if (reply.status != Status::ok || reply.result != value.size() ||
          std::memcmp(client_->data(), value.data(), value.size()) != 0) {
        return "attribute " + name + " differs";
      }
    }
    return "";
  }

  std::string node_difference(u64 number, const ModelNode& node, bool deep) {
    std::string found = attribute_difference(number, node);
    if (!found.empty() || !deep) return found;
    if (node.is_regular()) found = content_difference(number, node);
    if (node.is_directory()) found = directory_difference(number, 3000, true);
    if (found.empty() && node.is_symlink()) {
      const client::Reply reply = client_->simple(wire::Opcode::readlink, number, 0, 4096);
      const std::string target(reinterpret_cast<const char*>(client_->data()), reply.result);
      if (reply.status != Status::ok || target != node.target) found = "another target";
    }
    if (found.empty() && (node.is_regular() || node.is_directory())) found = attribute_value_difference(number, node);
    return found;
  }

  std::string tree_difference() {
    for (const auto& [number, node] : model_.nodes) {
      const std::string found = node_difference(number, node, true);
      if (!found.empty()) return fmt::format("inode {}: {}", number, found);
      if (!check_times(number, {}, FileOperation{})) return difference_;
    }
    const client::Reply reply = client_->simple(wire::Opcode::statfs);
    FileOperation op;
    op.opcode = wire::Opcode::statfs;
    return reply.status == Status::ok ? result_difference(op, 0) : "statfs fails";
  }

  bool check_touched(const FileOperation& op, const client::Reply& reply) {
    using wire::Opcode;
    const bool changes_content = op.opcode == Opcode::write || op.opcode == Opcode::truncate ||
                                 op.opcode == Opcode::fallocate || op.opcode == Opcode::copy_range ||
                                 op.opcode == Opcode::setattr;
    std::set<u64> numbers = {op.inode, op.second_inode};
    if (reply.status == Status::ok) numbers.insert(reply.result);
    for (const u64 number : numbers) {
      const ModelNode* node = model_.find(number);
      if (node == nullptr) continue;
      const bool deep = changes_content && node->is_regular();
      const std::string found = node_difference(number, *node, deep);
      if (!found.empty()) return differ(fmt::format("inode {}: {}", number, found));
    }
    if (op.opcode == Opcode::reclaim && model_.find(op.inode) == nullptr && op.inode >= 16) {
      const client::Reply gone = client_->simple(Opcode::getattr, op.inode);
      if (gone.status != Status::stale) return differ("a reclaimed inode is still there");
    }
    observed_.erase(op.opcode == Opcode::reclaim ? op.inode : 0);
    return true;
  }

  // A checkpoint that the engine made on its own may contain a part of the operation; another one makes the durable
  // state exact.
  bool follow_epoch(const FileOperation& op) {
    const u64 epoch = pool_.durable_epoch();
    const bool is_sync = op.opcode == wire::Opcode::sync || op.opcode == wire::Opcode::fsync;
    if (is_sync) {
      durable_model_ = model_;
      epoch_seen_ = epoch;
      return true;
    }
    return epoch == epoch_seen_ ? true : sync();
  }

  Pool& pool_;
  bool tight_;
  i64 start_seconds_;
  PosixModel model_;
  PosixModel durable_model_;
  u64 epoch_seen_ = 0;
  u64 refused_count_ = 0;
  u64 replayed_count_ = 0;
  std::map<u64, Times> observed_;
  std::unique_ptr<client::Session> session_;
  std::optional<FileClient> client_;
  std::deque<std::string> recent_;
  std::string difference_;
};

}  // namespace gpu4fs::test
