// The structures of an image, and changes of them with recomputed checksums: data with a valid checksum is as untrusted
// as any other. Each change also says which items of the content it affects.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/xxh3_serial.hpp"
#include "format/log_format.hpp"
#include "fsck/check/tree_reader.hpp"
#include "fuzz/damage.hpp"
#include "fuzz/image_content.hpp"
#include "pool/pool_checksum.hpp"
#include "pool/pool_superblock.hpp"
#include "server/recovery/log_scan.hpp"

namespace gpu4fs::test::changed_images {

enum class StructureKind : u32 {
  superblock,
  tree_node,
  chunk_header,
  inode,
  map_page,
  directory_page,
  attribute_page,
  bitmap_file_page,
  log_record,
  page_descriptor,
  bitmap_slot,
};
constexpr const char* structure_names[] = {"superblock", "chunk tree node", "chunk header",   "inode",
                                           "map page",   "directory page",  "attribute page", "bitmap file",
                                           "log record", "page descriptor", "bitmap slot"};

struct Structure {
  StructureKind kind;
  u64 place;  // logical address; device; node; chunk; record
  u64 inode;  // its owner
  std::set<u32> items;
};

// The effects of changes.
struct Touched {
  std::set<u32> items;
  bool space = false;  // a pool that does not know better may allocate or free pages of affected items
  std::string text;
};

class ImageStructures {
 public:
  // For the pool in the files, which contains `content`.
  ImageStructures(std::vector<std::string> paths, const ImageContent& content)
      : paths_(std::move(paths)), content_(content), pool_(open()), reader_(pool_), log_(server::scan_log(pool_)) {
    for (u32 i = 0; i < content_.items.size(); ++i) all_.insert(i);
    for (u32 d = 0; d < pool_.devices.size(); ++d) add(StructureKind::superblock, d, 0, all_);
    for (u32 n = 0; n < pool_.superblock.tree_node_count; ++n) add(StructureKind::tree_node, n, 0, all_);
    for (u32 c = 0; c < pool_.chunks.size(); ++c) add(StructureKind::chunk_header, c, 0, {});  // items: below
    for (u64 i = 0; i < log_.record_count(); ++i) add(StructureKind::log_record, i, 0, all_);
    walk(pool_.superblock.inode_file, format::inode_number_inode_file);
    const u64 end = pool_.superblock.inode_file.size_bytes / format::inode_size;
    for (u64 number = 1; number < end; ++number) {
      const format::Inode inode = fsck::read_inode(reader_, number);
      if (inode.mode == 0) continue;
      format::BlockPointer pointer{};
      const u64 index = number / format::inodes_per_page;
      const u64 page = fsck::find_page(reader_, pool_.superblock.inode_file, index, &pointer);
      const std::set<u32> items = items_of(number);
      add(StructureKind::inode, page, number, items);
      own(page, 1, items);
      walk(inode, number);
    }
    for (Structure& structure : structures_) {
      if (structure.kind == StructureKind::chunk_header) structure.items = items_in(pool_.chunks[structure.place]);
    }
    for (const auto& [page, items] : owners_) add(StructureKind::page_descriptor, page, 0, items);
    for (u32 c = 0; c < pool_.chunks.size(); ++c) add(StructureKind::bitmap_slot, c, 0, {});
  }

  // One change.
  void change(Sequence& random, Touched& touched) {
    // Each kind with the same probability.
    std::map<StructureKind, std::vector<const Structure*>> by_kind;
    for (const Structure& one : structures_) by_kind[one.kind].push_back(&one);
    auto kind = by_kind.begin();
    std::advance(kind, random.next() % by_kind.size());
    const Structure& structure = *kind->second[random.next() % kind->second.size()];
    touched.text += fmt::format(" [{} {:#x} of inode {}]", structure_names[static_cast<u32>(structure.kind)],
                                structure.place, structure.inode);
    touched.items.insert(structure.items.begin(), structure.items.end());
    switch (structure.kind) {
      case StructureKind::superblock:
        return change_superblock(random, static_cast<u32>(structure.place));
      case StructureKind::tree_node:
        return change_tree_node(random, static_cast<u32>(structure.place));
      case StructureKind::chunk_header:
        return change_chunk_header(random, static_cast<u32>(structure.place));
      case StructureKind::log_record:
        return change_record(random, structure.place);
      case StructureKind::page_descriptor:
        return change_descriptor(random, structure.place);
      case StructureKind::bitmap_slot:
        return change_bitmap(random, static_cast<u32>(structure.place), touched);
      default:
        return change_page(random, structure, touched);
    }
  }

 private:
  pool::OpenedPool open() const {
    pool::OpenPoolOptions options;
    options.device_paths = paths_;
    options.read_only = true;
    options.lock = false;
    return pool::open_pool(options);
  }
  void add(StructureKind kind, u64 place, u64 inode, std::set<u32> items) {
    structures_.push_back({kind, place, inode, std::move(items)});
  }
  void own(u64 address, u64 count, const std::set<u32>& items) {
    for (u64 i = 0; i < count; ++i) owners_[address + i * page_size].insert(items.begin(), items.end());
  }
  // Items that become unreachable or different if the inode is changed.
  std::set<u32> items_of(u64 inode) const {
    if (inode == format::inode_number_inode_file) return all_;
    std::set<u32> found;
    for (const u32 i : all_) {
      const ImageItem& item = content_.items[i];
      for (const ImageItem& above : content_.items) {
        if (above.inode == inode && (S_ISDIR(above.mode) ? item.is_below(above) : item.inode == inode)) found.insert(i);
      }
    }
    return found;
  }
  std::set<u32> items_between(u64 begin, u64 end) const {
    std::set<u32> found;
    for (auto at = owners_.lower_bound(begin); at != owners_.end() && at->first < end; ++at) {
      found.insert(at->second.begin(), at->second.end());
    }
    return found;
  }
  std::set<u32> items_in(const pool::OpenedChunk& chunk) const {
    return items_between(chunk.descriptor.base_address, chunk.descriptor.base_address + chunk.descriptor.size_bytes);
  }

  // Map, content and attributes of an inode.
  void walk(const format::Inode& inode, u64 number) {
    const std::set<u32> items = items_of(number);
    if (inode.attributes.is_valid()) {
      add(StructureKind::attribute_page, inode.attributes.address(), number, items);
      own(inode.attributes.address(), 1, items);
    }
    if (inode.is_inline()) return;
    for (const format::BlockPointer& slot : inode.slots) {
      walk_slot(slot, inode.height, number, S_ISDIR(inode.mode), items);
    }
  }
  void walk_slot(format::BlockPointer slot, u32 level, u64 number, bool is_directory, const std::set<u32>& items) {
    if (!slot.is_valid()) return;
    own(slot.address(), slot.is_indirect() ? 1 : u64{1} << (format::slot_shift * level), items);
    if (!slot.is_indirect()) {
      const bool is_bitmap =
          number == format::inode_number_inode_bitmap || number == format::inode_number_orphan_bitmap;
      if (is_directory) add(StructureKind::directory_page, slot.address(), number, items);
      if (is_bitmap) add(StructureKind::bitmap_file_page, slot.address(), number, items);
      return;
    }
    add(StructureKind::map_page, slot.address(), number, items);
    fsck::PageBuffer page;
    fsck::read_verified(reader_, slot.address(), &page);
    for (const format::BlockPointer next : slots_of(page.bytes)) {
      walk_slot(next, level - 1, number, is_directory, items);
    }
  }
  static std::vector<format::BlockPointer> slots_of(const u8* page) {
    std::vector<format::BlockPointer> slots(format::slots_per_block);
    std::memcpy(slots.data(), page, page_size);
    return slots;
  }

  // A new pointer: the pool may free or overwrite the pages that it leads to.
  void follow(format::BlockPointer pointer, u32 depth, Touched& touched) {
    if (!pointer.is_valid() || !pointer.is_well_formed()) return;
    touched.space = true;
    const u32 level = pointer.is_indirect() ? 0 : static_cast<u32>(pointer.size()) - 1;
    const u64 pages = u64{1} << (format::slot_shift * level);
    const std::set<u32> items = items_between(pointer.address(), pointer.address() + pages * page_size);
    touched.items.insert(items.begin(), items.end());
    fsck::PageBuffer page;
    if (!pointer.is_indirect() || depth == 0 || !reader_.locate(pointer.address())) return;
    if (!reader_.read_raw_copy(pointer.address(), 0, &page)) return;
    for (const format::BlockPointer next : slots_of(page.bytes)) follow(next, depth - 1, touched);
  }
  void follow_new(const u8* before, const u8* after, u64 length, bool all, Touched& touched) {
    for (u64 at = 0; at < length; at += sizeof(format::BlockPointer)) {
      format::BlockPointer pointer{};
      std::memcpy(&pointer, after + at, sizeof(pointer));
      if (all || std::memcmp(before + at, after + at, sizeof(pointer)) != 0) follow(pointer, 3, touched);
    }
  }

  static void mutate(Sequence& random, u8* bytes, u64 length) {
    u8 input[64];
    fill_random(input, sizeof(input), random.next());
    fuzz::Input source(input, sizeof(input));
    for (u64 count = 1 + random.next() % 3; count > 0; --count) fuzz::change_bytes(source, bytes, length);
  }

  template <class T>
  T read(u32 device, u64 offset) const {
    T value;
    pool_.devices[device].file.read_at(offset, &value, sizeof(value));
    return value;
  }
  void write(u32 device, u64 offset, const void* bytes, u64 length) const {
    const int file = ::open(paths_[device].c_str(), O_WRONLY | O_CLOEXEC);
    const ssize_t written = ::pwrite(file, bytes, length, static_cast<off_t>(offset));
    ::close(file);
    if (written != static_cast<ssize_t>(length)) throw std::runtime_error("an image cannot be written");
  }
  // All of `count`, or one.
  static std::vector<u32> some_of(Sequence& random, u32 count) {
    std::vector<u32> chosen;
    const u64 one = random.next() % count;
    const bool takes_all = random.next() % 2 == 0;
    for (u32 i = 0; i < count; ++i) {
      if (takes_all || i == one) chosen.push_back(i);
    }
    return chosen;
  }
  // The part of it with fields: the rest is reserved.
  template <class T>
  void change_sealed(Sequence& random, const std::vector<std::pair<u32, u64>>& places, u64 seed, u64 fields) {
    const u64 choice = random.next();
    for (const auto& [device, offset] : places) {
      T structure = read<T>(device, offset);
      u8 bytes[sizeof(T)];
      std::memcpy(bytes, &structure, sizeof(T));
      Sequence same(choice);
      mutate(same, bytes, choice % 8 == 0 ? sizeof(T) : fields);
      std::memcpy(&structure, bytes, sizeof(T));
      pool::seal(structure, seed);
      write(device, offset, &structure, sizeof(structure));
    }
  }

  void change_superblock(Sequence& random, u32 device) {
    const u32 slot = random.next() % 4 == 0 ? pool_.superblock.slot ^ 1 : pool_.superblock.slot;
    const u64 offset = pool::superblock_offset(slot);
    std::vector<std::pair<u32, u64>> places{{device, offset}};
    for (u32 d = 0; d < pool_.devices.size() && random.next() % 2 == 0; ++d) places.emplace_back(d, offset);
    change_sealed<format::Superblock>(random, places, offset, 896);
  }
  void change_tree_node(Sequence& random, u32 node) {
    std::vector<std::pair<u32, u64>> places;
    for (const u32 d : some_of(random, pool_.superblock.tree_replica_count)) {
      places.emplace_back(d, pool_.devices[d].part.tree_offset + u64{node} * page_size);
    }
    change_sealed<format::ChunkTreeNode>(random, places, node, 192);
  }
  void change_chunk_header(Sequence& random, u32 chunk) {
    std::vector<std::pair<u32, u64>> places;
    for (const u32 column : some_of(random, header_count(chunk))) {
      places.emplace_back(header_device(chunk, column), reader_.header_area_offset(chunk, 0, column));
    }
    change_sealed<format::ChunkHeader>(random, places, pool_.chunks[chunk].descriptor.base_address, 64);
  }
  void change_record(Sequence& random, u64 index) {
    const format::LogRecord& record = log_.record(index);
    std::vector<u8> bytes(reinterpret_cast<const u8*>(&record), reinterpret_cast<const u8*>(&record) + record.length);
    mutate(random, bytes.data(), random.next() % 4 == 0 ? bytes.size() : sizeof(record));
    format::LogRecord changed;
    std::memcpy(&changed, bytes.data(), sizeof(changed));
    changed.checksum = 0;
    std::memcpy(bytes.data(), &changed, sizeof(changed));
    const u64 hashed = std::min<u64>(changed.length, bytes.size());
    changed.checksum = xxh3_64(bytes.data(), hashed, pool_.superblock.log_seed ^ record.lsn);
    std::memcpy(bytes.data(), &changed, sizeof(changed));
    for (const u32 d : some_of(random, pool_.superblock.tree_replica_count)) {
      write(d, pool_.devices[d].part.log_offset + record.lsn % log_.capacity, bytes.data(), bytes.size());
    }
  }

  // For metadata in logical space. Parities stay unchanged.
  void change_page(Sequence& random, const Structure& structure, Touched& touched) {
    fsck::PageBuffer before;
    fsck::PageBuffer after;
    // An earlier change of the same image may have changed it.
    if (!reader_.read_raw_copy(structure.place, 0, &before)) throw std::runtime_error("an image cannot be read");
    after = before;
    if (structure.kind == StructureKind::inode) {
      const u64 at = structure.inode % format::inodes_per_page * format::inode_size;
      mutate(random, after.bytes + at, format::inode_size);
      note_inode(before.bytes + at, after.bytes + at, touched);
    } else {
      mutate(random, after.bytes, random.next() % 2 == 0 ? page_size : 512);
      if (structure.kind == StructureKind::map_page) follow_new(before.bytes, after.bytes, page_size, false, touched);
    }
    const u32 chunk = reader_.locate(structure.place)->chunk;
    for (const u32 copy : some_of(random, reader_.copy_count(chunk))) {
      const fsck::PagePlace place = *reader_.locate(structure.place, copy);
      write(place.device, place.device_offset, after.bytes, page_size);
    }
    put_checksum(chunk, reader_.locate(structure.place)->page, xxh3_64(after.bytes, page_size, structure.place));
  }
  void note_inode(const u8* before, const u8* after, Touched& touched) {
    format::Inode old_inode{};
    format::Inode new_inode{};
    std::memcpy(&old_inode, before, sizeof(old_inode));
    std::memcpy(&new_inode, after, sizeof(new_inode));
    constexpr u64 attributes = offsetof(format::Inode, attributes);
    constexpr u64 slots = offsetof(format::Inode, slots);
    follow_new(before + attributes, after + attributes, sizeof(new_inode.attributes), false, touched);
    if (new_inode.is_inline()) return;
    follow_new(before + slots, after + slots, sizeof(new_inode.slots), old_inode.is_inline(), touched);
  }
  // The columns that have the header area, and the place of the page's descriptor in it.
  u32 header_count(u32 chunk) const { return pool_.chunks[chunk].descriptor.redundancy + 1u; }
  u32 header_device(u32 chunk, u32 column) const { return pool_.chunks[chunk].columns[column].device_index(); }
  u64 descriptor_offset(u32 chunk, u32 column, u64 page) const {
    const format::ChunkLayout layout = format::chunk_layout(reader_.chunk_page_count(chunk));
    return reader_.header_area_offset(chunk, layout.descriptors_page, column) + page * sizeof(format::PageDescriptor);
  }
  void put_checksum(u32 chunk, u64 page, u64 checksum) const {
    for (u32 column = 0; column < header_count(chunk); ++column) {
      write(header_device(chunk, column), descriptor_offset(chunk, column, page), &checksum, sizeof(checksum));
    }
  }
  void change_descriptor(Sequence& random, u64 address) {
    const fsck::PagePlace place = *reader_.locate(address);
    const u64 choice = random.next();
    for (const u32 column : some_of(random, header_count(place.chunk))) {
      const u64 offset = descriptor_offset(place.chunk, column, place.page);
      u8 bytes[sizeof(format::PageDescriptor)];
      pool_.devices[header_device(place.chunk, column)].file.read_at(offset, bytes, sizeof(bytes));
      Sequence same(choice);
      mutate(same, bytes, sizeof(bytes));
      write(header_device(place.chunk, column), offset, bytes, sizeof(bytes));
    }
  }

  // The page of the header area with the current slot.
  u64 newest_slot_page(u32 chunk, u32* slot) const {
    const format::ChunkLayout layout = format::chunk_layout(reader_.chunk_page_count(chunk));
    const u64 pages[] = {layout.bitmap_a_page, layout.bitmap_b_page};
    u64 epochs[2] = {0, 0};
    for (u32 i = 0; i < 2; ++i) {
      const auto header =
          read<format::BitmapSlotHeader>(header_device(chunk, 0), reader_.header_area_offset(chunk, pages[i]));
      if (header.magic == format::bitmap_slot_magic && header.epoch <= pool_.superblock.epoch) epochs[i] = header.epoch;
    }
    *slot = epochs[1] > epochs[0] ? 1 : 0;
    return pages[*slot];
  }
  void change_bitmap(Sequence& random, u32 chunk, Touched& touched) {
    touched.space = true;
    u32 slot = 0;
    const u64 page = newest_slot_page(chunk, &slot);
    if (random.next() % 3 != 0) return change_bits(random, chunk, slot, page, touched);
    const std::set<u32> items = items_in(pool_.chunks[chunk]);
    touched.items.insert(items.begin(), items.end());
    std::vector<std::pair<u32, u64>> places;
    for (const u32 column : some_of(random, header_count(chunk))) {
      places.emplace_back(header_device(chunk, column), reader_.header_area_offset(chunk, page, column));
    }
    change_sealed<format::BitmapSlotHeader>(random, places, pool_.chunks[chunk].descriptor.base_address ^ slot, 56);
  }
  // False bits, with all counts right, including those of the superblock.
  void change_bits(Sequence& random, u32 chunk, u32 slot, u64 page, Touched& touched) {
    const u64 base = pool_.chunks[chunk].descriptor.base_address;
    const format::ChunkLayout layout = format::chunk_layout(reader_.chunk_page_count(chunk));
    std::vector<u8> bitmap(layout.bitmap_pages * page_size);
    pool_.devices[header_device(chunk, 0)].file.read_at(reader_.header_area_offset(chunk, page + 1), bitmap.data(),
                                                        bitmap.size());
    u64 more = 0;
    for (u64 count = 1 + random.next() % 8; count > 0; --count) {
      const u64 bit = random.next() % (random.next() % 2 == 0 ? 300 : reader_.chunk_page_count(chunk));
      bitmap[bit / 8] = static_cast<u8>(bitmap[bit / 8] ^ 1u << bit % 8);
      const bool is_set = (bitmap[bit / 8] >> bit % 8 & 1) != 0;
      more += is_set ? 1 : ~u64{0};
      const auto owner = owners_.find(base + bit * page_size);
      if (owner != owners_.end()) touched.items.insert(owner->second.begin(), owner->second.end());
    }
    for (u32 column = 0; column < header_count(chunk); ++column) {
      const u64 offset = reader_.header_area_offset(chunk, page, column);
      auto header = read<format::BitmapSlotHeader>(header_device(chunk, column), offset);
      header.set_count += more;
      header.bitmap_checksum = xxh3_64(bitmap.data(), bitmap.size(), base);
      pool::seal(header, base ^ slot);
      write(header_device(chunk, column), offset, &header, sizeof(header));
      write(header_device(chunk, column), offset + page_size, bitmap.data(), bitmap.size());
    }
    const u64 superblock_at = pool::superblock_offset(pool_.superblock.slot);
    for (u32 d = 0; d < pool_.devices.size(); ++d) {
      auto superblock = read<format::Superblock>(d, superblock_at);
      superblock.page_used += more;
      pool::seal(superblock, superblock_at);
      write(d, superblock_at, &superblock, sizeof(superblock));
    }
  }

  std::vector<std::string> paths_;
  const ImageContent& content_;
  pool::OpenedPool pool_;
  fsck::MediumReader reader_;
  server::LogScan log_;
  std::set<u32> all_;
  std::map<u64, std::set<u32>> owners_;  // by address of a page
  std::vector<Structure> structures_;
};

}  // namespace gpu4fs::test::changed_images
