// File commands as calls.
#pragma once

#include <cstring>
#include <string>

#include "support/ring_session.hpp"

namespace gpu4fs::test {

// `Connection`: Client, or a class with its constructor, data() and call(). The session's data area holds, in
// order: a name, a record, data.
template <class Connection>
class BasicFileClient {
 public:
  static constexpr u64 name_offset = 64;
  static constexpr u64 record_offset = 4096;
  static constexpr u64 data_offset = 8192;

  explicit BasicFileClient(engine::EngineHost& host, u64 data_length = u64{4} << 20)
      : client_(host, ClientOptions{.data_length = data_length + data_offset, .trusted = true, .internal = true}) {}

  u8* data(u64 shift = 0) { return client_.data() + data_offset + shift; }
  const format::AttributeRecord& attributes() {
    return *reinterpret_cast<const format::AttributeRecord*>(client_.data() + record_offset);
  }
  u32 uid = 0;

  ring::Completion call(wire::Command command) {
    command.uid = uid;
    command.gid = uid;
    return client_.call(command);
  }

  ring::Completion create(const std::string& name, u32 mode = 0644, u64 directory = format::inode_number_root) {
    wire::Command command = named(wire::Opcode::create, directory, name);
    command.mode = 0100000 | mode;
    return call(command);
  }
  ring::Completion unlink(const std::string& name, u64 directory = format::inode_number_root) {
    return call(named(wire::Opcode::unlink, directory, name));
  }
  ring::Completion lookup(const std::string& name, u64 directory = format::inode_number_root) {
    return call(named(wire::Opcode::lookup, directory, name));
  }
  // Data lies at data(shift).
  ring::Completion write(u64 inode, u64 offset, u64 length, u64 shift = 0, u16 flags = 0) {
    return call(transfer(wire::Opcode::write, inode, offset, length, shift, flags));
  }
  ring::Completion read(u64 inode, u64 offset, u64 length, u64 shift = 0) {
    return call(transfer(wire::Opcode::read, inode, offset, length, shift, 0));
  }
  ring::Completion truncate(u64 inode, u64 size) {
    return call(transfer(wire::Opcode::truncate, inode, size, 0, 0, 0));
  }
  ring::Completion fallocate(u64 inode, u32 mode, u64 offset, u64 length) {
    wire::Command command = transfer(wire::Opcode::fallocate, inode, offset, length, 0, 0);
    command.mode = mode;
    return call(command);
  }
  ring::Completion seek(u64 inode, u32 whence, u64 offset) {
    wire::Command command = transfer(wire::Opcode::seek, inode, offset, 0, 0, 0);
    command.mode = whence;
    return call(command);
  }
  ring::Completion copy_range(u64 from, u64 from_offset, u64 to, u64 to_offset, u64 length) {
    wire::Command command = transfer(wire::Opcode::copy_range, from, from_offset, length, 0, 0);
    command.second_inode = to;
    command.aux = to_offset;
    return call(command);
  }
  ring::Completion setattr(u64 inode, u32 mask, const format::AttributeRecord& record) {
    std::memcpy(data(), &record, sizeof(record));
    wire::Command command = transfer(wire::Opcode::setattr, inode, 0, 0, 0, 0);
    command.mask = mask;
    return call(command);
  }
  ring::Completion getattr(u64 inode) { return simple(wire::Opcode::getattr, inode); }
  ring::Completion reclaim(u64 inode) { return simple(wire::Opcode::reclaim, inode); }
  ring::Completion sync() { return simple(wire::Opcode::sync, 0); }
  ring::Completion checkpoint() { return simple(wire::Opcode::checkpoint, 0); }
  ring::Completion reclaim_orphans() { return simple(wire::Opcode::reclaim_orphans, 0); }
  ring::Completion statfs() { return simple(wire::Opcode::statfs, 0); }
  const wire::StatfsRecord& space() {
    return *reinterpret_cast<const wire::StatfsRecord*>(client_.data() + record_offset);
  }

 private:
  wire::Command named(wire::Opcode opcode, u64 directory, const std::string& name) {
    std::memcpy(client_.data() + name_offset, name.data(), name.size());
    wire::Command command = make_command(opcode);
    command.inode = directory;
    command.name = wire::ring_address(0, name_offset);
    command.name_length = static_cast<u16>(name.size());
    command.output = wire::ring_address(0, record_offset);
    return command;
  }
  wire::Command transfer(wire::Opcode opcode, u64 inode, u64 offset, u64 length, u64 shift, u16 flags) {
    wire::Command command = make_command(opcode);
    command.inode = inode;
    command.offset = offset;
    command.length = length;
    command.flags = flags;
    command.data = wire::ring_address(0, data_offset + shift);
    if (opcode != wire::Opcode::read && opcode != wire::Opcode::write) {
      command.output = wire::ring_address(0, record_offset);
    }
    return command;
  }
  ring::Completion simple(wire::Opcode opcode, u64 inode) { return call(transfer(opcode, inode, 0, 0, 0, 0)); }

  Connection client_;
};

}  // namespace gpu4fs::test
