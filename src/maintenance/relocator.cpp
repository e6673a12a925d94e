#include "maintenance/relocator.hpp"

#include <dirent.h>

#include <unordered_set>

#include "session/pool_inspector.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u64 limited_command_min = 16;  // pages

}  // namespace

Relocator::Relocator(MountedPool& mounted, PoolHost& host) : mounted_(mounted), host_(host), job_(*this, report_, {}) {}

JobWords Relocator::words() const {
  return {.name = "pages could not be moved",
          .running = "pages are being moved already",
          .paused = "pages are being moved already",
          .none_running = "no pages are being moved",
          .none_paused = "nothing is paused",
          .none_to_cancel = "no pages are being moved"};
}

std::string Relocator::start(const RelocationJob& relocation) {
  return job_.start(relocation.rate_limit, [&] {
    report_ = {};
    report_.kind = relocation.kind;
    report_.inode = relocation.inode;
    recursive_ = relocation.recursive;
  });
}

RelocationReport Relocator::report() const {
  return job_.locked([this] { return report_; });
}

JobOutcome Relocator::run() {
  std::vector<u64> files;
  Status status = collect_files(&files);
  PageMover mover(*mounted_.setup.host, mounted_.open_close);
  if (status == Status::ok) status = move_files(files, mover);
  // Afterwards the moved blocks are durable, and their old places are free.
  const Status written = host_.checkpoint();
  if (status == Status::ok) status = written;
  if (status == Status::ok) return {true, ""};
  return {false, status == Status::cancelled && job_.is_to_end() ? "" : status_text(status)};
}

// The file, or all files below the directory, each once.
Status Relocator::collect_files(std::vector<u64>* files) {
  const u64 top = report().inode;
  const bool recursive = job_.locked([this] { return recursive_; });
  session::PoolInspector inspector(*mounted_.setup.host, mounted_.open_close);
  std::unordered_set<u64> seen{top};
  std::vector<u64> waiting;
  std::vector<session::DirectoryEntry> entries;
  Status listed = inspector.read_directory(top, false, &entries);
  if (listed == Status::not_directory) {
    files->push_back(top);
  } else if (listed != Status::ok) {
    return listed;
  } else {
    waiting.push_back(top);
  }
  while (!waiting.empty()) {
    const u64 inode = waiting.back();
    waiting.pop_back();
    listed = inspector.read_directory(inode, false, &entries);
    // It was removed meanwhile.
    if (listed != Status::ok && listed != Status::stale) return listed;
    if (listed == Status::stale) continue;
    for (const session::DirectoryEntry& entry : entries) {
      if (entry.type == DT_REG && seen.insert(entry.inode).second) files->push_back(entry.inode);
      if (entry.type == DT_DIR && recursive && seen.insert(entry.inode).second) waiting.push_back(entry.inode);
    }
    if (job_.is_to_end()) return Status::cancelled;
  }
  return Status::ok;
}

Status Relocator::move_files(const std::vector<u64>& files, PageMover& mover) {
  const bool converts = report().kind == RelocationKind::convert;
  const u32 mask = converts ? wire::relocate_class : wire::relocate_scattered;
  job_.locked([&] { report_.file_total = files.size(); });
  for (const u64 inode : files) {
    if (!goes_on(mover, 0)) return Status::cancelled;
    PageMover::Moved moved;
    const Status status = mover.move_file(
        inode, mask, [&](u64 page_count) { return goes_on(mover, page_count); }, &moved);
    job_.locked([&] {
      report_.stayed_count += moved.stayed_count;
      if (status == Status::ok) ++report_.file_count;
    });
    if (status != Status::ok) return status;
  }
  return Status::ok;
}

// After a command that moved `page_count` pages.
bool Relocator::goes_on(PageMover& mover, u64 page_count) {
  const bool goes_on = job_.goes_on(page_count);
  mover.set_command_pages(job_.rate_limit() == 0 ? 0 : job_.command_pages(limited_command_min, ~u64{0}));
  return goes_on;
}

RelocationResult Relocator::empty_chunks(const std::vector<u32>& chunks, const RelocationGoesOn& goes_on) {
  PageMover mover(*mounted_.setup.host, mounted_.open_close);
  return maintenance::empty_chunks(mover, chunks, goes_on, host_);
}

Status Relocator::unfreeze_chunks(const std::vector<u32>& chunks) {
  PageMover mover(*mounted_.setup.host, mounted_.open_close);
  for (const u32 chunk : chunks) GPU4FS_TRY(mover.unfreeze(chunk));
  return Status::ok;
}

Status Relocator::chunk_usage(std::vector<wire::ChunkUsage>* usage) {
  PageMover mover(*mounted_.setup.host, mounted_.open_close);
  return mover.chunk_usage(usage);
}

}  // namespace gpu4fs::maintenance
