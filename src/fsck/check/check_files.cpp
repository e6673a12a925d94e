// Checks inodes and directories: on an engine, or in this process.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "fsck/check/engine_check.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::fsck::check {

namespace {

// Inode files that the engine makes are dense; a table for a manipulated one could have any size.
bool is_dense(const PageAddresses& pages) {
  constexpr u64 slack = 4096;
  return !pages.empty() && pages.rbegin()->first < 4 * pages.size() + slack;
}

// Layers over devices have a state of their own and must see every access once.
bool has_layers(const CheckContext& context) {
  for (const pool::OpenedDevice& device : context.pool.devices) {
    if (device.file.stack() != nullptr) return true;
  }
  return false;
}

session::ServerOptions engine_options(const CheckContext& context, const PageAddresses& pages) {
  session::ServerOptions options;
  options.device_paths = context.options.device_paths;
  options.read_only = true;
  options.degraded = true;
  options.purpose = session::ServerPurpose::check;
  options.worker_count = context.options.worker_count;
  options.cache_bytes = u64{8} << 20;  // the check reads pages without the table
  options.check_inode_count = (pages.rbegin()->first + 1) * format::inodes_per_page;
  switch (context.options.engine) {
    case CheckEngine::cpu:
      options.engine = session::EngineChoice::cpu;
      break;
    case CheckEngine::cuda:
      options.engine = session::EngineChoice::cuda;
      break;
    default:
      options.engine = session::EngineChoice::automatic;
      break;
  }
  return options;
}

// Regions with a page in `allocated`, or all if that is empty.
u64 count_regions(const CheckContext& context, u32 chunk, const BitWords& allocated) {
  if (allocated.empty()) return divide_up(context.reader.chunk_page_count(chunk), u64{pages_per_block_2m});
  constexpr u64 region_words = pages_per_block_2m / 64;
  u64 count = 0;
  for (u64 first = 0; first < allocated.size(); first += region_words) {
    const auto end = static_cast<std::ptrdiff_t>(std::min<u64>(first + region_words, allocated.size()));
    count += std::any_of(allocated.begin() + static_cast<std::ptrdiff_t>(first), allocated.begin() + end,
                         [](u64 word) { return word != 0; })
                 ? 1
                 : 0;
  }
  return count;
}

// The pool's own files: they have few pages, and their content is needed here.
void take_own_files(CheckContext& context, const PageAddresses& pages) {
  const auto first = pages.find(0);
  const auto page = std::make_unique<PageBuffer>();
  if (first == pages.end() || context.reader.read_page(first->second, page.get()) != PageState::good) return;
  for (const u64 number : {format::inode_number_inode_bitmap, format::inode_number_orphan_bitmap}) {
    format::Inode inode{};
    std::memcpy(&inode, page->bytes + number * sizeof(inode), sizeof(inode));
    if (inode.mode != 0) take_inode(context, number, inode);
  }
}

}  // namespace

bool run_server_engine(CheckContext& context, const PageAddresses& pages) {
  const bool is_free_choice = context.options.engine == CheckEngine::automatic;
  if (!context.options.lock || (is_free_choice && has_layers(context))) return false;
  try {
    server::PoolServer server(engine_options(context, pages));
    server.start();
    auto session = server.open_internal_session(engine_check_session_bytes());
    std::map<u32, u64> regions;  // by chunk
    const auto reach = [&](u32 chunk, const BitWords& allocated) {
      server.reach_regions(chunk, allocated);
      regions[chunk] = count_regions(context, chunk, allocated);
    };
    const bool complete = EngineCheck(context, *session, pages, reach).run();
    if (complete) context.result.engine = server.engine().description();
    if (complete) context.result.chunks_mapped = server.mapped_chunk_count();
    for (const auto& [chunk, count] : regions) context.result.regions_mapped += complete ? count : 0;
    session.reset();
    server.stop();
    return complete;
  } catch (const pool::PoolError& error) {
    // A pool for which no engine can be built is checked in this process, whatever engine was requested.
    const bool is_damage = error.status() == Status::corrupt_structure || error.status() == Status::device_failed;
    if (!is_damage && (!is_free_choice || error.status() != Status::no_memory)) throw;
    return false;
  }
}

void check_files(CheckContext& context) {
  const PageAddresses pages = check_inode_file(context);
  // An engine knows only slots that verify.
  const bool has_all_slots = context.reader.headers()->slot_sum() == context.pool.superblock.slot_sum;
  if (context.run_engine && has_all_slots && is_dense(pages)) {
    take_own_files(context, pages);
    if (context.run_engine(context, pages)) return check_inode_count(context);
  }
  check_inodes(context, pages);
  check_directories(context);
}

}  // namespace gpu4fs::fsck::check
