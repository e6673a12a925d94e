// A controller's view of the memory of a command: follows PRP entries or SGL descriptors as the specification has it
// (NVM Express Base Specification 2.0, clauses 4.1.1 and 4.1.2). It shares nothing with device/nvme/prp.hpp.
#pragma once

#include <vector>

#include "base/types.hpp"
#include "device/nvme/spec/commands.hpp"
#include "device/nvme/spec/queue_entries.hpp"
#include "nvme/emulated/bus.hpp"

namespace gpu4fs::nvme {

struct DataPart {
  u8* memory;
  u64 bytes;
};

struct DataWalk {
  StatusCode status = StatusCode::success;  // of the command, if its memory cannot be used
  std::vector<DataPart> parts;              // in the order of the data
};

// The memory of the first `bytes` of the command's data.
DataWalk walk_data(const EmulatedBus& bus, const SubmissionEntry& entry, u64 bytes);

}  // namespace gpu4fs::nvme
