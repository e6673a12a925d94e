// A whole image, damaged anywhere: fsck checks it, a mount walks the tree, reads every file, writes a little and
// unmounts (for some inputs with the real server, for writing or only for reading), and fsck checks again. All of this
// ends, with an answer to each command. A read returns what an independent reader of the medium finds verified. Some
// inputs are also checked by an engine, which finds errors if and only if the reader does. Some are repaired: then only
// contents that do not match are wrong, and the pool mounts.
#include <algorithm>
#include <deque>
#include <memory>
#include <set>

#include "fsck/repair/repair_pool.hpp"
#include "fuzz/image_damage.hpp"
#include "fuzz/mounted_pool.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::fuzz {

const char target_name[] = "image";

namespace {

constexpr u64 root = format::inode_number_root;
constexpr u32 inodes_max = 200;
constexpr u64 read_length = 64 * 1024;
constexpr u32 directory_type = 4;
constexpr u32 regular_type = 8;
constexpr u32 symlink_type = 10;

ring::Completion answered(ring::Completion done) {
  if (is_control(done.status)) fail(status_name(done.status));
  switch (done.status) {
    case Status::busy:
    case Status::engine_died:
    case Status::deadline_exceeded:
      fail(status_name(done.status));
    default:
      return done;
  }
}

// The medium as read by fsck's code, without the engine.
class Witness {
 public:
  explicit Witness(const PoolFile& file) : pool_(pool::open_pool({{file.path()}, true, false})), reader_(pool_) {}

  // `bytes` was read from page `index` of the file.
  void compare(u64 inode_number, u64 index, const u8* bytes, u64 length) {
    const format::Inode inode = fsck::read_inode(reader_, inode_number);
    if (inode.is_inline()) return;
    format::BlockPointer pointer{};
    const u64 address = fsck::find_page(reader_, inode, index, &pointer);
    auto page = std::make_unique<fsck::PageBuffer>();
    if (address == 0 || pointer.is_unwritten()) {
      std::memset(page->bytes, 0, page_size);
    } else {
      fsck::read_verified(reader_, address, page.get());
    }
    require(std::memcmp(page->bytes, bytes, length) == 0, "a read returned other bytes than the medium holds");
  }

 private:
  pool::OpenedPool pool_;
  fsck::MediumReader reader_;
};

class Walk {
 public:
  Walk(engine::EngineHost& host, Witness* witness) : names_(host), files_(names_), witness_(witness) {}

  void run() {
    std::deque<u64> waiting{root};
    while (!waiting.empty() && seen_.size() < inodes_max) {
      const u64 number = waiting.front();
      waiting.pop_front();
      if (!seen_.insert(number).second) continue;
      const bool has_attributes = answered(names_.getattr(number)).status == Status::ok;
      const u32 type = has_attributes ? names_.attributes().mode >> 12 : 0;
      look_at_attributes(number);
      if (type == directory_type) list(number, waiting);
      if (type == regular_type) read(number, names_.attributes().size_bytes);
      std::string target;
      if (type == symlink_type) (void)answered(names_.readlink(number, &target));
    }
  }
  const std::vector<std::pair<u64, std::string>>& found() const { return found_; }

  // Makes a few changes of each kind.
  void change() {
    std::memset(names_.data(), 'c', read_length);
    const ring::Completion created = answered(names_.create(root, "created"));
    if (created.status == Status::ok) (void)answered(files_.write(created.result, 4000, 9000));
    (void)answered(names_.mkdir(root, "made"));
    (void)answered(names_.symlink(root, "linked", std::string(200, 't')));
    for (const u64 number : seen_) change_file(number);
    for (std::size_t i = 0; i < found_.size(); ++i) change_name(found_[i].first, found_[i].second, i);
    (void)answered(files_.sync());
    (void)answered(names_.create(root, "created later"));
  }

 private:
  void look_at_attributes(u64 number) {
    std::string text;
    (void)answered(names_.list_attributes(number, &text));
    (void)answered(names_.get_attribute(number, "user.name", &text));
    (void)answered(names_.get_attribute(number, "user.great", &text, 65536));
  }

  void list(u64 directory, std::deque<u64>& waiting) {
    std::vector<test::ListedName> listed;
    u64 cursor = 0;
    for (u32 calls = 0; calls < 1000; ++calls) {
      const std::size_t before = listed.size();
      if (answered({names_.readdir(directory, cursor, 4096, calls % 2 == 1, &listed), 0}).status != Status::ok) break;
      if (listed.size() == before) break;
      require(listed.back().next_cursor > cursor, "the cursor does not move");
      cursor = listed.back().next_cursor;
    }
    for (const test::ListedName& name : listed) {
      require(name.name.size() <= name_length_max, "a name too long");
      if (name.name == "." || name.name == "..") continue;
      waiting.push_back(name.inode);
      if (found_.size() < inodes_max) found_.emplace_back(directory, name.name);
      (void)answered(names_.lookup(directory, name.name));
    }
  }

  void read(u64 number, u64 size) {
    std::set<u64> places{0, size > read_length ? size - read_length : 0};
    for (u64 i = 1; i < 5; ++i) places.insert(i * (u64{48} << 20));
    for (const u64 place : places) {
      if (place <= size) read_part(number, align_down(place, page_size));
    }
    (void)answered(files_.seek(number, 3, 0));
    (void)answered(files_.seek(number, 4, 0));
  }
  void read_part(u64 number, u64 begin) {
    (void)answered(files_.read(number, begin, read_length));
    for (u64 offset = begin; offset < begin + read_length; offset += page_size) {
      const ring::Completion done = answered(files_.read(number, offset, page_size));
      if (done.status != Status::ok || done.result == 0) return;
      require(done.result <= page_size, "more bytes than were asked for");
      if (witness_ == nullptr) continue;
      try {
        witness_->compare(number, offset / page_size, names_.data(), done.result);
      } catch (const pool::PoolError& error) {
        fail(error.what());
      }
    }
  }

  void change_file(u64 number) {
    if (number % 3 == 0)
      (void)answered(names_.set_attribute(number, "user.great", std::string(9000 * (number % 2), 'a')));
    if (number % 3 == 1) (void)answered(names_.remove_attribute(number, "user.great"));
    std::memset(names_.data(), 'w', 5000);
    (void)answered(files_.write(number, 3000 * (number % 5), 5000));
    switch (number % 7) {
      case 0:
        (void)answered(files_.truncate(number, 1000));
        break;
      case 1:
        (void)answered(files_.fallocate(number, 3, 4096, u64{60} << 20));
        break;
      case 2:
        (void)answered(files_.fallocate(number, 0, 0, 50'000));
        break;
      case 3:
        (void)answered(files_.copy(number, root, 100'000));
        break;
      case 4:
        (void)answered(names_.set_attribute(number, "user.name", std::string(300, 'a')));
        break;
      case 5:
        (void)answered(names_.chmod(number, 0640));
        break;
      default:
        (void)answered(names_.remove_attribute(number, "user.name"));
        break;
    }
  }
  void change_name(u64 directory, const std::string& name, std::size_t turn) {
    switch (turn % 4) {
      case 0: {
        const ring::Completion done = answered(names_.unlink(directory, name));
        if (done.status == Status::ok && done.result != 0) (void)answered(names_.reclaim(done.result));
        if (done.status == Status::is_directory) (void)answered(names_.rmdir(directory, name));
        break;
      }
      case 1:
        (void)answered(names_.rename(directory, name, root, "renamed" + std::to_string(turn % 8)));
        break;
      case 2:
        (void)answered(names_.create(directory, "created" + std::to_string(turn) + std::string(150, 'c')));
        break;
      default:
        (void)answered(names_.link(directory, root, "link"));
        break;
    }
  }

  NameClient names_;
  FileCalls files_;
  Witness* witness_;
  std::set<u64> seen_;
  std::vector<std::pair<u64, std::string>> found_;
};

void look(const PoolFile& file) {
  try {
    (void)check({file.path()});
  } catch (const pool::PoolError&) {
  }
}

[[noreturn]] void fail_with(const std::string& what, const fsck::CheckResult& result) {
  fail((what + test::findings_text(result)).c_str());
}

// Checks with an engine and with the reader.
void compare_checks(const PoolFile& file) {
  fsck::CheckOptions options;
  options.device_paths = {file.path()};
  try {
    const fsck::CheckResult expected = fsck::check_pool(options);
    options.engine = fsck::CheckEngine::cpu;
    options.worker_count = 1;
    const fsck::CheckResult found = fsck::check_pool(options);
    const bool finds_errors = found.findings.error_count() != 0;
    if (finds_errors != (expected.findings.error_count() != 0)) {
      fail_with("one check finds errors where the other finds none:", finds_errors ? found : expected);
    }
  } catch (const pool::PoolError&) {
  }
}

// False: it cannot be repaired.
bool repair(const PoolFile& file) {
  fsck::RepairOptions options;
  options.device_paths = {file.path()};
  try {
    (void)fsck::repair_pool(options);
  } catch (const pool::PoolError&) {
    return false;
  }
  const fsck::CheckResult after = check({file.path()});
  // Contents stay unchanged.
  if (after.findings.error_count() != after.findings.count(fsck::FindingId::page_checksum)) {
    fail_with("a repaired pool:", after);
  }
  return true;
}

// Without threads, while the medium is observed.
void mount_and_change(PopulatedPool& pool) {
  std::unique_ptr<Witness> witness;
  try {
    witness = std::make_unique<Witness>(pool.file());
  } catch (const pool::PoolError&) {
  }
  pool.mounted([&](engine::EngineHost& host) {
    require(witness != nullptr, "mounted although the medium cannot be opened");
    Walk walk(host, witness.get());
    walk.run();
    walk.change();
  });
}

// The server as in `gpu4fs mount`.
void serve(const PoolFile& file, bool read_only) {
  try {
    server::PoolServer server(mount_options({file.path()}, read_only));
    server.start();
    {
      Walk walk(server.engine(), nullptr);
      walk.run();
      walk.change();
    }
    (void)server.stop();
  } catch (const pool::PoolError&) {
  }
}

}  // namespace

void run_input(const u8* data, std::size_t length) {
  static PopulatedPool pool;
  static ImageDamage image(pool.file());
  Input input(data, length);
  pool.file().restore();
  const u32 how = input.byte();
  image.apply(input);
  if (how % 8 == 3) {
    compare_checks(pool.file());
  } else {
    look(pool.file());
  }
  if (how % 8 == 5) {
    if (!repair(pool.file())) return;
    const bool is_mounted = pool.mounted([](engine::EngineHost& host) { Walk(host, nullptr).run(); });
    require(is_mounted, "a repaired pool does not mount");
  } else if (how % 32 == 31) {
    serve(pool.file(), how >= 128);
  } else {
    mount_and_change(pool);
  }
  look(pool.file());
}

}  // namespace gpu4fs::fuzz
