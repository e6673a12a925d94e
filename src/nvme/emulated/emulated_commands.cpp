// The commands of an emulated controller.
#include <algorithm>
#include <cstring>

#include "nvme/emulated/data_walk.hpp"
#include "nvme/emulated/emulated_controller.hpp"

namespace gpu4fs::nvme {
namespace {

void set_text(char* field, u64 length, const char* text) {
  std::memset(field, ' ', length);
  std::memcpy(field, text, std::min<u64>(length, std::strlen(text)));
}

}  // namespace

Medium* EmulatedController::medium_of(u32 namespace_id) {
  for (const EmulatedNamespace& space : options_.namespaces) {
    if (space.id == namespace_id) return space.medium.get();
  }
  return nullptr;
}

// Data of a page to the driver.
StatusCode EmulatedController::give(const SubmissionEntry& entry, const u8* data) {
  const DataWalk walk = walk_data(bus_, entry, identify_bytes);
  if (walk.status != StatusCode::success) return walk.status;
  for (const DataPart& part : walk.parts) {
    std::memcpy(part.memory, data, part.bytes);
    data += part.bytes;
  }
  return StatusCode::success;
}

StatusCode EmulatedController::identify(const SubmissionEntry& entry) {
  alignas(16) u8 data[identify_bytes] = {};
  const IdentifySelect select = static_cast<IdentifySelect>(entry.dword10 & 0xff);
  switch (select) {
    case IdentifySelect::controller: {
      IdentifyController& controller = *reinterpret_cast<IdentifyController*>(data);
      set_text(controller.serial, sizeof(controller.serial), "0001");
      set_text(controller.model, sizeof(controller.model), "Emulated controller");
      set_text(controller.firmware, sizeof(controller.firmware), "1");
      controller.transfer_shift = options_.transfer_shift;
      controller.submission_entry_sizes = 0x66;
      controller.completion_entry_sizes = 0x44;
      for (const EmulatedNamespace& space : options_.namespaces) {
        controller.namespace_count = std::max(controller.namespace_count, space.id);
        if (space.medium->has_cache()) controller.write_cache = 1;
      }
      controller.optional_commands =
          static_cast<u16>((options_.has_deallocate ? 1u << 2 : 0) | (options_.has_zeroes ? 1u << 3 : 0));
      controller.sgl_support = 1;
      break;
    }
    case IdentifySelect::active_namespaces: {
      std::vector<u32> ids;
      for (const EmulatedNamespace& space : options_.namespaces) {
        if (space.id > entry.namespace_id) ids.push_back(space.id);
      }
      std::sort(ids.begin(), ids.end());
      std::memcpy(data, ids.data(), ids.size() * sizeof(u32));
      break;
    }
    case IdentifySelect::namespace_data: {
      const Medium* const medium = medium_of(entry.namespace_id);
      if (medium == nullptr) return StatusCode::invalid_namespace;
      IdentifyNamespace& space = *reinterpret_cast<IdentifyNamespace*>(data);
      space.size_blocks = space.capacity_blocks = space.used_blocks = medium->block_count();
      space.format_count = 1;
      space.formats[0].data_shift = 9;
      space.formats[1].data_shift = 12;
      space.format = medium->block_bytes() == 512 ? 0 : 1;
      space.deallocation = 1;
      break;
    }
    default:
      return StatusCode::invalid_field;
  }
  if (options_.falsify) options_.falsify(select, data);
  return give(entry, data);
}

StatusCode EmulatedController::create_completions(const SubmissionEntry& entry) {
  const u32 id = entry.dword10 & 0xffff;
  const u32 depth = (entry.dword10 >> 16) + 1;
  if (id == 0 || id >= completions_.size() || completions_[id].exists) return StatusCode::queue_id_invalid;
  if (depth < 2 || depth > options_.queue_entries_max) return StatusCode::queue_size_invalid;
  if ((entry.dword11 & 1) == 0 || entry.data.prp.first % 4096 != 0) return StatusCode::invalid_field;
  completions_[id] = {true, entry.data.prp.first, depth, 0, 1, 0};
  return StatusCode::success;
}

StatusCode EmulatedController::create_submissions(const SubmissionEntry& entry) {
  const u32 id = entry.dword10 & 0xffff;
  const u32 depth = (entry.dword10 >> 16) + 1;
  const u32 completions = entry.dword11 >> 16;
  if (completions == 0 || completions >= completions_.size() || !completions_[completions].exists) {
    return StatusCode::completion_queue_invalid;
  }
  if (id == 0 || id >= submissions_.size() || submissions_[id].exists) return StatusCode::queue_id_invalid;
  if (depth < 2 || depth > options_.queue_entries_max) return StatusCode::queue_size_invalid;
  if ((entry.dword11 & 1) == 0 || entry.data.prp.first % 4096 != 0) return StatusCode::invalid_field;
  submissions_[id] = {true, entry.data.prp.first, depth, 0, 1, completions};
  return StatusCode::success;
}

StatusCode EmulatedController::carry_out_admin(const SubmissionEntry& entry, u32& result) {
  switch (static_cast<AdminOpcode>(entry.opcode)) {
    case AdminOpcode::identify:
      return identify(entry);
    case AdminOpcode::create_completion_queue:
      return create_completions(entry);
    case AdminOpcode::create_submission_queue:
      return create_submissions(entry);
    case AdminOpcode::set_features: {
      if ((entry.dword10 & 0xff) != static_cast<u32>(FeatureId::number_of_queues)) return StatusCode::invalid_field;
      const u32 submissions = std::min((entry.dword11 & 0xffff) + 1, options_.queues_max);
      const u32 completions = std::min((entry.dword11 >> 16) + 1, options_.queues_max);
      result = (completions - 1) << 16 | (submissions - 1);
      return StatusCode::success;
    }
    default:
      return StatusCode::invalid_opcode;
  }
}

StatusCode EmulatedController::transfer(const SubmissionEntry& entry, Medium& medium) {
  const u64 first = u64{entry.dword11} << 32 | entry.dword10;
  const u64 count = (entry.dword12 & 0xffff) + 1;
  const u64 bytes = count * medium.block_bytes();
  if (options_.transfer_shift != 0 && bytes > u64{4096} << options_.transfer_shift) {
    complain("a transfer is longer than MDTS");
    return StatusCode::invalid_field;
  }
  if (first >= medium.block_count() || count > medium.block_count() - first) return StatusCode::lba_out_of_range;
  const DataWalk walk = walk_data(bus_, entry, bytes);
  if (walk.status != StatusCode::success) {
    complain("a data pointer leads astray");
    return walk.status;
  }
  std::vector<u8> data(bytes);
  u64 at = 0;
  if (entry.opcode == static_cast<u8>(IoOpcode::read)) {
    medium.read(first, data.data(), count);
    for (const DataPart& part : walk.parts) {
      std::memcpy(part.memory, &data[at], part.bytes);
      at += part.bytes;
    }
    return StatusCode::success;
  }
  for (const DataPart& part : walk.parts) {
    std::memcpy(&data[at], part.memory, part.bytes);
    at += part.bytes;
  }
  medium.write(first, data.data(), count, (entry.dword12 & 1u << 30) != 0);
  return StatusCode::success;
}

StatusCode EmulatedController::deallocate(const SubmissionEntry& entry, Medium& medium) {
  if ((entry.dword11 & 4) == 0) return StatusCode::success;
  const u64 count = (entry.dword10 & 0xff) + 1;
  const DataWalk walk = walk_data(bus_, entry, count * 16);
  if (walk.status != StatusCode::success) return walk.status;
  std::vector<DatasetRange> ranges(count);
  u64 at = 0;
  for (const DataPart& part : walk.parts) {
    std::memcpy(reinterpret_cast<u8*>(ranges.data()) + at, part.memory, part.bytes);
    at += part.bytes;
  }
  for (const DatasetRange& range : ranges) {
    if (range.first_block > medium.block_count() || range.blocks > medium.block_count() - range.first_block) {
      return StatusCode::lba_out_of_range;
    }
  }
  for (const DatasetRange& range : ranges) medium.write_zeroes(range.first_block, range.blocks);
  return StatusCode::success;
}

StatusCode EmulatedController::carry_out(const SubmissionEntry& entry) {
  Medium* const medium = medium_of(entry.namespace_id);
  if (medium == nullptr) return StatusCode::invalid_namespace;
  switch (static_cast<IoOpcode>(entry.opcode)) {
    case IoOpcode::flush:
      medium->flush();
      return StatusCode::success;
    case IoOpcode::read:
    case IoOpcode::write:
      return transfer(entry, *medium);
    case IoOpcode::write_zeroes: {
      const u64 first = u64{entry.dword11} << 32 | entry.dword10;
      const u64 count = (entry.dword12 & 0xffff) + 1;
      if (!options_.has_zeroes) return StatusCode::invalid_opcode;
      if (first >= medium->block_count() || count > medium->block_count() - first) return StatusCode::lba_out_of_range;
      medium->write_zeroes(first, count);
      return StatusCode::success;
    }
    case IoOpcode::dataset_management:
      return options_.has_deallocate ? deallocate(entry, *medium) : StatusCode::invalid_opcode;
    default:
      return StatusCode::invalid_opcode;
  }
}

}  // namespace gpu4fs::nvme
