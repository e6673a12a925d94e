// Random file commands of one client on two files of its own, compared with byte vectors. For any engine and any test
// framework: differences are reported as text.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/bits.hpp"
#include "fmt/format.h"
#include "support/file_commands.hpp"
#include "support/group_runner.hpp"

namespace gpu4fs::test {

inline constexpr u64 walk_size_max = 700000;

struct ModelFile {
  u64 inode = 0;
  std::string name;
  std::string bytes;
};

// One client with two files of its own. A call returns false if engine and model differ; difference() describes it, and
// the walk ends.
template <class Connection>
class FileWalk {
 public:
  FileWalk(engine::EngineHost& host, u64 seed) : client_(host), seed_(seed), random_(seed) {
    for (u32 i = 0; i < 2; ++i) {
      files_[i].name = fmt::format("file{}_{}", seed, i);
      create(files_[i]);
    }
  }

  const ModelFile* files() const { return files_; }
  const std::string& difference() const { return difference_; }

  bool step() {
    if (!difference_.empty()) return false;
    ++step_count_;
    ModelFile& file = files_[random(2)];
    const u64 choice = random(100);
    if (choice < 30) return write(file);
    if (choice < 38) return append(file);
    if (choice < 44) return truncate(file);
    if (choice < 60) return fallocate(file);
    if (choice < 70) return copy();
    if (choice < 74) return seek(file);
    if (choice < 75) return recreate(file);
    if (choice < 80) return checkpoint();
    if (choice < 90) return read(file);
    return compare(file, 0, walk_size_max + 100000);
  }

  bool checkpoint() {
    const ring::Completion done = client_.checkpoint();
    if (done.status != Status::ok) return differ("checkpoint answers {}", status_name(done.status));
    durable_epoch = done.result;
    durable_files.assign(files_, files_ + 2);
    return true;
  }
  // The state after a crash, if no other client works: the files as of `durable_epoch`.
  u64 durable_epoch = 0;
  std::vector<ModelFile> durable_files;

  bool read_all() {
    return compare(files_[0], 0, walk_size_max + 100000) && compare(files_[1], 0, walk_size_max + 100000);
  }

  bool remove_all() { return remove(files_[0]) && remove(files_[1]); }

 private:
  template <class... Values>
  bool differ(fmt::format_string<Values...> what, Values&&... values) {
    if (!difference_.empty()) return false;
    difference_ =
        fmt::format("walk {}, step {}: ", seed_, step_count_) + fmt::format(what, std::forward<Values>(values)...);
    return false;
  }
  bool expect_ok(const char* what, const ring::Completion& done, u64 result) {
    if (done.status != Status::ok) return differ("{} answers {}", what, status_name(done.status));
    if (done.result != result) return differ("{} answers {}, expected {}", what, done.result, result);
    return true;
  }
  bool expect_size(const char* what, const ModelFile& file) {
    const u64 size = client_.attributes().size_bytes;
    return size == file.bytes.size() ? true : differ("{} tells size {}, expected {}", what, size, file.bytes.size());
  }

  u64 random(u64 bound) { return random_.next() % bound; }
  // Often at the borders of pages, blocks and the inline area.
  u64 offset() {
    switch (random(6)) {
      case 0:
        return random(140);
      case 1:
        return random(150) * 4096;
      case 2:
        return random(2) * (2 << 20) / 4 + random(9000);
      default:
        return random(walk_size_max);
    }
  }
  u64 length() {
    switch (random(5)) {
      case 0:
        return 1 + random(140);
      case 1:
        return 4096 * (1 + random(8));
      case 2:
        return 1 + random(200000);
      default:
        return 1 + random(12000);
    }
  }
  void fill(u64 count) {
    for (u64 i = 0; i < count; i += 8) {
      const u64 word = random_.next();
      std::memcpy(client_.data() + i, &word, 8);
    }
  }

  bool create(ModelFile& file) {
    const ring::Completion done = client_.create(file.name);
    if (done.status != Status::ok) return differ("create answers {}", status_name(done.status));
    file.inode = done.result;
    file.bytes.clear();
    return true;
  }
  bool remove(const ModelFile& file) {
    return expect_ok("unlink", client_.unlink(file.name), file.inode) &&
           expect_ok("reclaim", client_.reclaim(file.inode), 1);
  }
  bool recreate(ModelFile& file) { return remove(file) && create(file); }
  bool store(ModelFile& file, u64 at, u64 count) {
    if (file.bytes.size() < at + count) file.bytes.resize(at + count);
    std::memcpy(file.bytes.data() + at, client_.data(), count);
    return true;
  }
  bool write(ModelFile& file) {
    const u64 at = offset();
    const u64 count = length();
    fill(count);
    return expect_ok("write", client_.write(file.inode, at, count), count) && store(file, at, count);
  }
  bool append(ModelFile& file) {
    const u64 count = random(2) == 0 ? 1 + random(100) : length();
    if (file.bytes.size() + count > walk_size_max + 50000) return true;
    fill(count);
    const ring::Completion done = client_.write(file.inode, 0, count, 0, wire::command_flag_append);
    return expect_ok("append", done, count) && store(file, file.bytes.size(), count);
  }
  bool truncate(ModelFile& file) {
    const u64 size = random(8) == 0 ? 0 : offset();
    if (!expect_ok("truncate", client_.truncate(file.inode, size), 0)) return false;
    file.bytes.resize(size);
    return expect_size("truncate", file);
  }
  bool fallocate(ModelFile& file) {
    static constexpr u32 modes[] = {0, 1, 3, 3, 0x10, 0x11};
    const u32 mode = modes[random(6)];
    const u64 at = offset();
    const u64 count = length();
    if (!expect_ok("fallocate", client_.fallocate(file.inode, mode, at, count), 0)) return false;
    if ((mode & 0x12) != 0) {
      for (u64 i = at; i < minimum<u64>(at + count, file.bytes.size()); ++i) file.bytes[i] = 0;
    }
    if ((mode & 1) == 0 && file.bytes.size() < at + count) file.bytes.resize(at + count);
    return expect_size("fallocate", file);
  }
  bool copy() {
    const u64 from_index = random(2);
    ModelFile& from = files_[from_index];
    ModelFile& to = files_[random(4) == 0 ? from_index : 1 - from_index];
    const u64 from_at = offset();
    u64 to_at = offset();
    if (random(2) == 0) to_at = align_down(to_at, 4096) + from_at % 4096;
    const u64 count = length();
    const ring::Completion done = client_.copy_range(from.inode, from_at, to.inode, to_at, count);
    if (from_at >= from.bytes.size()) return expect_ok("copy behind the end", done, 0);
    const u64 wanted = minimum<u64>(count, from.bytes.size() - from_at);
    const u64 distance = from_at < to_at ? to_at - from_at : from_at - to_at;
    if (&from == &to && distance < wanted) {
      if (done.status == Status::invalid_argument) return true;
      return differ("copy onto itself answers {}", status_name(done.status));
    }
    if (done.status != Status::ok) return differ("copy answers {}", status_name(done.status));
    if (done.result == 0 || done.result > wanted) return differ("copy answers {} of {}", done.result, wanted);
    const std::string piece = from.bytes.substr(from_at, done.result);
    if (to.bytes.size() < to_at + done.result) to.bytes.resize(to_at + done.result);
    to.bytes.replace(to_at, done.result, piece);
    return true;
  }
  // The parts that SEEK_DATA skips are zero.
  bool seek(ModelFile& file) {
    const u64 at = offset();
    const ring::Completion data = client_.seek(file.inode, 3, at);
    const ring::Completion hole = client_.seek(file.inode, 4, at);
    if (at >= file.bytes.size()) {
      const bool right = data.status == Status::no_such_data && hole.status == Status::no_such_data;
      return right ? true : differ("seek behind the end: {}, {}", status_name(data.status), status_name(hole.status));
    }
    if (hole.status != Status::ok || hole.result > file.bytes.size()) {
      return differ("seek for a hole: {} {}", status_name(hole.status), hole.result);
    }
    const u64 data_at = data.status == Status::ok ? data.result : file.bytes.size();
    if (data_at < at || (data_at != at && hole.result != at)) {
      return differ("from {} data at {}, hole at {}", at, data_at, hole.result);
    }
    const bool zeros = file.bytes.substr(at, data_at - at).find_first_not_of('\0') == std::string::npos;
    return zeros ? true : differ("data between {} and {} are passed over", at, data_at);
  }
  // A part of one page behind it, twice: the second time, at the latest, it can do without the lock.
  bool read(ModelFile& file) {
    const u64 at = offset();
    const u64 count = length();
    const u64 in_page = minimum(count, page_size - at % page_size);
    return compare(file, at, count) && compare(file, at, in_page) && compare(file, at, in_page);
  }
  bool compare(const ModelFile& file, u64 at, u64 count) {
    std::memset(client_.data(), 0xcc, count);
    const u64 expected = at >= file.bytes.size() ? 0 : minimum<u64>(count, file.bytes.size() - at);
    // Any alignment of the destination.
    const u64 shift = random(32);
    if (!expect_ok("read", client_.read(file.inode, at, count, shift), expected)) return false;
    const u64 first = first_difference(file, at, expected, shift);
    if (first == expected) return true;
    return differ("{}: {}", file.name, explain_difference(file, {at, expected, shift, first}));
  }

  struct WrongRead {
    u64 at;
    u64 count;
    u64 shift;
    u64 first;  // byte at + first is wrong
  };
  // The index of the first wrong byte of a read, `count`: all are right.
  u64 first_difference(const ModelFile& file, u64 at, u64 count, u64 shift) {
    u64 i = 0;
    while (i < count && client_.data(shift)[i] == static_cast<u8>(file.bytes[at + i])) ++i;
    return i;
  }
  // Which bytes of the client's memory are wrong, whether they become right later, and what another read finds.
  std::string explain_difference(const ModelFile& file, const WrongRead& read) {
    u64 end = read.first;
    for (u64 i = read.first; i < read.count; ++i) {
      if (client_.data(read.shift)[i] != static_cast<u8>(file.bytes[read.at + i])) end = i + 1;
    }
    const std::string text =
        fmt::format("read of {} bytes at {} to offset {}: byte {} is {:#x}, expected {:#x}; the last wrong byte is {}",
                    read.count, read.at, read.shift, read.at + read.first, client_.data(read.shift)[read.first],
                    static_cast<u8>(file.bytes[read.at + read.first]), read.at + end - 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const bool is_late = first_difference(file, read.at, read.count, read.shift) == read.count;
    const ring::Completion done = client_.read(file.inode, read.at, read.count, read.shift);
    const bool is_right = done.status == Status::ok && done.result == read.count &&
                          first_difference(file, read.at, read.count, read.shift) == read.count;
    return fmt::format("{}; {} 10 ms later; another read is {}", text, is_late ? "right" : "the same",
                       is_right ? "right" : "wrong");
  }

  BasicFileClient<Connection> client_;
  u64 seed_;
  Sequence random_;
  u64 step_count_ = 0;
  ModelFile files_[2];
  std::string difference_;
};

// The content of `files` on `host`; empty: exactly that.
template <class Connection>
std::string stored_difference(engine::EngineHost& host, const std::vector<ModelFile>& files) {
  BasicFileClient<Connection> client(host);
  for (const ModelFile& file : files) {
    const ring::Completion found = client.lookup(file.name);
    if (found.status != Status::ok) return fmt::format("{}: lookup answers {}", file.name, status_name(found.status));
    if (found.result != file.inode) return fmt::format("{} is inode {}, not {}", file.name, found.result, file.inode);
    const ring::Completion done = client.read(file.inode, 0, walk_size_max + 300000);
    if (done.status != Status::ok) return fmt::format("{}: read answers {}", file.name, status_name(done.status));
    if (done.result != file.bytes.size()) {
      return fmt::format("{} has {} bytes, expected {}", file.name, done.result, file.bytes.size());
    }
    if (std::memcmp(client.data(), file.bytes.data(), file.bytes.size()) != 0) return file.name + " has other bytes";
  }
  return {};
}

}  // namespace gpu4fs::test
