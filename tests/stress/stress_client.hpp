// One client thread of the stress tests: private files that it knows byte by byte, shared names that others change too,
// a shared log, and invalid commands.
#pragma once

#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test {

struct LogRecord {
  u32 client;
  u32 sequence;
  u64 check;
  u8 padding[48];
  static LogRecord make(u32 client, u32 sequence) {
    LogRecord record{};
    record.client = client;
    record.sequence = sequence;
    record.check = (u64{client} << 32 | sequence) * 0x9e3779b97f4a7c15ull;
    std::memset(record.padding, static_cast<int>(client + 1), sizeof(record.padding));
    return record;
  }
};
static_assert(sizeof(LogRecord) == 64);

// State that all clients share.
struct StressArea {
  std::vector<u64> shared_directories;
  u64 log_file = 0;
  u64 page_file = 0;  // all bytes of each of its pages always have one value
  bool tight = false;
  std::mutex mutex;
  std::string failure;  // the first one

  void fail(const std::string& text) {
    const std::lock_guard guard(mutex);
    if (failure.empty()) failure = text;
  }
  bool has_failed() {
    const std::lock_guard guard(mutex);
    return !failure.empty();
  }
};

class StressClient {
 public:
  static constexpr u32 private_file_count = 4;
  static constexpr u64 page_file_pages = 8;

  StressClient(TestPool& pool, StressArea& area, u32 index)
      : pool_(pool), area_(area), index_(index), random_(1000 + index) {
    open();
  }

  void open() {
    session_ = pool_.open_session();
    client_.emplace(*session_);
  }
  void close() {
    client_.reset();
    session_.reset();
  }

  void make_private_files(u64 directory) {
    for (u32 i = 0; i < private_file_count; ++i) {
      FileOperation op = named(wire::Opcode::create, directory, fmt::format("private_{}_{}", index_, i));
      op.mode = 0600;
      const client::Reply reply = client_->call(op);
      require(reply.status, {0}, "creating a private file");
      files_.push_back({reply.result, {}});
    }
  }

  void run(u32 steps) {
    for (u32 i = 0; i < steps && !area_.has_failed(); ++i) {
      const u64 choice = below(100);
      if (choice < 30) {
        write_private();
      } else if (choice < 42) {
        read_private();
      } else if (choice < 48) {
        truncate_private();
      } else if (choice < 56) {
        write_batch();
      } else if (choice < 62) {
        append_record();
      } else if (choice < 70) {
        use_page_file();
      } else if (choice < 90) {
        change_shared_names();
      } else if (choice < 92) {
        require(client_->simple(wire::Opcode::fsync, files_[0].number).status, {0}, "fsync");
      } else {
        send_nonsense();
      }
    }
  }

  // All private files, in their last state.
  void verify() {
    for (const PrivateFile& file : files_) verify_range(file, 0, file.content.size() + 1);
  }

  u32 records_written() const { return records_; }
  FileClient& client() { return *client_; }

 private:
  struct PrivateFile {
    u64 number;
    SparseBytes content;
  };

  u64 below(u64 bound) { return random_.next() % bound; }
  static FileOperation named(wire::Opcode opcode, u64 directory, const std::string& name) {
    FileOperation op;
    op.opcode = opcode;
    op.inode = directory;
    op.name = name;
    return op;
  }
  bool require(Status status, const std::set<int>& allowed, const char* what) {
    const int error = to_errno(status);
    if (allowed.count(error) != 0 || (area_.tight && error == ENOSPC)) return error == 0;
    area_.fail(fmt::format("client {}: {} answers {}", index_, what, status_name(status)));
    return false;
  }
  PrivateFile& some_file() { return files_[below(files_.size())]; }
  std::vector<u8> random_bytes(u64 length) {
    std::vector<u8> bytes(length);
    u64 word = 0;
    for (u64 i = 0; i < length; ++i) {
      if (i % 8 == 0) word = random_.next();
      bytes[i] = static_cast<u8>(word >> (8 * (i % 8)));
    }
    return bytes;
  }

  void write_private() {
    PrivateFile& file = some_file();
    FileOperation op;
    op.opcode = wire::Opcode::write;
    op.inode = file.number;
    op.offset = below(600'000);
    op.length = 1 + below(below(8) == 0 ? 300'000 : 12'000);
    const std::vector<u8> bytes = random_bytes(op.length);
    const client::Reply reply = client_->call(op, bytes);
    if (!require(reply.status, {0}, "a private write")) return;
    if (reply.result != op.length && !area_.tight) area_.fail("a short private write");
    file.content.write(op.offset, bytes.data(), reply.result);
  }

  void verify_range(const PrivateFile& file, u64 begin, u64 end) {
    constexpr u64 unit = u64{256} << 10;
    for (u64 at = begin; at < end; at += unit) {
      const u64 length = std::min(unit, end - at);
      const u64 expected = at >= file.content.size() ? 0 : std::min(length, file.content.size() - at);
      const client::Reply reply = client_->simple(wire::Opcode::read, file.number, at, length);
      if (!require(reply.status, {0}, "a private read")) return;
      const bool equal =
          reply.result == expected && !file.content.first_difference(at, client_->data(), expected).has_value();
      if (!equal) {
        area_.fail(fmt::format("client {}: inode {} differs at {}", index_, file.number, at));
        return;
      }
    }
  }
  void read_private() {
    const PrivateFile& file = some_file();
    const u64 begin = below(700'000);
    verify_range(file, begin, begin + 1 + below(60'000));
  }

  void truncate_private() {
    PrivateFile& file = some_file();
    const u64 size = below(3) == 0 ? 0 : below(700'000);
    const client::Reply reply = client_->simple(wire::Opcode::truncate, file.number, size);
    if (require(reply.status, {0}, "a private truncate")) file.content.resize(size);
  }

  // Several writes to one file at once, at different offsets.
  void write_batch() {
    constexpr u32 count = 4;
    constexpr u64 unit = 20'000;
    PrivateFile& file = some_file();
    u64 positions[count] = {};
    std::vector<u8> bytes[count];
    const u64 base = below(500'000);
    for (u32 i = 0; i < count; ++i) {
      FileOperation op;
      op.opcode = wire::Opcode::write;
      op.inode = file.number;
      op.offset = base + i * unit;
      op.length = 1 + below(unit);
      bytes[i] = random_bytes(op.length);
      wire::Command command = client_->command_of(op);
      u8* place = client_->data() + i * unit;
      std::memcpy(place, bytes[i].data(), bytes[i].size());
      command.data = session_->address_of(place);
      command.output = 0;
      const Status status = session_->submit(command, &positions[i]);
      require(status, {0}, "submitting");
    }
    session_->wake_engine();
    for (u32 i = 0; i < count; ++i) {
      const client::Reply reply = session_->finish(positions[count - 1 - i]);
      const u32 which = count - 1 - i;
      if (!require(reply.status, {0}, "a write of a batch")) continue;
      file.content.write(base + which * unit, bytes[which].data(), reply.result);
    }
    verify_range(file, base, base + count * unit);
  }

  void append_record() {
    const LogRecord record = LogRecord::make(index_, records_);
    FileOperation op;
    op.opcode = wire::Opcode::write;
    op.inode = area_.log_file;
    op.append = true;
    op.length = sizeof(record);
    std::vector<u8> bytes(sizeof(record));
    std::memcpy(bytes.data(), &record, sizeof(record));
    const client::Reply reply = client_->call(op, bytes);
    if (!require(reply.status, {0}, "appending")) return;
    if (reply.result != sizeof(record)) area_.fail("a short append");
    ++records_;
  }

  // Readers of the same file see a write completely or not at all.
  void use_page_file() {
    if (below(2) == 0) {
      FileOperation op;
      op.opcode = wire::Opcode::write;
      op.inode = area_.page_file;
      op.offset = below(page_file_pages) * page_size;
      op.length = page_size;
      require(client_->call(op, std::vector<u8>(page_size, static_cast<u8>(below(256)))).status, {0}, "a page write");
      return;
    }
    const client::Reply reply = client_->simple(wire::Opcode::read, area_.page_file, 0, page_file_pages * page_size);
    if (!require(reply.status, {0}, "a page read")) return;
    for (u64 page = 0; page < reply.result / page_size; ++page) {
      const u8* bytes = client_->data() + page * page_size;
      if (std::memcmp(bytes, bytes + 1, page_size - 1) != 0) area_.fail("a torn page is seen");
    }
  }

  u64 shared_directory() { return area_.shared_directories[below(area_.shared_directories.size())]; }
  std::string shared_name() { return std::string(1, static_cast<char>('a' + below(6))); }

  void reclaim(u64 number) {
    if (number == 0) return;
    require(client_->simple(wire::Opcode::reclaim, number).status, {0, ESTALE, EBUSY, EINVAL}, "reclaim");
  }

  void change_shared_names() {
    using wire::Opcode;
    FileOperation op = named(Opcode::create, shared_directory(), shared_name());
    op.mode = 0644;
    const u64 choice = below(12);
    if (choice < 3) {
      require(client_->call(op).status, {0, EISDIR, ELOOP}, "create");
    } else if (choice < 5) {
      op.opcode = Opcode::unlink;
      const client::Reply reply = client_->call(op);
      if (require(reply.status, {0, ENOENT, EISDIR}, "unlink")) reclaim(reply.result);
    } else if (choice == 5) {
      op.opcode = Opcode::mkdir;
      require(client_->call(op).status, {0, EEXIST}, "mkdir");
    } else if (choice == 6) {
      op.opcode = Opcode::rmdir;
      const client::Reply reply = client_->call(op);
      if (require(reply.status, {0, ENOENT, ENOTDIR, ENOTEMPTY}, "rmdir")) reclaim(reply.result);
    } else if (choice == 7) {
      op.opcode = Opcode::symlink;
      op.text = std::string(1 + below(300), 'l');
      require(client_->call(op).status, {0, EEXIST}, "symlink");
    } else if (choice < 10) {
      op.opcode = Opcode::rename;
      op.second_inode = shared_directory();
      op.second_name = shared_name();
      const u32 flags[] = {0, 0, 1, 2};
      op.mask = flags[below(4)];
      const client::Reply reply = client_->call(op);
      const std::set<int> allowed = {0, ENOENT, EEXIST, ENOTDIR, EISDIR, ENOTEMPTY, EINVAL};
      if (require(reply.status, allowed, "rename")) reclaim(reply.result);
    } else {
      use_shared_name(op);
    }
  }

  // Looks up a name and uses the inode found, which may be gone by then.
  void use_shared_name(FileOperation& op) {
    using wire::Opcode;
    op.opcode = Opcode::lookup;
    const client::Reply found = client_->call(op);
    if (!require(found.status, {0, ENOENT}, "lookup")) return;
    const std::set<int> allowed = {0, ESTALE, EISDIR, EINVAL, ENOTDIR, ENOENT, EEXIST, EPERM};
    switch (below(4)) {
      case 0: {
        FileOperation link = named(Opcode::link, shared_directory(), shared_name());
        link.second_inode = found.result;
        require(client_->call(link).status, allowed, "link");
        return;
      }
      case 1: {
        FileOperation write;
        write.opcode = Opcode::write;
        write.inode = found.result;
        write.offset = below(20'000);
        write.length = 100;
        require(client_->call(write, random_bytes(100)).status, allowed, "writing a shared file");
        return;
      }
      case 2: {
        FileOperation list;
        list.opcode = Opcode::readdir;
        list.inode = op.inode;
        list.length = 2000;
        list.mask = static_cast<u32>(below(2));
        require(client_->call(list).status, allowed, "readdir");
        return;
      }
      default:
        require(client_->simple(Opcode::getattr, found.result).status, allowed, "getattr");
    }
  }

  // None of these may have any effect, and none may succeed.
  void send_nonsense() {
    using wire::Opcode;
    wire::Command c{};
    const u64 bad_numbers[] = {0, 2, 3, 7, u64{1} << 39, u64{1} << 60, ~u64{0}};
    c.inode = bad_numbers[below(7)];
    c.second_inode = bad_numbers[below(7)];
    c.output = session_->address_of(session_->data() + 256);
    c.data = c.output;
    c.name = c.output;
    c.name_length = 1;
    c.second_name_length = 1;
    c.length = 16;
    const Opcode opcodes[] = {Opcode::read,          Opcode::write,   Opcode::unlink,   Opcode::create,
                              Opcode::setattr,       Opcode::getattr, Opcode::readdir,  Opcode::rename,
                              Opcode::lookup,        Opcode::link,    Opcode::truncate, Opcode::copy_range,
                              Opcode::set_attribute, Opcode::tmpfile};
    c.opcode = opcodes[below(14)];
    switch (below(5)) {
      case 0:
        c.opcode = static_cast<Opcode>(200 + below(60000));
        break;
      case 1: {
        const u32 place = below(std::size(wire::command_rows) + 1);
        if (place == 0) c.opcode = Opcode::none;
        if (place != 0 && wire::command_rows[place - 1].sender == wire::Sender::server) {
          c.opcode = wire::command_rows[place - 1].opcode;
        }
        break;
      }
      case 2:
        c.opcode = Opcode::write;
        c.inode = files_[0].number;
        c.data = wire::ring_address(static_cast<unsigned>(below(3)), session_->data_bytes() - below(16));
        c.length = 17 + below(u64{1} << 40);
        break;
      case 3:
        c.opcode = Opcode::read;
        c.inode = files_[0].number;
        c.data = wire::ring_address(static_cast<unsigned>(1 + below(200)), below(1u << 30));
        if (files_[0].content.size() == 0) return;  // nothing to read: the address is irrelevant
        break;
      default:
        break;
    }
    const client::Reply reply = session_->call(c);
    if (reply.status == Status::ok) {
      area_.fail(fmt::format("nonsense succeeds: opcode {} inode {}", static_cast<u32>(c.opcode), c.inode));
    }
  }

  TestPool& pool_;
  StressArea& area_;
  u32 index_;
  Sequence random_;
  std::unique_ptr<client::Session> session_;
  std::optional<FileClient> client_;
  std::vector<PrivateFile> files_;
  u32 records_ = 0;
};

}  // namespace gpu4fs::test
