#include "fsck/repair/repair_pool.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <unordered_set>

#include "fsck/repair/repair_context.hpp"
#include "server/recovery/log_scan.hpp"
#include "server/recovery/recovery.hpp"

namespace gpu4fs::fsck {

namespace {

using repair::RepairContext;

pool::OpenPoolOptions open_options(const RepairOptions& options, bool read_only) {
  pool::OpenPoolOptions open;
  open.device_paths = options.device_paths;
  open.read_only = read_only;
  open.repairs_tree = false;  // the repair writes them itself
  return open;
}

void tell(const RepairOptions& options, RepairResult& result, const std::string& text,
          const char* place = "operation log") {
  ++result.repair_count;
  if (options.on_repair) options.on_repair(place, text);
}

// Replays the waiting operations, as a mount would. PoolError.
u64 replay(const RepairOptions& options, bool drop_damaged) {
  session::ServerOptions recovery;
  recovery.device_paths = options.device_paths;
  recovery.engine = session::EngineChoice::cpu;
  recovery.drop_damaged_log = drop_damaged;
  return server::recover_pool(recovery).records_replayed;
}

struct WaitingLog {
  bool is_empty = true;
  u64 record_count = 0;
  std::string trouble;  // why it cannot be read
};

WaitingLog look_at_log(const RepairOptions& options) {
  const pool::OpenedPool pool = pool::open_pool(open_options(options, true));
  try {
    const server::LogScan scan = server::scan_log(pool);
    return {scan.record_count() == 0 && scan.durable <= scan.end, scan.record_count(), ""};
  } catch (const pool::PoolError& error) {
    return {false, 0, error.what()};
  }
}

// First replays as much as possible of the log that a mount would replay. True: the rest is dropped.
bool replay_log(const RepairOptions& options, RepairResult& result) {
  const WaitingLog log = look_at_log(options);
  if (log.is_empty) return false;
  if (options.dry_run) {
    tell(options, result, fmt::format("{} operations wait and are carried out first", log.record_count));
    return false;
  }
  std::string trouble;
  for (const bool drop_damaged : {false, true}) {
    if (drop_damaged && !options.drop_log) break;
    try {
      result.operations_replayed = replay(options, drop_damaged);
      tell(options, result,
           fmt::format("{} operations were carried out{}", result.operations_replayed,
                       drop_damaged ? ", what is behind them is given up" : ""));
      return false;
    } catch (const pool::PoolError& error) {
      trouble = error.what();
    }
  }
  if (!options.drop_log) {
    throw pool::PoolError(Status::corrupt_log,
                          fmt::format("the operation log cannot be carried out: {}; '--drop-log' gives "
                                      "it up",
                                      trouble));
  }
  tell(options, result, fmt::format("{} operations are given up: {}", log.record_count, trouble));
  return true;
}

// A complete check of the old state, which collects the directories with findings. The contents of files are not
// checked, because they cannot be repaired.
class OldState {
 public:
  OldState(const RepairOptions& options, const pool::OpenedPool& pool)
      : context_(check_options(options), pool, result_) {}

  void look() {
    check::check_superblocks(context_);
    check::check_tree_replicas(context_);
    check::check_chunk_maps(context_);
    check::check_chunks(context_);
    inode_pages_ = check::check_inode_file(context_);
    for (const auto& [index, address] : inode_pages_) look_at_inodes(index, address);
    check::check_inode_count(context_);
    look_at_directories();
    orphans_ = check::read_orphans(context_);
    check::check_links(context_);
    check::check_inode_bitmaps(context_);
    check::check_page_bitmaps(context_);
  }

  check::CheckContext& context() { return context_; }
  u64 error_count() const { return result_.findings.error_count(); }
  const check::PageAddresses& inode_pages() const { return inode_pages_; }
  const std::set<u64>& suspects() const { return suspects_; }
  const std::unordered_set<u64>& orphans() const { return orphans_; }

 private:
  const CheckOptions& check_options(const RepairOptions& options) {
    check_options_.device_paths = options.device_paths;
    check_options_.check_data = false;
    return check_options_;
  }

  void look_at_inodes(u64 index, u64 address) {
    const auto page = std::make_unique<PageBuffer>();
    if (!context_.read_metadata(address, "inode file", page.get())) return;
    u16 mask = index == 0 ? u16{0xffff} : u16{0};
    for (u32 i = 0; i < format::inodes_per_page; ++i) {
      const u64 number = index * format::inodes_per_page + i;
      format::Inode inode{};
      std::memcpy(&inode, page->bytes + i * sizeof(inode), sizeof(inode));
      if (inode.mode != 0) mask = static_cast<u16>(mask | (1u << i));
      const u64 before = error_count();
      check::take_inode(context_, number, inode);
      if (error_count() != before) suspects_.insert(number);
    }
    context_.inode_masks[index] = mask;
  }

  void look_at_directories() {
    std::set<u64> numbers;
    for (const auto& [number, record] : context_.inodes) {
      if ((record.inode.mode & S_IFMT) == S_IFDIR) numbers.insert(number);
    }
    for (const u64 number : numbers) {
      const u64 before = error_count();
      check::check_directory(context_, number);
      if (error_count() != before) suspects_.insert(number);
    }
  }

  CheckOptions check_options_;
  CheckResult result_;
  check::CheckContext context_;
  check::PageAddresses inode_pages_;
  std::set<u64> suspects_;
  std::unordered_set<u64> orphans_;
};

// Before the log is replayed: no engine replays it on a pool with a lost bitmap.
void restore_slots(const RepairOptions& options, RepairResult& result) {
  pool::OpenedPool pool = pool::open_pool(open_options(options, options.dry_run));
  if (!repair::has_lost_slots(pool)) return;
  OldState old(options, pool);
  old.look();
  const u64 count = repair::restore_lost_slots(pool, old.context(), !options.dry_run);
  if (count != 0) tell(options, result, fmt::format("{} bitmaps stand there again as they were", count), "bitmaps");
}

}  // namespace

RepairResult repair_pool(const RepairOptions& options) {
  RepairResult result;
  restore_slots(options, result);
  const bool drops_log = replay_log(options, result);
  pool::OpenedPool pool = pool::open_pool(open_options(options, options.dry_run));
  result.epoch = pool.superblock.epoch;
  OldState old(options, pool);
  old.look();
  if (old.error_count() == 0 && !drops_log) return result;
  repair::NewPages pages(pool, old.context(), pool.superblock.epoch + 1, !options.dry_run);
  RepairContext context{options, pool, old.context(), pages, result, {}, {}, old.suspects(), {}};
  repair::restore_header_copies(context);
  context.orphans.insert(old.orphans().begin(), old.orphans().end());
  repair::read_inodes(context, old.inode_pages());
  repair::settle_names(context);
  repair::settle_maps(context);
  u64 inode_used = 0;
  const format::Inode inode_file = repair::write_own_files(context, old.inode_pages(), &inode_used);
  repair::write_medium(context, inode_file, inode_used);
  if (!options.dry_run) ++result.epoch;
  return result;
}

}  // namespace gpu4fs::fsck
