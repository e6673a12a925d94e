// Commands on names as calls.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "support/ring_session.hpp"

namespace gpu4fs::test {

struct ListedName {
  std::string name;
  u64 inode = 0;
  u64 next_cursor = 0;
  u32 type = 0;
  bool has_attributes = false;
  format::AttributeRecord attributes{};
};

// `Connection`: Client, or a class with its constructor, data(), session() and call().
template <class Connection>
class BasicNameClient {
 public:
  static constexpr u64 record_offset = 4096;
  static constexpr u64 name_offset = 8192;
  static constexpr u64 data_offset = 16384;
  static constexpr u64 data_length = 1 << 18;

  explicit BasicNameClient(engine::EngineHost& host, bool trusted = true)
      : client_(host,
                ClientOptions{.data_length = data_offset + data_length, .trusted = trusted, .internal = trusted}) {}

  u32 uid = 0;
  u32 gid = 0;
  u32 umask_bits = 0;

  u32 session() const { return client_.session(); }
  u8* data() { return client_.data() + data_offset; }
  const format::AttributeRecord& attributes() {
    return *reinterpret_cast<const format::AttributeRecord*>(client_.data() + record_offset);
  }

  ring::Completion call(wire::Command command) {
    command.uid = uid;
    command.gid = gid;
    command.umask_bits = umask_bits;
    return client_.call(command);
  }
  wire::Command named(wire::Opcode opcode, u64 directory, const std::string& name, const std::string& second = "") {
    std::memcpy(client_.data() + name_offset, name.data(), name.size());
    std::memcpy(client_.data() + name_offset + name.size(), second.data(), second.size());
    wire::Command command = make_command(opcode);
    command.inode = directory;
    command.name = wire::ring_address(0, name_offset);
    command.name_length = static_cast<u16>(name.size());
    command.second_name_length = static_cast<u16>(second.size());
    command.output = wire::ring_address(0, record_offset);
    return command;
  }
  wire::Command with_data(wire::Command command, u64 length) {
    command.data = wire::ring_address(0, data_offset);
    command.length = length;
    return command;
  }

  ring::Completion lookup(u64 directory, const std::string& name) {
    return call(named(wire::Opcode::lookup, directory, name));
  }
  ring::Completion lookup_path(u64 directory, const std::string& path, bool follow = true) {
    wire::Command command = named(wire::Opcode::lookup_path, directory, path);
    command.flags = follow ? wire::command_flag_follow : 0;
    return call(command);
  }
  ring::Completion getattr(u64 inode) { return call(named(wire::Opcode::getattr, inode, "")); }
  ring::Completion mkdir(u64 directory, const std::string& name, u32 mode = 0755) {
    wire::Command command = named(wire::Opcode::mkdir, directory, name);
    command.mode = mode;
    return call(command);
  }
  ring::Completion mknod(u64 directory, const std::string& name, u32 mode, u64 device = 0) {
    wire::Command command = named(wire::Opcode::mknod, directory, name);
    command.mode = mode;
    command.aux = device;
    return call(command);
  }
  ring::Completion create(u64 directory, const std::string& name, u32 mode = 0644, u32 flags = 0200) {
    wire::Command command = named(wire::Opcode::create, directory, name);
    command.mode = mode;
    command.mask = flags;
    return call(command);
  }
  ring::Completion tmpfile(u64 directory, u32 mode = 0600) {
    wire::Command command = named(wire::Opcode::tmpfile, directory, "");
    command.mode = mode;
    return call(command);
  }
  ring::Completion symlink(u64 directory, const std::string& name, const std::string& target) {
    std::memcpy(data(), target.data(), target.size());
    return call(with_data(named(wire::Opcode::symlink, directory, name), target.size()));
  }
  ring::Completion readlink(u64 inode, std::string* target, u64 capacity = 4096) {
    const ring::Completion done = call(with_data(named(wire::Opcode::readlink, inode, ""), capacity));
    target->assign(reinterpret_cast<const char*>(data()), done.status == Status::ok ? done.result : 0);
    return done;
  }
  ring::Completion unlink(u64 directory, const std::string& name) {
    return call(named(wire::Opcode::unlink, directory, name));
  }
  ring::Completion rmdir(u64 directory, const std::string& name) {
    return call(named(wire::Opcode::rmdir, directory, name));
  }
  ring::Completion link(u64 inode, u64 directory, const std::string& name) {
    wire::Command command = named(wire::Opcode::link, directory, name);
    command.second_inode = inode;
    return call(command);
  }
  ring::Completion rename(u64 from, const std::string& name, u64 to, const std::string& second, u32 flags = 0) {
    wire::Command command = named(wire::Opcode::rename, from, name, second);
    command.second_inode = to;
    command.mask = flags;
    return call(command);
  }
  ring::Completion open(u64 inode, u32 flags) {
    wire::Command command = named(wire::Opcode::open, inode, "");
    command.mask = flags;
    return call(command);
  }
  ring::Completion access(u64 inode, u32 wanted) {
    wire::Command command = named(wire::Opcode::access, inode, "");
    command.mode = wanted;
    return call(command);
  }
  ring::Completion chmod(u64 inode, u32 mode) {
    format::AttributeRecord record{};
    record.mode = mode;
    std::memcpy(data(), &record, sizeof(record));
    wire::Command command = with_data(named(wire::Opcode::setattr, inode, ""), 0);
    command.mask = format::set_mode;
    return call(command);
  }
  ring::Completion reclaim(u64 inode) { return call(named(wire::Opcode::reclaim, inode, "")); }
  ring::Completion set_attribute(u64 inode, const std::string& name, const std::string& value, u32 mask = 0) {
    std::memcpy(data(), value.data(), value.size());
    wire::Command command = with_data(named(wire::Opcode::set_attribute, inode, name), value.size());
    command.mask = mask;
    return call(command);
  }
  ring::Completion get_attribute(u64 inode, const std::string& name, std::string* value, u64 capacity = 4096) {
    const ring::Completion done = call(with_data(named(wire::Opcode::get_attribute, inode, name), capacity));
    const u64 length = done.status == Status::ok && capacity != 0 ? done.result : 0;
    value->assign(reinterpret_cast<const char*>(data()), length);
    return done;
  }
  ring::Completion list_attributes(u64 inode, std::string* names, u64 capacity = 4096) {
    const ring::Completion done = call(with_data(named(wire::Opcode::list_attributes, inode, ""), capacity));
    const u64 length = done.status == Status::ok && capacity != 0 ? done.result : 0;
    names->assign(reinterpret_cast<const char*>(data()), length);
    return done;
  }
  ring::Completion remove_attribute(u64 inode, const std::string& name) {
    return call(named(wire::Opcode::remove_attribute, inode, name));
  }

  // One call; appends its result.
  Status readdir(u64 directory, u64 cursor, u64 length, bool with_attributes, std::vector<ListedName>* names) {
    wire::Command command = with_data(named(wire::Opcode::readdir, directory, ""), length);
    command.offset = cursor;
    command.mask = with_attributes ? 1 : 0;
    std::memset(data(), 0xee, length);
    const ring::Completion done = call(command);
    if (done.status != Status::ok) return done.status;
    for (u64 at = 0; at < done.result;) {
      const auto& record = *reinterpret_cast<const wire::DirectoryRecord*>(data() + at);
      ListedName entry;
      entry.inode = record.inode;
      entry.next_cursor = record.next_cursor;
      entry.type = record.type;
      entry.has_attributes = record.has_attributes != 0;
      const u8* rest = data() + at + sizeof(record);
      if (entry.has_attributes) {
        std::memcpy(&entry.attributes, rest, sizeof(entry.attributes));
        rest += sizeof(entry.attributes);
      }
      entry.name.assign(reinterpret_cast<const char*>(rest), record.name_length);
      names->push_back(entry);
      at += record.record_length;
    }
    return Status::ok;
  }
  // The whole directory in calls of `length` bytes.
  Status list(u64 directory, std::vector<ListedName>* names, u64 length = 4096, bool with_attributes = false) {
    u64 cursor = 0;
    for (;;) {
      const std::size_t before = names->size();
      GPU4FS_TRY(readdir(directory, cursor, length, with_attributes, names));
      if (names->size() == before) return Status::ok;
      cursor = names->back().next_cursor;
    }
  }

 private:
  Connection client_;
};

}  // namespace gpu4fs::test
