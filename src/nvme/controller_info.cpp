#include "nvme/controller_info.hpp"

#include <algorithm>

#include "base/limits.hpp"
#include "device/nvme/spec/commands.hpp"

namespace gpu4fs::nvme {
namespace {

// One command moves at most this, also if the controller has no limit: the list of its frames then has one page.
constexpr u64 transfer_bytes_most = u64{1} << 20;
// 64 MiB: larger shifts are nonsense.
constexpr u32 transfer_shift_max = 14;
// No medium has more.
constexpr u64 namespace_bytes_max = u64{1} << 56;

[[noreturn]] void refuse(const std::string& text) {
  throw ControllerError(Failure::refused, "NVMe controller: " + text);
}

std::string printable(const char* text, u64 length) {
  std::string result;
  for (u64 i = 0; i < length; ++i) result += text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
  result.erase(result.find_last_not_of(' ') + 1);
  return result;
}

bool has_size(u8 sizes, u32 shift) {
  return (sizes & 0xfu) <= shift && shift <= sizes >> 4;
}

}  // namespace

void read_capabilities(Capabilities capabilities, ControllerInfo& info) {
  if (capabilities.bits == ~u64{0}) throw ControllerError(Failure::absent, "NVMe controller: no answer");
  if (!capabilities.has_nvm_command_set()) refuse("it has no NVM command set");
  if (capabilities.page_bytes_min() > page_size) refuse("it has no memory pages of 4 KiB");
  if (capabilities.page_bytes_max() < capabilities.page_bytes_min()) refuse("CAP.MPSMAX is less than CAP.MPSMIN");
  if (capabilities.queue_entries_max() < queue_depth_min) refuse("CAP.MQES is 0");
  info.queue_entries_max = capabilities.queue_entries_max();
  info.doorbell_stride_bytes = capabilities.doorbell_stride_bytes();
  // 0 is not allowed, and is taken for the least.
  info.ready_timeout_ms = std::max(500u, capabilities.ready_timeout_ms());
  info.has_weighted_arbitration = capabilities.has_weighted_arbitration();
}

void read_identify(const IdentifyController& data, Capabilities capabilities, ControllerInfo& info) {
  if (!has_size(data.submission_entry_sizes, submission_entry_shift))
    refuse("it has no submission entries of 64 bytes");
  if (!has_size(data.completion_entry_sizes, completion_entry_shift))
    refuse("it has no completion entries of 16 bytes");
  if (data.namespace_count == 0) refuse("it has no namespaces");
  if (data.transfer_shift > transfer_shift_max) refuse("MDTS is " + std::to_string(data.transfer_shift));
  info.model = printable(data.model, sizeof(data.model));
  info.serial = printable(data.serial, sizeof(data.serial));
  info.firmware = printable(data.firmware, sizeof(data.firmware));
  const u64 limit =
      data.transfer_shift == 0 ? transfer_bytes_most : capabilities.page_bytes_min() << data.transfer_shift;
  info.transfer_bytes_max = std::min(limit, transfer_bytes_most);
  info.namespace_id_max = data.namespace_count;
  info.has_write_cache = (data.write_cache & 1) != 0;
  info.has_write_zeroes = (data.optional_commands & supports_write_zeroes) != 0;
  info.has_dataset_management = (data.optional_commands & supports_dataset_management) != 0;
  info.has_sgl = (data.sgl_support & 3) != 0;
}

NamespaceInfo read_namespace(u32 id, const IdentifyNamespace& data) {
  NamespaceInfo info;
  info.id = id;
  const u32 index = format_index(data);
  const auto unusable = [&](const std::string& why) {
    info.unusable_because = why;
    return info;
  };
  if (data.size_blocks == 0) return unusable("it is not active");
  if (index > data.format_count || index >= 64) return unusable("its format is not in its list of formats");
  const BlockFormat& format = data.formats[index];
  if (format.data_shift != 9 && format.data_shift != 12) {
    return unusable("its blocks have neither 512 nor 4096 bytes");
  }
  if (format.metadata_bytes != 0) return unusable("its blocks have metadata");
  if ((data.protection & 7) != 0) return unusable("it has protection information");
  if (data.size_blocks > namespace_bytes_max >> format.data_shift) return unusable("its size cannot be");
  if (data.capacity_blocks > data.size_blocks || data.used_blocks > data.capacity_blocks) {
    return unusable("it has more capacity than size, or more in use than capacity");
  }
  info.block_count = data.size_blocks;
  info.block_bytes = 1u << format.data_shift;
  info.deallocated_reads_zero = (data.deallocation & 7) == 1;
  return info;
}

}  // namespace gpu4fs::nvme
