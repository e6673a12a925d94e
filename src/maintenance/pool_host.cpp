#include "maintenance/pool_host.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u32 forced_mask = 2;  // Opcode::checkpoint: even if nothing has changed

}  // namespace

ring::Completion PoolHost::command(wire::Opcode opcode, u32 mask, u64 inode) {
  wire::Command request{};
  request.opcode = opcode;
  request.mask = mask;
  request.inode = inode;
  return call(request);
}

Status PoolHost::checkpoint() {
  return command(wire::Opcode::checkpoint, forced_mask).status;
}

}  // namespace gpu4fs::maintenance
