// The work of a crash test on a pool, and its record: every write and flush of the devices, and between them the
// beginning and end of each operation.
//
// Marks in the log: 2 * i when operation i begins, 2 * i + 1 when it has been acknowledged. The state after the first i
// operations is states[i]; an operation that failed changes nothing.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crash/crash_medium.hpp"
#include "crash/crash_pool.hpp"
#include "crash/crash_state.hpp"
#include "model/operation_source.hpp"
#include "pool/pool_checksum.hpp"
#include "support/pool_profiles.hpp"
#include "support/relocation_driver.hpp"

namespace gpu4fs::test {

// A prepared pool, unmounted.
struct CrashBase {
  DeviceBytes devices;
  PosixModel model;
};

struct CrashRecord {
  DeviceBytes before;  // the devices when the log begins
  std::vector<device::WriteLogEntry> entries;
  std::vector<std::string> states;                // by number of operations
  std::vector<std::vector<std::string>> in_part;  // by operation: other states that a crash during it may leave
  std::vector<bool> is_sync;                      // by operation: it makes all earlier ones durable
  std::vector<std::string> operations;            // for users
  std::string problem;                            // not empty: engine and model differ even without a crash
};

// Executes operations on a pool and on its model.
class CrashWriter {
 public:
  CrashWriter(ServedPool& pool, PosixModel model, device::WriteLog* log, CrashRecord* record)
      : pool_(pool), model_(std::move(model)), log_(log), record_(record), client_(pool.session()) {
    record_->states.push_back(ModelText(model_).text());
  }

  const PosixModel& model() const { return model_; }
  u64 at(const std::string& path) const {
    u64 number = PosixModel::root;
    for (std::size_t begin = 0; begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      number = model_.nodes.at(number).entries.at(path.substr(begin, end - begin));
      begin = end + 1;
    }
    return number;
  }

  virtual ~CrashWriter() = default;

  // The pool is nearly full: a write takes several commits, and a crash may leave only the first ones.
  void expect_short_writes() { expects_short_writes_ = true; }

  // Returns the engine's answer and updates the model.
  virtual client::Reply run(const FileOperation& op) {
    const u64 index = record_->operations.size();
    const std::set<int> expected = model_.expect(op);
    const std::vector<u8> content = op.opcode == wire::Opcode::write ? content_of(op) : std::vector<u8>{};
    mark(2 * index);
    const client::Reply reply = client_.call(op, content);
    mark(2 * index + 1);
    const int error = to_errno(reply.status);
    record_->operations.push_back(fmt::format("{} = {}", to_text(op), status_name(reply.status)));
    record_->is_sync.push_back(error == 0 && (op.opcode == wire::Opcode::fsync || op.opcode == wire::Opcode::sync));
    const bool is_stray_reclaim = op.opcode == wire::Opcode::reclaim;
    record_->in_part.push_back(error == 0 ? short_writes(op, content) : std::vector<std::string>{});
    if (error == 0) {
      model_.commit(op, reply.result, content, client_.attributes());
    } else if (expected.count(error) == 0 && error != ENOSPC && !is_stray_reclaim) {
      record_->problem += record_->operations.back() + "\n";
    }
    record_->states.push_back(ModelText(model_).text());
    return reply;
  }

  // The states after parts of a write, up to a page border, before the next operation has begun.
  std::vector<std::string> short_writes(const FileOperation& op, const std::vector<u8>& content) {
    std::vector<std::string> states;
    if (!expects_short_writes_ || op.opcode != wire::Opcode::write) return states;
    const u64 begin = op.append ? model_.find(op.inode)->content.size() : op.offset;
    for (u64 end = align_up(begin + 1, page_size); end < begin + op.length; end += page_size) {
      FileOperation part = op;
      part.length = end - begin;
      PosixModel model = model_;
      model.commit(part, part.length, {content.begin(), content.begin() + static_cast<std::ptrdiff_t>(part.length)},
                   client_.attributes());
      states.push_back(ModelText(model).text());
    }
    return states;
  }

  // On names, by path.
  u64 create(const std::string& path) { return named(wire::Opcode::create, path, 0644).result; }
  u64 mkdir(const std::string& path) { return named(wire::Opcode::mkdir, path, 0755).result; }
  void mknod(const std::string& path) { named(wire::Opcode::mknod, path, S_IFIFO | 0600); }
  void unlink(const std::string& path) { named(wire::Opcode::unlink, path, 0); }
  // Removes the name, and the file if it has no other name.
  void remove(const std::string& path) {
    FileOperation op;
    op.opcode = wire::Opcode::reclaim;
    op.inode = at(path);
    unlink(path);
    run(op);
  }
  void rmdir(const std::string& path) { named(wire::Opcode::rmdir, path, 0); }
  void symlink(const std::string& path, const std::string& target) {
    FileOperation op = in_directory(wire::Opcode::symlink, path);
    op.text = target;
    run(op);
  }
  void link(const std::string& from, const std::string& to) {
    FileOperation op = in_directory(wire::Opcode::link, to);
    op.second_inode = at(from);
    run(op);
  }
  void rename(const std::string& from, const std::string& to, u32 flags = 0) {
    FileOperation op = in_directory(wire::Opcode::rename, from);
    const FileOperation target = in_directory(wire::Opcode::rename, to);
    op.second_inode = target.inode;
    op.second_name = target.name;
    op.mask = flags;
    run(op);
  }
  void tmpfile() {
    FileOperation op;
    op.opcode = wire::Opcode::tmpfile;
    op.inode = PosixModel::root;
    op.mode = 0600;
    run(op);
  }
  // On files.
  void on_file(wire::Opcode opcode, const std::string& path, u64 offset, u64 length, u32 mode = 0) {
    FileOperation op;
    op.opcode = opcode;
    op.inode = at(path);
    op.offset = offset;
    op.length = length;
    op.mode = mode;
    op.data_seed = record_->operations.size() + 1;
    run(op);
  }
  void write(const std::string& path, u64 offset, u64 length) { on_file(wire::Opcode::write, path, offset, length); }
  void copy(const std::string& from, const std::string& to, u64 offset, u64 target_offset, u64 length) {
    FileOperation op;
    op.opcode = wire::Opcode::copy_range;
    op.inode = at(from);
    op.second_inode = at(to);
    op.offset = offset;
    op.aux = target_offset;
    op.length = length;
    run(op);
  }
  void chmod(const std::string& path, u32 mode) {
    FileOperation op;
    op.opcode = wire::Opcode::setattr;
    op.inode = at(path);
    op.mask = format::set_mode | format::set_uid;
    op.attributes.mode = mode;
    op.attributes.uid = 1000;
    run(op);
  }
  // Size, mode and owner at once.
  void resize(const std::string& path, u64 size) {
    FileOperation op;
    op.opcode = wire::Opcode::setattr;
    op.inode = at(path);
    op.mask = format::set_size | format::set_mode | format::set_uid;
    op.attributes.size_bytes = size;
    op.attributes.mode = 0604;
    op.attributes.uid = 1000;
    run(op);
  }
  void set_attribute(const std::string& path, const std::string& name, u64 length) {
    FileOperation op;
    op.opcode = wire::Opcode::set_attribute;
    op.inode = at(path);
    op.name = name;
    op.text = std::string(length, 'v');
    run(op);
  }
  void set_profile(const std::string& path, const std::string& profile) {
    FileOperation op;
    op.opcode = wire::Opcode::set_attribute;
    op.inode = at(path);
    op.name = PosixModel::profile_attribute;
    op.text = profile;
    run(op);
  }
  void remove_attribute(const std::string& path, const std::string& name) {
    FileOperation op;
    op.opcode = wire::Opcode::remove_attribute;
    op.inode = at(path);
    op.name = name;
    run(op);
  }
  void fsync(const std::string& path) { on_file(wire::Opcode::fsync, path, 0, 0); }
  void sync() { on_file(wire::Opcode::sync, "", 0, 0); }
  // Makes the state durable, without a promise to anyone.
  virtual void checkpoint() { ServedPool::require(pool_.checkpoint(), "a checkpoint"); }
  // Moves pages to other places, invisibly for users.
  RelocationDriver relocation() {
    session::ServerSession& session = pool_.management();
    return {[&session](wire::Command command) { return session.call(command); }, session.producer().data};
  }
  void freeze(u32 chunk) {
    ServedPool::require(relocation().step(wire::RelocateStep::freeze, chunk).status, "freezing");
  }
  void unfreeze(u32 chunk) { relocation().step(wire::RelocateStep::unfreeze, chunk); }
  // Moves everything of all files and metadata that is in frozen chunks.
  void move_everything() { ServedPool::require(relocation().move_everything(), "moving everything"); }
  void move(const std::string& path, u32 mask) {
    ServedPool::require(relocation().move(wire::RelocateStep::data, at(path), mask), "moving a file");
  }

 private:
  void mark(u64 value) {
    if (log_ != nullptr) log_->mark(value);
  }
  FileOperation in_directory(wire::Opcode opcode, const std::string& path) const {
    const std::size_t slash = path.rfind('/');
    FileOperation op;
    op.opcode = opcode;
    op.inode = slash == std::string::npos ? PosixModel::root : at(path.substr(0, slash));
    op.name = slash == std::string::npos ? path : path.substr(slash + 1);
    return op;
  }
  client::Reply named(wire::Opcode opcode, const std::string& path, u32 mode) {
    FileOperation op = in_directory(opcode, path);
    op.mode = mode;
    return run(op);
  }

  ServedPool& pool_;
  PosixModel model_;
  device::WriteLog* log_;
  CrashRecord* record_;
  FileClient client_;
  bool expects_short_writes_ = false;
};

enum class CrashPlace : u32 { one_device, two_devices, nearly_full, mixed };  // mixed: data single, metadata raid1
inline constexpr u32 crash_place_count = 4;

struct CrashHistory {
  std::string id;
  CrashPlace place = CrashPlace::one_device;
  u32 variants = 2;  // random states at each moment, besides the one with all writes and the one without any
  std::function<void(CrashWriter&)> body;
};

namespace detail {

// A small tree: files inline, of one page and of several, a directory with a file, a symbolic link, a hard link, an
// attribute.
inline void prepare_tree(CrashWriter& writer, CrashPlace place) {
  writer.create("a");
  writer.write("a", 0, 100);
  writer.mkdir("d");
  writer.create("d/f");
  writer.write("d/f", 0, 3 * page_size + 100);
  writer.link("d/f", "h");
  writer.symlink("s", "d/f");
  writer.set_attribute("a", "user.x", 20);
  writer.mkdir("e");
  if (place != CrashPlace::nearly_full) return;
  // Blocks after the end: they cannot be read or compared.
  writer.create("big");
  for (u64 length = u64{1} << 20, offset = 0; length >= 4 * page_size; length /= 2) {
    FileOperation op;
    op.opcode = wire::Opcode::fallocate;
    op.inode = writer.at("big");
    op.mode = 1;  // FALLOC_FL_KEEP_SIZE
    for (;; offset += length) {
      op.offset = offset;
      op.length = length;
      if (writer.run(op).status != Status::ok) break;
    }
  }
  // Some operations must still succeed.
  writer.on_file(wire::Opcode::fallocate, "big", 0, 32 * page_size, 3);
}

}  // namespace detail

struct CrashPoolShape {
  u32 device_count = 1;
  std::string profile = "single";
  u32 stripe_length_bytes = 0;     // 0: the default of mkfs
  u64 size_bytes = u64{11} << 20;  // of each device
};

inline DeviceContent device_content(const pool::DeviceFile& file) {
  DeviceContent content(file.size_bytes());
  std::vector<u8> page(page_size);
  const std::vector<u8> zeros(page_size, 0);
  for (u64 offset = 0; offset < content.size(); offset += page_size) {
    file.read_at(offset, page.data(), page_size);
    if (page != zeros) content.write(offset, page.data(), page_size);
  }
  return content;
}

// `more`: the work after the small tree.
inline CrashBase make_crash_base(const CrashPoolShape& shape, CrashPlace place,
                                 const std::function<void(CrashWriter&)>& more = nullptr) {
  DeviceFolder folder;
  pool::MakePoolOptions make;
  const u32 device_count = shape.device_count;
  for (u32 i = 0; i < device_count; ++i) make.device_paths.push_back(folder.device(i));
  make.size_bytes = shape.size_bytes;
  make.chunk_size_bytes = u64{8} << 20;
  set_profiles(make, shape.profile);
  make.stripe_length_bytes = shape.stripe_length_bytes;
  make.root_uid = make.root_gid = 0;
  pool::make_pool(make);
  CrashBase base;
  for (u32 i = 0; i < device_count; ++i) {
    pool::DeviceFile file =
        pool::DeviceFile::open(folder.device(i), pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock);
    // Equal runs must have equal writes.
    pool::SuperblockProbe probe = pool::probe_superblocks(file);
    format::Superblock superblock = *probe.newest();
    superblock.name_hash_seed = 1;
    pool::seal(superblock, pool::superblock_offset(superblock.slot));
    file.write_at(pool::superblock_offset(superblock.slot), &superblock, sizeof(superblock));
    base.devices.push_back(device_content(file));
  }
  CrashImage image(base.devices);
  CrashRecord record;
  {
    CrashPool pool(image, nullptr, "preparing a pool");
    CrashWriter writer(pool, PosixModel{}, nullptr, &record);
    detail::prepare_tree(writer, place);
    if (more) more(writer);
    base.model = writer.model();
    CrashPool::require(pool.checkpoint(true), "the last checkpoint");
  }
  if (!record.problem.empty()) throw std::runtime_error("preparing a pool: " + record.problem);
  base.devices = image.bytes();
  return base;
}

inline CrashBase make_crash_base(CrashPlace place) {
  CrashPoolShape shape;
  if (place == CrashPlace::two_devices || place == CrashPlace::mixed) shape.device_count = 2;
  if (place == CrashPlace::mixed) {
    shape.profile = "single+raid1";
    shape.size_bytes = u64{20} << 20;
  }
  return make_crash_base(shape, place);
}

// Created once for all tests of a program.
inline const CrashBase& base_of(CrashPlace place) {
  static const CrashBase bases[] = {make_crash_base(CrashPlace::one_device), make_crash_base(CrashPlace::two_devices),
                                    make_crash_base(CrashPlace::nearly_full), make_crash_base(CrashPlace::mixed)};
  return bases[static_cast<u32>(place)];
}

inline CrashRecord record_history(const CrashHistory& history, const CrashBase& base) {
  CrashRecord record;
  record.before = base.devices;
  CrashImage image(base.devices);
  const auto log = std::make_shared<device::MemoryWriteLog>();
  {
    CrashPool pool(image, log, history.id.c_str());
    CrashWriter writer(pool, base.model, log.get(), &record);
    if (history.place == CrashPlace::nearly_full) writer.expect_short_writes();
    history.body(writer);
    pool.drain();
    const std::string found = PoolText(pool.session()).text();
    if (found != record.states.back()) {
      record.problem += "without a crash the pool holds\n" + found + "instead of\n" + record.states.back();
    }
  }
  record.entries = log->entries();
  number_devices(record.entries);
  return record;
}

}  // namespace gpu4fs::test
