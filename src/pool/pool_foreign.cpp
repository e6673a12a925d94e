#include "pool/pool_foreign.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/bits.hpp"
#include "format/superblock_format.hpp"

namespace gpu4fs::pool {

namespace {

struct Signature {
  u64 offset;
  std::string_view bytes;
  const char* name;
};

// The offsets are those of the formats' own documentation. The two bytes of an MBR also precede a GPT (its protective
// MBR) and are in the boot sector of FAT, so they come last.
constexpr Signature signatures[] = {
    {format::superblock_offset_a, "!GPU4FS1", "a gpu4fs pool"},
    {format::superblock_offset_b, "!GPU4FS1", "a gpu4fs pool"},
    {0, "XFSB", "an XFS file system"},
    {0x10040, "_BHRfS_M", "a btrfs file system"},
    {4096 - 10, "SWAPSPACE2", "a swap area"},
    {65536 - 10, "SWAPSPACE2", "a swap area"},
    {1080, "\x53\xef", "an ext2/3/4 file system"},
    {3, "NTFS    ", "an NTFS file system"},
    {54, "FAT", "a FAT file system"},
    {82, "FAT32", "a FAT file system"},
    {0, "LUKS\xba\xbe", "an encrypted volume (LUKS)"},
    {512, "LABELONE", "an LVM volume"},
    {0, "\xfc\x4e\x2b\xa9", "a member of a disk array (md)"},
    {4096, "\xfc\x4e\x2b\xa9", "a member of a disk array (md)"},
    {512, "EFI PART", "a GPT partition table"},
    {4096, "EFI PART", "a GPT partition table"},
    {510, "\x55\xaa", "an MBR partition table"},
};

// Signatures that block devices have at their end, also if their beginning is blank.
std::string describe_end(const DeviceFile& device) {
  constexpr u64 block = 64 * 1024;
  const u64 end = device.medium_bytes();
  if (device.is_regular() || end < 3 * block) return "";
  const Signature last[] = {
      {end - 512, "EFI PART", "a GPT partition table"},
      {end - 4096, "EFI PART", "a GPT partition table"},
      {align_down(end - 8192, u64{4096}), "\xfc\x4e\x2b\xa9", "a member of a disk array (md)"},
      {align_down(end, block) - block, "\xfc\x4e\x2b\xa9", "a member of a disk array (md)"},
  };
  for (const Signature& signature : last) {
    std::string bytes(signature.bytes.size(), '\0');
    device.read_medium(signature.offset, bytes.data(), bytes.size());
    if (bytes == signature.bytes) return signature.name;
  }
  return "";
}

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
  return blank ? describe_end(device) : "data";
}

}  // namespace gpu4fs::pool
