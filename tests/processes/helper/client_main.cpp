// A client of its own process for the tests of sessions.
//
//   gpu4fs_process_client SOCKET walk NAME   makes, writes, reads, renames and removes files; NAME stays, with content
//   gpu4fs_process_client SOCKET hold        says "ready", and sends commands until it is ended or the engine is gone
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "processes/open_session.hpp"
#include "support/file_client.hpp"

namespace gpu4fs::test {
namespace {

constexpr u64 root = format::inode_number_root;

FileOperation operation(wire::Opcode opcode, u64 inode, const std::string& name = "") {
  FileOperation op;
  op.opcode = opcode;
  op.inode = inode;
  op.name = name;
  op.mode = 0644;
  return op;
}

void expect_ok(const client::Reply& reply, const char* what) {
  if (reply.status == Status::ok) return;
  std::fprintf(stderr, "%s: %s\n", what, status_name(reply.status));
  ::_exit(1);
}

std::vector<u8> content_of(u64 seed) {
  std::vector<u8> bytes(20000);
  for (u64 i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<u8>(seed * 31 + i * 7 + i / 251);
  return bytes;
}

u64 write_file(FileClient& client, const std::string& name, u64 seed) {
  const client::Reply made = client.call(operation(wire::Opcode::create, root, name));
  expect_ok(made, "create");
  const std::vector<u8> content = content_of(seed);
  FileOperation write = operation(wire::Opcode::write, made.result);
  write.length = content.size();
  expect_ok(client.call(write, content), "write");
  std::memset(client.data(), 0, content.size());
  FileOperation read = operation(wire::Opcode::read, made.result);
  read.length = content.size();
  expect_ok(client.call(read), "read");
  if (std::memcmp(client.data(), content.data(), content.size()) != 0) {
    std::fprintf(stderr, "%s: other bytes than were written\n", name.c_str());
    ::_exit(1);
  }
  return made.result;
}

int walk(client::Session& session, const std::string& name) {
  FileClient client(session);
  for (u64 i = 0; i < 50; ++i) {
    const std::string passing = name + "-" + std::to_string(i);
    write_file(client, passing, i);
    FileOperation rename = operation(wire::Opcode::rename, root, passing);
    rename.second_inode = root;
    rename.second_name = passing + "-later";
    expect_ok(client.call(rename), "rename");
    expect_ok(client.call(operation(wire::Opcode::unlink, root, passing + "-later")), "unlink");
  }
  write_file(client, name, 99);
  return 0;
}

int hold(client::Session& session) {
  FileClient client(session);
  const u64 inode = write_file(client, "held-" + std::to_string(::getpid()), 1);
  std::puts("ready");
  std::fflush(stdout);
  for (;;) {
    FileOperation write = operation(wire::Opcode::write, inode);
    write.length = 20000;
    if (client.call(write).status != Status::ok) return 3;
  }
}

}  // namespace
}  // namespace gpu4fs::test

int main(int argc, char** argv) {
  using namespace gpu4fs;
  if (argc < 3) return 2;
  try {
    client::OpenedSession opened = test::open_when_possible(argv[1]);
    if (std::strcmp(argv[2], "walk") == 0 && argc == 4) return test::walk(opened.session, argv[3]);
    if (std::strcmp(argv[2], "hold") == 0) return test::hold(opened.session);
  } catch (const client::ConnectError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
  return 2;
}
