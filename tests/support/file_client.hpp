// Sends FileOperations through a session and reads back what a test compares.
//
// Area: attributes at 256 (an output address of 0 means none), a StatfsRecord at 512, names and paths at 1024 and 8
// KiB, data from 16 KiB on.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "client/session.hpp"
#include "support/posix_model.hpp"

namespace gpu4fs::test {

struct ListedName {
  u64 inode;
  u32 type;
  u64 count;  // how often it was listed
};

class FileClient {
 public:
  explicit FileClient(client::Session& session) : FileClient(session, 0, session.data_bytes()) {}
  // Uses a part of the session's data area, so one session can have several commands in progress.
  FileClient(client::Session& session, u64 area_offset, u64 area_bytes)
      : session_(session), area_(session.data() + area_offset), area_bytes_(area_bytes) {}

  u8* data() { return area_ + data_offset; }
  u64 data_bytes() const { return area_bytes_ - data_offset; }
  const format::AttributeRecord& attributes() const {
    return *reinterpret_cast<const format::AttributeRecord*>(area_ + attributes_offset);
  }
  const wire::StatfsRecord& statistics() const {
    return *reinterpret_cast<const wire::StatfsRecord*>(area_ + statistics_offset);
  }

  wire::Command command_of(const FileOperation& op) {
    using wire::Opcode;
    wire::Command c{};
    c.opcode = op.opcode;
    c.flags = op.append ? u16{wire::command_flag_append} : u16{0};
    c.uid = op.uid;
    c.gid = op.gid;
    c.mode = op.mode;
    c.mask = op.mask;
    c.umask_bits = op.umask_bits;
    c.inode = op.inode;
    c.second_inode = op.second_inode;
    c.offset = op.offset;
    c.length = op.length;
    c.aux = op.aux;
    u8* names = area_ + names_offset;
    std::memcpy(names, op.name.data(), op.name.size());
    std::memcpy(names + op.name.size(), op.second_name.data(), op.second_name.size());
    c.name = session_.address_of(names);
    c.name_length = static_cast<u16>(op.name.size());
    c.second_name_length = static_cast<u16>(op.second_name.size());
    c.data = session_.address_of(data());
    c.output = session_.address_of(area_ + attributes_offset);
    if (op.opcode == Opcode::statfs) c.output = session_.address_of(area_ + statistics_offset);
    if (op.opcode == Opcode::setattr) std::memcpy(data(), &op.attributes, sizeof(op.attributes));
    if (op.opcode == Opcode::symlink || op.opcode == Opcode::set_attribute) {
      std::memcpy(data(), op.text.data(), op.text.size());
      c.length = op.text.size();
    }
    return c;
  }

  // `content`: the bytes of a write.
  client::Reply call(const FileOperation& op, const std::vector<u8>& content = {}) {
    const wire::Command command = command_of(op);
    if (!content.empty()) std::memcpy(data(), content.data(), content.size());
    return session_.call(command);
  }

  client::Reply simple(wire::Opcode opcode, u64 inode = 0, u64 offset = 0, u64 length = 0, u32 mode = 0) {
    FileOperation op;
    op.opcode = opcode;
    op.inode = inode;
    op.offset = offset;
    op.length = length;
    op.mode = mode;
    return call(op);
  }

  // All names of a directory with `buffer_bytes` for each call. `problem` describes faults of the stream itself.
  std::map<std::string, ListedName> list(u64 directory, u64 buffer_bytes, bool with_attributes, std::string* problem) {
    std::map<std::string, ListedName> names;
    for (u64 cursor = 0;;) {
      FileOperation op;
      op.opcode = wire::Opcode::readdir;
      op.inode = directory;
      op.offset = cursor;
      op.length = buffer_bytes;
      op.mask = with_attributes ? 1 : 0;
      const client::Reply reply = call(op);
      if (reply.status != Status::ok) {
        *problem = std::string("readdir answers ") + status_name(reply.status);
        return names;
      }
      if (reply.result == 0) return names;
      for (u64 at = 0; at < reply.result;) {
        wire::DirectoryRecord record;
        std::memcpy(&record, data() + at, sizeof(record));
        if (record.record_length == 0 || record.record_length % 8 != 0 || at + record.record_length > reply.result) {
          *problem = "a record of bad length";
          return names;
        }
        const u64 head = sizeof(record) + (record.has_attributes != 0 ? sizeof(format::AttributeRecord) : 0);
        if (record.has_attributes != 0) {
          format::AttributeRecord attributes_here;
          std::memcpy(&attributes_here, data() + at + sizeof(record), sizeof(attributes_here));
          if (attributes_here.inode != record.inode) *problem = "attributes of another inode";
        }
        const std::string name(reinterpret_cast<const char*>(data() + at + head), record.name_length);
        ListedName& entry = names[name];
        entry = {record.inode, record.type, entry.count + 1};
        if (record.next_cursor == cursor) *problem = "the cursor does not move";
        cursor = record.next_cursor;
        at += record.record_length;
      }
    }
  }

 private:
  static constexpr u64 attributes_offset = 256;
  static constexpr u64 statistics_offset = 512;
  static constexpr u64 names_offset = 1024;
  static constexpr u64 data_offset = 16384;

  client::Session& session_;
  u8* area_;
  u64 area_bytes_;
};

}  // namespace gpu4fs::test
