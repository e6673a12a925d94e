// A benchmark's client: a session with the commands that the measurements need, and the content of their files. Host
// only. Errors are std::runtime_error with the command and the status.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "client/session.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::bench {

// The content of test files: page `page` of file `file`. All 8-byte words of a pool are different.
void fill_pattern(void* to, u64 file, u64 first_page, u64 page_count);
// Throws if a byte differs.
void check_pattern(const void* content, u64 file, u64 first_page, u64 page_count);

// The numbers [0, count), in an order that depends on the seed.
std::vector<u32> shuffled(u32 count, u64 seed);

class BenchClient {
 public:
  // Bytes before buffer() for names and attributes.
  static constexpr u64 control_bytes = 64 * 1024;

  explicit BenchClient(client::Session session) : session_(std::move(session)) {}

  client::Session& session() { return session_; }
  u8* buffer() { return session_.data() + control_bytes; }
  u64 buffer_bytes() const { return session_.data_bytes() - control_bytes; }
  u64 buffer_address(u64 offset) { return session_.address_of(buffer() + offset); }

  // Creates a file or directory in a directory. Returns the inode's number.
  u64 create(u64 directory, const std::string& name);
  u64 make_directory(u64 directory, const std::string& name);
  void unlink(u64 directory, const std::string& name);
  void set_times(u64 inode);
  void sync();
  u64 available_bytes();  // of the pool, for ordinary users

  // A read or write of `length` bytes between a file and memory at ring address `data`.
  static wire::Command transfer(wire::Opcode opcode, u64 inode, u64 offset, u64 length, u64 data);
  // Transfers the whole of [0, length) in commands of `step` bytes, `in_flight` at a time. `data` is the ring address
  // of byte 0.
  void stream(wire::Opcode opcode, u64 inode, u64 length, u64 step, u32 in_flight, u64 data);

  client::Reply call(const wire::Command& command, const char* what);
  // A command with a name in a directory; its attributes are written to the control area.
  wire::Command named(wire::Opcode opcode, u64 directory, const std::string& name);

 private:
  client::Session session_;
};

}  // namespace gpu4fs::bench
