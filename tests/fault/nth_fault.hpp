// A device whose n-th read, write or flush from a moment on fails; and a table of operations to try with it.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "crash/crash_histories.hpp"
#include "model/actor.hpp"

namespace gpu4fs::test {

enum class NthKind { read, write, flush };
inline const char* nth_name(NthKind kind) {
  return kind == NthKind::read ? "read" : kind == NthKind::write ? "write" : "flush";
}

// Shared by the layers of all devices of a pool.
struct NthPlan {
  NthKind kind = NthKind::read;
  u64 nth = 0;  // 0: none fails
  u64 seen = 0;
  bool has_struck = false;
  bool lasts = false;                             // all later ones fail too
  std::function<void()> on_superblock = nullptr;  // when one is about to be written

  void arm(NthKind which, u64 number, bool is_lasting = false) {
    kind = which;
    lasts = is_lasting;
    nth = number;
    seen = 0;
    has_struck = false;
  }
  void disarm() { nth = 0; }
  bool strikes(NthKind which) {
    if (nth == 0 || which != kind || ++seen < nth || (seen > nth && !lasts)) return false;
    has_struck = true;
    return true;
  }
};

class NthLayer : public device::StackLayer {
 public:
  explicit NthLayer(NthPlan& plan) : plan_(plan) {}
  Status may_read(u64, u64) override { return plan_.strikes(NthKind::read) ? Status::medium_error : Status::ok; }
  Status may_write(u64 offset, u64) override {
    const bool is_superblock = offset == format::superblock_offset_a || offset == format::superblock_offset_b;
    if (is_superblock && plan_.on_superblock) plan_.on_superblock();
    return plan_.strikes(NthKind::write) ? Status::device_failed : Status::ok;
  }
  Status may_flush() override { return plan_.strikes(NthKind::flush) ? Status::device_failed : Status::ok; }

 private:
  NthPlan& plan_;
};

// An operation with its preconditions, in terms of a model that follows.
struct TriedOperation {
  std::string name;
  std::vector<FileOperation> before;
  FileOperation operation;
};

namespace detail {

// Records what a step would do.
class OperationTaker : public CrashWriter {
 public:
  using CrashWriter::CrashWriter;
  client::Reply run(const FileOperation& op) override {
    taken.push_back(op);
    return {};
  }
  std::vector<FileOperation> taken;
};

}  // namespace detail

// Every operation on the tree of a CrashBase. `pool`: any, it is not used.
inline std::vector<TriedOperation> tried_operations(CrashPool& pool, const PosixModel& model) {
  using wire::Opcode;
  CrashRecord record;
  std::vector<TriedOperation> list;
  const auto take = [&](const NamedStep& step) {
    detail::OperationTaker taker(pool, model, nullptr, &record);
    try {
      step.run(taker);
    } catch (const std::out_of_range&) {
      return;  // several operations, and a later one needs what an earlier one creates
    }
    if (taker.taken.size() == 1) list.push_back({step.name, {}, taker.taken.front()});
  };
  for (const NamedStep& step : name_steps()) take(step);
  for (const NamedStep& step : attribute_steps()) take(step);
  for (const NamedStep& step : content_steps()) take(step);
  const auto& entries = model.nodes.at(PosixModel::root).entries;
  const u64 small = entries.at("a");
  const u64 large = entries.at("h");
  const auto add = [&](const char* name, const FileOperation& op) { list.push_back({name, {}, op}); };
  add("read", on_inode(Opcode::read, large, 0, 3 * page_size));
  add("read_inline", on_inode(Opcode::read, small, 0, 100));
  add("readlink", on_inode(Opcode::readlink, entries.at("s"), 0, 4096));
  add("readdir", on_inode(Opcode::readdir, PosixModel::root, 0, 3000));
  add("getattr", on_inode(Opcode::getattr, large));
  add("statfs", on_inode(Opcode::statfs, 0));
  FileOperation op = on_inode(Opcode::lookup, entries.at("d"));
  op.name = "f";
  add("lookup", op);
  op = on_inode(Opcode::get_attribute, small, 0, 100);
  op.name = "user.x";
  add("get_attribute", op);
  add("list_attributes", on_inode(Opcode::list_attributes, small, 0, 600));
  // More than the reserve can compensate, once the range is a hole.
  FileOperation zero = on_inode(Opcode::fallocate, large, page_size + 50, 90 * page_size);
  zero.mode = 0x10;
  add("zero_much", zero);
  FileOperation seek = on_inode(Opcode::seek, large);
  seek.mode = 4;
  add("seek", seek);
  FileOperation write = on_inode(Opcode::write, large, 0, 5000);
  write.data_seed = 11;
  list.push_back({"fsync", {write}, on_inode(Opcode::fsync, large)});
  list.push_back({"sync", {write, on_inode(Opcode::truncate, small, 0)}, on_inode(Opcode::sync, 0)});
  FileOperation unlink = on_inode(Opcode::unlink, PosixModel::root);
  unlink.name = "a";
  list.push_back({"reclaim", {unlink}, on_inode(Opcode::reclaim, small)});
  FileOperation great = on_inode(Opcode::set_attribute, small);
  great.name = "user.z";
  great.text = std::string(20000, 'g');
  list.push_back({"reclaim_great_attribute", {great, unlink}, on_inode(Opcode::reclaim, small)});
  op = great;
  op.text = std::string(40000, 'G');
  list.push_back({"replace_great_attribute", {great}, op});
  op.text = "small";
  list.push_back({"great_attribute_by_small", {great}, op});
  op.opcode = Opcode::remove_attribute;
  list.push_back({"remove_great_attribute", {great}, op});
  op = on_inode(Opcode::get_attribute, small, 0, 20000);
  op.name = great.name;
  list.push_back({"get_great_attribute", {great}, op});
  return list;
}

}  // namespace gpu4fs::test
