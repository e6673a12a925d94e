// One pool of the matrix of redundancy: its operations, and the conditions that must hold afterwards.
//
// A pool is written, loses devices before, during or after this, and must have the content of the model, at that time
// and after the next mount. A lost device has garbage all over its chunk area.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "crash/crash_history.hpp"
#include "crash/loss_explorer.hpp"
#include "raid_matrix/matrix_engine.hpp"

namespace gpu4fs::test {

struct MatrixShape {
  std::string profile;
  u32 device_count;
  u32 stripe_length_bytes;
  std::string name() const {
    std::string text = fmt::format("{}-{}", profile, device_count);
    if (stripe_length_bytes != 0) text += fmt::format("-{}k", stripe_length_bytes >> 10);
    return text;
  }
};

// All levels with 2 to 8 devices; stripes of 4 KiB, 64 KiB and 1 MiB if the level has stripes.
inline std::vector<MatrixShape> matrix_shapes() {
  struct Level {
    const char* profile;
    u32 device_min;
    bool has_stripes;
  };
  constexpr Level levels[] = {{"single", 2, false},  {"raid0", 2, true}, {"raid1", 2, false}, {"raid1c3", 3, false},
                              {"raid1c4", 4, false}, {"raid5", 2, true}, {"raid6", 3, true},  {"raid7", 4, true}};
  std::vector<MatrixShape> shapes;
  for (const Level& level : levels) {
    for (u32 count = level.device_min; count <= 8; ++count) {
      if (!level.has_stripes) shapes.push_back({level.profile, count, 0});
      for (const u32 length : {4096u, 65536u, 1u << 20}) {
        if (level.has_stripes) shapes.push_back({level.profile, count, length});
      }
    }
  }
  // Data and metadata separately.
  for (const char* profiles : {"raid5+raid1c3", "raid5+raid1", "raid6+raid1c3", "raid1+raid6", "raid0+raid1"}) {
    for (u32 count = 4; count <= 6; ++count) shapes.push_back({profiles, count, 0});
  }
  return shapes;
}

enum class LossTime { before, during, after };
inline constexpr LossTime loss_times[] = {LossTime::before, LossTime::during, LossTime::after};
inline const char* loss_time_name(LossTime time) {
  return time == LossTime::before ? "before" : time == LossTime::after ? "after" : "during";
}

struct MatrixCounts {
  u64 shapes = 0;
  u64 losses = 0;     // of sets of devices
  u64 beyond = 0;     // rows that lost one page too many
  u64 corrupted = 0;  // single pages
  u64 repaired = 0;   // those of them, pages of files, that were restored
  std::vector<std::string> failures;
};

class MatrixPool {
 public:
  using Place = LossShape::Place;

  // `engine` outlives it.
  MatrixPool(const MatrixShape& shape, const MatrixEngine& engine)
      : shape_(shape),
        engine_(engine),
        base_(make_crash_base(pool_shape(shape), CrashPlace::one_device)),
        image_(base_.devices),
        layout_(LossShape::of(image_)) {
    garbage_.resize(base_.devices[0].size());
    Sequence random(9);
    for (u64 i = 0; i + 8 <= garbage_.size(); i += 8) {
      const u64 word = random.next();
      std::memcpy(&garbage_[i], &word, 8);
    }
    // The number of writes, and the content of the pool without any loss.
    expect(guarded([&] { return run(LossTime::after, 0, 0); }), "without any loss");
    if (!counts_.failures.empty()) return;
    written_ = image_.save();
    for (const auto& [number, node] : model_.nodes) {
      if (node.is_regular()) find_pages(number, node);
    }
  }

  const LossShape& layout() const { return layout_; }
  MatrixCounts& counts() { return counts_; }
  bool is_redundant() const { return layout_.redundancy > 0; }

  void lose(LossTime time, u32 set, u64 seed) {
    ++counts_.losses;
    expect(lose_and_compare(time, set, seed),
           fmt::format("devices {:#x} lost {} ({} {} of {})", set, loss_time_name(time),
                       engine_.has_layers ? "write" : "step", trigger_of(seed), moment_count_));
  }

  // The same without a failure of the matrix: "" or the fault.
  std::string lose_and_compare(LossTime time, u32 set, u64 seed) {
    return guarded([&] { return run(time, set, seed); });
  }

  // One page too many of a row, or all copies: EIO for lost pages and nothing else.
  void lose_beyond(u64 seed) {
    const auto target = std::next(m1_pages_.begin(), static_cast<std::ptrdiff_t>(seed % m1_pages_.size()));
    std::set<u64> lost;
    const std::vector<Place> victims = choose_victims(target->first, &lost);
    if (victims.empty()) return;
    ++counts_.beyond;
    image_.restore(written_);
    for (const Place& victim : victims) spoil(victim);
    expect(guarded([&] { return read_beyond(lost); }),
           fmt::format("page {} and what would give it back", target->first));
  }

  // Damages every page with content in turn, from `first` in steps of `step`: the damage is found, and nothing else
  // changes; pages of files that were read are restored. `goes_on`: whether there is time for another one. `scrub`:
  // runs after the mount; then all pages must be restored, including parities and other copies.
  void corrupt_each(u64 first, u64 step, const std::function<bool()>& goes_on,
                    const std::function<void(ServedPool&)>& scrub = nullptr) {
    u64 number = 0;
    for_each_page([&](const Place& place, const u8* page) {
      if (!counts_.failures.empty() || !goes_on()) return false;
      if (number++ % step == first % step) corrupt(place, page, scrub);
      return true;
    });
  }
  // The number of these pages.
  u64 count_pages() {
    u64 count = 0;
    for_each_page([&](const Place&, const u8*) { return ++count != 0; });
    return count;
  }

 private:
  // visit(place, page): false ends it.
  template <class Visit>
  void for_each_page(Visit&& visit) {
    for (u32 device = 0; device < image_.device_count(); ++device) {
      image_.restore(written_);
      const u8* begin = image_.bytes_at(device, 0);
      const std::vector<u8> bytes(begin, begin + garbage_.size());
      for (u64 offset = layout_.area_offsets[device]; offset < bytes.size(); offset += page_size) {
        const u8* page = bytes.data() + offset;
        const bool is_empty = page[0] == 0 && std::memcmp(page, page + 1, page_size - 1) == 0;
        if (is_empty) continue;
        if (!visit(Place{device, offset}, page)) return;
      }
    }
  }

  static CrashPoolShape pool_shape(const MatrixShape& shape) {
    // With parities, a stripe is reserved for each page, and 128 of them are kept back, so long ones need room. Chunks
    // have columns of 8 MiB. One more column for metadata.
    if (shape.profile.find('+') != std::string::npos) {
      return {shape.device_count, shape.profile, shape.stripe_length_bytes, u64{20} << 20};
    }
    const u32 parities = shape.profile == "raid5" ? 1 : shape.profile == "raid6" ? 2 : shape.profile == "raid7" ? 3 : 0;
    const u64 data_columns = shape.device_count - parities;
    u64 chunks = 1;
    if (parities != 0 && shape.stripe_length_bytes == 65536) chunks = 5;
    if (parities != 0 && shape.stripe_length_bytes > 65536)
      chunks = data_columns == 1 ? 28 : divide_up(u64{56}, data_columns);
    return {shape.device_count, shape.profile, shape.stripe_length_bytes, (2 + 9 * chunks) << 20};
  }

  void expect(const std::string& problem, const std::string& what) {
    if (problem.empty()) return;
    counts_.failures.push_back(fmt::format("{} ({}): {}: {}", shape_.name(), engine_.name, what, problem));
  }

  template <class Work>
  std::string guarded(Work&& work) {
    LossExplorer::current_id() = shape_.name();
    try {
      return work();
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  void overwrite(u32 set) {
    for (u32 i = 0; i < image_.device_count(); ++i) {
      const u64 begin = layout_.area_offsets[i];
      if ((set >> i & 1) != 0) image_.write(i, begin, garbage_.data() + begin, garbage_.size() - begin);
    }
  }

  void write_things(CrashWriter& w) {
    w.create("m1");
    w.write("m1", 0, 21 * page_size + 77);
    w.create("m2");
    w.write("m2", 0, 3000);
    w.fsync("m2");
    w.write("h", page_size + 5, 2 * page_size);
    w.checkpoint();
    w.write("m2", 2500, 7000);
    w.write("m1", 3 * page_size, page_size);
    w.fsync("m1");
    w.rename("m2", "d/m3");
    w.unlink("a");
    w.sync();
  }

  u64 trigger_of(u64 seed) const { return 1 + seed % moment_count_; }
  // The delay of a loss during a running operation: up to twice the time that the operation took before.
  std::chrono::nanoseconds delay_of(u64 seed) const {
    const u64 took = static_cast<u64>(durations_[trigger_of(seed) - 1].count());
    return std::chrono::nanoseconds((seed >> 32) % (2 * took + 1));
  }

  // Writes, with a loss at the given time; returns "" or the fault. Leaves the image in the resulting state.
  std::string run(LossTime time, u32 set, u64 seed) {
    image_.reset();
    if (time == LossTime::before) overwrite(set);
    const auto watch = std::make_shared<MatrixWatch>();
    watch->trigger = time == LossTime::during ? trigger_of(seed) : 0;
    watch->fire = [&] { overwrite(set); };
    CrashRecord record;
    {
      const std::unique_ptr<ServedPool> pool = engine_.mount(image_, shape_.profile.c_str(), watch);
      DelayedWork loss;
      if (engine_.hits_running) {
        watch->fire = [&] { loss.begin(delay_of(seed), [&] { overwrite(set); }); };
      }
      watch->armed = true;
      WatchedWriter writer(*pool, base_.model, &record, engine_.has_layers ? nullptr : watch.get());
      write_things(writer);
      writer.checkpoint();
      watch->armed = false;
      loss.wait();
      for (const std::string& operation : record.operations) {
        if (!operation.ends_with("= ok")) return operation;
      }
      model_ = writer.model();
      text_ = ModelText(model_).text();
      if (time == LossTime::after) overwrite(set);
      const std::string problem = compare(*pool, "the pool");
      if (!problem.empty()) return problem;
      if (set == 0) durations_ = writer.durations();
    }
    if (set == 0) moment_count_ = engine_.has_layers ? watch->seen : durations_.size();
    return mount_and_compare(nullptr);
  }

  std::unique_ptr<ServedPool> mount() { return engine_.mount(image_, shape_.profile.c_str(), nullptr); }

  std::string compare(ServedPool& pool, const char* which) const {
    const std::string found = PoolText(pool.session()).text();
    if (pool.host().has_died()) return "the engine died: " + pool.host().fault_text();
    return found == text_ ? "" : fmt::format("{} holds\n{}instead of\n{}", which, found, text_);
  }

  std::string mount_and_compare(const std::function<void(ServedPool&)>& scrub) {
    const std::unique_ptr<ServedPool> pool = mount();
    std::string problem = compare(*pool, "after a mount the pool");
    if (scrub) scrub(*pool);
    return problem;
  }

  // The places of a file's pages on the devices, found by their content. Pages of overwritten files may still exist.
  void find_pages(u64 number, const ModelNode& node) {
    const u64 m1 = model_.nodes.at(PosixModel::root).entries.at("m1");
    for (u64 page = 0; (page + 1) * page_size <= node.content.size(); ++page) {
      const std::vector<u8> content = node.content.read(page * page_size, page_size);
      std::vector<Place> places;
      for (u32 device = 0; device < image_.device_count(); ++device) {
        for (u64 offset = layout_.area_offsets[device]; offset < garbage_.size(); offset += page_size) {
          if (std::memcmp(image_.bytes_at(device, offset), content.data(), page_size) != 0) continue;
          // The parity of a single page in its row equals that page.
          if (!layout_.is_parity({device, offset})) places.push_back({device, offset});
        }
      }
      if (places.size() == 1) lone_pages_.insert(places[0]);
      if (number == m1) m1_pages_[page] = places;
    }
  }

  // Pages whose loss makes page `page` of m1 unrecoverable; `lost` gets the pages of m1 that are then lost. Empty if
  // its row contains other pages.
  std::vector<Place> choose_victims(u64 page, std::set<u64>* lost) const {
    const std::vector<Place>& places = m1_pages_.at(page);
    if (places.empty()) return {};
    lost->insert(page);
    const std::vector<Place> row = layout_.row_of(places[0]);
    // Old copies of overwritten pages may still exist.
    if (row.empty()) return places.size() == layout_.redundancy + 1 ? places : std::vector<Place>{};
    if (places.size() != 1) return {};
    std::vector<Place> victims = places;
    for (const auto& [other, others] : m1_pages_) {
      const bool in_row = others.size() == 1 && std::any_of(row.begin(), row.end(), [&](const Place& place) {
                            return !(place < others[0]) && !(others[0] < place);
                          });
      if (!in_row || other == page || victims.size() > layout_.redundancy) continue;
      victims.push_back(others[0]);
      lost->insert(other);
    }
    for (u32 j = 0; j < layout_.redundancy && victims.size() <= layout_.redundancy; ++j) {
      victims.push_back(row[row.size() - layout_.redundancy + j]);
    }
    return victims;
  }

  void spoil(const Place& place) {
    image_.write(place.device, place.offset, garbage_.data() + place.offset, page_size);
  }

  std::string read_beyond(const std::set<u64>& lost) {
    const std::unique_ptr<ServedPool> pool = mount();
    FileClient client(pool->session());
    const u64 m1 = model_.nodes.at(PosixModel::root).entries.at("m1");
    const SparseBytes& content = model_.nodes.at(m1).content;
    for (u64 offset = 0; offset < content.size(); offset += page_size) {
      const client::Reply reply = client.simple(wire::Opcode::read, m1, offset, page_size);
      if (lost.count(offset / page_size) != 0) {
        if (to_errno(reply.status) != EIO)
          return fmt::format("page {} is lost: {}", offset / page_size, status_name(reply.status));
        continue;
      }
      const std::vector<u8> expected = content.read(offset, page_size);
      const bool equal = reply.status == Status::ok && reply.result == expected.size() &&
                         std::memcmp(client.data(), expected.data(), expected.size()) == 0;
      if (!equal) return fmt::format("page {} is not lost: {}", offset / page_size, status_name(reply.status));
    }
    const std::string found = without_m1(PoolText(pool->session()).text());
    return found == without_m1(text_) ? "" : "the pool holds\n" + found;
  }
  static std::string without_m1(const std::string& text) {
    std::string rest;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      if (!line.empty() && !line.starts_with("/m1 ")) rest += line + "\n";
      begin = end + 1;
    }
    return rest;
  }

  void corrupt(const Place& place, const u8* page, const std::function<void(ServedPool&)>& scrub) {
    ++counts_.corrupted;
    image_.restore(written_);
    spoil(place);
    expect(guarded([&] { return mount_and_compare(scrub); }),
           fmt::format("device {} page at {:#x} corrupted", place.device, place.offset));
    const bool stands = std::memcmp(image_.bytes_at(place.device, place.offset), page, page_size) == 0;
    const bool is_read = lone_pages_.count(place) != 0;
    if (is_read && stands) ++counts_.repaired;
    if (is_read && !stands)
      expect("it was read, and not written again", fmt::format("{}:{:#x}", place.device, place.offset));
    if (scrub && !stands) expect("the scrub left it", fmt::format("{}:{:#x}", place.device, place.offset));
  }

  MatrixShape shape_;
  const MatrixEngine& engine_;
  CrashBase base_;
  CrashImage image_;
  LossShape layout_;
  std::vector<u8> garbage_;
  CrashImage::Saved written_;
  u64 moment_count_ = 1;                             // of the writes: the number of times at which devices may be lost
  std::vector<std::chrono::nanoseconds> durations_;  // of their operations and checkpoints
  PosixModel model_;                                 // after the writes
  std::string text_;                                 // of it
  std::map<u64, std::vector<Place>> m1_pages_;
  std::set<Place> lone_pages_;  // of files, with a single place
  MatrixCounts counts_;
};

}  // namespace gpu4fs::test
