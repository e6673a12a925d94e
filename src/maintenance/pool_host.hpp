// The interface through which the maintenance of a mounted pool uses the process around it. The server implements it,
// and so do tests. Host only.
#pragma once

#include <string>

#include "base/status.hpp"
#include "ring/ring_client.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::maintenance {

class PoolHost {
 public:
  // Executes a command in the management session, one at a time, and waits for it with a long deadline. Any thread
  // except the one that answers upcalls: the session may wait for that one.
  virtual ring::Completion call(wire::Command command) = 0;

  // Changes the devices with which the pool is opened the next time. Under its `tables`. `spec` is a path with its
  // layers.
  virtual void device_joined(const std::string& spec) = 0;
  virtual void device_left(const std::string& path) = 0;
  virtual void device_replaced(const std::string& path, const std::string& spec) = 0;

  // Failed flushes of the device with this index are forgotten.
  virtual void forget_errors(u32 device) = 0;

  ring::Completion command(wire::Opcode opcode, u32 mask, u64 inode = 0);
  // Even if nothing has changed.
  Status checkpoint();

 protected:
  ~PoolHost() = default;
};

}  // namespace gpu4fs::maintenance
