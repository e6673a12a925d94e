// How a command names its memory: PRP entries and SGL descriptors. Clause 4.1 of the NVM Express Base Specification,
// revision 2.0.
#pragma once

#include <cstddef>
#include <type_traits>

#include "base/types.hpp"

namespace gpu4fs::nvme {

// PSDT, bits 6-7 of a submission entry's `flags`.
enum class DataPointerKind : u8 {
  prp = 0x00,
  sgl = 0x40,  // the metadata pointer is one contiguous buffer
};

// SGL Identifier: descriptor type in bits 4-7, sub type in bits 0-3 (clause 4.1.2). Sub type 0 is an
// address.
enum class SglType : u8 {
  data_block = 0x00,
  bit_bucket = 0x10,
  segment = 0x20,
  last_segment = 0x30,
};

// SGL Data Block, Segment and Last Segment descriptor.
struct SglDescriptor {
  u64 address;
  u32 length;
  u8 reserved[3];
  SglType type;
};
static_assert(sizeof(SglDescriptor) == 16 && offsetof(SglDescriptor, length) == 8 &&
              offsetof(SglDescriptor, type) == 15);

// DPTR, bytes 24 to 39 of a submission entry.
union DataPointer {
  struct {
    u64 first;
    u64 second;  // a second entry, or the address of a list (clause 4.1.1)
  } prp;
  SglDescriptor sgl;
};
static_assert(sizeof(DataPointer) == 16 && std::is_trivially_copyable_v<DataPointer>);

inline constexpr u32 prp_entry_bytes = 8;

}  // namespace gpu4fs::nvme
