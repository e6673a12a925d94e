// fsck finds everything that the engine refuses to read. Every field of an inode, a page of a directory, an indirect
// block and a page of attributes is damaged in turn, with right checksums; an engine reads the whole tree. If it
// answers EIO, the host's reader and the engine's check must report an error.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <set>

#include "check/check_agreement.hpp"
#include "check/pool_image.hpp"
#include "fmt/format.h"
#include "fs/names/attributes.hpp"
#include "fs/names/stored_access_lists.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::refusal_test {
namespace {

constexpr u64 buffer_bytes = u64{4} << 20;

// Reads everything that has a name, and counts EIO answers.
class TreeReader {
 public:
  explicit TreeReader(const PoolImage& image) {
    session::ServerOptions options;
    options.device_paths = image.paths();
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 1;
    options.cache_bytes = u64{1} << 20;
    options.read_only = true;
    server_ = std::make_unique<server::PoolServer>(options);
    server_->start();
    client_ = std::make_unique<bench::BenchClient>(
        frontend::open_local_session(*server_, buffer_bytes + bench::BenchClient::control_bytes));
  }
  ~TreeReader() {
    client_.reset();
    server_->stop();
  }

  // The first refused item, "" if nothing was refused.
  std::string read_all() {
    read_inode(format::inode_number_root, "/");
    std::vector<std::pair<u64, std::string>> waiting{{format::inode_number_root, "/"}};
    std::set<u64> seen{format::inode_number_root};
    while (!waiting.empty()) {
      const auto [directory, path] = waiting.back();
      waiting.pop_back();
      for (const auto& [name, inode] : list(directory, path)) {
        const std::string below = path + name;
        lookup(directory, name, below);
        if (!seen.insert(inode).second) continue;
        if (read_inode(inode, below)) waiting.emplace_back(inode, below + "/");
      }
    }
    return refused_;
  }

 private:
  client::Reply ask(wire::Command command, const std::string& what) {
    command.output = client_->session().address_of(client_->session().data() + page_size);
    const client::Reply reply = client_->session().call(command);
    if (to_errno(reply.status) == EIO && refused_.empty()) {
      refused_ = fmt::format("{}: {}", what, status_text(reply.status));
    }
    return reply;
  }
  wire::Command command(wire::Opcode opcode, u64 inode) {
    wire::Command made{};
    made.opcode = opcode;
    made.inode = inode;
    made.data = client_->buffer_address(0);
    made.length = buffer_bytes;
    return made;
  }
  std::vector<std::pair<std::string, u64>> list(u64 directory, const std::string& path) {
    std::vector<std::pair<std::string, u64>> names;
    wire::Command readdir = command(wire::Opcode::readdir, directory);
    readdir.mask = 1;  // with attributes
    for (;;) {
      const client::Reply reply = ask(readdir, "readdir of " + path);
      if (reply.status != Status::ok || reply.result == 0) return names;
      for (u64 at = 0; at < reply.result;) {
        wire::DirectoryRecord record{};
        std::memcpy(&record, client_->buffer() + at, sizeof(record));
        const auto* name = reinterpret_cast<const char*>(client_->buffer()) + at + sizeof(record) +
                           (record.has_attributes != 0 ? sizeof(format::AttributeRecord) : 0);
        const std::string text(name, record.name_length);
        if (text != "." && text != "..") names.emplace_back(text, record.inode);
        readdir.offset = record.next_cursor;
        at += record.record_length;
      }
    }
  }
  void lookup(u64 directory, const std::string& name, const std::string& path) {
    wire::Command look = client_->named(wire::Opcode::lookup, directory, name);
    ask(look, "lookup of " + path);
  }
  // True: a directory.
  bool read_inode(u64 inode, const std::string& path) {
    if (ask(command(wire::Opcode::getattr, inode), "lstat of " + path).status != Status::ok) return false;
    format::AttributeRecord record{};
    std::memcpy(&record, client_->session().data() + page_size, sizeof(record));
    read_attributes(inode, path);
    const u32 type = record.mode & S_IFMT;
    if (type == S_IFLNK) ask(command(wire::Opcode::readlink, inode), "readlink of " + path);
    if (type == S_IFREG) read_content(inode, record.size_bytes, path);
    return type == S_IFDIR;
  }
  void read_attributes(u64 inode, const std::string& path) {
    const client::Reply listed = ask(command(wire::Opcode::list_attributes, inode), "listxattr of " + path);
    if (listed.status != Status::ok) return;
    const std::string names(reinterpret_cast<const char*>(client_->buffer()), listed.result);
    for (std::size_t at = 0; at < names.size();) {
      const std::string name = names.c_str() + at;
      at += name.size() + 1;
      if (name.empty() || name.size() > name_length_max) continue;
      wire::Command get = client_->named(wire::Opcode::get_attribute, inode, name);
      get.data = client_->buffer_address(0);
      get.length = buffer_bytes;
      ask(get, "getxattr of " + path);
    }
    // An unreadable access list is noticed when it has to be evaluated.
    wire::Command access = command(wire::Opcode::access, inode);
    access.uid = access.gid = 77;
    access.mode = 4;
    ask(access, "access of " + path);
  }
  // Reads at places with data; a damaged size must not cost time.
  void read_content(u64 inode, u64 size, const std::string& path) {
    wire::Command seek = command(wire::Opcode::seek, inode);
    seek.mode = SEEK_DATA;
    for (u64 at = 0, reads = 0; at < size && reads < 64; ++reads) {
      seek.offset = at;
      const client::Reply found = ask(seek, "seek in " + path);
      if (found.status != Status::ok) break;
      wire::Command read = command(wire::Opcode::read, inode);
      read.offset = found.result;
      if (ask(read, "read of " + path).status != Status::ok) break;
      at = found.result + buffer_bytes;
    }
    wire::Command read = command(wire::Opcode::read, inode);
    ask(read, "read of " + path);
  }

  std::unique_ptr<server::PoolServer> server_;
  std::unique_ptr<bench::BenchClient> client_;
  std::string refused_;
};

// "" if a mount and all reads of it succeed.
std::string refusal_of(const PoolImage& image) {
  try {
    return TreeReader(image).read_all();
  } catch (const pool::PoolError& error) {
    return fmt::format("mount: {}", error.what());
  }
}

void set_list(bench::BenchClient& client, u64 inode, const std::string& name, const std::vector<u8>& list) {
  wire::Command command = client.named(wire::Opcode::set_attribute, inode, name);
  command.data = client.buffer_address(0);
  command.length = list.size();
  std::memcpy(client.buffer(), list.data(), list.size());
  client.call(command, "set_attribute");
}

// An access list with a named user.
std::vector<u8> access_list() {
  const u16 entries[][2] = {{0x01, 6}, {0x02, 4}, {0x04, 4}, {0x10, 6}, {0x20, 4}};
  std::vector<u8> list{2, 0, 0, 0};
  for (const auto& [tag, permissions] : entries) {
    const u8 id = tag == 0x02 ? 77 : 255;
    for (const u8 byte : {u8(tag), u8{0}, u8(permissions), u8{0}, id, id, id, id}) list.push_back(byte);
  }
  return list;
}

class RefusalTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    image_ = new PoolImage([](bench::BenchClient& client, const PoolImage& image) {
      set_list(client, image.content().attribute_file, "system.posix_acl_access", access_list());
      set_list(client, image.content().directory, "system.posix_acl_default", access_list());
    });
  }
  static void TearDownTestSuite() {
    delete image_;
    image_ = nullptr;
  }

  // Damages a page, compares, and restores the page.
  void try_damage(u64 address, const std::string& what, const std::function<void(u8*)>& change) {
    SCOPED_TRACE(what);
    std::vector<u8> before(page_size);
    bool differs = false;
    image_->edit_page(address, [&](u8* page) {
      std::memcpy(before.data(), page, page_size);
      change(page);
      differs = std::memcmp(before.data(), page, page_size) != 0;
    });
    if (differs) compare();
    image_->edit_page(address, [&](u8* page) { std::memcpy(page, before.data(), page_size); });
  }

  void compare() {
    ++damage_count_;
    const std::string refused = refusal_of(*image_);
    if (refused.empty()) return;
    ++refusal_count_;
    const fsck::CheckResult host = image_->check();
    EXPECT_GT(host.findings.error_count(), 0u) << "the host's reader finds nothing, but " << refused;
    expect_same(host, image_->check_by(fsck::CheckEngine::cpu));
  }

  // Tests a field of `width` bytes at `offset` of a page with values at its limits and near its own.
  void damage_field(u64 address, u32 offset, u32 width, const std::string& name) {
    const u64 all = width == 8 ? ~u64{0} : (u64{1} << (8 * width)) - 1;
    u64 own = 0;
    image_->edit_page(address, [&](u8* page) { std::memcpy(&own, page + offset, width); });
    std::set<u64> values{0, 1, 6, 8, all, all / 2 + 1, own ^ 1, own ^ 8, own ^ 0x10, own ^ 0x20, (own + 4096) & all};
    if (width == 8) values.insert({u64{1} << 60, (u64{7} << 57) + 1});
    values.erase(own);
    for (const u64 value : values) {
      if (turn_++ % stride_ != 0) continue;
      try_damage(address, fmt::format("{} is {:#x} instead of {:#x}", name, value, own),
                 [&](u8* page) { std::memcpy(page + offset, &value, width); });
    }
  }
  // Changes bytes of access lists in the page, with right hashes. Whether the engine would accept them is tested
  // directly: it reads them when a mode changes or a file is created.
  void damage_lists(u64 address) {
    u32 offset = 0;
    image_->edit_page(address, [&](u8* page) {
      offset = fs::detail::find_attribute(page, fs::acl_access_name());
      if (offset == 0) offset = fs::detail::find_attribute(page, fs::acl_default_name());
    });
    ASSERT_NE(offset, 0u);
    u32 refused = 0;
    for (u32 byte = 0; byte < 44; byte += is_short() ? 8 : 1) {
      for (const u32 value : {0u, 0x20u, 0xffu}) {
        bool is_valid = true;
        const auto change = [&](u8* page) {
          format::AttributeEntry entry{};
          std::memcpy(&entry, page + offset, sizeof(entry));
          u8* list = page + offset + sizeof(entry) + entry.name_length;
          list[byte] = static_cast<u8>(value);
          is_valid = fs::acl_is_valid(list, entry.value_length);
          entry.value_hash = static_cast<u32>(xxh3_64(list, entry.value_length, 0));
          std::memcpy(page + offset, &entry, sizeof(entry));
        };
        std::vector<u8> before(page_size);
        image_->edit_page(address, [&](u8* page) {
          std::memcpy(before.data(), page, page_size);
          change(page);
        });
        const fsck::CheckResult host = image_->check(false);
        EXPECT_EQ(host.findings.count(fsck::FindingId::attribute_page), is_valid ? 0u : 1u)
            << "byte " << byte << " is " << value << "\n"
            << describe(host);
        if (byte % 8 == 0) expect_same(host, image_->check_by(fsck::CheckEngine::cpu, false));
        image_->edit_page(address, [&](u8* page) { std::memcpy(page, before.data(), page_size); });
        refused += is_valid ? 0 : 1;
      }
    }
    EXPECT_GT(refused, 5u);
  }
  void TearDown() override {
    // With few damages there may be no refusal by chance.
    if (!is_short()) {
      EXPECT_GT(refusal_count_, damage_count_ / 50) << "of " << damage_count_;
    }
    RecordProperty("damages", static_cast<int>(damage_count_));
    RecordProperty("refusals", static_cast<int>(refusal_count_));
  }

  static PoolImage* image_;
  u64 damage_count_ = 0;
  u64 refusal_count_ = 0;
  u64 turn_ = 0;
  // Of the possible damages; 1: all of them.
  const u64 stride_ = number_from("GPU4FS_REFUSAL_STRIDE", is_short() ? 17 : 3);
};
PoolImage* RefusalTest::image_ = nullptr;

struct Field {
  u32 offset;
  u32 width;
  const char* name;
};
#define GPU4FS_FIELD(type, name) \
  { offsetof(type, name), sizeof(type::name), #name }

TEST_F(RefusalTest, NothingOfASoundPool) {
  EXPECT_EQ(refusal_of(*image_), "");
  EXPECT_EQ(image_->check().findings.error_count(), 0u);
  refusal_count_ = 1;
}

TEST_F(RefusalTest, Inodes) {
  using format::Inode;
  const Field fields[] = {GPU4FS_FIELD(Inode, size_bytes),       GPU4FS_FIELD(Inode, change_time),
                          GPU4FS_FIELD(Inode, link_count),       GPU4FS_FIELD(Inode, mode),
                          GPU4FS_FIELD(Inode, height),           GPU4FS_FIELD(Inode, version),
                          GPU4FS_FIELD(Inode, attributes),       GPU4FS_FIELD(Inode, flags),
                          {offsetof(Inode, slots), 8, "slot 0"}, {offsetof(Inode, slots) + 8, 8, "slot 1"},
                          GPU4FS_FIELD(Inode, page_count),       GPU4FS_FIELD(Inode, parent_or_device),
                          GPU4FS_FIELD(Inode, entry_count),      GPU4FS_FIELD(Inode, profile),
                          GPU4FS_FIELD(Inode, attribute_height)};
  const Content& content = image_->content();
  const std::pair<u64, const char*> inodes[] = {
      {content.plain_file, "plain"},         {content.inline_file, "inline"},  {content.sparse_file, "sparse"},
      {content.symlink, "symlink"},          {content.directory, "directory"}, {format::inode_number_root, "root"},
      {content.attribute_file, "attributes"}};
  for (const auto& [number, text] : inodes) {
    const u64 address = image_->inode_page_address(number);
    const u32 place = static_cast<u32>(number % format::inodes_per_page) * format::inode_size;
    for (const Field& field : fields) {
      damage_field(address, place + field.offset, field.width, fmt::format("{}: {}", text, field.name));
    }
  }
}

// A target is in one written page.
TEST_F(RefusalTest, MapOfASymbolicLink) {
  const u64 number = image_->content().symlink;
  const u64 address = image_->inode_page_address(number);
  const auto change = [&](const char* what, const std::function<void(format::Inode&)>& edit) {
    try_damage(address, what,
               [&](u8* page) { edit(reinterpret_cast<format::Inode*>(page)[number % format::inodes_per_page]); });
  };
  change("page 0 is a hole", [](format::Inode& inode) { std::swap(inode.slots[0], inode.slots[1]); });
  change("page 0 is unwritten", [](format::Inode& inode) {
    inode.slots[0] = format::BlockPointer::unwritten(inode.slots[0].address(), format::BlockSize::page_4k);
  });
  change("no page", [](format::Inode& inode) {
    inode.slots[0] = {};
    inode.page_count = 0;
  });
}

// The two bitmap files are read when files are created and removed.
TEST_F(RefusalTest, BitmapFiles) {
  using format::Inode;
  const Field fields[] = {GPU4FS_FIELD(Inode, size_bytes), GPU4FS_FIELD(Inode, mode),  GPU4FS_FIELD(Inode, height),
                          GPU4FS_FIELD(Inode, version),    GPU4FS_FIELD(Inode, flags), GPU4FS_FIELD(Inode, slots[0])};
  for (const u64 number : {format::inode_number_inode_bitmap, format::inode_number_orphan_bitmap}) {
    for (const Field& field : fields) {
      for (const u64 value : {u64{0}, u64{1}, u64{3}, u64{6}, ~u64{0}}) {
        if (turn_++ % stride_ != 0) continue;
        image_->edit_inode(number, [&](Inode& inode) {
          std::memcpy(reinterpret_cast<u8*>(&inode) + field.offset, &value, field.width);
        });
        SCOPED_TRACE(fmt::format("inode {}: {} is {}", number, field.name, value));
        const fsck::CheckResult host = image_->check();
        expect_same(host, image_->check_by(fsck::CheckEngine::cpu));
        ++damage_count_;
        const std::string refused = image_->refusal_of_changes();
        if (!refused.empty()) {
          ++refusal_count_;
          EXPECT_GT(host.findings.error_count(), 0u) << "the host's reader finds nothing, but " << refused;
        }
        image_->restore();
      }
    }
  }
}

TEST_F(RefusalTest, DirectoryPages) {
  using Header = format::DirectoryPageHeader;
  const Field header[] = {GPU4FS_FIELD(Header, magic),        GPU4FS_FIELD(Header, version),
                          GPU4FS_FIELD(Header, level),        GPU4FS_FIELD(Header, depth),
                          GPU4FS_FIELD(Header, entry_count),  GPU4FS_FIELD(Header, heap_begin),
                          GPU4FS_FIELD(Header, heap_garbage), GPU4FS_FIELD(Header, reserved0),
                          GPU4FS_FIELD(Header, prefix),       GPU4FS_FIELD(Header, reserved1)};
  using Slot = format::DirectorySlot;
  const Field slot[] = {GPU4FS_FIELD(Slot, hash), GPU4FS_FIELD(Slot, entry_offset), GPU4FS_FIELD(Slot, name_length),
                        GPU4FS_FIELD(Slot, type), GPU4FS_FIELD(Slot, reserved)};
  const u64 root = image_->file_page_address(format::inode_number_root, 0);
  const u64 node = image_->file_page_address(image_->content().directory, 0);
  const u64 leaf = image_->file_page_address(image_->content().directory, 1);
  for (const u64 address : {root, node, leaf}) {
    const char* text = address == root ? "root" : address == node ? "node" : "leaf";
    for (const Field& field : header)
      damage_field(address, field.offset, field.width, fmt::format("{}: {}", text, field.name));
  }
  damage_field(node, format::directory_node_children_offset + 4 * 100, 4, "node: child 100");
  for (const u64 address : {root, leaf}) {
    for (const u32 index : {0u, 3u}) {
      const u32 place = format::directory_leaf_slots_offset + index * static_cast<u32>(sizeof(Slot));
      for (const Field& field : slot) damage_field(address, place + field.offset, field.width, field.name);
      u16 entry = 0;
      image_->edit_page(address,
                        [&](u8* page) { std::memcpy(&entry, page + place + offsetof(Slot, entry_offset), 2); });
      damage_field(address, entry, 8, "inode of a name");
      damage_field(address, entry + 8, 1, "first byte of a name");
    }
  }
  // A directory with an entry of itself.
  try_damage(root, "the root names itself", [&](u8* page) {
    u16 entry = 0;
    std::memcpy(&entry, page + format::directory_leaf_slots_offset + offsetof(Slot, entry_offset), 2);
    page[entry] = 1;
  });
}

TEST_F(RefusalTest, IndirectBlocks) {
  const u64 address = image_->inode(image_->content().sparse_file).slots[0].address();
  for (const u32 index : {0u, 1u, 300u}) damage_field(address, index * 8, 8, fmt::format("slot {}", index));
}

TEST_F(RefusalTest, AttributePages) {
  using Header = format::AttributePageHeader;
  using Entry = format::AttributeEntry;
  const Field fields[] = {GPU4FS_FIELD(Header, magic),
                          GPU4FS_FIELD(Header, version),
                          GPU4FS_FIELD(Header, entry_count),
                          GPU4FS_FIELD(Header, used_bytes),
                          {offsetof(Header, reserved), 2, "reserved"},
                          {sizeof(Header) + offsetof(Entry, value_length), 4, "value_length"},
                          {sizeof(Header) + offsetof(Entry, value_slot), 2, "value_slot"},
                          {sizeof(Header) + offsetof(Entry, name_length), 1, "name_length"},
                          {sizeof(Header) + offsetof(Entry, reserved), 1, "reserved"},
                          {sizeof(Header) + offsetof(Entry, value_hash), 4, "value_hash"},
                          {sizeof(Header) + sizeof(Entry), 1, "first byte of the name"}};
  for (const u64 number : {image_->content().attribute_file, image_->content().directory}) {
    const u64 address = image_->inode(number).attributes.address();
    for (const Field& field : fields) damage_field(address, field.offset, field.width, field.name);
    damage_lists(address);
  }
}

}  // namespace
}  // namespace gpu4fs::test::refusal_test
