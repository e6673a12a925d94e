// Requests as NVMe commands, and outcomes of commands as statuses. One rank.
#pragma once

#include "base/access.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "device/drives/drive_types.hpp"
#include "device/nvme/prp.hpp"
#include "device/nvme/spec/commands.hpp"
#include "device/queue/io_request.hpp"

namespace gpu4fs::device::detail {

// The bus address of memory that the set names.
GPU4FS_FN inline u64 bus_address_of(const DriveSet& set, const void* memory, u64 bytes) {
  for (u32 i = 0; i < set.memory_count; ++i) {
    const DriveMemory& range = set.memory[i];
    const u64 offset = reinterpret_cast<u64>(memory) - reinterpret_cast<u64>(range.memory);
    if (offset <= range.bytes && bytes <= range.bytes - offset) return range.bus_address + offset;
  }
  GPU4FS_UNREACHABLE("memory that no drive reaches");
}

GPU4FS_FN inline nvme::SubmissionEntry block_command(const Drive& drive, nvme::IoOpcode opcode,
                                                     const IoRequest& request) {
  nvme::SubmissionEntry entry{};
  entry.opcode = static_cast<u8>(opcode);
  entry.namespace_id = drive.namespace_id;
  if (opcode == nvme::IoOpcode::flush) return entry;
  const u64 first = request.offset >> drive.block_shift;
  entry.dword10 = static_cast<u32>(first);
  entry.dword11 = static_cast<u32>(first >> 32);
  entry.dword12 = static_cast<u32>((request.length >> drive.block_shift) - 1);
  return entry;
}

GPU4FS_FN inline nvme::SubmissionEntry transfer_command(const DriveSet& set, const Drive& drive,
                                                        const IoRequest& request, u32 slot) {
  const bool is_read = request.operation == IoOperation::read;
  nvme::SubmissionEntry entry = block_command(drive, is_read ? nvme::IoOpcode::read : nvme::IoOpcode::write, request);
  const u64 address = bus_address_of(set, request.memory, request.length);
  const nvme::ListPages list{set.lists + slot * drive_list_bytes, set.lists_bus_address + slot * drive_list_bytes, 1};
  entry.data = nvme::build_prp(Lane{}, list, 0, request.length, [&](u64 i) { return address + i * page_size; });
  return entry;
}

GPU4FS_FN inline nvme::SubmissionEntry deallocate_command(const DriveSet& set, const Drive& drive,
                                                          const IoRequest& request, u32 slot) {
  nvme::SubmissionEntry entry{};
  entry.opcode = static_cast<u8>(nvme::IoOpcode::dataset_management);
  entry.namespace_id = drive.namespace_id;
  entry.dword11 = nvme::dataset_deallocate;
  const nvme::DatasetRange range{0, request.length >> drive.block_shift, request.offset >> drive.block_shift};
  Vector16 value;
  __builtin_memcpy(&value, &range, sizeof(value));
  store_shared_16(set.lists + slot * drive_list_bytes, value);
  entry.data.prp.first = set.lists_bus_address + slot * drive_list_bytes;
  return entry;
}

// ok: *entry is the command of the request in the slot. Otherwise the request ends with this status.
GPU4FS_FN inline Status make_command(const DriveSet& set, const Drive& drive, const IoRequest& request, u32 slot,
                                     nvme::SubmissionEntry* entry) {
  const u64 size_bytes = drive.block_count << drive.block_shift;
  if (request.offset > size_bytes || request.length > size_bytes - request.offset) return Status::out_of_range;
  const bool is_change = request.operation != IoOperation::read && request.operation != IoOperation::flush;
  if (drive.read_only != 0 && is_change) return Status::read_only;
  switch (request.operation) {
    case IoOperation::read:
    case IoOperation::write:
      GPU4FS_CHECK_LE(request.length, drive.transfer_page_max * page_size);
      *entry = transfer_command(set, drive, request, slot);
      return Status::ok;
    case IoOperation::flush:
      *entry = block_command(drive, nvme::IoOpcode::flush, request);
      return Status::ok;
    case IoOperation::write_zeroes:
      if (drive.has_zeroes == 0 || request.length >> drive.block_shift > nvme::io_blocks_max) break;
      *entry = block_command(drive, nvme::IoOpcode::write_zeroes, request);
      return Status::ok;
    case IoOperation::discard:
      if (drive.has_deallocate == 0) break;
      *entry = deallocate_command(set, drive, request, slot);
      return Status::ok;
  }
  return Status::not_supported;
}

// Of a request whose command was aborted, or left by a drive that works again. It is repeated. But a flush that has had
// no answer is an error: nobody knows what the drive has kept.
GPU4FS_FN constexpr Status status_of_unanswered(IoOperation operation) {
  return operation == IoOperation::flush ? Status::device_failed : Status::again;
}

// The statuses are those of block/controller.hpp; again: the request is repeated.
GPU4FS_FN inline Status status_of(const nvme::Outcome& outcome, IoOperation operation) {
  if (outcome.end == nvme::CommandEnd::stopped) return Status::device_failed;
  if (outcome.end == nvme::CommandEnd::returned) return status_of_unanswered(operation);
  switch (static_cast<nvme::StatusCode>(outcome.status)) {
    case nvme::StatusCode::success:
      return Status::ok;
    case nvme::StatusCode::abort_requested:
      return GPU4FS_MUTANT(aborted_request_lost, status_of_unanswered(operation), Status::device_failed);
    case nvme::StatusCode::lba_out_of_range:
      return Status::out_of_range;
    case nvme::StatusCode::invalid_namespace:
    case nvme::StatusCode::namespace_not_ready:
      return Status::device_failed;
    case nvme::StatusCode::invalid_opcode:
      return moves_bytes(operation) ? Status::device_failed : Status::not_supported;
    default:
      return operation == IoOperation::read ? GPU4FS_MUTANT(drive_error_ignored, Status::medium_error, Status::ok)
                                            : Status::device_failed;
  }
}

}  // namespace gpu4fs::device::detail
