// All states in which a crash may leave the devices of a recorded history, and the conditions that they must meet.
//
// At each moment (after a number of entries of the log) there are several variants (crash_medium.hpp).
//
// In every state the pool mounts. Its tree is that of the model after some number of operations, at least as many as
// the last acknowledged sync promised, at most as many as had begun. fsck finds no error. The pool accepts further
// operations, and a second crash after their fsync does not undo them.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "crash/crash_history.hpp"
#include "crash/crash_medium.hpp"

namespace gpu4fs::test {

// For the test of this test: flushes that have no effect.
enum class DroppedFlush { none, before_superblock, before_acknowledgement };

struct CrashOptions {
  DroppedFlush drops = DroppedFlush::none;
  u32 check_every = 6;  // states between two runs of fsck, and of the second crash
  u32 cut_every = 20;   // one of this number of states has its recovery interrupted by a crash
  u64 failure_max = 5;
  // Not empty: only this state, "history/moment/variant".
  std::string only;
};

struct CrashCounts {
  u64 histories = 0;
  u64 states = 0;   // different ones, recovered
  u64 equal = 0;    // moments and variants whose state was already seen
  u64 checked = 0;  // by fsck and a second crash
  u64 cut = 0;      // states left by a crash during a recovery, recovered
  std::vector<std::string> failures;
};

class CrashExplorer {
 public:
  CrashExplorer(const CrashHistory& history, const CrashBase& base, const CrashOptions& options)
      : history_(history), options_(options), record_(record_history(history, base)), image_(record_.before) {}

  ~CrashExplorer() {
    const std::lock_guard guard(ids_mutex());
    ids().erase(this);
  }

  CrashCounts explore() {
    counts_.histories = 1;
    if (!record_.problem.empty()) add_failure(history_.id, record_.problem);
    for (u64 moment = 0; moment <= record_.entries.size() && !is_full(); ++moment) {
      if (moment > 0) follow(moment - 1);
      const u64 extra = is_flush_begin(moment) ? 3 : 1;
      const u64 variants = !medium_.has_volatile() ? 1 : 2 + extra * history_.variants;
      for (u64 variant = 0; variant < variants && !is_full(); ++variant) visit(moment, variant);
    }
    return std::move(counts_);
  }

 private:
  using Kind = device::WriteLogKind;

  bool is_full() const { return counts_.failures.size() >= options_.failure_max; }

  void add_failure(const std::string& id, const std::string& text) {
    std::string failure = fmt::format("GPU4FS_CRASH_ID={}\n{}\noperations:\n", id, text);
    for (std::size_t i = 0; i < record_.operations.size(); ++i) {
      failure += fmt::format("  {} {}\n", i, record_.operations[i]);
    }
    counts_.failures.push_back(failure);
  }

  bool is_flush_begin(u64 moment) const {
    return moment < record_.entries.size() && record_.entries[moment].kind == Kind::flush_begin;
  }

  // Whether the flush that ends at `index` is one of those.
  bool is_dropped(u64 index) const {
    for (u64 i = index + 1; options_.drops != DroppedFlush::none && i < record_.entries.size(); ++i) {
      const device::WriteLogEntry& entry = record_.entries[i];
      const bool ends = entry.kind == Kind::mark && entry.offset % 2 == 1;
      if (entry.kind != Kind::write && !ends) continue;
      if (options_.drops == DroppedFlush::before_acknowledgement) return ends;
      return entry.offset == format::superblock_offset_a || entry.offset == format::superblock_offset_b;
    }
    return false;
  }

  // The entry at `index` has happened.
  void follow(u64 index) {
    const device::WriteLogEntry& entry = record_.entries[index];
    medium_.follow(index, entry.kind == Kind::flush_end && is_dropped(index));
    if (entry.kind != Kind::mark) return;
    const u64 operation = entry.offset / 2;
    if (entry.offset % 2 == 0) begun_ = operation + 1;
    if (entry.offset % 2 == 1 && record_.is_sync[operation]) promised_ = operation + 1;
  }

  void visit(u64 moment, u64 variant) {
    const std::string id = fmt::format("{}/{}/{}", history_.id, moment, variant);
    if (!options_.only.empty() && options_.only != id) return;
    medium_.build(moment * 1000 + variant, variant);
    if (!seen_.insert({image_.hash(), promised_, begun_}).second && options_.only.empty()) {
      ++counts_.equal;
      return;
    }
    ++counts_.states;
    const bool checks = counts_.states % options_.check_every == 0 || !options_.only.empty();
    counts_.checked += checks ? 1 : 0;
    current_id() = id;
    {
      const std::lock_guard guard(ids_mutex());
      ids()[this] = id;
    }
    std::string problem;
    stage_ = "";
    try {
      problem = recover(checks, counts_.states % options_.cut_every == 0 || !options_.only.empty());
    } catch (const std::exception& error) {
      problem = stage_ + error.what();
    }
    if (problem.empty()) return;
    add_failure(id, problem + medium_.volatile_text());
  }

  // The fault of the state in the image, empty: none.
  std::string recover(bool checks, bool cuts) {
    if (checks) {
      const std::string found = check();
      if (!found.empty()) return "fsck before mounting:" + found;
    }
    std::string after;
    RecordedRecovery recovery;
    if (cuts) {
      CrashPool::complete(image_);
      recovery.before = image_.bytes();
      recovery.log = std::make_shared<device::MemoryWriteLog>();
    }
    {
      CrashPool pool(image_, {.log = recovery.log, .where = current_id().c_str(), .logs_recovery = true});
      if (cuts) recovery.entries = recovery.log->entries();
      const std::string found = PoolText(pool.session()).text();
      recovery.found = found;
      const std::string problem = compare(found);
      if (!problem.empty()) return problem;
      after = work(pool);
      if (after.starts_with("further")) return after;
    }
    if (cuts) {
      stage_ = "after a crash during the recovery: ";
      const std::string problem = cut(recovery);
      if (!problem.empty()) return stage_ + problem;
    }
    if (!checks) return "";
    stage_ = "after a second crash: ";
    {
      CrashPool pool(image_, nullptr, current_id().c_str());
      const std::string found = PoolText(pool.session()).text();
      if (found != after) return "after a second crash the pool holds\n" + found + "instead of\n" + after;
      CrashPool::require(pool.checkpoint(true), "the last checkpoint");
    }
    const std::string found = check();
    return found.empty() ? "" : "fsck at the end:" + found;
  }

  struct RecordedRecovery {
    DeviceBytes before;
    std::shared_ptr<device::MemoryWriteLog> log;
    std::vector<device::WriteLogEntry> entries;
    std::string found;
  };

  // Interrupts the recovery at a few moments, or at all.
  std::string cut(RecordedRecovery& recovery) {
    constexpr u64 moment_count = 3;
    number_devices(recovery.entries);
    CrashImage image(recovery.before);
    CrashMedium medium(image, recovery.entries);
    const u64 end = recovery.entries.size();
    Sequence random(counts_.states);
    for (u64 moment = 0; moment <= end; ++moment) {
      if (moment > 0) medium.follow(moment - 1);
      const bool chosen = !options_.only.empty() || random.next() % (end + 1) < moment_count;
      if (!chosen || !medium.has_volatile()) continue;
      const u64 first = random.next() % 2;
      const u64 step = options_.only.empty() ? 2 : 1;
      for (u64 variant = options_.only.empty() ? first : 0; variant < 4; variant += step) {
        medium.build(moment * 1000 + variant, variant);
        ++counts_.cut;
        CrashPool pool(image, nullptr, current_id().c_str());
        const std::string found = PoolText(pool.session()).text();
        if (found == recovery.found) continue;
        return fmt::format("moment {} of {}, variant {}: the pool holds\n{}instead of\n{}{}", moment, end, variant,
                           found, recovery.found, medium.volatile_text());
      }
    }
    return "";
  }

  std::string compare(const std::string& found) const {
    for (u64 i = promised_; i <= begun_; ++i) {
      if (record_.states[i] == found) return "";
    }
    for (u64 i = promised_; i < begun_; ++i) {
      const std::vector<std::string>& in_part = record_.in_part[i];
      if (std::find(in_part.begin(), in_part.end(), found) != in_part.end()) return "";
    }
    std::string text = "the pool holds\n" + found;
    for (u64 i = 0; i < record_.states.size(); ++i) {
      if (record_.states[i] == found) text += fmt::format("which is the state after {} operations, ", i);
    }
    return text + fmt::format("and not one after {} to {} operations:\n{}", promised_, begun_,
                              record_.states[begun_ == 0 ? 0 : promised_]);
  }

  // Some more work, made durable. Returns the state, or "further ..." and the failure.
  static std::string work(CrashPool& pool) {
    FileClient client(pool.session());
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = PosixModel::root;
    op.name = "after the crash";
    op.mode = 0600;
    const client::Reply made = client.call(op);
    bool full = made.status == Status::no_space;
    if (made.status != Status::ok && !full) return further("create", made.status);
    if (!full) {
      op = {};
      op.opcode = wire::Opcode::write;
      op.inode = made.result;
      op.length = 5000;
      const client::Reply written = client.call(op, content_of(op));
      full = written.status == Status::no_space;
      if (written.status != Status::ok && !full) return further("write", written.status);
      const client::Reply synced = client.simple(wire::Opcode::fsync, made.result);
      if (synced.status != Status::ok) return further("fsync", synced.status);
    }
    return PoolText(pool.session()).text();
  }
  static std::string further(const char* what, Status status) {
    return fmt::format("further operations: {} answers {}", what, status_name(status));
  }

  std::string check() const {
    fsck::CheckOptions options;
    options.device_paths = image_.paths();
    const fsck::CheckResult result = fsck::check_pool(options);
    return errors_of_a_crash(result) == 0 ? "" : findings_text(result);
  }

 public:
  // The id of the state of this thread.
  static std::string& current_id() {
    static thread_local std::string id;
    return id;
  }
  // The ids of the states of all threads, for failures that end the process.
  static std::string all_ids() {
    std::string text;
    for (const auto& [explorer, id] : ids()) text += "GPU4FS_CRASH_ID=" + id + "\n";
    return text;
  }

 private:
  static std::mutex& ids_mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<const CrashExplorer*, std::string>& ids() {
    static std::map<const CrashExplorer*, std::string> ids;
    return ids;
  }

  const CrashHistory& history_;
  const CrashOptions& options_;
  CrashRecord record_;
  CrashImage image_;
  CrashMedium medium_{image_, record_.entries};
  u64 promised_ = 0;
  u64 begun_ = 0;
  std::string stage_;                         // of recover(), for messages
  std::set<std::tuple<u64, u64, u64>> seen_;  // image, promised, begun
  CrashCounts counts_;
};

}  // namespace gpu4fs::test
