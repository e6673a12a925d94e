// A small pool whose single sectors are damaged, and the conditions that must then hold.
//
// The pool was written, with or without operations waiting in the log, and not unmounted. The damage is 512 bytes
// outside the logical space: superblocks, chunk tree, chunk maps, operation log, header areas of chunks.
//
// With redundancy: the pool mounts with its old content. It accepts further operations and checkpoints, after which
// fsck finds nothing. When the damaged devices have lost all of their chunks, header areas included, everything is
// still present.
//
// Without redundancy: a read returns what was written, or an error. If the pool does not mount, fsck reports an error,
// and the pool mounts after a repair. Unless everything is present, fsck has reported an error.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "crash/crash_history.hpp"
#include "crash/loss_explorer.hpp"
#include "fsck/check/check_pool.hpp"
#include "fsck/repair/repair_pool.hpp"

namespace gpu4fs::test {

inline constexpr u64 damage_sector_bytes = 512;

struct DamageSector {
  u32 device;
  u64 offset;
  std::string area;
};

class DamagePool {
 public:
  explicit DamagePool(const CrashPoolShape& shape, bool log_waits = true)
      : base_(make_crash_base(shape, CrashPlace::one_device)), image_(base_.devices), layout_(LossShape::of(image_)) {
    std::tie(model_, text_) = write(
        [log_waits](CrashWriter& w) {
          w.create("m1");
          w.write("m1", 0, 21 * page_size + 77);
          w.checkpoint();
          w.create("m2");
          w.write("m2", 0, 3000);
          w.write("h", page_size + 5, 2 * page_size);
          w.write("m1", 3 * page_size, page_size);
          w.checkpoint();
          w.write("m2", 2500, 7000);
          w.rename("m2", "d/m3");
          w.unlink("a");
          w.sync();
          if (!log_waits) w.checkpoint();
        },
        base_.model);
    written_ = image_.save();
    find_sectors();
  }

  u32 redundancy() const { return layout_.redundancy; }
  const std::vector<DamageSector>& sectors() const { return sectors_; }

  // "" or the fault.
  std::string explore(const std::vector<DamageSector>& damaged, u64 seed) {
    image_.restore(written_);
    u32 devices = 0;
    for (const DamageSector& sector : damaged) {
      spoil(sector, seed++);
      devices |= 1u << sector.device;
    }
    try {
      return redundancy() != 0 ? explore_with_copies(devices) : explore_alone(damaged);
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  static std::string text_of(const std::vector<DamageSector>& sectors) {
    std::string text;
    for (const DamageSector& sector : sectors) {
      text += fmt::format(" {} of device {} at {:#x}", sector.area, sector.device, sector.offset);
    }
    return text;
  }

 private:
  // Works on the pool; returns the model and its text.
  template <class Work>
  std::pair<PosixModel, std::string> write(Work&& work, const PosixModel& model) {
    CrashRecord record;
    CrashPool pool(image_, nullptr, "a pool with damaged sectors");
    CrashWriter writer(pool, model, nullptr, &record);
    work(writer);
    for (const std::string& operation : record.operations) {
      if (!operation.ends_with("= ok")) throw std::runtime_error(operation);
    }
    return {writer.model(), ModelText(writer.model()).text()};
  }

  void find_sectors() {
    pool::OpenPoolOptions open;
    open.device_paths = image_.paths();
    open.read_only = true;
    const pool::OpenedPool pool = pool::open_pool(open);
    for (u32 d = 0; d < pool.devices.size(); ++d) {
      const format::DevicePart& part = pool.devices[d].part;
      add_sectors(d, format::superblock_offset_a, page_size, "superblock");
      add_sectors(d, format::superblock_offset_b, page_size, "superblock");
      add_sectors(d, part.tree_offset, part.tree_pages * page_size, "chunk tree");
      add_sectors(d, part.chunk_map_offset, 2 * (1 + part.chunk_map_pages) * page_size, "chunk map");
      add_sectors(d, part.log_offset, part.log_bytes, "log");
    }
    for (const pool::OpenedChunk& chunk : pool.chunks) {
      const u64 pages = format::chunk_layout(chunk.descriptor.size_bytes / page_size).header_pages;
      for (u32 column = 0; column <= chunk.descriptor.redundancy; ++column) {
        add_sectors(chunk.columns[column].device_index(), chunk.columns[column].offset_bytes(), pages * page_size,
                    "header area");
      }
    }
  }

  // Of pages with content.
  void add_sectors(u32 device, u64 begin, u64 length, const char* area) {
    for (u64 offset = begin; offset < begin + length; offset += page_size) {
      const u8* page = image_.bytes_at(device, offset);
      if (std::all_of(page, page + page_size, [](u8 byte) { return byte == 0; })) continue;
      for (u64 at = offset; at < offset + page_size; at += damage_sector_bytes) sectors_.push_back({device, at, area});
    }
  }

  // Writes garbage, or zeros if there is content, so the content always changes.
  void spoil(const DamageSector& sector, u64 seed) {
    u8 bytes[damage_sector_bytes] = {};
    const u8* before = image_.bytes_at(sector.device, sector.offset);
    const bool is_zero = std::all_of(before, before + sizeof(bytes), [](u8 byte) { return byte == 0; });
    if (is_zero || seed % 2 == 0) {
      Sequence random(seed);
      for (u8& byte : bytes) byte = static_cast<u8>(random.next() >> 32);
    }
    image_.write(sector.device, sector.offset, bytes, sizeof(bytes));
  }

  std::string compare(const std::string& expected) {
    CrashPool pool(image_, nullptr, "a pool with damaged sectors");
    const std::string found = PoolText(pool.session()).text();
    return found == expected ? "" : "the pool holds\n" + found + "instead of\n" + expected;
  }

  fsck::CheckResult check() const {
    fsck::CheckOptions options;
    options.device_paths = image_.paths();
    return fsck::check_pool(options);
  }

  std::string explore_with_copies(u32 devices) {
    std::string problem = compare(text_);
    if (!problem.empty()) return "after the damage " + problem;
    const auto [model, text] = write(
        [](CrashWriter& w) {
          w.write("m1", page_size, 2 * page_size);
          w.create("m4");
          w.write("m4", 0, 9 * page_size);
          w.checkpoint();
          w.write("d/m3", 100, 300);
          w.checkpoint();
        },
        model_);
    const fsck::CheckResult result = check();
    // Chunk maps are rewritten by the next growth or by a repair: only a checker reads them.
    const u64 maps = result.findings.count(fsck::FindingId::chunk_map_damaged);
    if (result.findings.error_count() != maps) return "fsck finds" + findings_text(result);
    for (u32 d = 0; d < image_.device_count(); ++d) {
      if ((devices >> d & 1) == 0) continue;
      const std::vector<u8> garbage = random_bytes(image_.size(d) - layout_.area_offsets[d], d);
      image_.write(d, layout_.area_offsets[d], garbage.data(), garbage.size());
    }
    problem = compare(text);
    return problem.empty() ? "" : "without the damaged devices " + problem;
  }

  static std::vector<u8> random_bytes(u64 count, u64 seed) {
    std::vector<u8> bytes(count);
    Sequence random(seed + 77);
    for (u64 i = 0; i + 8 <= count; i += 8) {
      const u64 word = random.next();
      std::memcpy(&bytes[i], &word, 8);
    }
    return bytes;
  }

  static bool is_directory(const std::string& line) { return line.find(" 40") != std::string::npos; }

  // Every line of the text is one of the pool's, or says that something cannot be read; directories may lack names.
  // *complete: nothing is missing.
  std::string compare_lines(bool* complete) {
    CrashPool pool(image_, nullptr, "a pool with damaged sectors");
    const std::string found = PoolText(pool.session()).text();
    *complete = found == text_;
    std::set<std::string> expected;
    std::istringstream lines(text_);
    for (std::string line; std::getline(lines, line);) expected.insert(line);
    std::istringstream own(found);
    for (std::string line; std::getline(own, line);) {
      if (!line.empty() && expected.count(line) == 0 && line.find("answers") == std::string::npos &&
          !line.starts_with("/lost+found") && !is_directory(line)) {
        return "wrong: " + line + "\nin\n" + text_;
      }
    }
    return "";
  }

  std::string explore_alone(const std::vector<DamageSector>& damaged) {
    const fsck::CheckResult before = check();
    const bool is_found = before.findings.error_count() != 0;
    bool complete = false;
    std::string problem;
    try {
      problem = compare_lines(&complete);
    } catch (const std::exception& error) {
      if (!is_found) return fmt::format("fsck finds nothing, the pool is refused: {}", error.what());
      return explore_repaired(damaged, before);
    }
    // A pool that has lost its newest superblock has the state of the previous one, and fsck has said so.
    const bool is_older = is_found && damaged.front().area == "superblock";
    if (!problem.empty() && !is_older) return problem;
    return complete || is_found ? "" : "fsck finds nothing, and not all is there";
  }

  std::string explore_repaired(const std::vector<DamageSector>& damaged, const fsck::CheckResult& before) {
    const bool has_pool = before.findings.count(fsck::FindingId::pool_unusable) == 0;
    if (!has_pool) return damaged.front().area == "chunk tree" ? "" : "no pool: " + findings_text(before);
    fsck::RepairOptions repair;
    repair.device_paths = image_.paths();
    const bool lacks_descriptors = before.findings.count(fsck::FindingId::descriptors_damaged) != 0;
    // After the remaining epoch there may be records that its log does not reach. Without the metadata of the files
    // none can be replayed.
    const bool is_older = damaged.front().area == "superblock" || lacks_descriptors;
    repair.drop_log = is_older;
    std::string done;
    repair.on_repair = [&](const std::string& place, const std::string& text) { done += "\n  " + place + ": " + text; };
    (void)fsck::repair_pool(repair);
    image_.find_changes();
    bool complete = false;
    const std::string problem = compare_lines(&complete);
    if (!problem.empty() && !is_older) return "behind the repair" + done + "\n" + problem;
    if (damaged.front().area == "header area" && !lacks_descriptors && !complete) {
      return "the repair" + done + "\nof" + findings_text(before) + "\nleaves not all of it";
    }
    return "";
  }

  CrashBase base_;
  CrashImage image_;
  LossShape layout_;
  CrashImage::Saved written_;
  PosixModel model_;
  std::string text_;
  std::vector<DamageSector> sectors_;
};

}  // namespace gpu4fs::test
