// Random file commands of one client on two files of its own, against byte vectors.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/file_fixture.hpp"
#include "support/group_runner.hpp"

namespace gpu4fs::test {

inline constexpr u64 walk_size_max = 700000;

struct ModelFile {
  u64 inode = 0;
  std::string name;
  std::string bytes;
};

// One client with two files of its own.
template <class Connection>
class FileWalk {
 public:
  FileWalk(FileEngine& engine, u64 seed) : client_(engine), seed_(seed), random_(seed) {
    for (u32 i = 0; i < 2; ++i) {
      files_[i].name = "file" + std::to_string(seed) + "_" + std::to_string(i);
      create(files_[i]);
    }
  }

  const ModelFile* files() const { return files_; }

  void step() {
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
    compare(file, 0, walk_size_max + 100000);
  }

  void checkpoint() {
    const ring::Completion done = client_.checkpoint();
    ASSERT_EQ(done.status, Status::ok) << status_name(done.status);
    durable_epoch = done.result;
    durable_files.assign(files_, files_ + 2);
  }
  // What a crash would leave, if no other client works: the files as of `durable_epoch`.
  u64 durable_epoch = 0;
  std::vector<ModelFile> durable_files;

  void read_all() {
    for (ModelFile& file : files_) compare(file, 0, walk_size_max + 100000);
  }

  void remove_all() {
    for (ModelFile& file : files_) {
      EXPECT_EQ(client_.unlink(file.name).result, file.inode);
      EXPECT_EQ(client_.reclaim(file.inode).result, 1u);
    }
  }

 private:
  u64 random(u64 bound) { return random_.next() % bound; }
  // Often at the borders of pages, blocks and the inline area.
  u64 offset() {
    switch (random(6)) {
      case 0: return random(140);
      case 1: return random(150) * 4096;
      case 2: return random(2) * (2 << 20) / 4 + random(9000);
      default: return random(walk_size_max);
    }
  }
  u64 length() {
    switch (random(5)) {
      case 0: return 1 + random(140);
      case 1: return 4096 * (1 + random(8));
      case 2: return 1 + random(200000);
      default: return 1 + random(12000);
    }
  }
  void fill(u64 count) {
    for (u64 i = 0; i < count; i += 8) {
      const u64 word = random_.next();
      std::memcpy(client_.data() + i, &word, 8);
    }
  }
  static void expect_ok(const char* what, const ring::Completion& done, u64 result) {
    ASSERT_EQ(done.status, Status::ok) << what << ": " << status_name(done.status);
    ASSERT_EQ(done.result, result) << what;
  }

  void create(ModelFile& file) {
    const ring::Completion done = client_.create(file.name);
    ASSERT_EQ(done.status, Status::ok) << status_name(done.status);
    file.inode = done.result;
    file.bytes.clear();
  }
  void recreate(ModelFile& file) {
    expect_ok("unlink", client_.unlink(file.name), file.inode);
    expect_ok("reclaim", client_.reclaim(file.inode), 1);
    create(file);
  }
  void store(ModelFile& file, u64 at, u64 count) {
    if (file.bytes.size() < at + count) file.bytes.resize(at + count);
    std::memcpy(file.bytes.data() + at, client_.data(), count);
  }
  void write(ModelFile& file) {
    const u64 at = offset();
    const u64 count = length();
    fill(count);
    expect_ok("write", client_.write(file.inode, at, count), count);
    store(file, at, count);
  }
  void append(ModelFile& file) {
    const u64 count = random(2) == 0 ? 1 + random(100) : length();
    if (file.bytes.size() + count > walk_size_max + 50000) return;
    fill(count);
    expect_ok("append", client_.write(file.inode, 0, count, 0, format::command_flag_append), count);
    store(file, file.bytes.size(), count);
  }
  void truncate(ModelFile& file) {
    const u64 size = random(8) == 0 ? 0 : offset();
    expect_ok("truncate", client_.truncate(file.inode, size), 0);
    file.bytes.resize(size);
    EXPECT_EQ(client_.attributes().size_bytes, size);
  }
  void fallocate(ModelFile& file) {
    static constexpr u32 modes[] = {0, 1, 3, 3, 0x10, 0x11};
    const u32 mode = modes[random(6)];
    const u64 at = offset();
    const u64 count = length();
    expect_ok("fallocate", client_.fallocate(file.inode, mode, at, count), 0);
    if ((mode & 0x12) != 0) {
      for (u64 i = at; i < minimum<u64>(at + count, file.bytes.size()); ++i) file.bytes[i] = 0;
    }
    if ((mode & 1) == 0 && file.bytes.size() < at + count) file.bytes.resize(at + count);
    EXPECT_EQ(client_.attributes().size_bytes, file.bytes.size());
  }
  void copy() {
    const u64 from_index = random(2);
    ModelFile& from = files_[from_index];
    ModelFile& to = files_[random(4) == 0 ? from_index : 1 - from_index];
    const u64 from_at = offset();
    u64 to_at = offset();
    if (random(2) == 0) to_at = align_down(to_at, 4096) + from_at % 4096;
    const u64 count = length();
    if (from_at >= from.bytes.size()) {
      return expect_ok("copy behind the end", client_.copy_range(from.inode, from_at, to.inode, to_at, count), 0);
    }
    const u64 wanted = minimum<u64>(count, from.bytes.size() - from_at);
    const ring::Completion done = client_.copy_range(from.inode, from_at, to.inode, to_at, count);
    const u64 distance = from_at < to_at ? to_at - from_at : from_at - to_at;
    if (&from == &to && distance < wanted) {
      ASSERT_EQ(done.status, Status::invalid_argument);
      return;
    }
    ASSERT_EQ(done.status, Status::ok) << status_name(done.status);
    ASSERT_LE(done.result, wanted);
    ASSERT_GT(done.result, 0u);
    const std::string piece = from.bytes.substr(from_at, done.result);
    if (to.bytes.size() < to_at + done.result) to.bytes.resize(to_at + done.result);
    to.bytes.replace(to_at, done.result, piece);
  }
  // Where SEEK_DATA skips, there are zeros only.
  void seek(ModelFile& file) {
    const u64 at = offset();
    const ring::Completion data = client_.seek(file.inode, 3, at);
    const ring::Completion hole = client_.seek(file.inode, 4, at);
    if (at >= file.bytes.size()) {
      ASSERT_EQ(data.status, Status::no_such_data);
      ASSERT_EQ(hole.status, Status::no_such_data);
      return;
    }
    ASSERT_EQ(hole.status, Status::ok);
    ASSERT_LE(hole.result, file.bytes.size());
    const u64 data_at = data.status == Status::ok ? data.result : file.bytes.size();
    ASSERT_GE(data_at, at);
    ASSERT_TRUE(data_at == at || hole.result == at);
    ASSERT_EQ(file.bytes.substr(at, data_at - at).find_first_not_of('\0'), std::string::npos);
  }
  void read(ModelFile& file) { compare(file, offset(), length()); }
  void compare(ModelFile& file, u64 at, u64 count) {
    std::memset(client_.data(), 0xcc, count);
    const u64 expected = at >= file.bytes.size() ? 0 : minimum<u64>(count, file.bytes.size() - at);
    // Any alignment of the destination.
    const u64 shift = random(32);
    expect_ok("read", client_.read(file.inode, at, count, shift), expected);
    for (u64 i = 0; i < expected; ++i) {
      ASSERT_EQ(client_.data(shift)[i], static_cast<u8>(file.bytes[at + i]))
          << file.name << " byte " << at + i << ", walk " << seed_;
    }
  }

  BasicFileClient<Connection> client_;
  u64 seed_;
  Sequence random_;
  ModelFile files_[2];
};

}  // namespace gpu4fs::test
