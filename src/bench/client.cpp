#include "bench/client.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <stdexcept>

#include "base/check.hpp"
#include "base/limits.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 word_step = 0x9e3779b97f4a7c15ull;
constexpr u64 words_per_page = page_size / 8;

u64 page_seed(u64 file, u64 page) {
  u64 seed = (file + 1) * 0xd6e8feb86659fd93ull ^ (page + 1) * 0xa0761d6478bd642full;
  seed ^= seed >> 32;
  return seed * 0xe7037ed1a0b428dbull;
}

void require(Status status, const char* what) {
  if (status != Status::ok) throw std::runtime_error(fmt::format("{}: {}", what, status_text(status)));
}

}  // namespace

std::vector<u32> shuffled(u32 count, u64 seed) {
  std::vector<u32> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  return order;
}

void fill_pattern(void* to, u64 file, u64 first_page, u64 page_count) {
  auto* words = static_cast<u64*>(to);
  for (u64 page = 0; page < page_count; ++page) {
    const u64 seed = page_seed(file, first_page + page);
    for (u64 i = 0; i < words_per_page; ++i) words[page * words_per_page + i] = seed + i * word_step;
  }
}

void check_pattern(const void* content, u64 file, u64 first_page, u64 page_count) {
  const auto* words = static_cast<const u64*>(content);
  for (u64 page = 0; page < page_count; ++page) {
    const u64 seed = page_seed(file, first_page + page);
    u64 difference = 0;
    for (u64 i = 0; i < words_per_page; ++i) {
      difference |= words[page * words_per_page + i] ^ (seed + i * word_step);
    }
    if (difference != 0) {
      throw std::runtime_error(fmt::format("file {} page {}: wrong content was read", file, first_page + page));
    }
  }
}

client::Reply BenchClient::call(const wire::Command& command, const char* what) {
  const client::Reply reply = session_.call(command);
  require(reply.status, what);
  return reply;
}

wire::Command BenchClient::named(wire::Opcode opcode, u64 directory, const std::string& name) {
  GPU4FS_CHECK_LE(name.size(), u64{name_length_max});
  std::memcpy(session_.data(), name.data(), name.size());
  wire::Command command{};
  command.opcode = opcode;
  command.inode = directory;
  command.name = session_.address_of(session_.data());
  command.name_length = static_cast<u16>(name.size());
  command.output = session_.address_of(session_.data() + page_size);
  return command;
}

u64 BenchClient::create(u64 directory, const std::string& name) {
  wire::Command command = named(wire::Opcode::create, directory, name);
  command.mode = S_IFREG | 0644;
  command.mask = O_RDWR | O_CREAT | O_EXCL;
  return call(command, "create").result;
}

u64 BenchClient::make_directory(u64 directory, const std::string& name) {
  wire::Command command = named(wire::Opcode::mkdir, directory, name);
  command.mode = S_IFDIR | 0755;
  return call(command, "mkdir").result;
}

void BenchClient::unlink(u64 directory, const std::string& name) {
  const u64 orphan = call(named(wire::Opcode::unlink, directory, name), "unlink").result;
  if (orphan == 0) return;
  wire::Command command{};
  command.opcode = wire::Opcode::reclaim;
  command.inode = orphan;
  call(command, "reclaim");
}

void BenchClient::set_times(u64 inode) {
  wire::Command command{};
  command.opcode = wire::Opcode::setattr;
  command.inode = inode;
  command.mask = format::set_modification_time_now;
  std::memset(session_.data() + 2 * page_size, 0, sizeof(format::AttributeRecord));
  command.data = session_.address_of(session_.data() + 2 * page_size);
  command.output = session_.address_of(session_.data() + page_size);
  call(command, "setattr");
}

void BenchClient::sync() {
  wire::Command command{};
  command.opcode = wire::Opcode::sync;
  call(command, "sync");
}

u64 BenchClient::available_bytes() {
  wire::Command command{};
  command.opcode = wire::Opcode::statfs;
  command.output = session_.address_of(session_.data() + page_size);
  call(command, "statfs");
  wire::StatfsRecord record{};
  std::memcpy(&record, session_.data() + page_size, sizeof(record));
  return record.page_available * page_size;
}

wire::Command BenchClient::transfer(wire::Opcode opcode, u64 inode, u64 offset, u64 length, u64 data) {
  wire::Command command{};
  command.opcode = opcode;
  command.inode = inode;
  command.offset = offset;
  command.length = length;
  command.data = data;
  return command;
}

void BenchClient::stream(wire::Opcode opcode, u64 inode, u64 length, u64 step, u32 in_flight, u64 data) {
  struct Pending {
    u64 position;
    u64 length;
  };
  std::deque<Pending> pending;
  const char* what = opcode == wire::Opcode::read ? "read" : "write";
  for (u64 offset = 0; offset < length || !pending.empty();) {
    if (offset < length && pending.size() < in_flight) {
      const u64 part = std::min(step, length - offset);
      u64 position = 0;
      require(session_.submit(transfer(opcode, inode, offset, part, data + offset), &position), what);
      pending.push_back({position, part});
      offset += part;
      continue;
    }
    const client::Reply reply = session_.finish(pending.front().position);
    require(reply.status, what);
    if (reply.result != pending.front().length) {
      throw std::runtime_error(fmt::format("{}: {} of {} bytes", what, reply.result, pending.front().length));
    }
    pending.pop_front();
  }
}

}  // namespace gpu4fs::bench
