// Random operations over a limited set of names, chosen according to the model's content.
#pragma once

#include <vector>

#include "fmt/format.h"
#include "support/group_runner.hpp"
#include "support/posix_model.hpp"

namespace gpu4fs::test {

struct SourceOptions {
  u64 offset_max = u64{3} << 20;  // of writes
  u64 length_max = u64{256} << 10;
  u64 big_length = u64{2500} << 10;  // from time to time
  bool sparse = true;                // far offsets
  bool zero_ranges = true;
  bool whiteouts = false;             // the caller tells the model the numbers that they get
  u32 node_max = 40;                  // above this more is removed than created
  u32 name_count = 7;                 // different names in a directory, and as many long ones
  u32 directory_max = 1000;           // limit of directories
  u32 make_percent = 24;              // how often something is created
  bool flags = false;                 // inodes become immutable and append-only for a while
  u64 attribute_max = 65537;          // bytes of the greatest attribute, and one more
  std::vector<std::string> profiles;  // that files may request; empty: none
};

// Bytes of a write, from its seed.
inline std::vector<u8> content_of(const FileOperation& op) {
  std::vector<u8> bytes(op.length);
  Sequence sequence(op.data_seed);
  u64 word = 0;
  for (u64 i = 0; i < bytes.size(); ++i) {
    if (i % 8 == 0) word = sequence.next();
    bytes[i] = static_cast<u8>(word >> (8 * (i % 8)));
  }
  return bytes;
}

class OperationSource {
 public:
  OperationSource(u64 seed, const SourceOptions& options) : random_(seed), options_(options) {}

  FileOperation next(const PosixModel& model) {
    numbers_.clear();
    directories_.clear();
    files_.clear();
    links_.clear();
    orphans_.clear();
    flagged_.clear();
    for (const auto& [number, node] : model.nodes) {
      numbers_.push_back(number);
      if (node.is_directory()) directories_.push_back(number);
      if (node.is_regular()) files_.push_back(number);
      if (node.is_symlink()) links_.push_back(number);
      if (node.link_count == 0) orphans_.push_back(number);
      if (node.is_flagged()) flagged_.push_back(number);
    }
    FileOperation op;
    op.uid = below(3) == 0 ? 1000 : 0;
    op.gid = below(3) == 0 ? 100 : 0;
    const bool is_full = model.nodes.size() > options_.node_max;
    if (below(100) < options_.make_percent) {
      if (is_full && below(3) != 0) {
        remove(op);
      } else {
        make(op);
      }
      return op;
    }
    const u64 choice = 24 + below(76);
    if (choice < 36) {
      is_full || below(3) == 0 ? remove(op) : rename(op);
    } else if (choice < 80) {
      content(model, op);
    } else if (choice < 88) {
      attributes(op);
    } else {
      other(op);
    }
    return op;
  }

  u64 below(u64 bound) { return random_.next() % bound; }

 private:
  using Opcode = wire::Opcode;

  u64 pick(const std::vector<u64>& numbers) {
    // Occasionally a number that does not fit.
    if (numbers.empty() || below(40) == 0) return numbers_[below(numbers_.size())];
    return numbers[below(numbers.size())];
  }
  std::string name() {
    std::string text = fmt::format("{}", below(options_.name_count));
    if (below(12) == 0) text += std::string(255 - text.size(), 'n');
    return text;
  }
  u64 offset() {
    if (options_.sparse && below(25) == 0) return (u64{1} << (22 + below(18))) + below(3 * page_size) - page_size;
    const u64 place = below(options_.offset_max);
    switch (below(6)) {
      case 0:
        return place / page_size * page_size;
      case 1:
        return below(300);
      case 2:
        return below(3 * page_size);
      case 3:
        return below(2) * (u64{2} << 20) + below(2 * page_size);
      default:
        return place;
    }
  }
  u64 length() {
    switch (below(10)) {
      case 0:
        return 0;
      case 1:
      case 2:
        return 1 + below(200);
      case 3:
      case 4:
        return (1 + below(8)) * page_size;
      case 5:
        return below(12) == 0 ? 1 + below(options_.big_length) : 1 + below(page_size);
      case 6:
        return 1 + below(options_.length_max);
      default:
        return 1 + below(5 * page_size);
    }
  }

  void make(FileOperation& op) {
    op.inode = pick(directories_);
    op.name = name();
    op.mode = static_cast<u32>(below(010000));
    op.umask_bits = below(2) == 0 ? 022 : 0;
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
        op.opcode = directories_.size() < options_.directory_max ? Opcode::mkdir : Opcode::create;
        break;
      case 3: {
        op.opcode = Opcode::symlink;
        const u64 lengths[] = {1, 20, 127, 128, 129, 1000, 4095};
        op.text = std::string(lengths[below(7)], static_cast<char>('a' + below(26)));
        break;
      }
      case 4:
      case 5: {
        op.opcode = Opcode::mknod;
        const u32 types[] = {S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK};
        op.mode |= types[below(5)];
        op.aux = below(1u << 20);
        break;
      }
      case 6:
        op.opcode = Opcode::tmpfile;
        op.name.clear();
        break;
      case 7:
      case 8:
        op.opcode = Opcode::link;
        op.second_inode = pick(files_);
        break;
      default:
        op.opcode = Opcode::create;
        op.mask = 02 | (below(3) == 0 ? 0200u : 0u);
        break;
    }
  }

  void remove(FileOperation& op) {
    if (!orphans_.empty() && below(3) == 0) {
      op.opcode = Opcode::reclaim;
      op.inode = below(10) == 0 ? pick(files_) : orphans_[below(orphans_.size())];
      return;
    }
    op.opcode = below(3) == 0 ? Opcode::rmdir : Opcode::unlink;
    op.inode = pick(directories_);
    op.name = name();
  }

  void rename(FileOperation& op) {
    op.opcode = Opcode::rename;
    op.inode = pick(directories_);
    op.second_inode = below(3) == 0 ? op.inode : pick(directories_);
    op.name = name();
    op.second_name = name();
    const u32 flags[] = {0, 0, 0, 1, 2, 2, 3, 4, 4, 5, 6};
    op.mask = flags[below(options_.whiteouts ? 11 : 7)];
  }

  void content(const PosixModel& model, FileOperation& op) {
    op.inode = pick(files_);
    op.offset = offset();
    op.length = length();
    switch (below(20)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        op.opcode = Opcode::truncate;
        const ModelNode* node = model.find(op.inode);
        const u64 size = node == nullptr ? 0 : node->content.size();
        const u64 sizes[] = {
            0, size, size / 2, size + below(page_size), op.offset, below(200), size / page_size * page_size};
        op.offset = sizes[below(7)];
        if (below(60) == 0) op.offset = u64{1} << 63;
        break;
      }
      case 4:
      case 5:
      case 6: {
        op.opcode = Opcode::fallocate;
        const u32 modes[] = {0, 1, 3, 3, 0x10, 0x11, 0x08};
        op.mode = modes[options_.zero_ranges ? below(7) : below(4)];
        break;
      }
      case 7:
        op.opcode = Opcode::seek;
        op.mode = 3 + static_cast<u32>(below(2));  // SEEK_DATA, SEEK_HOLE
        break;
      case 8:
      case 9:
        op.opcode = Opcode::copy_range;
        op.second_inode = pick(files_);
        op.aux = offset();
        if (below(3) == 0) op.aux = op.aux / page_size * page_size + op.offset % page_size;
        break;
      case 10:
      case 11:
        op.opcode = Opcode::read;
        break;
      default:
        op.opcode = Opcode::write;
        op.append = below(6) == 0;
        op.data_seed = random_.next();
        break;
    }
  }

  void attributes(FileOperation& op) {
    op.inode = below(3) == 0 ? pick(directories_) : pick(files_);
    const std::string names[] = {"user.a", "user.b", "user.long" + std::string(200, 'x'), "trusted.t", "security.s"};
    op.name = names[below(5)];
    // Enough of them for several pages.
    if (below(4) == 0) op.name = "user.many" + std::to_string(below(20)) + std::string(150, 'y');
    op.uid = 0;  // others do not see trusted attributes
    const bool is_profile = !options_.profiles.empty() && below(2) == 0;
    if (is_profile) op.name = PosixModel::profile_attribute;
    switch (below(6)) {
      case 0:
        op.opcode = Opcode::remove_attribute;
        break;
      case 1:
        op.opcode = Opcode::list_attributes;
        op.name.clear();
        op.length = below(2) == 0 ? 0 : below(6000);
        break;
      case 2:
        op.opcode = Opcode::get_attribute;
        op.length = below(2) == 0 ? 0 : below(below(4) == 0 ? options_.attribute_max : 3000);
        break;
      default: {
        op.opcode = Opcode::set_attribute;
        const u64 lengths[] = {0, 1, 7, 100, 900, 2500, 3900};
        op.text = std::string(lengths[below(7)], static_cast<char>('A' + below(26)));
        if (below(8) == 0) op.text.resize(1020 + below(options_.attribute_max - 1020), 'z');
        op.mask = static_cast<u32>(below(4) == 0 ? 1 + below(2) : 0);
        if (is_profile) op.text = options_.profiles[below(options_.profiles.size())];
        break;
      }
    }
  }

  void other(FileOperation& op) {
    switch (below(12)) {
      case 0:
        op.opcode = Opcode::readlink;
        op.inode = pick(links_);
        op.length = below(3) == 0 ? 1 + below(200) : 4096;
        return;
      case 1:
      case 2:
        op.opcode = Opcode::readdir;
        op.inode = pick(directories_);
        op.length = 512 + below(3000);
        op.mask = static_cast<u32>(below(2));
        return;
      case 3:
        op.opcode = Opcode::lookup;
        op.inode = pick(directories_);
        op.name = name();
        return;
      case 4:
        op.opcode = below(2) == 0 ? Opcode::fsync : Opcode::sync;
        op.inode = numbers_[below(numbers_.size())];
        return;
      case 5:
        op.opcode = Opcode::statfs;
        return;
      case 6:
        op.opcode = Opcode::getattr;
        op.inode = below(5) == 0 ? 16 + below(200) : numbers_[below(numbers_.size())];
        return;
      default:
        break;
    }
    op.opcode = Opcode::setattr;
    op.inode = numbers_[below(numbers_.size())];
    op.attributes.mode = static_cast<u32>(below(010000));
    op.attributes.uid = static_cast<u32>(below(3) * 1000);
    op.attributes.gid = static_cast<u32>(below(3) * 100);
    op.attributes.size_bytes = offset();
    op.attributes.access_seconds = 1 + static_cast<i64>(below(1'000'000));
    op.attributes.access_nanoseconds = static_cast<u32>(below(1'000'000'000));
    op.attributes.modification_seconds = 1 + static_cast<i64>(below(1'000'000));
    op.attributes.modification_nanoseconds = static_cast<u32>(below(1'000'000'000));
    const u32 masks[] = {format::set_mode,
                         format::set_uid,
                         format::set_gid,
                         format::set_uid | format::set_gid,
                         format::set_access_time | format::set_modification_time,
                         format::set_modification_time,
                         format::set_access_time_now | format::set_modification_time_now,
                         format::set_size,
                         format::set_size | format::set_mode,
                         0};
    op.mask = masks[below(10)];
    if (options_.flags && below(3) == 0) change_flags(op);
  }

  void change_flags(FileOperation& op) {
    op.mask = format::set_flags;
    // Mostly existing ones are removed.
    const u32 flags[] = {0,
                         0,
                         0,
                         format::inode_flag_no_access_time,
                         format::inode_flag_no_dump,
                         format::inode_flag_append_only,
                         format::inode_flag_immutable,
                         format::inode_flag_append_only | format::inode_flag_no_dump};
    op.attributes.flags = flags[below(8)];
    for (const u64 number : flagged_) {
      if (below(2) == 0) op.inode = number;
    }
    if (op.inode == PosixModel::root) op.attributes.flags = 0;  // nothing could be made any more
  }

  Sequence random_;
  SourceOptions options_;
  std::vector<u64> numbers_;
  std::vector<u64> directories_;
  std::vector<u64> files_;
  std::vector<u64> links_;
  std::vector<u64> orphans_;
  std::vector<u64> flagged_;
};

inline std::string to_text(const FileOperation& op) {
  const auto shorten = [](const std::string& text) { return text.size() > 12 ? text.substr(0, 12) + "..." : text; };
  return fmt::format(
      "{}(inode {} \"{}\", second {} \"{}\", offset {}, length {}, aux {}, mode {:#o}, mask {:#x}, uid {}, "
      "gid {}, umask {:#o}{}, text {} bytes)",
      wire::command_name(op.opcode), op.inode, shorten(op.name), op.second_inode, shorten(op.second_name), op.offset,
      op.length, op.aux, op.mode, op.mask, op.uid, op.gid, op.umask_bits, op.append ? ", append" : "", op.text.size());
}

}  // namespace gpu4fs::test
