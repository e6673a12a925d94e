#include "server/recovery/replay_command.hpp"

#include "base/types.hpp"

namespace gpu4fs::server {
namespace {

using format::LogOpcode;
using format::LogRecord;
using format::Opcode;

constexpr u32 patient_deadline_ms = 600'000;
constexpr u32 keep_size = 0x01;   // FALLOC_FL_KEEP_SIZE
constexpr u32 punch_hole = 0x02;  // FALLOC_FL_PUNCH_HOLE

Opcode opcode_of(LogOpcode opcode) {
  switch (opcode) {
    case LogOpcode::mknod: return Opcode::mknod;
    case LogOpcode::mkdir: return Opcode::mkdir;
    case LogOpcode::symlink: return Opcode::symlink;
    case LogOpcode::tmpfile: return Opcode::tmpfile;
    case LogOpcode::link: return Opcode::link;
    case LogOpcode::unlink: return Opcode::unlink;
    case LogOpcode::rmdir: return Opcode::rmdir;
    case LogOpcode::rename: return Opcode::rename;
    case LogOpcode::write_bytes:
    case LogOpcode::write_extents: return Opcode::write;
    case LogOpcode::allocate:
    case LogOpcode::zero_range: return Opcode::fallocate;
    case LogOpcode::set_size: return Opcode::truncate;
    case LogOpcode::set_inode: return Opcode::setattr;
    case LogOpcode::set_attribute: return Opcode::set_attribute;
    case LogOpcode::remove_attribute: return Opcode::remove_attribute;
    case LogOpcode::reclaim: return Opcode::reclaim;
    case LogOpcode::none:
    case LogOpcode::filler:
    case LogOpcode::count: break;
  }
  return Opcode::noop;
}

// Fields whose meaning differs between the record and the command.
void set_arguments(const LogRecord& record, format::Command& command) {
  switch (record.opcode) {
    case LogOpcode::mknod:
    case LogOpcode::mkdir:
    case LogOpcode::symlink:
    case LogOpcode::tmpfile:
      // Asked for, before umask and inheritance; what came of it the handler takes from the record.
      command.mode = record.mask;
      command.mask = 0;
      command.aux = record.device;
      break;
    case LogOpcode::allocate:
      command.mode = keep_size;
      command.length = record.size;
      break;
    case LogOpcode::zero_range:
      command.mode = keep_size | punch_hole;
      command.length = record.size;
      break;
    case LogOpcode::set_size:
      command.offset = record.size;
      break;
    case LogOpcode::write_bytes:
    case LogOpcode::write_extents:
      command.length = record.size;
      break;
    default:
      break;
  }
}

}  // namespace

format::Command replay_command(const LogRecord& record, u64 address) {
  const u32 name_bytes = u32{record.name_length} + record.second_name_length;
  const format::LogRecordLayout layout =
      format::log_record_layout(name_bytes, record.data_length, record.extent_count);
  format::Command command{};
  command.opcode = opcode_of(record.opcode);
  command.flags = format::command_flag_replay;
  command.uid = record.uid;
  command.gid = record.gid;
  command.deadline_ms = patient_deadline_ms;
  command.mask = record.mask;
  command.umask_bits = record.umask_bits;
  command.name_length = record.name_length;
  command.second_name_length = record.second_name_length;
  command.inode = record.inode;
  command.second_inode = record.second_inode;
  command.offset = record.offset;
  command.length = record.data_length;
  command.data = address + layout.data_offset;
  command.name = address + sizeof(LogRecord);
  command.output = address;
  set_arguments(record, command);
  return command;
}

format::Command claim_command(u64 address) {
  format::Command command{};
  command.opcode = Opcode::claim_logged;
  command.flags = format::command_flag_replay;
  command.deadline_ms = patient_deadline_ms;
  command.output = address;
  return command;
}

}  // namespace gpu4fs::server
