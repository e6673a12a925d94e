// The I/O commands of an emulated controller, for a host thread and for a kernel: what is checked, and what is moved.
//
// A Drive has
//   bus()                                          at(bus_address, bytes): the memory there, or null
//   limits()                                       IoLimits
//   find(id, DriveNamespace&)                      false: there is no such namespace
//   read(g, id, offset, memory, bytes)             offsets in bytes, inside of the namespace
//   write(g, id, offset, memory, bytes, durable)
//   write_zeroes(g, id, offset, bytes)
//   flush(g, id)
//   complain(DriveComplaint)                       what a controller could object to
// and all but find, limits and complain are collective.
#pragma once

#include "device/nvme/drive/data_walk.hpp"

namespace gpu4fs::nvme {

enum class DriveComplaint : u32 {
  none,
  transfer_too_long,    // longer than MDTS
  data_pointer_astray,  // names memory that is not on the bus
  impossible_doorbell,  // a tail or head that is not in its queue
};

struct DriveNamespace {
  u32 id;
  u32 block_bytes;  // 512 or 4096
  u64 block_count;
};

struct IoLimits {
  u64 transfer_bytes_max;  // 0: no limit
  bool has_zeroes;
  bool has_deallocate;
};

// What a command with blocks names: NVM Command Set Specification 1.0, clause 3.2, dwords 10 to 12.
struct BlockRange {
  u64 first;
  u64 count;
};
GPU4FS_FN inline BlockRange block_range_of(const SubmissionEntry& entry) {
  return {u64{entry.dword11} << 32 | entry.dword10, (entry.dword12 & 0xffffu) + u64{1}};
}
GPU4FS_FN inline bool is_inside(const BlockRange& range, const DriveNamespace& space) {
  return range.first <= space.block_count && range.count <= space.block_count - range.first;
}

// What speaks against a read or write before its memory is looked at.
GPU4FS_FN inline StatusCode check_transfer(const IoLimits& limits, const DriveNamespace& space,
                                           const BlockRange& range) {
  const u64 bytes = range.count * space.block_bytes;
  if (limits.transfer_bytes_max != 0 && bytes > limits.transfer_bytes_max) return StatusCode::invalid_field;
  return is_inside(range, space) ? StatusCode::success : StatusCode::lba_out_of_range;
}

namespace detail {

template <class Group, class Drive>
GPU4FS_FN StatusCode transfer(Group g, Drive& drive, const SubmissionEntry& entry, const DriveNamespace& space) {
  const BlockRange range = block_range_of(entry);
  const u64 bytes = range.count * space.block_bytes;
  const StatusCode objection = check_transfer(drive.limits(), space, range);
  if (objection == StatusCode::invalid_field) drive.complain(DriveComplaint::transfer_too_long);
  if (objection != StatusCode::success) return objection;
  // Nothing is moved by a command whose memory cannot be used.
  const StatusCode walked = walk_data(g, drive.bus(), entry, bytes, [](u8*, u64) {});
  if (walked != StatusCode::success) {
    drive.complain(DriveComplaint::data_pointer_astray);
    return walked;
  }
  u64 at = range.first * space.block_bytes;
  const bool is_read = entry.opcode == static_cast<u8>(IoOpcode::read);
  const bool is_durable = (entry.dword12 & io_force_unit_access) != 0;
  return walk_data(g, drive.bus(), entry, bytes, [&](u8* memory, u64 length) {
    if (is_read) {
      drive.read(g, space.id, at, memory, length);
    } else {
      drive.write(g, space.id, at, memory, length, is_durable);
    }
    at += length;
  });
}

// NVM Command Set Specification 1.0, clause 3.2.3. Ranges lie at the beginning of the data.
template <class Group, class Drive, class Visit>
GPU4FS_FN StatusCode visit_ranges(Group g, Drive& drive, const SubmissionEntry& entry, Visit&& visit) {
  const u64 count = (entry.dword10 & 0xff) + u64{1};
  return walk_data(g, drive.bus(), entry, count * sizeof(DatasetRange), [&](u8* memory, u64 length) {
    for (u64 at = 0; at + sizeof(DatasetRange) <= length; at += sizeof(DatasetRange)) {
      const Vector16 value = g.broadcast(load_shared_16(memory + at));
      DatasetRange range;
      __builtin_memcpy(&range, &value, sizeof(range));
      visit(range);
    }
  });
}

template <class Group, class Drive>
GPU4FS_FN StatusCode deallocate(Group g, Drive& drive, const SubmissionEntry& entry, const DriveNamespace& space) {
  if ((entry.dword11 & dataset_deallocate) == 0) return StatusCode::success;
  if (entry.data.prp.first % sizeof(DatasetRange) != 0) return StatusCode::invalid_field;
  const auto is_good = [&](const DatasetRange& range) { return is_inside({range.first_block, range.blocks}, space); };
  bool all_inside = true;
  const StatusCode status =
      visit_ranges(g, drive, entry, [&](const DatasetRange& range) { all_inside = all_inside && is_good(range); });
  if (status != StatusCode::success) return status;
  if (!all_inside) return StatusCode::lba_out_of_range;
  return visit_ranges(g, drive, entry, [&](const DatasetRange& range) {
    if (!is_good(range)) return;  // changed meanwhile
    drive.write_zeroes(g, space.id, range.first_block * space.block_bytes, u64{range.blocks} * space.block_bytes);
  });
}

}  // namespace detail

// Collective. The status is the same on all ranks.
template <class Group, class Drive>
GPU4FS_FN StatusCode carry_out(Group g, Drive& drive, const SubmissionEntry& entry) {
  DriveNamespace space{};
  const IoOpcode opcode = static_cast<IoOpcode>(entry.opcode);
  // A flush may name all namespaces (NVM Express Base Specification 2.0, clause 7.1).
  if (opcode == IoOpcode::flush && entry.namespace_id == namespace_id_all) {
    drive.flush(g, namespace_id_all);
    return StatusCode::success;
  }
  if (!drive.find(entry.namespace_id, space)) return StatusCode::invalid_namespace;
  const IoLimits& limits = drive.limits();
  switch (opcode) {
    case IoOpcode::flush:
      drive.flush(g, space.id);
      return StatusCode::success;
    case IoOpcode::read:
    case IoOpcode::write:
      return detail::transfer(g, drive, entry, space);
    case IoOpcode::write_zeroes: {
      const BlockRange range = block_range_of(entry);
      if (!limits.has_zeroes) return StatusCode::invalid_opcode;
      if (!is_inside(range, space)) return StatusCode::lba_out_of_range;
      drive.write_zeroes(g, space.id, range.first * space.block_bytes, range.count * space.block_bytes);
      return StatusCode::success;
    }
    case IoOpcode::dataset_management:
      return limits.has_deallocate ? detail::deallocate(g, drive, entry, space) : StatusCode::invalid_opcode;
    default:
      return StatusCode::invalid_opcode;
  }
}

}  // namespace gpu4fs::nvme
