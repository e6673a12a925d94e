// The error sequence: the number of times that acknowledged changes could not be made durable.
//
// A user of open files remembers the number and reports an error when it has grown (frontend/fuse/open_files.hpp). The
// number is counted in engine memory and copied to shared memory, where the management process reads it without a
// command. If a failure prevents all later checkpoints from being written, it counts once, because later checkpoints
// lose nothing new.
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "engine/engine_types.hpp"

namespace gpu4fs::engine {

// A checkpoint has ended with `status`. Leader, under the guard of the epochs.
GPU4FS_FN inline void count_write_error(Engine& engine, Status status) {
  EpochQueue& epochs = engine.epochs;
  GPU4FS_CHECK(engine.upcalls != nullptr);
  if (status != Status::ok && epochs.write_error_stays == 0) {
    store<Order::relaxed, Scope::engine>(&epochs.write_errors, epochs.write_errors + 1);
    store<Order::release, Scope::system>(&engine.upcalls->write_errors, epochs.write_errors);
  }
  const bool failed_for_good = load<Order::relaxed, Scope::engine>(&engine.fs.checkpoint_failed) != 0;
  epochs.write_error_stays = status != Status::ok && failed_for_good ? 1 : 0;
}

}  // namespace gpu4fs::engine
