// Opcodes, status codes, features, and the bits of command dwords. Clauses are those of the NVM Express Base
// Specification, revision 2.0; "NVM" marks those of the NVM Command Set Specification, revision 1.0.
#pragma once

#include <cstddef>

#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs::nvme {

// Clause 5.
enum class AdminOpcode : u8 {
  delete_submission_queue = 0x00,
  create_submission_queue = 0x01,
  delete_completion_queue = 0x04,
  create_completion_queue = 0x05,
  identify = 0x06,
  abort = 0x08,
  set_features = 0x09,
  get_features = 0x0a,
  asynchronous_event = 0x0c,
};

// Flush: clause 7.1. The others: NVM clause 3.2.
enum class IoOpcode : u8 {
  flush = 0x00,
  write = 0x01,
  read = 0x02,
  write_zeroes = 0x08,
  dataset_management = 0x09,
};

// Status code type in bits 8-10, status code in bits 0-7. Clause 3.3.3.2.1; NVM clause 3.2, 3.1.2.3.
enum class StatusCode : u32 {
  success = 0x000,
  invalid_opcode = 0x001,
  invalid_field = 0x002,
  command_id_conflict = 0x003,
  data_transfer_error = 0x004,
  power_loss = 0x005,
  internal_error = 0x006,
  abort_requested = 0x007,
  submission_queue_deleted = 0x008,
  invalid_namespace = 0x00b,
  invalid_prp_offset = 0x013,
  command_interrupted = 0x021,
  lba_out_of_range = 0x080,
  capacity_exceeded = 0x081,
  namespace_not_ready = 0x082,
  completion_queue_invalid = 0x100,
  queue_id_invalid = 0x101,
  queue_size_invalid = 0x102,
  abort_limit_exceeded = 0x103,
  write_fault = 0x280,
  unrecovered_read_error = 0x281,
  access_denied = 0x286,
  deallocated_block = 0x287,
};

// Abort, clause 5.1. Dword 10: the submission queue in bits 0-15, the command identifier above. Bit 0 of the
// completion's dword 0 is 1 if the command was not aborted. An aborted one ends with StatusCode::abort_requested.
inline constexpr u32 abort_command_shift = 16;
inline constexpr u32 abort_has_failed = 1u << 0;

// CNS of Identify, clause 5.17.1.
enum class IdentifySelect : u32 {
  namespace_data = 0x00,
  controller = 0x01,
  active_namespaces = 0x02,
};

// Clause 5.27.1.
enum class FeatureId : u32 {
  arbitration = 0x01,
  volatile_write_cache = 0x06,
  number_of_queues = 0x07,
};

// Create I/O Completion and Submission Queue: clauses 5.4 and 5.5, dword 10 and 11. Sizes are 0's based.
inline constexpr u32 queue_is_contiguous = 1u << 0;       // PC
inline constexpr u32 queue_priority_shift = 1;            // QPRIO, submission queues
inline constexpr u32 queue_completion_shift = 16;         // CQID, submission queues
inline constexpr u32 queue_interrupts_enabled = 1u << 1;  // IEN, completion queues

// QPRIO. Only with weighted round robin.
enum class QueuePriority : u32 { urgent, high, medium, low };

// Arbitration feature, clause 5.27.1.1, dword 11: AB, the burst as a power of two (7: no limit), and the weights of
// high, medium and low, 0's based. Urgent queues come first always (clause 3.4.4.2).
GPU4FS_FN constexpr u32 arbitration_of(u32 burst_shift, u32 high, u32 medium, u32 low) {
  return burst_shift | (low - 1) << 8 | (medium - 1) << 16 | (high - 1) << 24;
}

// Read, Write, Write Zeroes: NVM clause 3.2, dword 12. The number of blocks in bits 0-15 is 0's based.
inline constexpr u32 io_blocks_max = 1u << 16;
inline constexpr u32 io_force_unit_access = 1u << 30;  // FUA
inline constexpr u32 zeroes_deallocate = 1u << 25;     // DEAC, Write Zeroes

// Dataset Management: NVM clause 3.2.3. Dword 10: the number of ranges, 0's based. Dword 11: attributes.
inline constexpr u32 dataset_deallocate = 1u << 2;  // AD
inline constexpr u32 dataset_ranges_max = 256;
struct DatasetRange {
  u32 attributes;
  u32 blocks;
  u64 first_block;
};
static_assert(sizeof(DatasetRange) == 16 && offsetof(DatasetRange, blocks) == 4 &&
              offsetof(DatasetRange, first_block) == 8);

// ONCS of Identify Controller.
inline constexpr u32 supports_dataset_management = 1u << 2;
inline constexpr u32 supports_write_zeroes = 1u << 3;

inline constexpr u32 namespace_id_all = 0xffffffffu;

}  // namespace gpu4fs::nvme
