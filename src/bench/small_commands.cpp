#include "bench/small_commands.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <stdexcept>

#include "base/limits.hpp"
#include "format/attribute_record_format.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 pattern_file = 0;
constexpr u64 pattern_appended = 1;
constexpr const char* path_of_three = "/outer/inner/named";

}  // namespace

SmallCommands::SmallCommands(server::PoolServer& server)
    : client_(frontend::open_local_session(server, small_file_bytes + BenchClient::control_bytes)) {
  const u64 root = format::inode_number_root;
  file_ = client_.create(root, "latency");
  fill_pattern(client_.buffer(), pattern_file, 0, small_file_bytes / page_size);
  client_.stream(wire::Opcode::write, file_, small_file_bytes, small_file_bytes, 1, client_.buffer_address(0));
  outer_ = client_.make_directory(root, "outer");
  inner_ = client_.make_directory(outer_, "inner");
  named_ = client_.create(inner_, "named");
  many_ = client_.make_directory(root, "many");
  appended_ = client_.create(root, "appended");
  commands_ = {
      {"noop", "no-op",
       [this](u32) {
         wire::Command command{};
         command.opcode = wire::Opcode::noop;
         client_.call(command, "noop");
       },
       nullptr},
      {"memcopy-4k", "copy of 4 KiB within the session's memory",
       [this](u32) {
         wire::Command command{};
         command.opcode = wire::Opcode::memcopy;
         command.data = client_.buffer_address(0);
         command.output = client_.buffer_address(page_size);
         command.length = page_size;
         client_.call(command, "memcopy");
       },
       nullptr},
      {"read-4k", "read of 4 KiB", [this](u32) { read_pages(1); },
       [this] { check_pattern(client_.buffer(), pattern_file, page_, 1); }},
      // The longest read that a GPU answers without a command slot, and a longer one.
      {"read-128k", "read of 128 KiB", [this](u32) { read_pages(32); },
       [this] { check_pattern(client_.buffer(), pattern_file, page_, 32); }},
      {"read-132k", "read of 132 KiB", [this](u32) { read_pages(33); },
       [this] { check_pattern(client_.buffer(), pattern_file, page_, 33); }},
      {"getattr", "getattr",
       [this](u32) {
         wire::Command command = client_.named(wire::Opcode::getattr, named_, "");
         client_.call(command, "getattr");
       },
       [this] { check_attributes(); }},
      {"lookup", "lookup of a name",
       [this](u32) { client_.call(client_.named(wire::Opcode::lookup, inner_, "named"), "lookup"); },
       [this] { check_attributes(); }},
      {"stat-path", "stat of a path of three components",
       [this](u32) {
         client_.call(client_.named(wire::Opcode::lookup_path, format::inode_number_root, path_of_three), "stat");
       },
       [this] { check_attributes(); }},
      {"create", "create of an empty file",
       [this](u32 i) {
         created_.push_back(fmt::format("file{}.{}", created_.size(), i));
         client_.create(many_, created_.back());
       },
       nullptr},
      {"append-fsync", "append of 4 KiB and fsync", [this](u32) { append_page(); }, nullptr},
  };
}

SmallCommands::~SmallCommands() {
  try {
    remove_created();
    const u64 root = format::inode_number_root;
    client_.unlink(root, "latency");
    client_.unlink(root, "appended");
    client_.unlink(inner_, "named");
    client_.call(client_.named(wire::Opcode::rmdir, outer_, "inner"), "rmdir");
    client_.call(client_.named(wire::Opcode::rmdir, root, "outer"), "rmdir");
    client_.call(client_.named(wire::Opcode::rmdir, root, "many"), "rmdir");
    client_.sync();
  } catch (const std::exception& error) {
    // An earlier failure is already being thrown.
    fmt::print(stderr, "gpu4fs bench: {}\n", error.what());
  }
}

void SmallCommands::remove_created() {
  for (const std::string& name : created_) client_.unlink(many_, name);
  created_.clear();
}

void SmallCommands::read_pages(u32 count) {
  page_ = static_cast<u32>(random_() % (small_file_bytes / page_size - count + 1));
  client_.call(BenchClient::transfer(wire::Opcode::read, file_, u64{page_} * page_size, count * page_size,
                                     client_.buffer_address(0)),
               "read");
}

void SmallCommands::append_page() {
  fill_pattern(client_.buffer(), pattern_appended, page_count_, 1);
  std::array<wire::Command, 2> commands{};
  commands[0] = BenchClient::transfer(wire::Opcode::write, appended_, 0, page_size, client_.buffer_address(0));
  commands[0].flags = wire::command_flag_append;
  commands[1].opcode = wire::Opcode::fsync;
  commands[1].inode = appended_;
  std::array<client::Reply, 2> replies{};
  const Status status = client_.session().call_linked(commands, replies);
  if (status != Status::ok) throw std::runtime_error(fmt::format("append: {}", status_text(status)));
  ++page_count_;
}

void SmallCommands::check_attributes() {
  u8* const output = client_.session().data() + page_size;
  format::AttributeRecord record{};
  std::memcpy(&record, output, sizeof(record));
  std::memset(output, 0, sizeof(record));
  if (record.inode == named_ && record.link_count == 1) return;
  throw std::runtime_error(fmt::format("attributes of inode {} instead of {}", record.inode, named_));
}

}  // namespace gpu4fs::bench
