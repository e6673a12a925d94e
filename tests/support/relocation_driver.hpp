// Moves pages of a mounted pool with the internal command `relocate`, step by step, for tests that do other work in
// between.
#pragma once

#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "format/inode_format.hpp"
#include "ring/ring_client.hpp"
#include "wire/relocate_format.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::test {

class RelocationDriver {
 public:
  // `call` executes a command whose data are at the beginning of the session's area, `data`.
  RelocationDriver(std::function<ring::Completion(wire::Command)> call, const u8* data)
      : call_(std::move(call)), data_(data) {}

  ring::Completion step(wire::RelocateStep step, u64 inode, u64 offset = 0, u32 mask = 0, u64 length = 0) {
    wire::Command command{};
    command.opcode = wire::Opcode::relocate;
    command.mode = static_cast<u32>(step);
    command.inode = inode;
    command.offset = offset;
    command.length = length;
    command.mask = mask;
    command.data = wire::ring_address(0, 0);
    return call_(command);
  }
  // Continues to the end of the inode, or for `step_max` commands. Adds to moved_count().
  Status move(wire::RelocateStep which, u64 inode, u32 mask = 0, u64 length = 0, u32 step_max = ~0u) {
    u64 offset = 0;
    for (u32 i = 0; i < step_max && offset != wire::relocate_end; ++i) {
      const ring::Completion done = step(which, inode, offset, mask, length);
      if (done.status != Status::ok) return done.status;
      wire::RelocateReport report;
      std::memcpy(&report, data_, sizeof(report));
      if (report.next <= offset) throw std::logic_error("relocate does not move on");
      moved_count_ += report.moved;
      stayed_count_ += report.stayed;
      offset = report.next;
    }
    return Status::ok;
  }
  Status move_inode(u64 inode, u32 mask) {
    const Status status = move(wire::RelocateStep::data, inode, mask);
    return status == Status::ok ? move(wire::RelocateStep::metadata, inode) : status;
  }
  std::vector<u64> inodes() {
    std::vector<u64> list;
    for (u64 inode = format::inode_number_root;; inode = list.back() + 1) {
      const ring::Completion done = step(wire::RelocateStep::next_inode, inode);
      if (done.status != Status::ok || done.result == wire::relocate_end) break;
      list.push_back(done.result);
    }
    std::erase_if(
        list, [](u64 inode) { return inode != format::inode_number_root && inode < format::inode_number_first_free; });
    return list;
  }
  // Moves everything in frozen chunks. The next checkpoint makes them empty.
  Status move_everything() {
    for (const u64 inode : inodes()) {
      const Status status = move_inode(inode, wire::relocate_frozen);
      if (status != Status::ok && status != Status::stale) return status;
    }
    for (const u64 inode : {2, 3, 0}) {
      const Status status = move(wire::RelocateStep::metadata, inode);
      if (status != Status::ok) return status;
    }
    return Status::ok;
  }
  wire::ChunkUsage usage(u32 chunk) {
    wire::ChunkUsage usage{};
    const ring::Completion done = step(wire::RelocateStep::usage, chunk, 0, 0, sizeof(usage));
    if (done.status == Status::ok && done.result == 1) std::memcpy(&usage, data_, sizeof(usage));
    return usage;
  }
  u64 moved_count() const { return moved_count_; }
  u64 stayed_count() const { return stayed_count_; }

 private:
  std::function<ring::Completion(wire::Command)> call_;
  const u8* data_;
  u64 moved_count_ = 0;
  u64 stayed_count_ = 0;
};

template <class Pool>
RelocationDriver relocation_of(Pool& pool) {
  return {[&pool](wire::Command command) { return pool.call_internal(command); }, pool.internal_data()};
}

}  // namespace gpu4fs::test
