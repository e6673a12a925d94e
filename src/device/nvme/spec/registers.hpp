// Controller properties in memory-mapped registers. Clause 3.1.3 of the NVM Express Base Specification, revision 2.0;
// doorbells: clause 3.1 of the NVMe over PCIe Transport Specification, revision 1.0.
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs::nvme {

// Byte offsets.
enum class Register : u32 {
  cap = 0x00,    // Controller Capabilities, 64 bits
  vs = 0x08,     // Version
  intms = 0x0c,  // Interrupt Mask Set
  intmc = 0x10,  // Interrupt Mask Clear
  cc = 0x14,     // Controller Configuration
  csts = 0x1c,   // Controller Status
  aqa = 0x24,    // Admin Queue Attributes
  asq = 0x28,    // Admin Submission Queue Base Address, 64 bits
  acq = 0x30,    // Admin Completion Queue Base Address, 64 bits
  doorbells = 0x1000,
};

// CAP, clause 3.1.3.1.
struct Capabilities {
  u64 bits;

  // Entries of an I/O queue: MQES is 0's based.
  GPU4FS_FN constexpr u32 queue_entries_max() const { return static_cast<u32>(bits & 0xffff) + 1; }
  GPU4FS_FN constexpr bool needs_contiguous_queues() const { return (bits >> 16 & 1) != 0; }   // CQR
  GPU4FS_FN constexpr bool has_weighted_arbitration() const { return (bits >> 17 & 1) != 0; }  // AMS
  // TO: the longest time until CSTS.RDY follows CC.EN, in units of 500 ms.
  GPU4FS_FN constexpr u32 ready_timeout_ms() const { return static_cast<u32>(bits >> 24 & 0xff) * 500; }
  GPU4FS_FN constexpr u32 doorbell_stride_bytes() const { return 4u << (bits >> 32 & 0xf); }  // DSTRD
  GPU4FS_FN constexpr bool has_nvm_command_set() const { return (bits >> 37 & 1) != 0; }      // CSS
  // Host memory pages: MPSMIN and MPSMAX count from 4 KiB.
  GPU4FS_FN constexpr u64 page_bytes_min() const { return u64{4096} << (bits >> 48 & 0xf); }
  GPU4FS_FN constexpr u64 page_bytes_max() const { return u64{4096} << (bits >> 52 & 0xf); }
};

// CC, clause 3.1.3.5. AMS 1 is weighted round robin with an urgent class.
inline constexpr u32 cc_enable = 1u << 0;
inline constexpr u32 cc_page_shift = 7;
inline constexpr u32 cc_arbitration_shift = 11;
inline constexpr u32 cc_arbitration_weighted = 1u << cc_arbitration_shift;
inline constexpr u32 cc_shutdown_mask = 3u << 14;
inline constexpr u32 cc_shutdown_normal = 1u << 14;
inline constexpr u32 cc_submission_shift = 16;
inline constexpr u32 cc_completion_shift = 20;

// CSTS, clause 3.1.3.6.
inline constexpr u32 csts_ready = 1u << 0;
inline constexpr u32 csts_fatal = 1u << 1;
inline constexpr u32 csts_shutdown_mask = 3u << 2;
inline constexpr u32 csts_shutdown_complete = 2u << 2;

// What every read of a controller gives that is no longer there.
inline constexpr u32 register_of_absent = 0xffffffffu;

// AQA, clause 3.1.3.8: sizes of both admin queues, 0's based, at most 4096.
inline constexpr u32 admin_entries_max = 4096;
GPU4FS_FN constexpr u32 admin_queue_attributes(u32 submission_entries, u32 completion_entries) {
  return (completion_entries - 1) << 16 | (submission_entries - 1);
}

// Byte offset of the doorbell of a queue: SQyTDBL and CQyHDBL.
GPU4FS_FN constexpr u32 submission_doorbell_offset(u32 queue, u32 stride_bytes) {
  return static_cast<u32>(Register::doorbells) + 2 * queue * stride_bytes;
}
GPU4FS_FN constexpr u32 completion_doorbell_offset(u32 queue, u32 stride_bytes) {
  return static_cast<u32>(Register::doorbells) + (2 * queue + 1) * stride_bytes;
}

}  // namespace gpu4fs::nvme
