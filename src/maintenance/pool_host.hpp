// What the maintenance of a mounted pool asks of the process around it. The server implements it, and tests play it.
// Host only.
#pragma once

#include <string>

#include "base/status.hpp"
#include "ring/ring_client.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::maintenance {

class PoolHost {
 public:
  // A command of the management session, which carries out one at a time and waits patiently for each. Any thread but
  // the one that answers upcalls: the session may wait for that one.
  virtual ring::Completion call(wire::Command command) = 0;

  // What the pool is opened with the next time. Under its `tables`. `spec` is a path with its layers.
  virtual void device_joined(const std::string& spec) = 0;
  virtual void device_left(const std::string& path) = 0;
  virtual void device_replaced(const std::string& path, const std::string& spec) = 0;

  // Flushes that failed do not count for the device with the index any more.
  virtual void forget_errors(u32 device) = 0;

  ring::Completion command(wire::Opcode opcode, u32 mask, u64 inode = 0);
  // Also when nothing has changed.
  Status checkpoint();

 protected:
  ~PoolHost() = default;
};

}  // namespace gpu4fs::maintenance
