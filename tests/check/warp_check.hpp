// A check whose engine's workers are emulated warps.
#pragma once

#include <fcntl.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/memory/mapped_file.hpp"
#include "engine/engine_build.hpp"
#include "fsck/check/engine_check.hpp"
#include "pool/logical_space/logical_space.hpp"
#include "support/warp_engine.hpp"

namespace gpu4fs::test {

inline constexpr u32 checking_warp_count = 1;

// As fsck::check::EngineRunner.
inline bool run_warp_check(fsck::check::CheckContext& context, const fsck::check::PageAddresses& pages) {
  std::vector<device::MappedFile> files;
  std::vector<device::Device> devices;
  for (const pool::OpenedDevice& opened : context.pool.devices) {
    files.push_back(device::MappedFile::adopt(::fcntl(opened.file.fd(), F_DUPFD_CLOEXEC, 3), opened.file.path(),
                                              {.read_only = true, .lock = false, .stack = nullptr}));
  }
  for (u32 i = 0; i < files.size(); ++i) devices.push_back(files[i].device(i));
  engine::HeapAllocator memory;
  engine::EngineConfig config = WarpEngine::kernel_config({}, checking_warp_count);
  config.default_deadline_ms = 600'000;
  engine::MemorySizes sizes;
  sizes.frame_count = 64;
  sizes.staging_count = 32;
  const auto upcalls = std::make_unique<ring::UpcallRing>();
  engine::EngineImage image = engine::prepare_engine(memory, config, sizes, upcalls.get());
  fs::FileSystem& fs = image->fs;
  fs.space = pool::build_logical_space(memory, context.pool.superblock, devices, context.pool.chunks, true);
  fs.inode_file = fs.inode_file_staged = context.pool.superblock.inode_file;
  fs.epoch_durable = context.pool.superblock.epoch;
  fs.epoch_open = fs.epoch_durable + 1;
  fs.name_hash_seed = context.pool.superblock.name_hash_seed;
  fs.read_only = 1;
  engine::build_check(memory, *image, (pages.rbegin()->first + 1) * format::inodes_per_page);
  WarpEngine host(engine::place_engine(memory, image), checking_warp_count);
  host.start();
  bool complete = false;
  {
    std::mutex open_close;
    session::ServerSession session(host, open_close, session::ServerSession::Kind::internal, 6,
                                   fsck::check::engine_check_session_bytes());
    complete = fsck::check::EngineCheck(context, session, pages).run();
  }
  host.stop();
  return complete;
}

}  // namespace gpu4fs::test
