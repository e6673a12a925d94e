// All states in which a crash may leave the devices of a recorded history, and what must be true of them.
//
// At each moment (a number of entries of the log) the writes in front of the last flush that has ended are on the
// medium; of those behind it, the volatile ones, any part may be. Variant 0 has all of them, variant 1 none, variant 2
// and up are random: subsets, all but one, only one, single ones torn at 512 or 16 bytes, other orders.
//
// Whatever is there: the pool mounts; its tree is that of the model after some number of operations, at least as many
// as the last acknowledged sync promised, at most as many as had begun; fsck finds no error; and it takes further
// operations, which a second crash behind their fsync does not undo.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "crash/crash_history.hpp"
#include "support/group_runner.hpp"

namespace gpu4fs::test {

// For the test of this test: flushes whose promise is not kept.
enum class DroppedFlush { none, before_superblock, before_acknowledgement };

struct CrashOptions {
  DroppedFlush drops = DroppedFlush::none;
  u32 check_every = 6;  // states between two runs of fsck, and of the second crash
  u64 failure_max = 5;
  // Not empty: only this state, "history/moment/variant".
  std::string only;
};

struct CrashCounts {
  u64 histories = 0;
  u64 states = 0;     // different ones, recovered
  u64 equal = 0;      // moments and variants that were seen already
  u64 checked = 0;    // by fsck and a second crash
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
      const u64 variants = volatile_.empty() ? 1 : 2 + extra * history_.variants;
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
    switch (entry.kind) {
      case Kind::write:
        volatile_.push_back(index);
        break;
      case Kind::flush_begin:
        flush_begin_[entry.device] = index;
        break;
      case Kind::flush_end:
        if (!is_dropped(index)) make_durable(entry.device, flush_begin_[entry.device]);
        break;
      case Kind::mark: {
        const u64 operation = entry.offset / 2;
        if (entry.offset % 2 == 0) begun_ = operation + 1;
        if (entry.offset % 2 == 1 && record_.is_sync[operation]) promised_ = operation + 1;
        break;
      }
      default:
        break;
    }
  }

  void make_durable(u32 device, u64 before) {
    std::vector<u64> left;
    for (const u64 index : volatile_) {
      const device::WriteLogEntry& write = record_.entries[index];
      if (write.device != device || index > before) {
        left.push_back(index);
      } else {
        image_.write_pristine(device, write.offset, write.bytes.data(), write.bytes.size());
      }
    }
    volatile_ = std::move(left);
  }

  void put(const device::WriteLogEntry& write) {
    image_.write(write.device, write.offset, write.bytes.data(), write.bytes.size());
  }
  void put_torn(Sequence& random, const device::WriteLogEntry& write, u64 granule) {
    const u64 mode = random.next() % 3;
    const u64 count = (write.bytes.size() + granule - 1) / granule;
    const u64 cut = random.next() % (count + 1);
    for (u64 i = 0; i < count; ++i) {
      const bool stored = mode == 0 ? i < cut : mode == 1 ? i >= cut : random.next() % 2 == 0;
      const u64 length = std::min(granule, write.bytes.size() - i * granule);
      if (stored) image_.write(write.device, write.offset + i * granule, write.bytes.data() + i * granule, length);
    }
  }

  void build(u64 moment, u64 variant) {
    image_.reset();
    // Whoever writes a device announces it, so everything is known that has to be put back.
    if (++builds_ % 64 == 0 && !image_.is_pristine()) throw std::runtime_error("a write that was not announced");
    if (variant == 1) return;
    Sequence random(moment * 1000 + variant);
    std::vector<u64> order = volatile_;
    const u64 mode = variant == 0 ? 0 : 1 + random.next() % 6;
    const u64 single = order.empty() ? 0 : random.next() % order.size();
    const u64 percent = 10 + 40 * (random.next() % 3);
    if (mode == 6) {
      for (u64 i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
    }
    for (u64 i = 0; i < order.size(); ++i) {
      const device::WriteLogEntry& write = record_.entries[order[i]];
      const bool torn = (mode == 4 || mode == 5) && i == single;
      if (torn) {
        put_torn(random, write, mode == 4 ? 512 : 16);
        continue;
      }
      const bool stored = mode == 0 || (mode == 2 && i != single) || (mode == 3 && i == single) ||
                          ((mode == 1 || mode >= 4) && random.next() % 100 < percent);
      if (stored) put(write);
    }
  }

  // Of the image against the one at the beginning.
  u64 image_hash() const {
    u64 hash = 0;
    for (u32 d = 0; d < image_.device_count(); ++d) {
      std::set<u64> pages = image_.dirty_pages(d);
      pages.insert(ever_changed_[d].begin(), ever_changed_[d].end());
      for (const u64 page : pages) hash += xxh3_64(image_.memory(d) + page * page_size, page_size, page * 64 + d);
    }
    return hash;
  }

  void visit(u64 moment, u64 variant) {
    const std::string id = fmt::format("{}/{}/{}", history_.id, moment, variant);
    if (!options_.only.empty() && options_.only != id) return;
    build(moment, variant);
    if (!seen_.insert({image_hash(), promised_, begun_}).second && options_.only.empty()) {
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
      problem = recover(checks);
    } catch (const std::exception& error) {
      problem = stage_ + error.what();
    }
    if (problem.empty()) return;
    add_failure(id, problem + volatile_text());
  }

  std::string volatile_text() const {
    std::string text = "\nwrites not flushed:";
    for (const u64 index : volatile_) {
      const device::WriteLogEntry& write = record_.entries[index];
      text += fmt::format("\n  {}: device {} offset {:#x}, {} bytes", index, write.device, write.offset,
                          write.bytes.size());
    }
    return text;
  }

  // What is wrong with the state in the image, empty: nothing.
  std::string recover(bool checks) {
    if (checks) {
      const std::string found = check();
      if (!found.empty()) return "fsck before mounting:" + found;
    }
    std::string after;
    {
      CrashPool pool(image_, nullptr, current_id().c_str());
      const std::string found = PoolText(pool.session()).text();
      const std::string problem = compare(found);
      if (!problem.empty()) return problem;
      after = work(pool);
      if (after.starts_with("further")) return after;
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

  std::string compare(const std::string& found) const {
    for (u64 i = promised_; i <= begun_; ++i) {
      if (record_.states[i] == found) return "";
    }
    std::string text = "the pool holds\n" + found;
    for (u64 i = 0; i < record_.states.size(); ++i) {
      if (record_.states[i] == found) text += fmt::format("which is the state after {} operations, ", i);
    }
    return text + fmt::format("and not one after {} to {} operations:\n{}", promised_, begun_,
                              record_.states[begun_ == 0 ? 0 : promised_]);
  }

  // A little more, durable. Answers the state, or "further ..." what failed.
  static std::string work(CrashPool& pool) {
    FileClient client(pool.session());
    FileOperation op;
    op.opcode = format::Opcode::create;
    op.inode = PosixModel::root;
    op.name = "after the crash";
    op.mode = 0600;
    const client::Reply made = client.call(op);
    bool full = made.status == Status::no_space;
    if (made.status != Status::ok && !full) return further("create", made.status);
    if (!full) {
      op = {};
      op.opcode = format::Opcode::write;
      op.inode = made.result;
      op.length = 5000;
      const client::Reply written = client.call(op, content_of(op));
      full = written.status == Status::no_space;
      if (written.status != Status::ok && !full) return further("write", written.status);
      const client::Reply synced = client.simple(format::Opcode::fsync, made.result);
      if (synced.status != Status::ok) return further("fsync", synced.status);
    }
    return PoolText(pool.session()).text();
  }
  static std::string further(const char* what, Status status) {
    return fmt::format("further operations: {} answers {}", what, status_name(status));
  }

  std::string check() const {
    server::CheckOptions options;
    options.device_paths = image_.paths();
    const server::CheckResult result = server::check_pool(options);
    return result.findings.error_count() == 0 ? "" : findings_text(result);
  }

 public:
  // Of the state that this thread is at.
  static std::string& current_id() {
    static thread_local std::string id;
    return id;
  }
  // Of the states that all threads are at, for those that end the process.
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
  std::vector<std::set<u64>> ever_changed_ = changed_pages();
  std::vector<u64> volatile_;                 // indices of entries
  std::map<u32, u64> flush_begin_;            // by device
  u64 promised_ = 0;
  u64 begun_ = 0;
  u64 builds_ = 0;
  std::string stage_;  // of recover(), for messages
  std::set<std::tuple<u64, u64, u64>> seen_;  // image, promised, begun
  CrashCounts counts_;

  std::vector<std::set<u64>> changed_pages() const {
    std::vector<std::set<u64>> pages(record_.before.size());
    for (const device::WriteLogEntry& entry : record_.entries) {
      if (entry.kind != Kind::write) continue;
      for (u64 page = entry.offset / page_size; page * page_size < entry.offset + entry.bytes.size(); ++page) {
        pages[entry.device].insert(page);
      }
    }
    return pages;
  }
};

}  // namespace gpu4fs::test
