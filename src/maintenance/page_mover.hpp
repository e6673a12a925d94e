// Sends the engine's command `relocate`, one after the other, for files, metadata and chunks of a mounted pool. Used by
// one thread at a time; must be destroyed before the engine stops. Host only.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "session/server_session.hpp"
#include "wire/relocate_format.hpp"

namespace gpu4fs::maintenance {

class PageMover {
 public:
  // PoolError when no session is left.
  PageMover(engine::EngineHost& host, std::mutex& open_close);

  struct Moved {
    u64 page_count = 0;
    u64 stayed_count = 0;  // pages that cannot be read anywhere
  };
  // Called after each command with the pages that it has moved; false: no more commands.
  using GoesOn = std::function<bool(u64 page_count)>;

  // Moves blocks of a regular file that `mask` (wire::RelocateMask) selects. ok also for an inode that is not a regular
  // file or is gone; cancelled.
  Status move_file(u64 inode, u32 mask, const GoesOn& goes_on, Moved* moved);
  // The inode's metadata in frozen chunks: the next checkpoint writes it elsewhere.
  Status move_metadata(u64 inode, const GoesOn& goes_on, Moved* moved);
  // The first inode from `inode` on; wire::relocate_end: there is none.
  Status next_inode(u64 inode, u64* found);

  Status freeze(u32 chunk);
  Status unfreeze(u32 chunk);
  // By chunk.
  Status chunk_usage(std::vector<wire::ChunkUsage>* usage);

  // The greatest number of pages of one command, 0: no limit.
  void set_command_pages(u64 page_count) { command_pages_ = page_count; }

 private:
  ring::Completion call(wire::RelocateStep step, u64 inode, u64 offset, u64 length, u32 mask);
  Status move(wire::RelocateStep step, u64 inode, u32 mask, const GoesOn& goes_on, Moved* moved);

  session::ServerSession session_;
  u64 command_pages_ = 0;
};

}  // namespace gpu4fs::maintenance
