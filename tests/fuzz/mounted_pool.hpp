// A populated pool on a PoolFile, and mounts of it with a CPU engine.
//
// PopulatedPool mounts without any thread: the caller that waits for a command does the engine's work. So an input has
// the same effect each time, and no time is lost with hand-overs. mount_options() are for the real server.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "fsck/check/check_pool.hpp"
#include "fuzz/fuzz_target.hpp"
#include "fuzz/pool_file.hpp"
#include "server/pool_server.hpp"
#include "support/file_commands.hpp"
#include "support/name_commands.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::fuzz {

using NameClient = test::BasicNameClient<test::Client>;

inline session::ServerOptions mount_options(const std::vector<std::string>& paths, bool read_only = false) {
  session::ServerOptions options;
  options.device_paths = paths;
  options.read_only = read_only;
  options.engine = session::EngineChoice::cpu;
  options.worker_count = 1;
  options.commit_interval_s = 0;
  options.cache_bytes = u64{8} << 20;
  return options;
}

inline fsck::CheckResult check(const std::vector<std::string>& paths) {
  fsck::CheckOptions options;
  options.device_paths = paths;
  return fsck::check_pool(options);
}

// The pool is as valid as before the input.
inline void require_clean(const std::vector<std::string>& paths) {
  const fsck::CheckResult result = check(paths);
  // Some inputs damage the log; they decide whether it may be replayed.
  if (result.findings.error_count() == result.findings.count(fsck::FindingId::log_damaged)) return;
  std::string text = "fsck:";
  for (const fsck::Finding& finding : result.findings.kept()) {
    text += "\n  " + std::string(fsck::finding_kind(finding.id).id) + " " + finding.place + ": " + finding.text;
  }
  fail(text.c_str());
}

// Commands on files, with the data area of a NameClient.
class FileCalls {
 public:
  explicit FileCalls(NameClient& client) : client_(client) {}

  ring::Completion transfer(wire::Opcode opcode, u64 inode, u64 offset, u64 length) {
    wire::Command command = test::make_command(opcode);
    command.inode = inode;
    command.offset = offset;
    return client_.call(client_.with_data(command, length));
  }
  ring::Completion read(u64 inode, u64 offset, u64 length) {
    return transfer(wire::Opcode::read, inode, offset, length);
  }
  ring::Completion write(u64 inode, u64 offset, u64 length) {
    return transfer(wire::Opcode::write, inode, offset, length);
  }
  ring::Completion truncate(u64 inode, u64 size) { return transfer(wire::Opcode::truncate, inode, size, 0); }
  ring::Completion fallocate(u64 inode, u32 mode, u64 offset, u64 length) {
    wire::Command command = test::make_command(wire::Opcode::fallocate);
    command.inode = inode;
    command.mode = mode;
    command.offset = offset;
    command.length = length;
    return client_.call(command);
  }
  ring::Completion seek(u64 inode, u32 mode, u64 offset) {
    wire::Command command = test::make_command(wire::Opcode::seek);
    command.inode = inode;
    command.mode = mode;
    command.offset = offset;
    return client_.call(command);
  }
  ring::Completion copy(u64 from, u64 to, u64 length) {
    wire::Command command = test::make_command(wire::Opcode::copy_range);
    command.inode = from;
    command.second_inode = to;
    command.length = length;
    return client_.call(command);
  }
  ring::Completion sync() { return client_.call(test::make_command(wire::Opcode::sync)); }

 private:
  NameClient& client_;
};

inline u64 require_ok(ring::Completion done) {
  if (done.status != Status::ok) fail(status_name(done.status));
  return done.result;
}

inline constexpr u32 populated_name_count = 50;
inline std::string populated_name(u64 i) {
  return std::to_string(i) + std::string(180, 'n');
}

// One of everything. The order determines names and numbers.
inline void populate(engine::EngineHost& host) {
  NameClient names(host);
  FileCalls files(names);
  const u64 root = format::inode_number_root;
  const u64 directory = require_ok(names.mkdir(root, "directory"));
  const u64 below = require_ok(names.mkdir(directory, "below"));
  for (u32 i = 0; i < populated_name_count; ++i) require_ok(names.create(directory, populated_name(i)));
  for (u64 i = 0; i < NameClient::data_length; ++i) names.data()[i] = static_cast<u8>(i * 7 + i / 251);
  const u64 plain = require_ok(names.create(root, "plain", 0666));
  require_ok(files.write(plain, 0, 100'000));
  const u64 sparse = require_ok(names.create(root, "sparse"));
  for (u64 i = 0; i < 5; ++i) require_ok(files.write(sparse, i * (u64{48} << 20) + 4000, 9000));
  const u64 allocated = require_ok(names.create(root, "allocated"));
  require_ok(files.fallocate(allocated, 0, 0, u64{3} << 20));
  require_ok(files.write(allocated, 100'000, 20'000));
  require_ok(files.write(require_ok(names.create(root, "inline")), 0, 100));
  require_ok(names.link(plain, below, "second-name"));
  require_ok(names.symlink(root, "short-link", "directory/below"));
  require_ok(names.symlink(root, "long-link", std::string(300, 's')));
  require_ok(names.set_attribute(plain, "user.name", std::string(50, 'v')));
  require_ok(names.set_attribute(sparse, "user.great", std::string(20'000, 'g')));
  for (const char* name : {"user.1", "user.2", "user.3", "user.name", "user.5"}) {
    require_ok(names.set_attribute(sparse, name, std::string(1000, 'v')));
  }
  require_ok(names.mknod(root, "pipe", 0010644));
  const u64 orphan = require_ok(names.tmpfile(root));
  require_ok(files.write(orphan, 0, 30'000));
}

class PopulatedPool {
 public:
  PopulatedPool() : pool_(options()) {
    pool_.unmount();  // an empty pool
    file_ = std::make_unique<PoolFile>(pool_.device_paths()[0]);
    pool_.mount();
    populate(pool_.host());
    pool_.unmount();
    require_clean({file_->path()});
    file_->keep();
  }

  PoolFile& file() { return *file_; }

  // Mounts the pool in the file, calls use(host) and unmounts. False: the pool is refused.
  template <class Use>
  bool mounted(Use&& use) {
    try {
      pool_.mount();
    } catch (const std::runtime_error&) {
      pool_.crash();
      return false;
    }
    use(pool_.host());
    try {
      pool_.unmount();
    } catch (const std::runtime_error&) {  // the last checkpoint finds damage
      pool_.crash();
    }
    return true;
  }

 private:
  static test::TestPoolOptions options() {
    test::TestPoolOptions options;
    options.device_count = 1;
    options.device_bytes = pool_file_bytes;
    options.starts_workers = false;
    options.memory = {.frame_count = 2048, .staging_count = 1024, .shard_count = 2};
    options.config.command_count = 128;
    return options;
  }

  test::TestPool pool_;
  std::unique_ptr<PoolFile> file_;
};

}  // namespace gpu4fs::fuzz
