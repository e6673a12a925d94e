#include "pool/pool_foreign.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "format/superblock_format.hpp"

namespace gpu4fs::pool {

namespace {

struct Signature {
  u64 offset;
  std::string_view bytes;
  const char* name;
};

// The offsets are those of the formats' own documentation. The two bytes of an MBR also precede a GPT (its protective
// MBR), so they come last.
constexpr Signature signatures[] = {
    {format::superblock_offset_a, "!GPU4FS1", "a gpu4fs pool"},
    {format::superblock_offset_b, "!GPU4FS1", "a gpu4fs pool"},
    {0, "XFSB", "an XFS file system"},
    {0x10040, "_BHRfS_M", "a btrfs file system"},
    {4096 - 10, "SWAPSPACE2", "a swap area"},
    {65536 - 10, "SWAPSPACE2", "a swap area"},
    {1080, "\x53\xef", "an ext2/3/4 file system"},
    {512, "EFI PART", "a GPT partition table"},
    {4096, "EFI PART", "a GPT partition table"},
    {510, "\x55\xaa", "an MBR partition table"},
};

}  // namespace

std::string describe_content(const DeviceFile& device) {
  std::vector<char> front(std::min(device.size_bytes(), foreign_probe_bytes));
  device.read_at(0, front.data(), front.size());
  const std::string_view text(front.data(), front.size());
  for (const Signature& signature : signatures) {
    if (signature.offset + signature.bytes.size() > text.size()) continue;
    if (text.substr(signature.offset, signature.bytes.size()) == signature.bytes) {
      return signature.name;
    }
  }
  const bool blank = std::all_of(front.begin(), front.end(), [](char byte) { return byte == 0; });
  return blank ? "" : "data";
}

}  // namespace gpu4fs::pool
