#include "bench/path_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <bit>
#include <cstring>
#include <stdexcept>

#include "base/limits.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 path_bytes = 64;  // room for one path
constexpr const char* top_directory = "paths";

std::string name_of_directory(u32 directory) {
  return fmt::format("dir{}", directory);
}
std::string name_of_file(u32 file) {
  return fmt::format("file{}", file);
}

}  // namespace

std::string path_directory(u32 file) {
  return fmt::format("/{}/{}", top_directory, name_of_directory(file % path_directory_count));
}
std::string path_of_file(u32 file) {
  return fmt::format("{}/{}", path_directory(file), name_of_file(file));
}

PairClient::PairClient(server::PoolServer& server, u32 slot_count, u32 depth)
    : client_(frontend::open_local_session(server, BenchClient::control_bytes + slot_count * (page_size + path_bytes),
                                           static_cast<u32>(std::bit_width(depth) - 1))),
      slot_count_(slot_count) {}

void PairClient::set_name(u32 slot, const std::string& name, wire::Command* command) {
  if (name.size() > path_bytes) throw std::runtime_error(name + ": too long");
  const u64 place = slot_count_ * page_size + slot * path_bytes;
  std::memcpy(client_.buffer() + place, name.data(), name.size());
  command->name = client_.buffer_address(place);
  command->name_length = static_cast<u16>(name.size());
}

void PairClient::run(const std::vector<Pair>& pairs, u64 result) {
  client::Session& session = client_.session();
  const u64 depth = session.depth() / 2;
  positions_.resize(pairs.size());
  for (u64 submitted = 0, finished = 0; finished < pairs.size();) {
    if (submitted < pairs.size() && submitted - finished < depth) {
      submit(pairs[submitted].first, wire::command_flag_link, &positions_[submitted][0]);
      submit(pairs[submitted].second, wire::command_flag_previous_inode, &positions_[submitted][1]);
      ++submitted;
      continue;
    }
    const client::Reply first = session.finish(positions_[finished][0]);
    const client::Reply second = session.finish(positions_[finished][1]);
    if (first.status != Status::ok || second.status != Status::ok || second.result != result) {
      throw std::runtime_error(fmt::format("chain {}: {} {} (result {})", finished, status_text(first.status),
                                           status_text(second.status), second.result));
    }
    ++finished;
  }
}

void PairClient::submit(wire::Command command, u16 flag, u64* position) {
  command.flags |= flag;
  if (client_.session().submit(command, position) != Status::ok) {
    throw std::runtime_error("a ring with room took no command");
  }
}

std::vector<u64> make_path_files(PairClient& client) {
  BenchClient& own = client.client();
  const u64 top = own.make_directory(format::inode_number_root, top_directory);
  std::vector<u64> directories;
  for (u32 i = 0; i < path_directory_count; ++i) {
    directories.push_back(own.make_directory(top, name_of_directory(i)));
  }
  std::vector<Pair> pairs(path_file_count);
  for (u32 i = 0; i < path_file_count; ++i) {
    fill_pattern(client.content(i), i, 0, 1);
    pairs[i].first.opcode = wire::Opcode::create;
    pairs[i].first.inode = directories[i % path_directory_count];
    pairs[i].first.mode = S_IFREG | 0644;
    pairs[i].first.mask = O_RDWR | O_CREAT | O_EXCL;
    client.set_name(i, name_of_file(i), &pairs[i].first);
    pairs[i].second = BenchClient::transfer(wire::Opcode::write, 0, 0, page_size, client.content_address(i));
  }
  client.run(pairs, page_size);
  own.sync();
  return directories;
}

void remove_path_files(PairClient& client, const std::vector<u64>& directories) {
  std::vector<Pair> pairs(path_file_count);
  for (u32 i = 0; i < path_file_count; ++i) {
    pairs[i].first.opcode = wire::Opcode::unlink;
    pairs[i].first.inode = directories[i % path_directory_count];
    client.set_name(i, name_of_file(i), &pairs[i].first);
    pairs[i].second.opcode = wire::Opcode::reclaim;
  }
  client.run(pairs, 1);
  BenchClient& own = client.client();
  const u64 root = format::inode_number_root;
  const u64 top = own.call(own.named(wire::Opcode::lookup, root, top_directory), "lookup").result;
  for (u32 i = 0; i < path_directory_count; ++i) {
    own.call(own.named(wire::Opcode::rmdir, top, name_of_directory(i)), "rmdir");
  }
  own.call(own.named(wire::Opcode::rmdir, root, top_directory), "rmdir");
  own.sync();
}

}  // namespace gpu4fs::bench
