// gpu4fs dump: any structure of a pool as text. Takes no lock. On a mounted pool it shows the last checkpoint, whose
// pages may be reused while it reads.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "base/xxh3.hpp"
#include "format/format_text.hpp"
#include "fsck/check/attribute_tree.hpp"
#include "fsck/check/tree_reader.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_open.hpp"
#include "server/recovery/log_scan.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {

namespace {

struct DumpOptions {
  std::vector<std::string> devices;
  std::string number;  // inode number, or address of a page
};
DumpOptions options;
void (*dump_function)() = nullptr;

u64 parse_number(const std::string& text) {
  std::size_t end = 0;
  u64 number = 0;
  try {
    number = std::stoull(text, &end, 0);
  } catch (const std::exception&) {
    end = 0;
  }
  if (end == 0 || end != text.size()) {
    throw std::invalid_argument(fmt::format("'{}' is not a number", text));
  }
  return number;
}

pool::OpenedPool open_for_dump() {
  return pool::open_pool({options.devices, true, false, true});
}

const char* slot_state_text(pool::SlotState state) {
  switch (state) {
    case pool::SlotState::blank:
      return "blank";
    case pool::SlotState::damaged:
      return "damaged";
    case pool::SlotState::invalid:
      return "invalid";
    case pool::SlotState::valid:
      return "valid";
  }
  return "unknown";
}

std::string indent(const std::string& text) {
  std::string result = "  ";
  for (const char character : text) {
    result += character;
    if (character == '\n') result += "  ";
  }
  return result;
}

// Also works on devices without a usable pool.
void dump_superblock() {
  for (const std::string& list : options.devices) {
    for (const std::string& path : pool::split_device_list(list)) {
      const pool::SuperblockProbe probe = pool::probe_superblocks(path);
      for (u32 slot = 0; slot < 2; ++slot) {
        const pool::SuperblockSlot& state = probe.slots[slot];
        fmt::print("{} slot {} at {:#x}: {}{}{}\n", path, slot == 0 ? "A" : "B", pool::superblock_offset(slot),
                   slot_state_text(state.state), state.problem.empty() ? "" : ": ", state.problem);
        if (state.state == pool::SlotState::blank) continue;
        fmt::print("{}\n  inode file:\n{}\n", indent(format::to_text(state.superblock)),
                   indent(indent(format::to_text(state.superblock.inode_file))));
      }
    }
  }
}

void dump_device() {
  const pool::OpenedPool pool = open_for_dump();
  for (const pool::OpenedDevice& device : pool.devices) {
    if (!device.is_here()) {
      fmt::print("{}: {}\n", device.file.path(), pool::member_state_name(device.state));
      continue;
    }
    fmt::print("{}:\n{}\n", device.file.path(), indent(format::to_text(device.part)));
    const u64 slot_pages = 1 + device.part.chunk_map_pages;
    for (u32 slot = 0; slot < 2; ++slot) {
      format::BitmapSlotHeader header{};
      device.file.read_at(device.part.chunk_map_offset + slot * slot_pages * page_size, &header, sizeof(header));
      fmt::print("  chunk map slot {}:\n{}\n", slot == 0 ? "A" : "B", indent(indent(format::to_text(header))));
    }
  }
}

void dump_chunks() {
  const pool::OpenedPool pool = open_for_dump();
  for (const pool::OpenedChunk& chunk : pool.chunks) {
    fmt::print("chunk {:#x}:\n{}\n", chunk.descriptor.base_address, indent(format::to_text(chunk.descriptor)));
    const format::ChunkLayout layout = format::chunk_layout(chunk.descriptor.size_bytes / page_size);
    for (const format::ColumnAddress column : chunk.columns) {
      fmt::print("  column: {}\n", format::to_text(column));
      const pool::DeviceFile& file = pool.devices[column.device_index()].file;
      if (!pool.devices[column.device_index()].is_here()) continue;
      format::ChunkHeader header{};
      file.read_at(column.offset_bytes(), &header, sizeof(header));
      fmt::print("  header:\n{}\n", indent(indent(format::to_text(header))));
      for (const u64 page : {layout.bitmap_a_page, layout.bitmap_b_page}) {
        format::BitmapSlotHeader slot{};
        file.read_at(column.offset_bytes() + page * page_size, &slot, sizeof(slot));
        fmt::print("  bitmap slot {}:\n{}\n", page == layout.bitmap_a_page ? "A" : "B",
                   indent(indent(format::to_text(slot))));
      }
    }
  }
}

void dump_tree() {
  const pool::OpenedPool pool = open_for_dump();
  const format::Superblock& superblock = pool.superblock;
  for (u32 replica = 0; replica < superblock.tree_replica_count; ++replica) {
    const pool::OpenedDevice& device = pool.devices[replica];
    if (!device.is_here()) continue;
    fmt::print("{}: chunk tree, root {}, {} nodes\n", device.file.path(), superblock.tree_root,
               superblock.tree_node_count);
    // Also nodes that the tree does not use: they are free, or belonged to the previous tree.
    for (u64 number = 0; number < device.part.tree_pages; ++number) {
      format::ChunkTreeNode node{};
      device.file.read_at(device.part.tree_offset + number * page_size, &node, sizeof(node));
      if (node.magic != format::chunk_tree_magic) {
        if (number < superblock.tree_node_count) fmt::print("  node {}: no node\n", number);
        continue;
      }
      fmt::print("  node {}: level {} epoch {} entries {} bytes {} checksum {:#018x}\n", number, node.level, node.epoch,
                 node.entry_count, node.used_bytes, node.checksum);
    }
  }
  for (const pool::OpenedChunk& chunk : pool.chunks) {
    fmt::print("{:#x} + {:#x} {}", chunk.descriptor.base_address, chunk.descriptor.size_bytes,
               format::to_text(chunk.descriptor.level));
    for (const format::ColumnAddress column : chunk.columns) fmt::print(", {}", format::to_text(column));
    fmt::print("\n");
  }
}

void dump_inode() {
  const pool::OpenedPool pool = open_for_dump();
  fsck::MediumReader reader(pool);
  const u64 number = parse_number(options.number);
  const format::Inode inode = fsck::read_inode(reader, number);
  fmt::print("inode {}:\n{}\n", number, indent(format::to_text(inode)));
  fsck::walk_attributes(inode, [&](const fsck::AttributeBlock& block, fsck::PageBuffer* content) {
    const std::string name = block.level != 0 ? fmt::format("attributes, level {}, block {}", block.level, block.index)
                                              : fmt::format("attributes, page {}", block.index);
    if (!block.is_well_formed())
      throw pool::PoolError(Status::corrupt_structure, name + ": " + format::to_text(block.pointer));
    fsck::read_verified(reader, block.pointer.address(), content);
    fmt::print("{}: {}\n", name, format::to_text(block.pointer));
    if (block.level == 0 && block.index < format::attribute_entry_pages) {
      fmt::print("{}\n", indent(format::attribute_page_text(content->bytes)));
    }
    return block.level != 0;
  });
}

void dump_directory() {
  const pool::OpenedPool pool = open_for_dump();
  fsck::MediumReader reader(pool);
  const u64 number = parse_number(options.number);
  const format::Inode inode = fsck::read_inode(reader, number);
  if (format::inode_type_text(inode.mode) != "directory") {
    throw std::invalid_argument(
        fmt::format("inode {} is no directory: {}", number, format::inode_type_text(inode.mode)));
  }
  const auto page = std::make_unique<fsck::PageBuffer>();
  for (u64 index = 0; index < inode.size_bytes / page_size; ++index) {
    format::BlockPointer pointer{};
    const u64 address = fsck::find_page(reader, inode, index, &pointer);
    if (address == 0) {
      fmt::print("page {}: missing\n", index);
      continue;
    }
    fsck::read_verified(reader, address, page.get());
    fmt::print("page {} at {:#x}:\n{}\n", index, address, indent(format::directory_page_text(page->bytes)));
  }
}

void print_map(fsck::MediumReader& reader, format::BlockPointer pointer, u32 level, u64 index) {
  if (pointer.raw == 0) return;
  fmt::print("  level {} index {}: {}\n", level, index, format::to_text(pointer));
  if (!pointer.is_well_formed() || !pointer.is_indirect() || level == 0) return;
  const auto page = std::make_unique<fsck::PageBuffer>();
  fsck::read_verified(reader, pointer.address(), page.get());
  for (u32 i = 0; i < format::slots_per_block; ++i) {
    format::BlockPointer child{};
    std::memcpy(&child, page->bytes + i * sizeof(child), sizeof(child));
    print_map(reader, child, level - 1, index * format::slots_per_block + i);
  }
}

void dump_map() {
  const pool::OpenedPool pool = open_for_dump();
  fsck::MediumReader reader(pool);
  const u64 number = parse_number(options.number);
  const format::Inode inode = fsck::read_inode(reader, number);
  fmt::print("inode {}: height {}{}\n", number, inode.height, inode.is_inline() ? ", content is inline" : "");
  if (inode.is_inline()) return;
  for (u32 i = 0; i < format::inode_slot_count; ++i) print_map(reader, inode.slots[i], inode.height, i);
}

void dump_page() {
  const pool::OpenedPool pool = open_for_dump();
  fsck::MediumReader reader(pool);
  const u64 address = parse_number(options.number);
  const auto page = std::make_unique<fsck::PageBuffer>();
  const fsck::PageState state = reader.read_page(address, page.get());
  const std::optional<fsck::PagePlace> place = reader.locate(address);
  if (!place) {
    throw std::invalid_argument(
        fmt::format("{:#x} is no address of a page: outside all chunks or not aligned", address));
  }
  format::PageDescriptor descriptor{};
  reader.read_descriptor(*place, &descriptor);
  fmt::print("{}: {}, {}\n", reader.place_text(address), format::to_text(descriptor),
             state == fsck::PageState::good      ? "content matches"
             : state == fsck::PageState::damaged ? "content does not match (or the page is free)"
                                                 : "cannot be read");
  for (u32 row = 0; row < page_size; row += 16) {
    // Equal rows are omitted.
    if (row > 0 && row + 16 < page_size && std::memcmp(page->bytes + row, page->bytes + row - 16, 16) == 0) continue;
    fmt::print("{:03x} ", row);
    for (u32 i = 0; i < 16; ++i) fmt::print(" {:02x}", page->bytes[row + i]);
    fmt::print("\n");
  }
}

// Whether the pages that the record names have the content that was written for it.
bool pages_match(fsck::MediumReader& reader, const format::LogRecord& record) {
  const format::LogRecordLayout layout = format::log_record_layout(u32{record.name_length} + record.second_name_length,
                                                                   record.data_length, record.extent_count);
  const auto page = std::make_unique<fsck::PageBuffer>();
  for (u32 i = 0; i < record.extent_count; ++i) {
    format::LogExtent extent;
    std::memcpy(&extent, reinterpret_cast<const u8*>(&record) + layout.extents_offset + i * sizeof(extent),
                sizeof(extent));
    if ((extent.flags & format::log_extent_unwritten) != 0) continue;
    u64 digest = 0;
    for (u32 k = 0; k < extent.page_count; ++k) {
      const u64 address = extent.address + u64{k} * page_size;
      if (!reader.locate(address) || reader.read_page(address, page.get()) == fsck::PageState::unreadable) return false;
      digest += format::page_digest(xxh3_64(page->bytes, page_size, address), k);
    }
    if (digest != extent.digest) return false;
  }
  return true;
}

void dump_log() {
  const pool::OpenedPool pool = open_for_dump();
  fsck::MediumReader reader(pool);
  const server::LogScan log = server::scan_log(pool);
  for (u64 i = 0; i < log.record_count(); ++i) {
    const format::LogRecord& record = log.record(i);
    const char* pages = pages_match(reader, record) ? "" : ", its pages were not written";
    fmt::print("{}{}\n", format::log_record_text(&record, record.length), pages);
  }
  fmt::print("log: {} records from {:#x} to {:#x} of {} bytes\n", log.record_count(), log.start, log.end, log.capacity);
  if (log.durable > log.end) fmt::print("log: damaged, was durable up to {:#x}\n", log.durable);
}

struct DumpTarget {
  const char* name;
  const char* summary;
  const char* argument;  // null: none
  void (*function)();
};
constexpr DumpTarget targets[] = {
    {"superblock", "both superblock slots of each device named", nullptr, dump_superblock},
    {"device", "layout and chunk map of each device", nullptr, dump_device},
    {"chunks", "descriptor, header and bitmap slots of every chunk", nullptr, dump_chunks},
    {"tree", "the chunk tree", nullptr, dump_tree},
    {"log", "the operations behind the newest checkpoint", nullptr, dump_log},
    {"inode", "an inode and its attributes", "number", dump_inode},
    {"directory", "the pages of a directory", "number", dump_directory},
    {"map", "all block pointers of a file", "number", dump_map},
    {"page", "a page and its descriptor", "address", dump_page},
};

void add_options(cli::CommandLine app) {
  options = {};
  app.require_subcommand();
  for (const DumpTarget& target : targets) {
    cli::CommandLine sub = app.subcommand(target.name, target.summary);
    if (target.argument != nullptr) {
      sub.option(target.argument, options.number, "Decimal or 0x...").required();
    }
    sub.option("devices", options.devices, "Members of the pool").required();
    sub.on_selected([&target] { dump_function = target.function; });
  }
}

int run() {
  dump_function();
  return 0;
}

}  // namespace

const cli::Verb dump_verb = {"dump", "print structures of the medium", nullptr, add_options, run, 16, 8};

}  // namespace gpu4fs::tools
