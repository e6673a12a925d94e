// The commands of an emulated controller.
#include <algorithm>
#include <cstring>

#include "device/nvme/drive/io_commands.hpp"
#include "nvme/emulated/emulated_controller.hpp"

namespace gpu4fs::nvme {
namespace {

void set_text(char* field, u64 length, const char* text) {
  std::memset(field, ' ', length);
  std::memcpy(field, text, std::min<u64>(length, std::strlen(text)));
}

const char* text_of(DriveComplaint what) {
  switch (what) {
    case DriveComplaint::transfer_too_long:
      return "a transfer is longer than MDTS";
    case DriveComplaint::data_pointer_astray:
      return "a data pointer leads astray";
    default:
      return "a doorbell is not in its queue";
  }
}

}  // namespace

// What device/nvme/drive/io_commands.hpp asks of a drive.
class EmulatedController::HostDrive {
 public:
  explicit HostDrive(EmulatedController& controller) : controller_(controller) {
    const EmulatedOptions& options = controller_.options_;
    const u64 transfer_bytes_max = options.transfer_shift == 0 ? 0 : u64{4096} << options.transfer_shift;
    limits_ = {transfer_bytes_max, options.has_zeroes, options.has_deallocate};
  }

  const EmulatedBus& bus() const { return controller_.bus_; }
  const IoLimits& limits() const { return limits_; }
  bool find(u32 id, DriveNamespace& space) const {
    const Medium* const medium = controller_.medium_of(id);
    if (medium != nullptr) space = {id, medium->block_bytes(), medium->block_count()};
    return medium != nullptr;
  }
  void read(Lane, u32 id, u64 offset, u8* to, u64 bytes) { medium(id).read(offset, to, bytes); }
  void write(Lane, u32 id, u64 offset, const u8* from, u64 bytes, bool is_durable) {
    medium(id).write(offset, from, bytes, is_durable);
  }
  void write_zeroes(Lane, u32 id, u64 offset, u64 bytes) { medium(id).write_zeroes(offset, bytes); }
  void flush(Lane, u32 id) {
    for (const EmulatedNamespace& space : controller_.options_.namespaces) {
      if (id == space.id || id == namespace_id_all) space.medium->flush();
    }
  }
  void complain(DriveComplaint what) { controller_.complain(text_of(what)); }

 private:
  Medium& medium(u32 id) const { return *controller_.medium_of(id); }

  EmulatedController& controller_;
  IoLimits limits_{};
};

Medium* EmulatedController::medium_of(u32 namespace_id) const {
  for (const EmulatedNamespace& space : options_.namespaces) {
    if (space.id == namespace_id) return space.medium.get();
  }
  return nullptr;
}

// Data of a page to the driver.
StatusCode EmulatedController::give(const SubmissionEntry& entry, const u8* data) {
  return walk_data(Lane{}, bus_, entry, identify_bytes, [&](u8* memory, u64 bytes) {
    std::memcpy(memory, data, bytes);
    data += bytes;
  });
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
      controller.abort_limit = 3;
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
  completions_[id] = {true, entry.data.prp.first, depth, 0, 1, 0, {}};
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
  const QueuePriority priority = static_cast<QueuePriority>(entry.dword11 >> queue_priority_shift & 3);
  submissions_[id] = {true, entry.data.prp.first, depth, 0, 1, completions, priority};
  return StatusCode::success;
}

// A command that is under way ends at once with its own completion.
StatusCode EmulatedController::abort(const SubmissionEntry& entry, u32& result) {
  abort_count_.fetch_add(1);
  result = abort_has_failed;
  const u32 queue = entry.dword10 & 0xffff;
  const u32 id = entry.dword10 >> abort_command_shift;
  if (queue >= submissions_.size() || !submissions_[queue].exists) return StatusCode::invalid_field;
  if (!options_.has_abort || !has_room(submissions_[queue].other)) return StatusCode::success;
  for (std::vector<Pending>* const list : {&silent_, &pending_}) {
    const auto found = std::find_if(list->begin(), list->end(), [&](const Pending& pending) {
      return pending.queue == queue && pending.entry.command_id == id;
    });
    if (found == list->end()) continue;
    const Pending ended = *found;
    list->erase(found);
    post(queue, ended.entry, StatusCode::abort_requested, 0);
    result = 0;
    return StatusCode::success;
  }
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
    case AdminOpcode::abort:
      return abort(entry, result);
    case AdminOpcode::set_features: {
      if ((entry.dword10 & 0xff) == static_cast<u32>(FeatureId::arbitration)) {
        arbitration_ = entry.dword11;
        return StatusCode::success;
      }
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

StatusCode EmulatedController::carry_out(const SubmissionEntry& entry) {
  HostDrive drive(*this);
  return nvme::carry_out(Lane{}, drive, entry);
}

}  // namespace gpu4fs::nvme
