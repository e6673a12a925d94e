#include "bench/drive_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/limits.hpp"
#include "bench/result.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"
#include "pool/pool_make.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u32 depth_log2 = 10;
constexpr const char* file_name = "file";

}  // namespace

DrivePool::DrivePool(const DrivePoolOptions& options) {
  pool::MakePoolOptions make;
  make.device_paths = options.paths;
  make.label = "bench";
  make.force = true;
  make.data_profile = make.metadata_profile = options.profile;
  pool::make_pool(make);
  session::ServerOptions server;
  server.device_paths = options.paths;
  server.engine = options.engine;
  server.device_access = options.access;
  server.drives = options.drives;
  // Of devices that are not mapped.
  (options.engine == session::EngineChoice::cuda ? server.host_cache_bytes : server.page_cache_bytes) =
      options.page_cache_bytes;
  server.page_readahead_bytes = options.page_readahead_bytes;
  server.commit_interval_s = options.commit_interval_s;
  server_ = std::make_unique<server::PoolServer>(server);
  server_->start();
}

DrivePool::~DrivePool() {
  if (server_) (void)server_->stop();
}

void DrivePool::stop() {
  const bool clean = server_->stop();
  server_.reset();
  if (!clean) throw std::runtime_error("the last checkpoint failed");
}

DriveFile::DriveFile(server::PoolServer& server, u64 length_bytes)
    : server_(server),
      client_(frontend::open_local_session(server, length_bytes + BenchClient::control_bytes, depth_log2)),
      versions_(length_bytes / page_size) {}

template <class Work>
DriveTime DriveFile::time_of(const Work& work) {
  const double cpu_began = process_cpu_seconds();
  const double media_cpu_began = server_.media_cpu_seconds();
  const double began = now_seconds();
  work();
  const double seconds = now_seconds() - began;
  return {seconds, process_cpu_seconds() - cpu_began, server_.media_cpu_seconds() - media_cpu_began};
}

DriveTime DriveFile::write_whole(u64 step_bytes, u32 depth) {
  if (inode_ != 0) remove();
  std::fill(versions_.begin(), versions_.end(), ++newest_);
  fill_pattern(memory(0), newest_, 0, versions_.size());
  return time_of([&] {
    inode_ = client_.create(format::inode_number_root, file_name);
    client_.stream(wire::Opcode::write, inode_, versions_.size() * page_size, step_bytes, depth,
                   client_.buffer_address(0));
    fsync();
  });
}

DriveTime DriveFile::read_whole(u64 step_bytes, u32 depth) {
  const u64 length = versions_.size() * page_size;
  std::memset(memory(0), 0, length);
  const DriveTime time = time_of(
      [&] { client_.stream(wire::Opcode::read, inode_, length, step_bytes, depth, client_.buffer_address(0)); });
  for (u64 page = 0; page < versions_.size(); ++page) check(page);
  return time;
}

DriveTime DriveFile::read_pages(const std::vector<u32>& pages, u32 depth) {
  for (const u32 page : pages) clear(page);
  const DriveTime time = time_of([&] { transfer_pages(wire::Opcode::read, pages, depth); });
  for (const u32 page : pages) check(page);
  return time;
}

DriveTime DriveFile::write_pages(const std::vector<u32>& pages, u32 depth) {
  ++newest_;
  for (const u32 page : pages) {
    versions_[page] = newest_;
    fill_pattern(memory(page), newest_, page, 1);
  }
  return time_of([&] {
    transfer_pages(wire::Opcode::write, pages, depth);
    fsync();
  });
}

// A place in flight is free again as soon as its command has completed, in any order. The ring is full before that if
// an old command is in the way, which is waited for.
void DriveFile::transfer_pages(wire::Opcode opcode, const std::vector<u32>& pages, u32 depth) {
  client::Session& session = client_.session();
  std::vector<u64> positions;
  u64 next = 0;
  const auto submit = [&] {
    const u64 offset = u64{pages[next]} * page_size;
    u64 position = 0;
    const Status status = session.submit(
        BenchClient::transfer(opcode, inode_, offset, page_size, client_.buffer_address(offset)), &position);
    if (status == Status::ok) positions.push_back(position);
    next += status == Status::ok ? 1 : 0;
    return status == Status::ok;
  };
  while (next < pages.size() || !positions.empty()) {
    while (next < pages.size() && positions.size() < depth && submit()) {
    }
    bool is_first = true;  // the oldest one is waited for
    std::erase_if(positions, [&](u64 position) {
      if (!is_first && !session.is_done(position)) return false;
      is_first = false;
      const client::Reply reply = session.finish(position);
      if (reply.status != Status::ok || reply.result != page_size) {
        throw std::runtime_error(fmt::format("a page: {}, {} bytes", status_text(reply.status), reply.result));
      }
      return true;
    });
  }
}

void DriveFile::fsync() {
  wire::Command command{};
  command.opcode = wire::Opcode::fsync;
  command.inode = inode_;
  client_.call(command, "fsync");
}

void DriveFile::remove() {
  client_.unlink(format::inode_number_root, file_name);
  client_.sync();
  inode_ = 0;
}

}  // namespace gpu4fs::bench
