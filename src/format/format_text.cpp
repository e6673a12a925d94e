#include "format/format_text.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <iterator>

namespace gpu4fs::format {

namespace {

std::string_view trim_zeros(const std::uint8_t* bytes, std::size_t length) {
  const auto* text = reinterpret_cast<const char*>(bytes);
  return {text, strnlen(text, length)};
}

std::string_view block_size_text(BlockSize size) {
  switch (size) {
    case BlockSize::inode_slot:
      return "inode slot";
    case BlockSize::page_4k:
      return "4 KiB";
    case BlockSize::block_2m:
      return "2 MiB";
    case BlockSize::block_1g:
      return "1 GiB";
  }
  return "unknown";
}

std::string magic_text(std::uint32_t magic) {
  char letters[4];
  std::memcpy(letters, &magic, 4);
  return escape_name({letters, 4});
}

// A structure at any offset of a page, without regard to alignment.
template <class T>
T read_struct(const void* page, std::size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const std::uint8_t*>(page) + offset, sizeof(T));
  return value;
}

void append_slot(std::string& text, const void* page, unsigned index) {
  const auto slot =
      read_struct<DirectorySlot>(page, directory_leaf_slots_offset + std::size_t{index} * sizeof(DirectorySlot));
  const std::size_t name_offset = std::size_t{slot.entry_offset} + sizeof(DirectoryEntry);
  if (name_offset + slot.name_length > page_size) {
    fmt::format_to(std::back_inserter(text), "\n  slot {}: entry at {} length {} outside the page", index,
                   slot.entry_offset, slot.name_length);
    return;
  }
  const auto entry = read_struct<DirectoryEntry>(page, slot.entry_offset);
  const char* name = static_cast<const char*>(page) + name_offset;
  fmt::format_to(std::back_inserter(text), "\n  slot {}: hash {:#018x} inode {} type {} name \"{}\"", index, slot.hash,
                 entry.inode, slot.type, escape_name({name, slot.name_length}));
}

void append_node_children(std::string& text, const void* page) {
  std::uint32_t children[directory_node_slots];
  std::memcpy(children, static_cast<const std::uint8_t*>(page) + directory_node_children_offset, sizeof(children));
  for (unsigned first = 0; first < directory_node_slots;) {
    unsigned end = first + 1;
    while (end < directory_node_slots && children[end] == children[first]) ++end;
    fmt::format_to(std::back_inserter(text), "\n  slots {} to {}: page {}", first, end - 1, children[first]);
    first = end;
  }
}

}  // namespace

std::string escape_name(std::string_view name) {
  std::string text;
  for (const char character : name) {
    if (character >= 0x20 && character < 0x7f && character != '\\' && character != '"') {
      text.push_back(character);
    } else {
      fmt::format_to(std::back_inserter(text), "\\x{:02x}", static_cast<unsigned char>(character));
    }
  }
  return text;
}

std::string time_text(std::uint64_t encoded) {
  const std::time_t seconds = time_seconds(encoded);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, time_nanoseconds(encoded));
}

std::string uuid_text(const std::uint8_t (&uuid)[16]) {
  std::string text;
  for (unsigned i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text.push_back('-');
    fmt::format_to(std::back_inserter(text), "{:02x}", uuid[i]);
  }
  return text;
}

std::string_view inode_type_text(std::uint16_t mode) {
  if (mode == 0) return "free";
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "regular file";
    case S_IFDIR:
      return "directory";
    case S_IFLNK:
      return "symbolic link";
    case S_IFCHR:
      return "character device";
    case S_IFBLK:
      return "block device";
    case S_IFIFO:
      return "fifo";
    case S_IFSOCK:
      return "socket";
    default:
      return "unknown";
  }
}

std::string to_text(RaidLevel level) {
  switch (level) {
    case RaidLevel::single:
      return "single";
    case RaidLevel::raid0:
      return "raid0";
    case RaidLevel::raid1:
      return "raid1";
    case RaidLevel::raid5:
      return "raid5";
    case RaidLevel::raid6:
      return "raid6";
    case RaidLevel::raid7:
      return "raid7";
  }
  return fmt::format("unknown {}", static_cast<unsigned>(level));
}

std::string to_text(BlockPointer pointer) {
  if (!pointer.is_well_formed()) return fmt::format("malformed {:#x}", pointer.raw);
  if (pointer.is_hole()) return "hole";
  if (pointer.is_indirect()) return fmt::format("indirect at {:#x}", pointer.address());
  return fmt::format("{} {} at {:#x}", pointer.is_unwritten() ? "unwritten" : "data", block_size_text(pointer.size()),
                     pointer.address());
}

std::string to_text(ColumnAddress address) {
  return fmt::format("device {} offset {:#x}", address.device_index(), address.offset_bytes());
}

std::string to_text(Profile profile) {
  const auto number = static_cast<unsigned>(profile);
  return number >= 1 && number <= profile_max ? profile_name(profile).text : fmt::format("unknown ({})", number);
}

std::string to_text(const PageDescriptor& descriptor) {
  return fmt::format("checksum {:#018x} birth epoch {}", descriptor.checksum, descriptor.birth_epoch);
}

namespace {

// " (inline, immutable)", or nothing.
std::string flags_text(std::uint32_t flags) {
  struct Name {
    std::uint32_t flag;
    const char* text;
  };
  constexpr Name names[] = {{inode_flag_inline, "inline"},
                            {inode_flag_append_only, "append-only"},
                            {inode_flag_immutable, "immutable"},
                            {inode_flag_no_dump, "nodump"},
                            {inode_flag_no_access_time, "noatime"}};
  std::string text;
  for (const Name& name : names) {
    if ((flags & name.flag) != 0) text += (text.empty() ? " (" : ", ") + std::string(name.text);
  }
  return text.empty() ? text : text + ")";
}

}  // namespace

std::string to_text(const Inode& inode) {
  std::string text = fmt::format(
      "type: {}\nmode: {:07o}\nsize: {}\nlinks: {}\nuid: {}\ngid: {}\nversion: {}\nheight: {}\n"
      "flags: {:#x}{}\ngeneration: {}\npages: {}\nparent or device: {}\nentries: {}\nprofile: {}\n"
      "access: {}\nmodification: {}\nchange: {}\nbirth: {}\nattributes: {}",
      inode_type_text(inode.mode), inode.mode, inode.size_bytes, inode.link_count, inode.uid, inode.gid, inode.version,
      inode.height, inode.flags, flags_text(inode.flags), inode.generation, inode.page_count, inode.parent_or_device,
      inode.entry_count, inode.profile, time_text(inode.access_time), time_text(inode.modification_time),
      time_text(inode.change_time), time_text(inode.birth_time), to_text(inode.attributes));
  if (inode.attribute_height != 0) fmt::format_to(std::back_inserter(text), ", {} high", inode.attribute_height);
  if (inode.is_inline()) {
    const std::uint64_t length = std::min<std::uint64_t>(inode.size_bytes, inode_inline_capacity);
    const auto* bytes = reinterpret_cast<const char*>(inode.inline_data());
    text += fmt::format("\ncontent: \"{}\"", escape_name({bytes, static_cast<std::size_t>(length)}));
    return text;
  }
  for (unsigned i = 0; i < inode_slot_count; ++i) {
    if (inode.slots[i].raw != 0) text += fmt::format("\nslot {}: {}", i, to_text(inode.slots[i]));
  }
  return text;
}

std::string to_text(const DevicePart& part) {
  return fmt::format(
      "device index: {}\ndevice uuid: {}\ndevice size: {}\ntree: {} pages at {:#x}\n"
      "chunk map: {} pages a bitmap at {:#x}\nlog: {} bytes at {:#x}\n"
      "chunk area: {} granules of 64 KiB at {:#x}",
      part.device_index, uuid_text(part.device_uuid), part.size_bytes, part.tree_pages, part.tree_offset,
      part.chunk_map_pages, part.chunk_map_offset, part.log_bytes, part.log_offset, part.chunk_area_granules,
      part.chunk_area_offset);
}

std::string to_text(const Superblock& superblock) {
  std::string text = fmt::format(
      "magic: {:#018x}{}\nversion: {}\nslot: {}\nchecksum: {:#018x}\nepoch: {}\npool uuid: {}\n"
      "label: \"{}\"\nfeatures: compatible {:#x} read-only {:#x} incompatible {:#x}\n"
      "chunk size: {}\nname hash seed: {:#018x}\ncreated: {}\ncheckpoint: {}\nclean: {}\n"
      "data profile: {}\nmetadata profile: {}\ndevices: {}\nchunks: {}\n"
      "chunk tree: root {} height {} nodes {} replicas {}\npages: {} used of {}\ninodes used: {}\n"
      "log start: {:#x}\n",
      superblock.magic, superblock.magic == superblock_magic ? "" : " (wrong)", superblock.version, superblock.slot,
      superblock.checksum, superblock.epoch, uuid_text(superblock.pool_uuid),
      escape_name(trim_zeros(superblock.label, sizeof(superblock.label))), superblock.feature_compatible,
      superblock.feature_read_only_compatible, superblock.feature_incompatible, superblock.chunk_size_bytes,
      superblock.name_hash_seed, time_text(superblock.creation_time), time_text(superblock.checkpoint_time),
      superblock.clean, to_text(static_cast<Profile>(superblock.data_profile)),
      to_text(static_cast<Profile>(superblock.metadata_profile)), superblock.device_count, superblock.chunk_count,
      superblock.tree_root, superblock.tree_height, superblock.tree_node_count, superblock.tree_replica_count,
      superblock.page_used, superblock.page_total, superblock.inode_used, superblock.log_start);
  const unsigned count = std::min<unsigned>(superblock.device_count, device_count_max);
  for (unsigned i = 0; i < count; ++i) {
    text += fmt::format("member {}: {}", i, uuid_text(superblock.device_uuids[i]));
    if (superblock.stale_since[i] != 0) text += fmt::format(", stale since epoch {}", superblock.stale_since[i]);
    text += "\n";
  }
  return text + to_text(superblock.device);
}

std::string to_text(const ChunkHeader& header) {
  return fmt::format(
      "magic: {}\nversion: {}\ncolumn: {}\nchecksum: {:#018x}\npool uuid: {}\nbase: {:#x}\n"
      "size: {}\nepoch created: {}",
      magic_text(header.magic), header.version, header.column_index, header.checksum, uuid_text(header.pool_uuid),
      header.base_address, header.size_bytes, header.epoch_created);
}

std::string to_text(const BitmapSlotHeader& header) {
  return fmt::format(
      "magic: {}\nversion: {}\nslot: {}\nchecksum: {:#018x}\nbitmap checksum: {:#018x}\n"
      "descriptor table checksum: {:#018x}\nbase: {:#x}\nepoch: {}\nbits: {} set of {}",
      magic_text(header.magic), header.version, header.slot, header.checksum, header.bitmap_checksum,
      header.descriptor_table_checksum, header.base_address, header.epoch, header.set_count, header.bit_count);
}

std::string to_text(const ChunkDescriptor& descriptor) {
  return fmt::format(
      "base: {:#x}\nsize: {}\nlevel: {}\nredundancy: {}\ncolumns: {}\nstripe length: {}\n"
      "flags: {:#x}{}{}{}\nepoch created: {}",
      descriptor.base_address, descriptor.size_bytes, to_text(descriptor.level), descriptor.redundancy,
      descriptor.column_count, descriptor.stripe_length_bytes, descriptor.flags,
      (descriptor.flags & chunk_flag_data) != 0 ? " data" : "",
      (descriptor.flags & chunk_flag_metadata) != 0 ? " metadata" : "",
      (descriptor.flags & chunk_flag_physical) != 0 ? fmt::format(" on device {}", descriptor.physical_device) : "",
      descriptor.epoch_created);
}

std::string directory_page_text(const void* page) {
  const auto header = read_struct<DirectoryPageHeader>(page, 0);
  std::string text = fmt::format("magic: {}\nversion: {}\nlevel: {}\ndepth: {}\nprefix: {:#018x}",
                                 magic_text(header.magic), header.version, header.level, header.depth, header.prefix);
  if (header.magic == directory_node_magic) {
    append_node_children(text, page);
  } else if (header.magic == directory_leaf_magic) {
    fmt::format_to(std::back_inserter(text), "\nentries: {}\nheap: from {} garbage {}", header.entry_count,
                   header.heap_begin, header.heap_garbage);
    constexpr unsigned slot_max = (page_size - directory_leaf_slots_offset) / sizeof(DirectorySlot);
    for (unsigned i = 0; i < std::min<unsigned>(header.entry_count, slot_max); ++i) {
      append_slot(text, page, i);
    }
  } else {
    text += "\nno directory page";
  }
  return text;
}

std::string attribute_page_text(const void* page) {
  const auto header = read_struct<AttributePageHeader>(page, 0);
  std::string text = fmt::format("magic: {}\nversion: {}\nentries: {}\nused: {}", magic_text(header.magic),
                                 header.version, header.entry_count, header.used_bytes);
  std::size_t offset = sizeof(AttributePageHeader);
  for (unsigned i = 0; i < header.entry_count; ++i) {
    if (offset + sizeof(AttributeEntry) > page_size) break;
    const auto entry = read_struct<AttributeEntry>(page, offset);
    const std::size_t value_bytes = entry.value_slot == 0 ? entry.value_length : 0;
    const std::size_t length = sizeof(AttributeEntry) + entry.name_length + value_bytes;
    if (offset + length > page_size) {
      fmt::format_to(std::back_inserter(text), "\n  entry {} at {} reaches beyond the page", i, offset);
      break;
    }
    const char* name = static_cast<const char*>(page) + offset + sizeof(AttributeEntry);
    fmt::format_to(std::back_inserter(text), "\n  \"{}\": {} bytes, hash {:#010x}",
                   escape_name({name, entry.name_length}), entry.value_length, entry.value_hash);
    if (entry.value_slot != 0) {
      fmt::format_to(std::back_inserter(text), ", in pages from {} on", entry.value_slot * attribute_slot_pages);
    }
    offset += (length + 7) & ~std::size_t{7};
  }
  return text;
}

namespace {

std::string log_opcode_text(LogOpcode opcode) {
  const LogRow* row = find_log_row(opcode);
  return row != nullptr ? row->name : std::to_string(static_cast<unsigned>(opcode));
}

std::string log_names_text(const LogRecord& record, std::string_view behind) {
  std::string text;
  for (const std::size_t length : {std::size_t{record.name_length}, std::size_t{record.second_name_length}}) {
    const std::string_view name = behind.substr(0, length);
    behind.remove_prefix(name.size());
    if (name.empty()) continue;
    fmt::format_to(std::back_inserter(text), "{} \"{}\"", text.empty() ? ", names" : "", escape_name(name));
  }
  return text;
}

std::uint64_t log_pages(const LogRecord& record, const void* bytes, std::size_t length) {
  const std::uint32_t name_bytes = std::uint32_t{record.name_length} + record.second_name_length;
  if (record.data_length > length) return 0;
  const LogRecordLayout layout = log_record_layout(name_bytes, record.data_length, record.extent_count);
  std::uint64_t pages = 0;
  for (unsigned i = 0; i < record.extent_count; ++i) {
    const std::size_t at = layout.extents_offset + i * sizeof(LogExtent);
    if (at + sizeof(LogExtent) > length) break;
    pages += read_struct<LogExtent>(bytes, at).page_count;
  }
  return pages;
}

}  // namespace

std::string log_record_text(const void* record, std::size_t length) {
  if (length < sizeof(LogRecord)) return "cut short";
  const auto head = read_struct<LogRecord>(record, 0);
  const std::string_view behind(static_cast<const char*>(record) + sizeof(LogRecord), length - sizeof(LogRecord));
  return fmt::format(
      "{:#x}: {}, {} bytes, epoch {}, durable {:#x}, inode {}, second {}, number {}, offset {}, size {}, data {}, "
      "pages {}{}",
      head.lsn, log_opcode_text(head.opcode), head.length, head.epoch, head.durable_lsn, head.inode, head.second_inode,
      head.number, head.offset, head.size, head.data_length, log_pages(head, record, length),
      log_names_text(head, behind));
}

}  // namespace gpu4fs::format
