// Calls the handler of an opcode, by the table of commands (wire/command_list.hpp).
//
// Each handler is a function of its own in a kernel (not inlined into the worker's loop). So the registers of the
// largest handler do not add to those of the loop.
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
#include "wire/ring_format.hpp"

namespace gpu4fs::engine {
namespace detail {

#define GPU4FS_OUTLINE_STEP(name)                                                                 \
  template <class Group>                                                                          \
  GPU4FS_FN GPU4FS_NOINLINE Step outlined_step_##name(Group g, Engine& engine, CommandState& c) { \
    return step_##name(g, engine, c);                                                             \
  }
#define GPU4FS_OUTLINE_TASK(name)                                                                           \
  template <class Group>                                                                                    \
  GPU4FS_FN GPU4FS_NOINLINE void outlined_task_##name(Group g, Engine& engine, CommandState& c, u32 task) { \
    task_##name(g, engine, c, task);                                                                        \
  }
// One for each value of wire::Runs.
#define GPU4FS_OUTLINE_step(name) GPU4FS_OUTLINE_STEP(name)
#define GPU4FS_OUTLINE_tasks(name) GPU4FS_OUTLINE_STEP(name) GPU4FS_OUTLINE_TASK(name)
#define GPU4FS_OUTLINE_polled(name)
#define GPU4FS_OUTLINE(number, name, sender, effect, runs, restart, output, records) GPU4FS_OUTLINE_##runs(name)
GPU4FS_COMMAND_LIST(GPU4FS_OUTLINE)
#undef GPU4FS_OUTLINE
#undef GPU4FS_OUTLINE_polled
#undef GPU4FS_OUTLINE_tasks
#undef GPU4FS_OUTLINE_step
#undef GPU4FS_OUTLINE_TASK
#undef GPU4FS_OUTLINE_STEP

}  // namespace detail

template <class Group>
GPU4FS_FN Step dispatch_step(Group g, Engine& engine, CommandState& c) {
  switch (c.command.opcode) {
#define GPU4FS_STEP_CASE_step(name) \
  case wire::Opcode::name:          \
    return detail::outlined_step_##name(g, engine, c);
#define GPU4FS_STEP_CASE_tasks(name) GPU4FS_STEP_CASE_step(name)
#define GPU4FS_STEP_CASE_polled(name)
#define GPU4FS_STEP_CASE(number, name, sender, effect, runs, restart, output, records) GPU4FS_STEP_CASE_##runs(name)
    GPU4FS_COMMAND_LIST(GPU4FS_STEP_CASE)
#undef GPU4FS_STEP_CASE
#undef GPU4FS_STEP_CASE_polled
#undef GPU4FS_STEP_CASE_tasks
#undef GPU4FS_STEP_CASE_step
    default:
      return Step::end(Status::unknown_command);
  }
}

template <class Group>
GPU4FS_FN void dispatch_task(Group g, Engine& engine, CommandState& c, u32 task) {
  switch (c.command.opcode) {
#define GPU4FS_TASK_CASE_tasks(name)                  \
  case wire::Opcode::name:                            \
    detail::outlined_task_##name(g, engine, c, task); \
    return;
#define GPU4FS_TASK_CASE_step(name)
#define GPU4FS_TASK_CASE_polled(name)
#define GPU4FS_TASK_CASE(number, name, sender, effect, runs, restart, output, records) GPU4FS_TASK_CASE_##runs(name)
    GPU4FS_COMMAND_LIST(GPU4FS_TASK_CASE)
#undef GPU4FS_TASK_CASE
#undef GPU4FS_TASK_CASE_polled
#undef GPU4FS_TASK_CASE_step
#undef GPU4FS_TASK_CASE_tasks
    default:
      GPU4FS_UNREACHABLE("a step without tasks fanned out");
  }
}

}  // namespace gpu4fs::engine
