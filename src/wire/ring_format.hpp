// The wire format of the command ring in memory that a client and the engine share.
//
// A ring of `depth` slots (a power of two) serves one producer. Slot i of lap n holds the command of position p = n *
// depth + i. A descriptor is 128 bytes in eight 16-byte units {value u64, word u32, sequence u32}; every unit carries
// sequence_of(p). So one read over the bus fetches and validates it, and no tail index is shared (docs/wire.md). Each
// 16-byte unit is written and read in one access. The completion of position p is one such unit at the same slot index.
// A producer reuses a slot after it has seen the slot's completion.
//
// The thesis' descriptor (Maucher 2022, section 5.3) is the model; flag_link replaces its `next`.
#pragma once

#include <cstdint>

#include "base/config.hpp"
#include "format/attribute_record_format.hpp"
#include "wire/command_list.hpp"

namespace gpu4fs::wire {

inline constexpr unsigned ring_depth_max = 1024;

GPU4FS_FN constexpr std::uint32_t ring_sequence(std::uint64_t position, unsigned depth_log2) {
  // Never 0 (the content of fresh memory) for 2^32 - 1 laps.
  return static_cast<std::uint32_t>((position >> depth_log2) % 0xffffffffull) + 1;
}

struct RingUnit {
  std::uint64_t value;
  std::uint32_t word;
  std::uint32_t sequence;
};
static_assert(sizeof(RingUnit) == 16);

struct RingDescriptor {
  RingUnit units[8];
};
static_assert(sizeof(RingDescriptor) == 128);

// value: result (>= 0, meaning by command) or 0 on error; word: Status code; sequence as above.
using RingCompletion = RingUnit;

enum GrowMask : std::uint32_t {
  grow_stage = 1,
  grow_admit = 2,
  grow_room = 3,    // mode: class of chunks, offset: pages of chunks that could still be created
  grow_freeze = 4,  // inode: an empty chunk
  grow_thaw = 5,    // inode: a chunk
  grow_usage = 6,   // inode: a chunk; result: its pages in use
  grow_withdraw = 7,
  // inode, offset: first chunk and region, mode: TrimMode, aux: free regions to keep; result: TrimResult
  grow_trim = 8,
  grow_trimmed = 9,  // inode: the chunk of a TrimResult, whose regions were punched; mode: TrimmedMode
};

enum TrimMode : std::uint32_t { trim_now = 1 };               // also regions that were just freed
enum TrimmedMode : std::uint32_t { trimmed_has_memory = 1 };  // nothing has to be allocated again: all can be used

// Regions [next - count, next) of the chunk have to be punched, and the next search begins with `next`; 0: there are no
// more.
struct TrimResult {
  std::uint32_t chunk;
  std::uint32_t next;
  std::uint32_t count;
};
inline constexpr std::uint32_t trim_chunk_end = 0xffffff;  // instead of `next`: the chunk keeps enough regions, and has
                                                           // no more
GPU4FS_FN constexpr std::uint64_t pack_trim(TrimResult trim) {
  return std::uint64_t{trim.chunk} << 40 | std::uint64_t{trim.next} << 16 | trim.count;
}
GPU4FS_FN constexpr TrimResult unpack_trim(std::uint64_t value) {
  return {static_cast<std::uint32_t>(value >> 40), static_cast<std::uint32_t>(value >> 16) & 0xffffff,
          static_cast<std::uint32_t>(value) & 0xffff};
}

enum CommandFlags : std::uint16_t {
  command_flag_link = 1u << 0,            // the next command runs after this one succeeded, otherwise it is cancelled
  command_flag_previous_inode = 1u << 1,  // inode = result inode of the previous command of the chain
  command_flag_follow = 1u << 2,          // lookup_path: follow a symbolic link in the last component
  command_flag_append = 1u << 3,          // write: offset = size
  command_flag_replay = 1u << 4,          // internal: output is a LogRecord that the command replays
  command_flag_known = 0x1f,
};

// A decoded descriptor. Addresses (`data`, `name`, `output`) are {number of one of the session's buffers in bits 56-63,
// byte offset in it in bits 0-55}; buffer 0 is the session's shared data area, others are registered (GPU memory, for
// example).
struct Command {
  Opcode opcode;
  std::uint16_t flags;
  std::uint32_t uid;
  std::uint32_t gid;
  std::uint32_t deadline_ms;  // 0: the engine's default
  std::uint32_t mode;
  std::uint32_t mask;
  std::uint16_t name_length;
  std::uint16_t second_name_length;  // the second name directly follows the first one
  std::uint32_t umask_bits;
  std::uint64_t inode;
  std::uint64_t second_inode;
  std::uint64_t offset;
  std::uint64_t length;
  std::uint64_t data;
  std::uint64_t aux;
  std::uint64_t name;
  std::uint64_t output;
};

GPU4FS_FN constexpr std::uint64_t ring_address(unsigned buffer, std::uint64_t offset) {
  return (std::uint64_t{buffer} << 56) | offset;
}
GPU4FS_FN constexpr unsigned ring_address_buffer(std::uint64_t address) {
  return static_cast<unsigned>(address >> 56);
}
GPU4FS_FN constexpr std::uint64_t ring_address_offset(std::uint64_t address) {
  return address & ((std::uint64_t{1} << 56) - 1);
}

GPU4FS_FN constexpr RingDescriptor encode_command(const Command& c, std::uint32_t sequence) {
  RingDescriptor d{};
  d.units[0] = {c.inode, static_cast<std::uint32_t>(c.opcode) | (std::uint32_t{c.flags} << 16), sequence};
  d.units[1] = {c.second_inode, c.uid, sequence};
  d.units[2] = {c.offset, c.gid, sequence};
  d.units[3] = {c.length, c.deadline_ms, sequence};
  d.units[4] = {c.data, c.mode, sequence};
  d.units[5] = {c.aux, c.mask, sequence};
  d.units[6] = {c.name, std::uint32_t{c.name_length} | (std::uint32_t{c.second_name_length} << 16), sequence};
  d.units[7] = {c.output, c.umask_bits, sequence};
  return d;
}

GPU4FS_FN constexpr Command decode_command(const RingDescriptor& d) {
  Command c{};
  c.opcode = static_cast<Opcode>(d.units[0].word & 0xffff);
  c.flags = static_cast<std::uint16_t>(d.units[0].word >> 16);
  c.uid = d.units[1].word;
  c.gid = d.units[2].word;
  c.deadline_ms = d.units[3].word;
  c.mode = d.units[4].word;
  c.mask = d.units[5].word;
  c.name_length = static_cast<std::uint16_t>(d.units[6].word & 0xffff);
  c.second_name_length = static_cast<std::uint16_t>(d.units[6].word >> 16);
  c.umask_bits = d.units[7].word;
  c.inode = d.units[0].value;
  c.second_inode = d.units[1].value;
  c.offset = d.units[2].value;
  c.length = d.units[3].value;
  c.data = d.units[4].value;
  c.aux = d.units[5].value;
  c.name = d.units[6].value;
  c.output = d.units[7].value;
  return c;
}

// Setting the access list removes the set-group-id bit: the caller is not in the file's group.
inline constexpr std::uint32_t attribute_kill_set_gid = 4;

// readdir output: records padded to 8 bytes. With attributes (mask bit 0) an AttributeRecord is between head and name.
struct DirectoryRecord {
  std::uint64_t inode;
  std::uint64_t next_cursor;    // cursor after this entry
  std::uint16_t record_length;  // whole record, multiple of 8
  std::uint8_t name_length;
  std::uint8_t type;             // DT_*
  std::uint32_t has_attributes;  // 1: an format::AttributeRecord follows
};
static_assert(sizeof(DirectoryRecord) == 24);

struct StatfsRecord {
  std::uint64_t page_total;
  std::uint64_t page_free;       // for root
  std::uint64_t page_available;  // for everybody, as content of files
  std::uint64_t inode_used;
  std::uint64_t inode_free;
  std::uint64_t epoch_open;
  std::uint64_t epoch_durable;
  std::uint64_t reserved;
};
static_assert(sizeof(StatfsRecord) == 64);

// The room that must exist at `output`, if it is not 0, before the command begins; 0: its handler knows. A command that
// writes nothing there has to pass the test for the greatest record.
GPU4FS_FN constexpr unsigned output_bytes(Opcode opcode) {
  static_assert(sizeof(StatfsRecord) < sizeof(format::AttributeRecord));
  if (is_in(commands_with_own_output, opcode)) return 0;
  return is_in(commands_with_statistics, opcode) ? sizeof(StatfsRecord) : sizeof(format::AttributeRecord);
}

}  // namespace gpu4fs::wire
