// From opcode to handler. One line an operation in the tables below; an operation whose step fans out
// stands in the second one too.
//
// Each handler is a function of its own in a kernel (not inlined into the worker's loop), so that the
// registers of the greatest one do not add to those of the loop.
#pragma once

#include "engine/engine.hpp"
#include "engine/handlers/attribute_ops.hpp"
#include "engine/handlers/check_ops.hpp"
#include "engine/handlers/file_ops.hpp"
#include "engine/handlers/growth_ops.hpp"
#include "engine/handlers/health_ops.hpp"
#include "engine/handlers/journal_ops.hpp"
#include "engine/handlers/namespace_ops.hpp"
#include "engine/handlers/probe_ops.hpp"
#include "engine/handlers/rebuild_ops.hpp"
#include "engine/handlers/relocate_ops.hpp"
#include "engine/handlers/scrub_ops.hpp"
#include "format/ring_format.hpp"

#define GPU4FS_STEP_LIST(X) \
  X(noop)                   \
  X(memset)                 \
  X(memcopy)                \
  X(lookup)                 \
  X(lookup_path)            \
  X(getattr)                \
  X(setattr)                \
  X(mknod)                  \
  X(mkdir)                  \
  X(unlink)                 \
  X(rmdir)                  \
  X(symlink)                \
  X(readlink)               \
  X(rename)                 \
  X(link)                   \
  X(open)                   \
  X(create)                 \
  X(tmpfile)                \
  X(read)                   \
  X(write)                  \
  X(truncate)               \
  X(fallocate)              \
  X(seek)                   \
  X(copy_range)             \
  X(fsync)                  \
  X(sync)                   \
  X(readdir)                \
  X(statfs)                 \
  X(access)                 \
  X(set_attribute)          \
  X(get_attribute)          \
  X(list_attributes)        \
  X(remove_attribute)       \
  X(reclaim)                \
  X(reclaim_orphans)        \
  X(load_chunks)            \
  X(claim_logged)           \
  X(scrub)                  \
  X(health)                 \
  X(list_blocks)            \
  X(grow)                   \
  X(check)                  \
  X(rebuild)                \
  X(relocate)

#define GPU4FS_TASK_LIST(X) \
  X(memset)                 \
  X(memcopy)                \
  X(read)                   \
  X(write)                  \
  X(copy_range)             \
  X(checkpoint)             \
  X(load_chunks)            \
  X(scrub)                  \
  X(grow)                   \
  X(check)                  \
  X(rebuild)                \
  X(relocate)

namespace gpu4fs::engine {
namespace detail {

#define GPU4FS_OUTLINE_STEP(name)                                                                     \
  template <class Group>                                                                              \
  GPU4FS_FN GPU4FS_NOINLINE Step outlined_step_##name(Group g, Engine& engine, CommandState& c) {     \
    return step_##name(g, engine, c);                                                                 \
  }
GPU4FS_STEP_LIST(GPU4FS_OUTLINE_STEP)
GPU4FS_OUTLINE_STEP(checkpoint)
#undef GPU4FS_OUTLINE_STEP

#define GPU4FS_OUTLINE_TASK(name)                                                                            \
  template <class Group>                                                                                     \
  GPU4FS_FN GPU4FS_NOINLINE void outlined_task_##name(Group g, Engine& engine, CommandState& c, u32 task) {  \
    task_##name(g, engine, c, task);                                                                         \
  }
GPU4FS_TASK_LIST(GPU4FS_OUTLINE_TASK)
#undef GPU4FS_OUTLINE_TASK

// `checkpoint` from a ring: asks for one and waits for its end.
template <class Group>
GPU4FS_FN Step request_checkpoint_step(Group g, Engine& engine, CommandState& c) {
  return serial(g, [&] {
    if (c.stage == 1) {
      const Status failed = static_cast<Status>(c.wait_status);
      return failed == Status::ok ? Step::complete(durable_epoch(engine)) : Step::fail(failed);
    }
    c.stage = 1;
    return Step::fail(wait_for_epoch(engine, c, any_epoch, c.command.mask));
  });
}

}  // namespace detail

template <class Group>
GPU4FS_FN Step dispatch_step(Group g, Engine& engine, CommandState& c) {
  switch (c.command.opcode) {
#define GPU4FS_STEP_CASE(name) \
  case format::Opcode::name:   \
    return detail::outlined_step_##name(g, engine, c);
    GPU4FS_STEP_LIST(GPU4FS_STEP_CASE)
#undef GPU4FS_STEP_CASE
    case format::Opcode::checkpoint:
      if (c.index == checkpoint_command) return detail::outlined_step_checkpoint(g, engine, c);
      return detail::request_checkpoint_step(g, engine, c);
    default:
      return Step::fail(Status::unknown_command);
  }
}

template <class Group>
GPU4FS_FN void dispatch_task(Group g, Engine& engine, CommandState& c, u32 task) {
  switch (c.command.opcode) {
#define GPU4FS_TASK_CASE(name) \
  case format::Opcode::name:   \
    detail::outlined_task_##name(g, engine, c, task); \
    return;
    GPU4FS_TASK_LIST(GPU4FS_TASK_CASE)
#undef GPU4FS_TASK_CASE
    default:
      GPU4FS_UNREACHABLE("a step without tasks fanned out");
  }
}

}  // namespace gpu4fs::engine
