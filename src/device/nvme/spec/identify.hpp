// Data structures of Identify: those fields that the driver reads. Clause 5.17 of the NVM Express Base Specification,
// revision 2.0; NVM Command Set Specification, revision 1.0, clause 4.1.5. Numbers are little-endian, texts are padded
// with blanks. Nothing in them is to be believed before host code has checked it.
#pragma once

#include <cstddef>
#include <type_traits>

#include "base/types.hpp"

namespace gpu4fs::nvme {

inline constexpr u32 identify_bytes = 4096;

// Clause 5.17.2.1.
struct IdentifyController {
  u16 vendor;
  u16 subsystem_vendor;
  char serial[20];
  char model[40];
  char firmware[8];
  u8 arbitration_burst;  // RAB, a power of two
  u8 reserved73[4];
  u8 transfer_shift;  // MDTS: in units of CAP.MPSMIN, 2^n; 0: no limit
  u16 controller_id;
  u32 version;
  u8 reserved84[258 - 84];
  u8 abort_limit;  // ACL, 0's based
  u8 reserved259[512 - 259];
  u8 submission_entry_sizes;  // SQES: bits 0-3 smallest, 4-7 largest, powers of two
  u8 completion_entry_sizes;  // CQES
  u16 commands_max;           // MAXCMD
  u32 namespace_count;        // NN: the largest namespace identifier
  u16 optional_commands;      // ONCS
  u16 fused_commands;
  u8 format_attributes;
  u8 write_cache;                      // VWC: bit 0: there is a volatile write cache
  u16 atomic_write_blocks;             // AWUN, 0's based
  u16 atomic_write_blocks_power_fail;  // AWUPF
  u8 reserved530[536 - 530];
  u32 sgl_support;  // SGLS: bits 0-1: 1: of any alignment, 2: of dwords
  u8 reserved540[identify_bytes - 540];
};
static_assert(sizeof(IdentifyController) == identify_bytes && std::is_trivially_copyable_v<IdentifyController>);
static_assert(offsetof(IdentifyController, arbitration_burst) == 72 &&
              offsetof(IdentifyController, transfer_shift) == 77 && offsetof(IdentifyController, version) == 80 &&
              offsetof(IdentifyController, abort_limit) == 258);
static_assert(offsetof(IdentifyController, submission_entry_sizes) == 512 &&
              offsetof(IdentifyController, namespace_count) == 516 &&
              offsetof(IdentifyController, optional_commands) == 520 &&
              offsetof(IdentifyController, write_cache) == 525 && offsetof(IdentifyController, sgl_support) == 536);

// LBA Format, NVM clause 4.1.5.1.
struct BlockFormat {
  u16 metadata_bytes;
  u8 data_shift;  // LBADS: log2 of the block's bytes, at least 9; 0: not available
  u8 performance;
};
static_assert(sizeof(BlockFormat) == 4);

// NVM clause 4.1.5.1.
struct IdentifyNamespace {
  u64 size_blocks;      // NSZE
  u64 capacity_blocks;  // NCAP
  u64 used_blocks;      // NUSE
  u8 features;          // NSFEAT: bit 4: the preferred sizes below are valid
  u8 format_count;      // NLBAF, 0's based
  u8 format;            // FLBAS: bits 0-3 and 5-6 are the index, bit 4: metadata behind the data
  u8 metadata_capabilities;
  u8 protection_capabilities;
  u8 protection;  // DPS: bits 0-2: type of protection information, 0: none
  u8 sharing;     // NMIC
  u8 reservations;
  u8 format_progress;
  u8 deallocation;  // DLFEAT: bits 0-2: 1: deallocated blocks read as zeros
  u8 reserved34[64 - 34];
  u16 preferred_write_granularity;  // NPWG, blocks, 0's based
  u16 preferred_write_alignment;    // NPWA
  u16 preferred_deallocate_granularity;
  u16 preferred_deallocate_alignment;
  u16 optimal_write_size;  // NOWS
  u8 reserved74[128 - 74];
  BlockFormat formats[64];
  u8 reserved384[identify_bytes - 384];
};
static_assert(sizeof(IdentifyNamespace) == identify_bytes && std::is_trivially_copyable_v<IdentifyNamespace>);
static_assert(offsetof(IdentifyNamespace, features) == 24 && offsetof(IdentifyNamespace, format) == 26 &&
              offsetof(IdentifyNamespace, protection) == 29 && offsetof(IdentifyNamespace, deallocation) == 33);
static_assert(offsetof(IdentifyNamespace, preferred_write_granularity) == 64 &&
              offsetof(IdentifyNamespace, optimal_write_size) == 72 && offsetof(IdentifyNamespace, formats) == 128);

// Index of the format in use: clause of FLBAS.
constexpr u32 format_index(const IdentifyNamespace& data) {
  return (data.format & 0xfu) | (data.format >> 1 & 0x30u);
}

}  // namespace gpu4fs::nvme
