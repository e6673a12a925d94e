// A growing pool on files with a server over it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/session.hpp"
#include "fsck/check/check_pool.hpp"
#include "pool/pool_make.hpp"
#include "server/pool_server.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/memory_folder.hpp"

namespace gpu4fs::test {

inline constexpr u64 growth_write_bytes = u64{128} << 10;

// Removed at the end.
class GrowthFolder {
 public:
  explicit GrowthFolder(const std::string& parent = memory_folder()) {
    std::error_code none;
    std::string name =
        std::filesystem::is_directory(parent, none) ? parent : std::filesystem::temp_directory_path().string();
    name += "/gpu4fs_growth_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder");
    path_ = name;
  }
  GrowthFolder(const GrowthFolder&) = delete;
  GrowthFolder& operator=(const GrowthFolder&) = delete;
  ~GrowthFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A server and one session.
class GrowthMount {
 public:
  explicit GrowthMount(const std::vector<std::string>& devices,
                       session::DiscardScope discard = session::DiscardScope::memory)
      : GrowthMount(options(devices, discard)) {}
  explicit GrowthMount(const session::ServerOptions& options) : server_(std::make_unique<server::PoolServer>(options)) {
    server_->start();
    open();
  }
  ~GrowthMount() { close(); }

  // Those of such a mount.
  static session::ServerOptions options(const std::vector<std::string>& devices,
                                        session::DiscardScope discard = session::DiscardScope::memory) {
    session::ServerOptions options;
    options.discard = discard;
    options.device_paths = devices;
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 2;
    options.commit_interval_s = 0;
    options.cache_bytes = u64{16} << 20;
    return options;
  }

  server::PoolServer& server() { return *server_; }
  FileClient& files() { return *client_; }

  std::unique_ptr<client::Session> open_session() {
    server::LocalSession local = server_->open_session(u64{1} << 20);
    return std::make_unique<client::Session>(client::Connection{local.producer, local.port, std::move(local.owner)});
  }
  void close() {
    client_.reset();
    session_.reset();
  }
  // Ends the mount; the devices are free.
  bool stop() {
    close();
    const bool clean = server_->stop();
    server_.reset();
    return clean;
  }
  void crash() {
    close();
    server_->abandon();
    server_.reset();
  }

 private:
  void open() {
    session_ = open_session();
    client_ = std::make_unique<FileClient>(*session_);
  }

  std::unique_ptr<server::PoolServer> server_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<FileClient> client_;
};

// Of files. Block devices have none.
inline u64 allocated_bytes(const std::vector<std::string>& paths) {
  u64 sum = 0;
  for (const std::string& path : paths) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    if (S_ISREG(status.st_mode)) sum += static_cast<u64>(status.st_blocks) * 512;
  }
  return sum;
}

inline void empty_file(GrowthMount& mount, u64 inode) {
  EXPECT_EQ(mount.files().simple(wire::Opcode::truncate, inode, 0).status, Status::ok);
}

inline std::vector<u8> growth_content(u64 seed) {
  std::vector<u8> bytes(growth_write_bytes);
  fill_random(bytes.data(), bytes.size(), seed);
  return bytes;
}

inline u64 make_file(FileClient& files, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::mknod;
  op.inode = format::inode_number_root;
  op.name = name;
  op.mode = 0100644;
  const client::Reply made = files.call(op);
  EXPECT_EQ(made.status, Status::ok) << name;
  return made.result;
}

inline u64 find_file(FileClient& files, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::lookup;
  op.inode = format::inode_number_root;
  op.name = name;
  const client::Reply found = files.call(op);
  EXPECT_EQ(found.status, Status::ok) << name;
  return found.result;
}

// no_space also if only a part fits.
inline Status write_block(FileClient& files, u64 inode, u64 block, u64 seed) {
  FileOperation op;
  op.opcode = wire::Opcode::write;
  op.inode = inode;
  op.offset = block * growth_write_bytes;
  op.length = growth_write_bytes;
  const client::Reply written = files.call(op, growth_content(seed));
  return written.status == Status::ok && written.result != growth_write_bytes ? Status::no_space : written.status;
}

// Writes blocks from `first` on until the pool is full; returns their number.
inline u64 fill_file(FileClient& files, u64 inode, u64 first, u64 seed) {
  for (u64 block = first;; ++block) {
    const Status status = write_block(files, inode, block, seed + block);
    if (status == Status::ok) continue;
    EXPECT_EQ(status, Status::no_space);
    return block - first;
  }
}

inline testing::AssertionResult has_blocks(FileClient& files, u64 inode, u64 count, u64 seed) {
  for (u64 block = 0; block < count; ++block) {
    const client::Reply read = files.simple(wire::Opcode::read, inode, block * growth_write_bytes, growth_write_bytes);
    if (read.status != Status::ok || read.result != growth_write_bytes) {
      return testing::AssertionFailure() << "block " << block << ": " << status_name(read.status) << ", "
                                         << read.result;
    }
    const std::vector<u8> expected = growth_content(seed + block);
    if (std::memcmp(files.data(), expected.data(), expected.size()) != 0) {
      return testing::AssertionFailure() << "block " << block << " differs";
    }
  }
  return testing::AssertionSuccess();
}

// "" or the first findings.
inline std::string find_problems(const std::vector<std::string>& devices) {
  std::string problems;
  fsck::CheckOptions options;
  options.device_paths = devices;
  options.on_finding = [&](const fsck::Finding& finding) {
    if (problems.size() >= 2000) return;
    problems += std::string(fsck::finding_kind(finding.id).id) + " " + finding.place + ": " + finding.text + "\n";
  };
  const fsck::CheckResult result = fsck::check_pool(options);
  return result.findings.error_count() == 0 ? "" : problems + "errors";
}

}  // namespace gpu4fs::test
