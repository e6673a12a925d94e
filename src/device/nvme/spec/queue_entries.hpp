// Entries of submission and completion queues. Clauses are those of the NVM Express Base Specification, revision 2.0;
// "NVM" marks those of the NVM Command Set Specification, revision 1.0. All fields are little-endian.
#pragma once

#include <cstddef>
#include <type_traits>

#include "base/config.hpp"
#include "base/types.hpp"
#include "device/nvme/spec/data_pointer.hpp"

namespace gpu4fs::nvme {

// Common Command Format, clause 3.3.3.1.
struct alignas(64) SubmissionEntry {
  u8 opcode;
  u8 flags;  // bits 0-1 FUSE, bits 6-7 PSDT: DataPointerKind
  u16 command_id;
  u32 namespace_id;
  u32 dword2;
  u32 dword3;
  u64 metadata;
  DataPointer data;
  u32 dword10;
  u32 dword11;
  u32 dword12;
  u32 dword13;
  u32 dword14;
  u32 dword15;
};
static_assert(sizeof(SubmissionEntry) == 64 && std::is_trivially_copyable_v<SubmissionEntry>);
static_assert(offsetof(SubmissionEntry, command_id) == 2 && offsetof(SubmissionEntry, namespace_id) == 4);
static_assert(offsetof(SubmissionEntry, metadata) == 16 && offsetof(SubmissionEntry, data) == 24);
static_assert(offsetof(SubmissionEntry, dword10) == 40 && offsetof(SubmissionEntry, dword15) == 60);

// Common Completion Queue Entry, clause 3.3.3.2. `status` has the phase tag in bit 0 and the status field
// above it.
struct alignas(16) CompletionEntry {
  u32 dword0;  // the command's result
  u32 dword1;
  u16 submission_head;
  u16 submission_queue;
  u16 command_id;
  u16 status;
};
static_assert(sizeof(CompletionEntry) == 16 && std::is_trivially_copyable_v<CompletionEntry>);
static_assert(offsetof(CompletionEntry, submission_head) == 8 && offsetof(CompletionEntry, submission_queue) == 10);
static_assert(offsetof(CompletionEntry, command_id) == 12 && offsetof(CompletionEntry, status) == 14);

inline constexpr u32 submission_entry_shift = 6;  // CC.IOSQES
inline constexpr u32 completion_entry_shift = 4;  // CC.IOCQES

// The host must not use this command identifier: the Error Information log page gives it to errors without a command
// (clause 3.3.3.1).
inline constexpr u16 command_id_reserved = 0xffff;

GPU4FS_FN constexpr u32 phase_of(const CompletionEntry& entry) {
  return entry.status & 1u;
}

// Status code type and status code of a completion: bits 8-10 and 0-7. 0: success.
GPU4FS_FN constexpr u32 status_code_of(const CompletionEntry& entry) {
  return entry.status >> 1 & 0x7ffu;
}
// DNR: the same command would fail again.
GPU4FS_FN constexpr bool do_not_retry(const CompletionEntry& entry) {
  return (entry.status & 0x8000u) != 0;
}

}  // namespace gpu4fs::nvme
