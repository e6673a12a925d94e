// What is known of a controller and its namespaces after Identify, in units of bytes, and checked.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "device/nvme/queue_types.hpp"
#include "device/nvme/spec/identify.hpp"
#include "device/nvme/spec/registers.hpp"

namespace gpu4fs::nvme {

// A controller that cannot be used. The text says why.
class ControllerError : public std::runtime_error {
 public:
  ControllerError(Failure failure, const std::string& text) : std::runtime_error(text), failure_(failure) {}
  Failure failure() const { return failure_; }

 private:
  Failure failure_;
};

struct ControllerInfo {
  std::string model;
  std::string serial;
  std::string firmware;
  u64 transfer_bytes_max = 0;  // of one command
  u32 queue_entries_max = 0;
  u32 doorbell_stride_bytes = 0;
  u32 ready_timeout_ms = 0;
  u32 namespace_id_max = 0;
  bool has_write_cache = false;
  bool has_write_zeroes = false;
  bool has_dataset_management = false;
  bool has_sgl = false;
  bool has_weighted_arbitration = false;
};

struct NamespaceInfo {
  u32 id = 0;
  u64 block_count = 0;
  u32 block_bytes = 0;  // 512 or 4096
  bool deallocated_reads_zero = false;
  std::string unusable_because;  // empty: usable
};

// Both throw ControllerError for values that cannot be or that this driver cannot work with.
void read_capabilities(Capabilities capabilities, ControllerInfo& info);
void read_identify(const IdentifyController& data, Capabilities capabilities, ControllerInfo& info);

// A namespace with values that cannot be, or with a format that this driver does not use, is unusable. `data` is as the
// controller has written it.
NamespaceInfo read_namespace(u32 id, const IdentifyNamespace& data);

}  // namespace gpu4fs::nvme
