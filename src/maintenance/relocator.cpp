#include "maintenance/relocator.hpp"

#include <dirent.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <unordered_set>

#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"
#include "format/inode_format.hpp"
#include "pool/pool_error.hpp"
#include "session/pool_inspector.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u64 limited_commands_per_s = 20;  // with a rate limit
constexpr u64 limited_command_min = 16;     // pages
constexpr u32 pass_max = 100;
constexpr u32 idle_pass_max = 20;           // that moved nothing, before what is left counts as immovable
constexpr auto idle_pass_wait = std::chrono::milliseconds(20);  // for commands that have pages and have not committed them

double relocation_clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

u64 occupied_pages(const std::vector<wire::ChunkUsage>& usage, const std::vector<u32>& chunks) {
  u64 sum = 0;
  for (const u32 chunk : chunks) sum += usage[chunk].occupied;
  return sum;
}

// Freezes chunks and moves what they hold.
class ChunkEmptier {
 public:
  ChunkEmptier(PageMover& mover, const std::vector<u32>& chunks, const RelocationGoesOn& goes_on,
               const std::function<Status()>& checkpoint)
      : mover_(mover), chunks_(chunks), goes_on_(goes_on), checkpoint_(checkpoint) {}

  RelocationResult run() {
    result_.status = look();
    if (result_.status == Status::ok) result_.status = freeze();
    if (result_.status == Status::ok) {
      result_.progress.page_total = occupied_pages(usage_, chunks_);
      result_.status = move_all();
    }
    const Status looked = look();
    if (result_.status == Status::ok) result_.status = looked;
    for (const u32 chunk : chunks_) {
      const bool is_empty = looked == Status::ok && usage_[chunk].is_frozen != 0 && usage_[chunk].occupied == 0;
      (is_empty ? result_.empty : result_.not_empty).push_back(chunk);
    }
    return std::move(result_);
  }

 private:
  Status look() {
    const Status status = mover_.chunk_usage(&usage_);
    if (status != Status::ok) return status;
    const auto exists = [&](u32 chunk) { return chunk < usage_.size(); };
    return std::all_of(chunks_.begin(), chunks_.end(), exists) ? Status::ok : Status::out_of_range;
  }

  // What was freed since the last checkpoints is room behind the next ones.
  Status freeze_one(u32 chunk) {
    Status status = mover_.freeze(chunk);
    for (u32 attempt = 0; status == Status::no_space && attempt < 2; ++attempt) {
      const Status written = checkpoint_();
      if (written != Status::ok) return written;
      status = mover_.freeze(chunk);
    }
    return status;
  }

  Status freeze() {
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      const Status status = freeze_one(chunks_[i]);
      if (status == Status::ok) continue;
      for (std::size_t k = 0; k < i; ++k) {
        if (usage_[chunks_[k]].is_frozen == 0) (void)mover_.unfreeze(chunks_[k]);
      }
      return status;
    }
    return Status::ok;
  }

  Status move_all() {
    u64 left = occupied_pages(usage_, chunks_);
    u32 idle_passes = 0;
    for (u32 pass = 0; pass < pass_max && left != 0; ++pass) {
      result_.progress.stayed_count = 0;
      const u64 moved_before = result_.progress.moved_count;
      Status status = move_once();
      if (status == Status::ok) status = checkpoint_();
      if (status == Status::ok) status = look();
      if (status != Status::ok) return status;
      left = occupied_pages(usage_, chunks_);
      if (result_.progress.moved_count != moved_before) continue;
      if (left <= result_.progress.stayed_count || ++idle_passes == idle_pass_max) break;
      std::this_thread::sleep_for(idle_pass_wait);
    }
    return Status::ok;
  }

  // All inodes, those without a name included, and the files that hold the tree itself.
  Status move_once() {
    for (u64 inode = format::inode_number_root;;) {
      u64 found = 0;
      Status status = mover_.next_inode(inode, &found);
      if (status != Status::ok) return status;
      if (found == wire::relocate_end) break;
      if (found == format::inode_number_root || found >= format::inode_number_first_free) status = move_inode(found);
      if (status != Status::ok) return status;
      inode = found + 1;
    }
    for (const u64 inode : {format::inode_number_inode_bitmap, format::inode_number_orphan_bitmap,
                            format::inode_number_inode_file}) {
      const Status status = move([&](const PageMover::GoesOn& counts, PageMover::Moved* moved) {
        return mover_.move_metadata(inode, counts, moved);
      });
      if (status != Status::ok) return status;
    }
    return Status::ok;
  }

  Status move_inode(u64 inode) {
    return move([&](const PageMover::GoesOn& counts, PageMover::Moved* moved) {
      const Status status = mover_.move_file(inode, wire::relocate_frozen, counts, moved);
      return status == Status::ok ? mover_.move_metadata(inode, counts, moved) : status;
    });
  }

  template <class Move>
  Status move(Move&& act) {
    PageMover::Moved moved;
    const auto counts = [&](u64 page_count) {
      result_.progress.moved_count += page_count;
      return !goes_on_ || goes_on_(result_.progress);
    };
    const Status status = act(counts, &moved);
    result_.progress.stayed_count += moved.stayed_count;
    return status;
  }

  PageMover& mover_;
  const std::vector<u32>& chunks_;
  const RelocationGoesOn& goes_on_;
  const std::function<Status()>& checkpoint_;
  std::vector<wire::ChunkUsage> usage_;
  RelocationResult result_;
};

}  // namespace

const char* relocation_state_name(RelocationState state) {
  constexpr const char* names[] = {"never", "running", "paused", "finished", "cancelled", "failed"};
  return names[static_cast<u32>(state)];
}

double RelocationReport::rate() const {
  if (active_ms == 0) return 0;
  return static_cast<double>(moved_count * page_size) * 1000 / static_cast<double>(active_ms);
}

std::optional<double> RelocationReport::seconds_left() const {
  const bool is_under_way = state == RelocationState::running || state == RelocationState::paused;
  if (!is_under_way || file_count == 0 || file_total == 0) return std::nullopt;
  return static_cast<double>(active_ms) / 1000 * static_cast<double>(file_total - file_count) /
         static_cast<double>(file_count);
}

Relocator::Relocator(RelocatorSetup setup) : setup_(std::move(setup)), thread_([this] { run(); }) {}

Relocator::~Relocator() {
  stop();
}

void Relocator::stop() {
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::string Relocator::start(const RelocationJob& job) {
  const std::lock_guard guard(mutex_);
  if (begins_ || report_.state == RelocationState::running || report_.state == RelocationState::paused) {
    return "pages are being moved already";
  }
  report_ = {};
  report_.state = RelocationState::running;
  report_.job = job;
  report_.started_s = std::time(nullptr);
  begins_ = true;
  next_command_s_ = 0;
  active_s_ = 0;
  active_since_s_ = relocation_clock_s();
  changed_.notify_all();
  return {};
}

std::string Relocator::pause() {
  const std::lock_guard guard(mutex_);
  if (report_.state != RelocationState::running) return "no pages are being moved";
  report_.state = RelocationState::paused;
  changed_.notify_all();
  return {};
}

std::string Relocator::resume() {
  const std::lock_guard guard(mutex_);
  if (report_.state != RelocationState::paused) return "nothing is paused";
  report_.state = RelocationState::running;
  changed_.notify_all();
  return {};
}

std::string Relocator::cancel() {
  const std::lock_guard guard(mutex_);
  if (report_.state != RelocationState::running && report_.state != RelocationState::paused) {
    return "no pages are being moved";
  }
  report_.state = RelocationState::cancelled;
  report_.ended_s = std::time(nullptr);
  changed_.notify_all();
  return {};
}

std::string Relocator::set_rate(u64 rate_limit) {
  const std::lock_guard guard(mutex_);
  if (report_.state != RelocationState::running && report_.state != RelocationState::paused) {
    return "no pages are being moved";
  }
  report_.job.rate_limit = rate_limit;
  next_command_s_ = 0;
  changed_.notify_all();
  return {};
}

RelocationReport Relocator::report() const {
  const std::lock_guard guard(mutex_);
  return report_;
}

void Relocator::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (begins_) {
      run_job(lock);
    } else {
      changed_.wait(lock);
    }
  }
}

void Relocator::run_job(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  Status status = Status::ok;
  std::string problem;
  try {
    std::vector<u64> files;
    status = collect_files(&files);
    PageMover mover(setup_.host, setup_.open_close);
    if (status == Status::ok) status = move_files(files, mover);
    // What was moved is durable, and its old places are free.
    const Status written = setup_.checkpoint();
    if (status == Status::ok) status = written;
  } catch (const pool::PoolError& error) {
    status = error.status();
    problem = error.what();
  }
  lock.lock();
  begins_ = false;
  note_active_time();
  if (report_.state == RelocationState::cancelled || ending_) return;
  report_.ended_s = std::time(nullptr);
  report_.state = status == Status::ok ? RelocationState::finished : RelocationState::failed;
  if (status != Status::ok) {
    report_.problem = problem.empty() ? status_text(status) : problem;
    log(LogLevel::error, fmt::format("pages could not be moved: {}", report_.problem));
  }
}

// The file, or those below the directory, each once.
Status Relocator::collect_files(std::vector<u64>* files) {
  const RelocationJob job = report().job;
  session::PoolInspector inspector(setup_.host, setup_.open_close);
  std::unordered_set<u64> seen{job.inode};
  std::vector<u64> waiting;
  std::vector<session::DirectoryEntry> entries;
  Status listed = inspector.read_directory(job.inode, false, &entries);
  if (listed == Status::not_directory) {
    files->push_back(job.inode);
  } else if (listed != Status::ok) {
    return listed;
  } else {
    waiting.push_back(job.inode);
  }
  while (!waiting.empty()) {
    const u64 inode = waiting.back();
    waiting.pop_back();
    listed = inspector.read_directory(inode, false, &entries);
    // Removed meanwhile.
    if (listed != Status::ok && listed != Status::stale) return listed;
    if (listed == Status::stale) continue;
    for (const session::DirectoryEntry& entry : entries) {
      if (entry.type == DT_REG && seen.insert(entry.inode).second) files->push_back(entry.inode);
      if (entry.type == DT_DIR && job.recursive && seen.insert(entry.inode).second) waiting.push_back(entry.inode);
    }
    const std::lock_guard guard(mutex_);
    if (ending_ || report_.state == RelocationState::cancelled) return Status::cancelled;
  }
  return Status::ok;
}

Status Relocator::move_files(const std::vector<u64>& files, PageMover& mover) {
  u32 mask = 0;
  {
    const std::lock_guard guard(mutex_);
    report_.file_total = files.size();
    mask = report_.job.kind == RelocationKind::convert ? wire::relocate_class : wire::relocate_scattered;
  }
  for (const u64 inode : files) {
    if (!goes_on(mover, 0)) return Status::cancelled;
    PageMover::Moved moved;
    const Status status =
        mover.move_file(inode, mask, [&](u64 page_count) { return goes_on(mover, page_count); }, &moved);
    const std::lock_guard guard(mutex_);
    report_.stayed_count += moved.stayed_count;
    if (status != Status::ok) return status;
    ++report_.file_count;
  }
  return Status::ok;
}

// After a command that moved `page_count` pages: waits while the job is paused, or goes too fast.
bool Relocator::goes_on(PageMover& mover, u64 page_count) {
  std::unique_lock lock(mutex_);
  report_.moved_count += page_count;
  wait_for_rate(lock, page_count);
  note_active_time();
  changed_.wait(lock, [this] { return ending_ || report_.state != RelocationState::paused; });
  active_since_s_ = relocation_clock_s();
  const u64 limit = report_.job.rate_limit;
  mover.set_command_pages(limit == 0 ? 0 : std::max(limit / page_size / limited_commands_per_s, limited_command_min));
  return !ending_ && report_.state == RelocationState::running;
}

// Under the mutex: pauses do not count.
void Relocator::note_active_time() {
  const double now_s = relocation_clock_s();
  active_s_ += now_s - active_since_s_;
  active_since_s_ = now_s;
  report_.active_ms = static_cast<u64>(active_s_ * 1000 + 0.5);
}

void Relocator::wait_for_rate(std::unique_lock<std::mutex>& lock, u64 page_count) {
  const u64 limit = report_.job.rate_limit;
  if (limit == 0 || page_count == 0) return;
  const double seconds = static_cast<double>(page_count * page_size) / static_cast<double>(limit);
  next_command_s_ = std::max(next_command_s_, relocation_clock_s() - 0.1) + seconds;
  const double wait = next_command_s_ - relocation_clock_s();
  if (wait <= 0) return;
  changed_.wait_for(lock, std::chrono::duration<double>(wait), [&] {
    return ending_ || report_.state != RelocationState::running || report_.job.rate_limit != limit;
  });
}

RelocationResult Relocator::empty_chunks(const std::vector<u32>& chunks, const RelocationGoesOn& goes_on) {
  PageMover mover(setup_.host, setup_.open_close);
  return ChunkEmptier(mover, chunks, goes_on, setup_.checkpoint).run();
}

Status Relocator::unfreeze_chunks(const std::vector<u32>& chunks) {
  PageMover mover(setup_.host, setup_.open_close);
  for (const u32 chunk : chunks) GPU4FS_TRY(mover.unfreeze(chunk));
  return Status::ok;
}

Status Relocator::chunk_usage(std::vector<wire::ChunkUsage>* usage) {
  PageMover mover(setup_.host, setup_.open_close);
  return mover.chunk_usage(usage);
}

}  // namespace gpu4fs::maintenance
