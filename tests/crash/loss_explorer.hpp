// Crashes of pools with redundancy that also lose devices, before the recovery or after it.
//
// A lost device has garbage, or zeros, all over its chunk area; its superblocks, tree, chunk map and log are intact. In
// every state after a crash (crash_medium.hpp), and with every set of devices that the level may lose, the pool mounts.
// Its tree is that of the model after some number of operations, as in crash_explorer.hpp. No read fails, and the pool
// accepts further operations. If devices are lost after the recovery, the state is the one that the recovery found.
#pragma once

#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "crash/crash_history.hpp"
#include "crash/crash_medium.hpp"

namespace gpu4fs::test {

struct LossOptions {
  bool all_sets = false;  // otherwise one for each state before the recovery and one after it
  u32 before_every = 1;   // states between two that lose devices before the recovery
  u32 after_every = 1;    // the same after it
  u64 first_moment = 0;   // of the log; no state before it
  u64 last_moment = ~u64{0};
  u64 failure_max = 3;
  std::string only;  // not empty: only this state, "history/moment/variant"
};

struct LossCounts {
  u64 histories = 0;
  u64 states = 0;
  u64 lost_before = 0;  // mounts of states without some devices
  u64 lost_after = 0;   // mounts after a recovery
  std::vector<std::string> failures;
};

// The beginning of a pool's chunks on its devices, and how many devices each may lose.
struct LossShape {
  std::vector<pool::OpenedChunk> chunks;
  std::vector<u64> area_offsets;  // by device
  u32 redundancy = 64;

  static LossShape of(const DeviceBytes& devices) { return of(CrashImage(devices)); }
  static LossShape of(const CrashImage& image) {
    pool::OpenPoolOptions open;
    open.device_paths = image.paths();
    open.read_only = true;
    const pool::OpenedPool pool = pool::open_pool(open);
    LossShape shape;
    shape.chunks = pool.chunks;
    for (const pool::OpenedDevice& device : pool.devices) shape.area_offsets.push_back(device.part.chunk_area_offset);
    for (const pool::OpenedChunk& chunk : pool.chunks) {
      shape.redundancy = std::min<u32>(shape.redundancy, chunk.descriptor.redundancy);
    }
    return shape;
  }

  // Sets of devices, one bit for each device.
  std::vector<u32> sets() const {
    std::vector<u32> sets;
    for (u32 set = 1; set < 1u << area_offsets.size(); ++set) {
      if (popcount(set) <= redundancy) sets.push_back(set);
    }
    return sets;
  }

  struct Place {
    u32 device;
    u64 offset;
    friend bool operator<(const Place& a, const Place& b) {
      return std::pair(a.device, a.offset) < std::pair(b.device, b.offset);
    }
  };
  // The row of a device's page: its data pages by slot, then its parities. Empty for a page that is in no row.
  std::vector<Place> row_of(const Place& page) const {
    for (const pool::OpenedChunk& chunk : chunks) {
      if (chunk.descriptor.level < format::RaidLevel::raid5) continue;
      const raid::Geometry geometry = raid::geometry_of(chunk.descriptor);
      const u64 header = format::chunk_layout(geometry.page_count).header_pages * page_size;
      for (const format::ColumnAddress& column : chunk.columns) {
        const u64 begin = column.offset_bytes() + header;
        if (column.device_index() != page.device || page.offset < begin) continue;
        const u64 row = (page.offset - begin) / page_size;
        std::vector<Place> places;
        raid::with_parity_level(chunk.descriptor.level, [&](auto level) {
          if (row >= level.column_pages(geometry)) return;
          const u32 data_slots = level.data_columns(geometry.column_count);
          for (u32 slot = 0; slot < geometry.column_count; ++slot) {
            if (slot < data_slots && slot >= level.row_at(geometry, row).slot_count) continue;
            const format::ColumnAddress at = chunk.columns[level.column_of(geometry, row, slot)];
            places.push_back({at.device_index(), at.offset_bytes() + header + row * page_size});
          }
        });
        if (!places.empty()) return places;
      }
    }
    return {};
  }

  bool is_parity(const Place& page) const {
    const std::vector<Place> row = row_of(page);
    for (u64 j = row.empty() ? 0 : row.size() - redundancy; j < row.size(); ++j) {
      if (!(row[j] < page) && !(page < row[j])) return true;
    }
    return false;
  }
};

class LossExplorer {
 public:
  LossExplorer(std::string id, CrashRecord record, const LossShape& shape, const LossOptions& options)
      : id_(std::move(id)), record_(std::move(record)), shape_(shape), options_(options), image_(record_.before) {
    u64 longest = 0;
    for (u32 i = 0; i < image_.device_count(); ++i) longest = std::max<u64>(longest, image_.size(i));
    garbage_.resize(longest);
    Sequence random(longest);
    for (u64 i = 0; i + 8 <= longest; i += 8) {
      const u64 word = random.next();
      std::memcpy(&garbage_[i], &word, 8);
    }
    zeros_.resize(longest);
  }

  LossCounts explore() {
    counts_.histories = 1;
    if (!record_.problem.empty()) add_failure(id_, record_.problem);
    for (u64 moment = 0; moment <= record_.entries.size() && !is_full(); ++moment) {
      if (moment > 0) follow(moment - 1);
      if (moment < options_.first_moment || moment > options_.last_moment) continue;
      const u64 variants = !medium_.has_volatile() ? 1 : 4;
      for (u64 variant = 0; variant < variants && !is_full(); ++variant) visit(moment, variant);
    }
    return std::move(counts_);
  }

  // The state of this thread.
  static std::string& current_id() {
    static thread_local std::string id;
    return id;
  }

 private:
  using Kind = device::WriteLogKind;

  bool is_full() const { return counts_.failures.size() >= options_.failure_max; }

  void add_failure(const std::string& id, const std::string& text) {
    std::string failure = fmt::format("GPU4FS_LOSS_ID={}\n{}\noperations:\n", id, text);
    for (std::size_t i = 0; i < record_.operations.size(); ++i) {
      failure += fmt::format("  {} {}\n", i, record_.operations[i]);
    }
    counts_.failures.push_back(failure);
  }

  void follow(u64 index) {
    const device::WriteLogEntry& entry = record_.entries[index];
    medium_.follow(index);
    if (entry.kind != Kind::mark) return;
    const u64 operation = entry.offset / 2;
    if (entry.offset % 2 == 0) begun_ = operation + 1;
    if (entry.offset % 2 == 1 && record_.is_sync[operation]) promised_ = operation + 1;
  }

  void visit(u64 moment, u64 variant) {
    current_id() = fmt::format("{}/{}/{}", id_, moment, variant);
    const bool is_chosen = options_.only == current_id();
    if (!options_.only.empty() && !is_chosen) return;
    const u64 seed = moment * 1000 + variant;
    medium_.build(seed, variant);
    if (!seen_.insert({image_.hash(), promised_, begun_}).second && !is_chosen) return;
    const u64 number = counts_.states++;
    const bool all = options_.all_sets || is_chosen;
    std::string problem;
    try {
      const CrashImage::Saved crashed = image_.save();
      if (is_chosen || number % options_.before_every == 0) problem = lose_before(crashed, seed, all);
      if (problem.empty() && (is_chosen || number % options_.after_every == 0))
        problem = lose_after(crashed, seed, all);
    } catch (const std::exception& error) {
      problem = stage_ + error.what();
    }
    if (!problem.empty()) add_failure(current_id(), problem + medium_.volatile_text());
  }

  std::vector<u32> choose_sets(u64 seed, bool all) const {
    const std::vector<u32> sets = shape_.sets();
    if (all) return sets;
    return {sets[Sequence(seed).next() % sets.size()]};
  }

  // Changes the image: overwrites the chunk areas of these devices.
  void lose(u32 set, bool by_zeros) {
    stage_ = "lost";
    for (u32 i = 0; i < image_.device_count(); ++i) {
      if ((set >> i & 1) == 0) continue;
      stage_ += fmt::format(" {}", i);
      const u64 begin = shape_.area_offsets[i];
      image_.write(i, begin, (by_zeros ? zeros_ : garbage_).data() + begin, image_.size(i) - begin);
    }
    stage_ += by_zeros ? ", zeros there: " : ", garbage there: ";
  }

  std::string lose_before(const CrashImage::Saved& crashed, u64 seed, bool all) {
    for (const u32 set : choose_sets(seed, all)) {
      image_.restore(crashed);
      lose(set, seed % 4 == 3);
      stage_ = "before the recovery: " + stage_;
      ++counts_.lost_before;
      const std::string problem = recover(nullptr);
      if (!problem.empty()) return stage_ + problem;
    }
    return "";
  }

  std::string lose_after(const CrashImage::Saved& crashed, u64 seed, bool all) {
    image_.restore(crashed);
    stage_ = "nothing lost: ";
    std::string found;
    const std::string problem = recover(&found);
    if (!problem.empty()) return stage_ + problem;
    const CrashImage::Saved recovered = image_.save();
    for (const u32 set : choose_sets(seed + 7, all)) {
      image_.restore(recovered);
      lose(set, seed % 4 == 2);
      stage_ = "behind the recovery: " + stage_;
      ++counts_.lost_after;
      CrashPool pool(image_, nullptr, current_id().c_str());
      const std::string now = PoolText(pool.session()).text();
      if (now != found) return stage_ + "the pool holds\n" + now + "instead of\n" + found;
    }
    return "";
  }

  // Mounts the image. `found`: receives the tree, and nothing more is done; nullptr: executes further operations.
  std::string recover(std::string* found) {
    std::string after;
    {
      CrashPool pool(image_, nullptr, current_id().c_str());
      const std::string text = PoolText(pool.session()).text();
      const std::string problem = compare(text);
      if (!problem.empty()) return problem;
      if (found != nullptr) {
        *found = text;
        return "";
      }
      after = work(pool);
      if (after.starts_with("further")) return after;
    }
    CrashPool pool(image_, nullptr, current_id().c_str());
    const std::string text = PoolText(pool.session()).text();
    return text == after ? "" : "after a second crash the pool holds\n" + text + "instead of\n" + after;
  }

  std::string compare(const std::string& found) const {
    for (u64 i = promised_; i <= begun_; ++i) {
      if (record_.states[i] == found) return "";
    }
    return fmt::format("the pool holds\n{}and not what it held after {} to {} operations:\n{}", found, promised_,
                       begun_, record_.states[promised_]);
  }

  // Some more work, made durable. Returns the state, or "further ..." and the failure.
  static std::string work(CrashPool& pool) {
    FileClient client(pool.session());
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = PosixModel::root;
    op.name = "after the loss";
    op.mode = 0600;
    const client::Reply made = client.call(op);
    if (made.status != Status::ok) return fmt::format("further: create answers {}", status_name(made.status));
    op = {};
    op.opcode = wire::Opcode::write;
    op.inode = made.result;
    for (const u64 length : {u64{700}, u64{5000}, u64{20000}}) {
      op.offset += op.length;
      op.length = length;
      op.data_seed = length;
      const client::Reply written = client.call(op, content_of(op));
      if (written.status != Status::ok) return fmt::format("further: write answers {}", status_name(written.status));
    }
    const client::Reply synced = client.simple(wire::Opcode::fsync, made.result);
    if (synced.status != Status::ok) return fmt::format("further: fsync answers {}", status_name(synced.status));
    return PoolText(pool.session()).text();
  }

  std::string id_;
  CrashRecord record_;
  const LossShape& shape_;
  const LossOptions& options_;
  CrashImage image_;
  CrashMedium medium_{image_, record_.entries};
  std::vector<u8> garbage_;
  std::vector<u8> zeros_;
  u64 promised_ = 0;
  u64 begun_ = 0;
  std::string stage_;                         // for messages
  std::set<std::tuple<u64, u64, u64>> seen_;  // image, promised, begun
  LossCounts counts_;
};

}  // namespace gpu4fs::test
