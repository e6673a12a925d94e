// Format structures as text, for `gpu4fs dump`, for fsck and for logs. Host only.
//
// Every function accepts any bytes: nothing is assumed to be valid, counts and offsets inside a page are bounded, and
// names are escaped. Structures are printed as "field: value" lines without a newline at the end, pointers and times as
// a few words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "format/attribute_format.hpp"
#include "format/block_pointer_format.hpp"
#include "format/chunk_format.hpp"
#include "format/directory_format.hpp"
#include "format/inode_format.hpp"
#include "format/log_format.hpp"
#include "format/superblock_format.hpp"

namespace gpu4fs::format {

// "hole", "data 4 KiB at 0x800000", "unwritten 2 MiB at ...", "indirect at ..." or "malformed
// 0x...".
std::string to_text(BlockPointer pointer);
std::string to_text(const Inode& inode);
std::string to_text(const DevicePart& part);
std::string to_text(const Superblock& superblock);
std::string to_text(const ChunkHeader& header);
std::string to_text(const BitmapSlotHeader& header);
std::string to_text(const PageDescriptor& descriptor);
std::string to_text(const ChunkDescriptor& descriptor);
std::string to_text(ColumnAddress address);
std::string to_text(Profile profile);
std::string to_text(RaidLevel level);

// `page` is 4096 bytes: a directory leaf or node, distinguished by the magic.
std::string directory_page_text(const void* page);
// `page` is 4096 bytes: an attribute page. Values are shown as lengths.
std::string attribute_page_text(const void* page);

// 34.30 time as "2026-01-31T12:00:00.000000000Z".
std::string time_text(std::uint64_t encoded);
// A log record in `length` bytes at any address, on one line.
std::string log_record_text(const void* record, std::size_t length);
// 8-4-4-4-12 hexadecimal digits.
std::string uuid_text(const std::uint8_t (&uuid)[16]);
// The type of an inode: "directory", "regular file", ... ; "free" for mode 0.
std::string_view inode_type_text(std::uint16_t mode);
// Printable ASCII as it is, everything else and the backslash as \xNN.
std::string escape_name(std::string_view name);

}  // namespace gpu4fs::format
