// Descriptors of any content in the rings of an untrusted session and of a trusted one (a front end), with a live
// engine: every one is answered, the engine continues, requests that only the management process may make are refused,
// and the session's memory after its data area stays unchanged. Afterwards fsck finds a valid pool.
#include "fuzz/damage.hpp"
#include "fuzz/mounted_pool.hpp"

namespace gpu4fs::fuzz {

const char target_name[] = "descriptor";

namespace {

using wire::Command;
using wire::Opcode;

constexpr u64 data_length = 64 * 1024;
constexpr u32 stranger_uid = 1000;
constexpr u32 in_flight_max = 24;

// At the beginning of the data area, and again one after the other.
constexpr const char* known_names[] = {"plain",
                                       "directory",
                                       "new",
                                       "sparse",
                                       "inline",
                                       "directory/below/second-name",
                                       "system.posix_acl_access",
                                       "user.name",
                                       "allocated",
                                       "..",
                                       "security.capability",
                                       "trusted.name",
                                       "short-link",
                                       "system.posix_acl_default",
                                       "long-link",
                                       "pipe"};
constexpr u32 name_count = 16;
constexpr u32 name_stride = 32;
constexpr u64 list_offset = 8192;  // an access control list that may be set
constexpr u8 access_list[] = {2, 0,    0,    0,    1,    0,    6,  0, 0xff, 0xff, 0xff, 0xff, 2,    0,   7,
                              0, 0xe8, 3,    0,    0,    4,    0,  4, 0,    0xff, 0xff, 0xff, 0xff, 16,  0,
                              7, 0,    0xff, 0xff, 0xff, 0xff, 32, 0, 4,    0,    0xff, 0xff, 0xff, 0xff};

// An address in buffer 0, or nearly one.
u64 odd_address(Input& input) {
  const u32 kind = input.byte();
  const u64 inside = (input.half() * u64{16}) % data_length;
  switch (kind % 8) {
    case 0:
      return data_length - kind / 8;
    case 1:
      return inside + kind / 8;
    case 2:
      return wire::ring_address(kind / 8, inside);
    case 3:
      return input.odd_number();
    default:
      return inside;
  }
}

u64 odd_inode(Input& input) {
  const u32 kind = input.byte();
  return kind < 232 ? kind % 90 : input.odd_number();
}

Command read_command(Input& input) {
  Command c{};
  const u32 shape = input.byte();
  c.opcode = static_cast<Opcode>(input.byte() % (static_cast<u32>(Opcode::count) + 1));
  c.inode = odd_inode(input);
  c.second_inode = (shape & 1) != 0 ? odd_inode(input) : format::inode_number_root;
  c.offset = (shape & 2) != 0 ? input.odd_number() : input.half();
  c.length = (shape & 4) != 0 ? input.odd_number() : input.half() % data_length;
  c.data = odd_address(input);
  c.name = odd_address(input);
  c.output = (shape & 8) != 0 ? odd_address(input) : data_length - 256;
  if (c.opcode == Opcode::set_attribute && (shape & 2) == 0) {
    c.data = list_offset;
    c.length = sizeof(access_list) - c.offset % 9;
  }
  const u32 lengths = input.byte();
  c.name_length = static_cast<u16>((shape & 16) != 0 ? input.number(2) : lengths % 32);
  c.second_name_length = static_cast<u16>((shape & 32) != 0 ? input.number(2) : lengths / 32);
  if (lengths % 2 == 0 && (shape & 16) == 0) {  // a whole name
    c.name = lengths / 2 % name_count * name_stride;
    c.name_length = static_cast<u16>(std::strlen(known_names[lengths / 2 % name_count]));
    c.second_name_length = 0;
  }
  c.mode = static_cast<u32>((shape & 64) != 0 ? input.odd_number() : input.number(2));
  c.mask = static_cast<u32>((shape & 128) != 0 ? input.odd_number() : input.byte());
  c.aux = input.odd_number();
  const u32 extra = input.byte();
  c.flags = static_cast<u16>(extra < 64 ? extra % 16 : extra == 255 ? input.half() : 0);
  c.deadline_ms = extra % 64 == 63 ? 1 : 0;
  c.uid = extra % 3 == 0 ? 0 : extra;
  c.gid = c.uid;
  c.umask_bits = extra;
  return c;
}

// A session whose pending commands are known by their positions.
class HostileSession {
 public:
  HostileSession(engine::EngineHost& host, bool trusted)
      : client_(host, {.depth_log2 = 5,
                       .data_length = data_length,
                       .trusted = trusted,
                       .uid = stranger_uid,
                       .gid = stranger_uid}),
        trusted_(trusted) {
    fill_names();
  }

  void submit(Command command, bool is_last) {
    if (is_last) command.flags &= static_cast<u16>(~u32{wire::command_flag_link});
    positions_.push_back(client_.publish(command));
    commands_.push_back(command);
    chain_ = (command.flags & wire::command_flag_link) != 0 ? chain_ + 1 : 0;
    if (chain_ == 0 && (is_last || positions_.size() >= in_flight_max / 2)) finish();
    if (chain_ >= in_flight_max / 2) submit(test::make_command(Opcode::noop), true);
  }
  u8* data() { return client_.data(); }

  // Waits for all answers and checks them.
  void finish() {
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      const ring::Completion done = client_.wait(positions_[i]);
      judge(commands_[i], done);
    }
    positions_.clear();
    commands_.clear();
  }

 private:
  void fill_names() {
    for (u64 at = 0; at < data_length; at += name_stride) {
      const char* text = known_names[at / name_stride % name_count];
      std::memcpy(data() + at, text, std::strlen(text));
    }
    std::memcpy(data() + list_offset, access_list, sizeof(access_list));
  }

  void judge(const Command& command, const ring::Completion& done) const {
    if (is_control(done.status)) fail("a control code was answered");
    if (done.status == Status::engine_died) fail(status_name(done.status));
    if (done.status != Status::ok && done.result != 0) fail("a failed command has a result");
    const wire::Sender sender = trusted_ ? wire::Sender::front_end : wire::Sender::client;
    const bool is_allowed = wire::may_send(sender, command.opcode) && (command.flags & wire::command_flag_replay) == 0;
    if (!is_allowed && done.status == Status::ok) fail("a command of somebody else was carried out");
    if (is_allowed && done.status == Status::unknown_command) fail("a command is not known");
    if (done.status == Status::deadline_exceeded && command.deadline_ms == 0) fail("a command hangs");
    const bool damaged = done.status == Status::corrupt_structure || done.status == Status::checksum_mismatch;
    if (damaged) fail("damage in a sound pool");
  }

  test::Client client_;
  bool trusted_;
  u32 chain_ = 0;
  std::vector<u64> positions_;
  std::vector<Command> commands_;
};

void run_commands(Input& input, engine::EngineHost& host) {
  HostileSession stranger(host, false);
  HostileSession front_end(host, true);
  for (u32 count = 0; count < 64 && !input.empty(); ++count) {
    const u32 which = input.byte();
    HostileSession& session = which % 4 == 0 ? front_end : stranger;
    if (which % 16 == 15) {
      change_bytes(input, session.data(), data_length);
      continue;
    }
    session.submit(read_command(input), input.empty() || which % 32 == 1);
  }
  for (HostileSession* session : {&stranger, &front_end}) session->submit(test::make_command(Opcode::noop), true);
}

// The engine still works.
void require_alive(engine::EngineHost& host) {
  NameClient names(host);
  FileCalls files(names);
  require_ok(names.getattr(format::inode_number_root));
  const ring::Completion created = names.create(format::inode_number_root, "still alive");
  if (created.status == Status::no_space || created.status == Status::exists) return;
  const u64 inode = require_ok(created);
  std::memset(names.data(), 'x', 5000);
  const ring::Completion written = files.write(inode, 0, 5000);
  if (written.status == Status::no_space) return;
  require_ok(written);
  std::memset(names.data(), 0, 5000);
  require(require_ok(files.read(inode, 0, 5000)) == 5000, "a short read");
  for (u32 i = 0; i < 5000; ++i) require(names.data()[i] == 'x', "another content than was written");
}

}  // namespace

void run_input(const u8* data, std::size_t length) {
  static PopulatedPool pool;
  Input input(data, length);
  pool.file().restore();
  const bool was_mounted = pool.mounted([&](engine::EngineHost& host) {
    run_commands(input, host);
    require_alive(host);
  });
  require(was_mounted, "a sound pool is refused");
  require_clean({pool.file().path()});
}

}  // namespace gpu4fs::fuzz
