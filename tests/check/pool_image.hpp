// A small pool with one of everything, as bytes that tests damage and check.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/xxh3_serial.hpp"
#include "bench/client.hpp"
#include "format/directory_format.hpp"
#include "frontend/local_session.hpp"
#include "fsck/check/check_pool.hpp"
#include "fsck/check/tree_reader.hpp"
#include "fsck/repair/repair_pool.hpp"
#include "pool/pool_checksum.hpp"
#include "pool/pool_make.hpp"
#include "server/pool_server.hpp"
#include "support/header_image.hpp"

namespace gpu4fs::test {

inline constexpr u64 device_bytes = 64ull << 20;
inline constexpr u64 long_name_count = 60;

// Numbers of the inodes that populate() makes.
struct Content {
  u64 directory = 0;  // several pages: root node and leaves
  u64 subdirectory = 0;
  u64 emptied_directory = 0;  // of one page, without names
  u64 plain_file = 0;         // 3 MiB
  u64 sparse_file = 0;        // has indirect blocks
  u64 inline_file = 0;
  u64 linked_file = 0;  // two names
  u64 symlink = 0;      // has a page
  u64 attribute_file = 0;
};

inline u64 write_bytes(bench::BenchClient& client, u64 inode, u64 offset, u64 length) {
  bench::fill_pattern(client.buffer(), inode, 0, (length + page_size - 1) / page_size);
  return client
      .call(bench::BenchClient::transfer(wire::Opcode::write, inode, offset, length, client.buffer_address(0)), "write")
      .result;
}

inline Content populate(bench::BenchClient& client) {
  Content content;
  const u64 root = format::inode_number_root;
  content.directory = client.make_directory(root, "directory");
  content.subdirectory = client.make_directory(content.directory, "subdirectory");
  content.emptied_directory = client.make_directory(root, "emptied");
  const auto long_name = [](u64 i) { return std::to_string(i) + std::string(200, 'n'); };
  for (u64 i = 0; i < long_name_count; ++i) {
    client.create(content.directory, long_name(i));
    client.create(content.emptied_directory, long_name(i));
  }
  for (u64 i = 0; i < long_name_count; ++i) client.unlink(content.emptied_directory, long_name(i));
  content.plain_file = client.create(root, "plain");
  write_bytes(client, content.plain_file, 0, 3ull << 20);
  content.sparse_file = client.create(root, "sparse");
  for (u64 i = 0; i < 5; ++i) write_bytes(client, content.sparse_file, i * (16ull << 20) + 4096, 10000);
  content.inline_file = client.create(root, "inline");
  write_bytes(client, content.inline_file, 0, 100);
  content.linked_file = client.create(root, "first-name");
  wire::Command link = client.named(wire::Opcode::link, content.subdirectory, "second-name");
  link.second_inode = content.linked_file;
  client.call(link, "link");
  wire::Command symlink = client.named(wire::Opcode::symlink, root, "symlink");
  symlink.data = client.buffer_address(0);
  symlink.length = 300;
  std::memset(client.buffer(), 's', symlink.length);
  content.symlink = client.call(symlink, "symlink").result;
  content.attribute_file = client.create(root, "with-attribute");
  wire::Command attribute = client.named(wire::Opcode::set_attribute, content.attribute_file, "user.name");
  attribute.data = client.buffer_address(0);
  attribute.length = 50;
  client.call(attribute, "set_attribute");
  client.sync();
  client.set_times(content.plain_file);  // so the two superblocks are of different epochs
  client.sync();
  return content;
}

class PoolImage {
 public:
  // `more` is executed last, after populate().
  explicit PoolImage(const std::function<void(bench::BenchClient&, const PoolImage&)>& more = {}) {
    std::error_code none;
    const bool shared_memory = std::filesystem::is_directory("/dev/shm", none);
    std::string pattern = shared_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    pattern += "/gpu4fs-check-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = pattern;
    pool::MakePoolOptions make;
    make.size_bytes = device_bytes;
    make.device_paths = {folder_ + "/a", folder_ + "/b"};
    pool::make_pool(make);
    paths_ = make.device_paths;
    server::PoolServer server(mount_options());
    server.start();
    {
      bench::BenchClient client(frontend::open_local_session(server, 8 << 20));
      content_ = populate(client);
      if (more) more(client, *this);
    }
    if (!server.stop()) throw std::runtime_error("the last checkpoint failed");
    for (const std::string& path : paths_) originals_.push_back(read_file(path));
  }
  ~PoolImage() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  PoolImage(const PoolImage&) = delete;
  PoolImage& operator=(const PoolImage&) = delete;

  const Content& content() const { return content_; }
  const std::vector<std::string>& paths() const { return paths_; }

  pool::OpenedPool open() const { return pool::open_pool({paths_, true, false}); }

  // By the host's reader, the oracle.
  fsck::CheckResult check(bool check_data = true) const { return check_by(fsck::CheckEngine::none, check_data); }
  // With an engine of threads.
  fsck::CheckResult check_by(fsck::CheckEngine engine, bool check_data = true) const {
    fsck::CheckOptions options;
    options.device_paths = paths_;
    options.check_data = check_data;
    options.engine = engine;
    options.worker_count = 3;
    return fsck::check_pool(options);
  }

  fsck::RepairResult repair(bool dry_run = false, std::string* said = nullptr) {
    fsck::RepairOptions options;
    options.device_paths = paths_;
    options.dry_run = dry_run;
    if (said != nullptr) {
      options.on_repair = [said](const std::string& place, const std::string& text) {
        *said += place + ": " + text + "\n";
      };
    }
    if (!dry_run) touched_[0] = touched_[1] = true;
    return fsck::repair_pool(options);
  }

  // A mount with an engine, and a clean unmount.
  void mount_once() {
    touched_[0] = touched_[1] = true;
    server::PoolServer server(mount_options());
    server.start();
    EXPECT_TRUE(server.stop());
  }

  // Creates a file, opens it without a name and frees it. Returns "" or the operation that failed because of damage.
  std::string refusal_of_changes() {
    touched_[0] = touched_[1] = true;
    try {
      server::PoolServer server(mount_options());
      server.start();
      std::string refused;
      {
        bench::BenchClient client(frontend::open_local_session(server, 1 << 20));
        wire::Command command = client.named(wire::Opcode::tmpfile, format::inode_number_root, "");
        command.mode = S_IFREG | 0600;
        const client::Reply made = client.session().call(command);
        if (to_errno(made.status) == EIO) refused = "making a file";
        command.opcode = wire::Opcode::reclaim;
        command.inode = made.result;
        if (made.status == Status::ok && to_errno(client.session().call(command).status) == EIO)
          refused = "freeing a file";
      }
      if (!server.stop() && refused.empty()) refused = "the last checkpoint";
      return refused;
    } catch (const pool::PoolError& error) {
      return error.what();
    }
  }

  // Restores the state before any damage.
  void restore() {
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      if (!touched_[i]) continue;
      write_file(paths_[i], 0, originals_[i].data(), originals_[i].size());
      touched_[i] = false;
    }
  }

  // The current state is what restore() restores.
  void keep() {
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      originals_[i] = read_file(paths_[i]);
      touched_[i] = false;
    }
  }

  void write(u32 device, u64 offset, const void* bytes, u64 length) {
    touched_[device] = true;
    write_file(paths_[device], offset, bytes, length);
  }
  void read(u32 device, u64 offset, void* bytes, u64 length) const {
    std::ifstream file(paths_[device], std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(static_cast<char*>(bytes), static_cast<std::streamsize>(length));
    ASSERT_TRUE(file.good());
  }
  void flip_bit(u32 device, u64 offset, u32 bit) {
    u8 byte = 0;
    read(device, offset, &byte, 1);
    byte = static_cast<u8>(byte ^ (1u << bit));
    write(device, offset, &byte, 1);
  }

  // The header area of a chunk's first column.
  HeaderImage header_area(u32 chunk) {
    const pool::OpenedPool pool = open();
    const pool::OpenedChunk& opened = pool.chunks[chunk];
    const u32 device = opened.columns[0].device_index();
    return HeaderImage(
        {[this, device](u64 offset, void* to, u64 length) { read(device, offset, to, length); },
         [this, device](u64 offset, const void* from, u64 length) { write(device, offset, from, length); }},
        opened.columns[0].offset_bytes(), opened.descriptor.base_address, opened.descriptor.size_bytes / page_size,
        pool.superblock.epoch);
  }
  // Adds a change of a header area to the superblocks' sum.
  void add_to_slot_sum(u64 change) {
    edit_superblocks([&](format::Superblock& superblock) { superblock.slot_sum += change; });
  }

  // Changes a page and recomputes its checksum, so only its meaning is wrong.
  void edit_page(u64 address, const std::function<void(u8*)>& change) {
    fsck::PagePlace place{};
    {
      const pool::OpenedPool pool = open();
      place = fsck::MediumReader(pool).locate(address).value();
    }
    alignas(16) u8 page[page_size];
    read(place.device, place.device_offset, page, page_size);
    change(page);
    write(place.device, place.device_offset, page, page_size);
    add_to_slot_sum(header_area(place.chunk).write_checksum(place.page, xxh3_64(page, page_size, address)));
  }

  u64 inode_page_address(u64 number) const {
    const pool::OpenedPool pool = open();
    fsck::MediumReader reader(pool);
    format::BlockPointer pointer{};
    return fsck::find_page(reader, pool.superblock.inode_file, number / format::inodes_per_page, &pointer);
  }
  format::Inode inode(u64 number) const {
    const pool::OpenedPool pool = open();
    fsck::MediumReader reader(pool);
    return fsck::read_inode(reader, number);
  }
  u64 file_page_address(u64 number, u64 index) const {
    const pool::OpenedPool pool = open();
    fsck::MediumReader reader(pool);
    format::BlockPointer pointer{};
    return fsck::find_page(reader, fsck::read_inode(reader, number), index, &pointer);
  }
  void edit_inode(u64 number, const std::function<void(format::Inode&)>& change) {
    edit_page(inode_page_address(number), [&](u8* page) {
      format::Inode inode{};
      u8* place = page + number % format::inodes_per_page * sizeof(inode);
      std::memcpy(&inode, place, sizeof(inode));
      change(inode);
      std::memcpy(place, &inode, sizeof(inode));
    });
  }
  // Changes the newest superblock on every device, with right checksums.
  void edit_superblocks(const std::function<void(format::Superblock&)>& change) {
    for (u32 device = 0; device < paths_.size(); ++device) {
      format::Superblock superblock = *pool::probe_superblocks(paths_[device]).newest();
      change(superblock);
      const u64 offset = pool::superblock_offset(superblock.slot);
      pool::seal(superblock, offset);
      write(device, offset, &superblock, sizeof(superblock));
    }
  }

 private:
  session::ServerOptions mount_options() const {
    session::ServerOptions options;
    options.device_paths = paths_;
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 1;
    options.commit_interval_s = 0;
    return options;
  }
  static std::vector<char> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write_file(const std::string& path, u64 offset, const void* bytes, u64 length) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    const ssize_t written = ::pwrite(file, bytes, length, static_cast<off_t>(offset));
    ::close(file);
    if (written != static_cast<ssize_t>(length)) throw std::runtime_error("pwrite " + path);
  }

  std::string folder_;
  std::vector<std::string> paths_;
  std::vector<std::vector<char>> originals_;
  bool touched_[2] = {false, false};
  Content content_;
};

struct BitmapSlotPlace {
  u32 device;
  u64 offset;  // of the header
  u64 bytes;
};

// The current bitmap slot of a chunk.
inline BitmapSlotPlace newest_bitmap(PoolImage& image, u32 chunk) {
  const HeaderImage area = image.header_area(chunk);
  const u32 device = image.open().chunks[chunk].columns[0].device_index();
  return {device, area.offset_of(area.slot_page(area.slot())), area.layout().bitmap_pages * page_size};
}

// The bit of page `bit` of a chunk, with right sums.
inline void flip_bitmap_bit(PoolImage& image, u32 chunk, u64 bit) {
  HeaderImage area = image.header_area(chunk);
  std::vector<u8> bitmap = area.bitmap();
  bitmap[bit / 8] = static_cast<u8>(bitmap[bit / 8] ^ (1u << (bit % 8)));
  image.add_to_slot_sum(area.write_bitmap(bitmap));
}

}  // namespace gpu4fs::test
