// A file system without an engine: a small pool in heap memory, the FileSystem on it, and the steps of a checkpoint as
// plain calls. For tests of the fs layer, which call it with Lane or inside EmulatedWarp.
//
//     SmallFileSystem small;                     // a new, empty pool, loaded
//     fs::Operation op = small.operation();
//     fs::InodeRef root{};
//     get_inode(Lane{}, small.fs(), op, 1, &root);
//     ...
//     release_reservations(small.fs(), op);
//     small.checkpoint(Lane{});
//     SmallFileSystem again(small.options(), small.images());   // as after a crash at this moment
//
// The pool is written directly from the format's structures, so these tests need neither the server's mkfs nor its pool
// reader. It has no chunk tree: the options determine the placement of chunks.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <map>
#include <new>
#include <stdexcept>
#include <vector>

#include "base/group.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/xxh3.hpp"
#include "base/xxh3_serial.hpp"
#include "format/directory_format.hpp"
#include "format/superblock_format.hpp"
#include "fs/inode/give_back.hpp"
#include "fs/inode/inode.hpp"
#include "fs/journal/checkpoint.hpp"
#include "fs/pages/evict.hpp"
#include "pool/logical_space/logical_space.hpp"

namespace gpu4fs::test {

struct SmallPoolOptions {
  u32 device_count = 1;
  u32 chunk_count = 2;             // assigned to the devices in turn
  u64 chunk_bytes = u64{8} << 20;  // a power of two from 8 MiB
  u32 frame_count = 512;
  u32 staging_count = 256;
  u32 shard_count = 2;
  u64 name_hash_seed = 0x5eed;
  u64 now = format::encode_time(1'700'000'000, 0);
};

// Zeroed, page-aligned memory that lives as long as its owner and occupies only touched pages.
class HeapMemory final : public EngineAllocator {
 public:
  HeapMemory() = default;
  HeapMemory(const HeapMemory&) = delete;
  HeapMemory& operator=(const HeapMemory&) = delete;
  ~HeapMemory() override {
    for (const Block& block : blocks_) ::munmap(block.memory, block.bytes);
  }

  void* allocate(u64 bytes, u64 alignment) override {
    GPU4FS_CHECK_LE(alignment, page_size);
    const u64 length = align_up(bytes == 0 ? 1 : bytes, page_size);
    void* memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    blocks_.push_back({memory, length});
    return memory;
  }
  template <class T>
  T* array(u64 count) {
    return static_cast<T*>(allocate(count * sizeof(T), page_size));
  }
  void copy_in(void* destination, const void* source, u64 bytes) override {
    if (bytes != 0) std::memcpy(destination, source, bytes);
  }
  // All allocated memory is already zero.
  void zero(void*, u64) override {}

 private:
  struct Block {
    void* memory;
    u64 bytes;
  };
  std::vector<Block> blocks_;
};

// A device's bytes; missing pages are zero.
struct DeviceImage {
  using Page = std::array<u8, page_size>;
  u64 size_bytes = 0;
  std::map<u64, Page> pages;  // by byte offset

  // Writes anywhere inside the device.
  void write(u64 offset, const void* data, u64 length) {
    const u8* from = static_cast<const u8*>(data);
    while (length > 0) {
      const u64 begin = offset % page_size;
      const u64 part = minimum(length, page_size - begin);
      std::memcpy(pages[offset - begin].data() + begin, from, part);
      offset += part;
      from += part;
      length -= part;
    }
  }
  // The page at `offset`, zero if it is missing.
  const Page& page(u64 offset) const {
    static const Page zeros{};
    const auto at = pages.find(offset);
    return at == pages.end() ? zeros : at->second;
  }
  static DeviceImage of(const u8* base, u64 size_bytes) {
    DeviceImage image;
    image.size_bytes = size_bytes;
    for (u64 offset = 0; offset < size_bytes; offset += page_size) {
      if (is_zero(base + offset)) continue;
      std::memcpy(image.pages[offset].data(), base + offset, page_size);
    }
    return image;
  }
  friend bool operator==(const DeviceImage&, const DeviceImage&) = default;

 private:
  // As most pages are. The thread sanitizer would remember every byte of them.
  [[gnu::no_sanitize_thread]] static bool is_zero(const u8* page) {
#if GPU4FS_TSAN
    const auto* words = static_cast<const u64*>(static_cast<const void*>(page));
    u64 found = 0;
    for (u64 i = 0; i < page_size / sizeof(u64); ++i) found |= words[i];
    return found == 0;
#else
    static const Page zeros{};
    return std::memcmp(page, zeros.data(), page_size) == 0;
#endif
  }
};
using DeviceImages = std::vector<DeviceImage>;

namespace small_pool {

inline u64 chunk_pages(const SmallPoolOptions& options) {
  return options.chunk_bytes / page_size;
}
inline u64 column_bytes(const SmallPoolOptions& options) {
  return (format::chunk_layout(chunk_pages(options)).header_pages + chunk_pages(options)) * page_size;
}
inline u64 chunk_base(const SmallPoolOptions& options, u32 chunk) {
  return (u64{chunk} + 1) * options.chunk_bytes;
}
inline u64 column_offset(const SmallPoolOptions& options, u32 chunk) {
  return (u64{1} << 20) + chunk / options.device_count * column_bytes(options);
}
inline u64 device_bytes(const SmallPoolOptions& options) {
  const u64 chunks = divide_up(options.chunk_count, options.device_count);
  return (u64{1} << 20) + chunks * column_bytes(options);
}

template <class T>
void seal(T& structure, u64 seed) {
  structure.checksum = 0;
  structure.checksum = xxh3_64(&structure, sizeof(T), seed);
}

// Builds the pages of an empty tree in the first chunk.
class Writer {
 public:
  Writer(const SmallPoolOptions& options, DeviceImages& images) : options_(options), images_(images) {}

  void write_pool() {
    images_.assign(options_.device_count, DeviceImage{device_bytes(options_), {}});
    format::Superblock superblock = make_superblock();
    superblock.inode_file = write_tree();
    superblock.page_used = pages_.size();
    for (u32 chunk = 0; chunk < options_.chunk_count; ++chunk) superblock.slot_sum += write_chunk(chunk);
    for (u32 d = 0; d < options_.device_count; ++d) {
      superblock.device.device_index = d;
      superblock.device.size_bytes = images_[d].size_bytes;
      seal(superblock, format::superblock_offset_b);
      images_[d].write(format::superblock_offset_b, &superblock, sizeof(superblock));
    }
  }

 private:
  using Page = std::vector<u8>;

  format::Superblock make_superblock() const {
    format::Superblock superblock{};
    superblock.magic = format::superblock_magic;
    superblock.version = format::format_version;
    superblock.slot = 1;
    superblock.epoch = 1;
    superblock.feature_incompatible = format::feature_data_checksums;
    superblock.chunk_size_bytes = options_.chunk_bytes;
    superblock.name_hash_seed = options_.name_hash_seed;
    superblock.creation_time = superblock.checkpoint_time = options_.now;
    superblock.device_count = options_.device_count;
    superblock.chunk_count = options_.chunk_count;
    superblock.clean = 1;
    superblock.page_total = options_.chunk_count * chunk_pages(options_);
    superblock.inode_used = format::inode_number_first_free;
    return superblock;
  }

  template <class T>
  u64 add_page(const T& content) {
    Page page(page_size);
    std::memcpy(page.data(), &content, sizeof(T));
    pages_.push_back(page);
    return chunk_base(options_, 0) + (pages_.size() - 1) * page_size;
  }

  template <class T>
  format::Inode one_page_file(u16 mode, u32 height, const T& content) {
    auto pointer = format::BlockPointer::data(add_page(content), format::BlockSize::page_4k);
    for (u32 level = 0; level < height; ++level) pointer = format::BlockPointer::indirect(add_page(pointer));
    format::Inode inode{};
    inode.size_bytes = page_size;
    inode.access_time = inode.modification_time = inode.change_time = inode.birth_time = options_.now;
    inode.link_count = 1;
    inode.mode = mode;
    inode.height = static_cast<u8>(height);
    inode.version = 1;
    inode.slots[0] = pointer;
    inode.page_count = 1 + height;
    return inode;
  }

  format::Inode write_tree() {
    format::DirectoryPageHeader leaf{};
    leaf.magic = format::directory_leaf_magic;
    leaf.version = 1;
    leaf.heap_begin = page_size;
    struct Inodes {
      format::Inode inode[format::inodes_per_page];
    } inodes{};
    format::Inode& root = inodes.inode[format::inode_number_root];
    root = one_page_file(0040755, 0, leaf);
    root.link_count = 2;
    root.parent_or_device = format::inode_number_root;
    const u64 used = (u64{1} << format::inode_number_first_free) - 1;
    inodes.inode[format::inode_number_inode_bitmap] = one_page_file(0100600, format::inode_bitmap_height, used);
    inodes.inode[format::inode_number_orphan_bitmap] = one_page_file(0100600, format::inode_bitmap_height, u64{0});
    return one_page_file(0100600, format::inode_file_height, inodes);
  }

  // Returns the checksum of its slot.
  u64 write_chunk(u32 chunk) {
    const format::ChunkLayout layout = format::chunk_layout(chunk_pages(options_));
    DeviceImage& device = images_[chunk % options_.device_count];
    const u64 column = column_offset(options_, chunk);
    const u64 base = chunk_base(options_, chunk);
    format::ChunkHeader header{};
    header.magic = format::chunk_header_magic;
    header.version = 1;
    header.base_address = base;
    header.size_bytes = options_.chunk_bytes;
    header.epoch_created = 1;
    seal(header, base);
    device.write(column, &header, sizeof(header));
    const std::size_t used = chunk == 0 ? pages_.size() : 0;
    std::vector<u8> bitmap(layout.bitmap_pages * page_size);
    for (std::size_t i = 0; i < used; ++i) bitmap[i / 8] = static_cast<u8>(bitmap[i / 8] | 1u << i % 8);
    device.write(column + (layout.bitmap_a_page + 1) * page_size, bitmap.data(), bitmap.size());
    std::vector<format::PageDescriptor> descriptors(align_up(used, format::descriptors_per_page));
    for (std::size_t i = 0; i < used; ++i) {
      descriptors[i] = {xxh3_64(pages_[i].data(), page_size, base + i * page_size), 1, 0};
      device.write(column + (layout.header_pages + i) * page_size, pages_[i].data(), page_size);
    }
    std::vector<u64> table(layout.table_pages * format::descriptor_entries_per_page);
    for (std::size_t i = 0; i < descriptors.size() / format::descriptors_per_page; ++i) {
      const format::PageDescriptor* page = &descriptors[i * format::descriptors_per_page];
      table[i] = format::descriptor_entry(xxh3_64(page, page_size, format::descriptor_page_seed(base, i)), 0);
      device.write(column + layout.descriptor_page(i, 0) * page_size, page, page_size);
    }
    device.write(column + (layout.bitmap_a_page + 1 + layout.bitmap_pages) * page_size, table.data(),
                 table.size() * sizeof(u64));
    format::BitmapSlotHeader slot{};
    slot.magic = format::bitmap_slot_magic;
    slot.version = 2;
    slot.bitmap_checksum = xxh3_64(bitmap.data(), bitmap.size(), base);
    slot.base_address = base;
    slot.epoch = 1;
    slot.bit_count = chunk_pages(options_);
    slot.set_count = used;
    slot.descriptor_table_checksum =
        xxh3_64(table.data(), table.size() * sizeof(u64), format::descriptor_table_seed(base));
    seal(slot, base);
    device.write(column + layout.bitmap_a_page * page_size, &slot, sizeof(slot));
    return slot.checksum;
  }

  const SmallPoolOptions& options_;
  DeviceImages& images_;
  std::vector<Page> pages_;
};

inline bool superblock_is_valid(const u8* page, u64 offset, format::Superblock* out) {
  std::memcpy(out, page, sizeof(*out));
  const u64 stored = out->checksum;
  out->checksum = 0;
  const bool valid = out->magic == format::superblock_magic && xxh3_64(out, page_size, offset) == stored;
  out->checksum = stored;
  return valid;
}

// The valid superblock of the greatest epoch; one of epoch 0 if there is none.
inline format::Superblock newest_superblock(const DeviceImages& images) {
  format::Superblock newest{};
  for (const DeviceImage& image : images) {
    for (const u64 offset : {format::superblock_offset_a, format::superblock_offset_b}) {
      format::Superblock found{};
      if (superblock_is_valid(image.page(offset).data(), offset, &found) && found.epoch > newest.epoch) newest = found;
    }
  }
  return newest;
}

// Adds a change of a header area to the sum of the newest superblock.
inline void add_to_slot_sum(DeviceImages& images, u64 change) {
  const u64 epoch = newest_superblock(images).epoch;
  const u64 offset = (epoch & 1) == 0 ? format::superblock_offset_a : format::superblock_offset_b;
  for (DeviceImage& image : images) {
    format::Superblock superblock{};
    std::memcpy(&superblock, image.page(offset).data(), sizeof(superblock));
    superblock.slot_sum += change;
    seal(superblock, offset);
    image.write(offset, &superblock, sizeof(superblock));
  }
}

}  // namespace small_pool

class SmallFileSystem {
 public:
  // A new pool.
  explicit SmallFileSystem(const SmallPoolOptions& options = {}) : options_(options) {
    DeviceImages images;
    small_pool::Writer(options_, images).write_pool();
    open(images);
  }
  // Opens copies of devices; `load_status` is the result of loading their chunks.
  SmallFileSystem(const SmallPoolOptions& options, const DeviceImages& images) : options_(options) { open(images); }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;

  fs::FileSystem& fs() { return *fs_; }
  const SmallPoolOptions& options() const { return options_; }
  Status load_status() const { return load_status_; }

  // A fresh operation. If it reserves something, the caller calls fs::release_reservations() at its end.
  fs::Operation operation(u32 shard = 0) {
    fs::Operation op{};
    op.now = options_.now += u64{1} << 20;
    op.shard = shard % options_.shard_count;
    op.wanted_chunk = raid::no_chunk;
    return op;
  }

  // The devices' bytes at this time: what memory devices keep after a crash of the machine.
  DeviceImages images() const {
    DeviceImages copies;
    for (const device::Device& d : devices_) copies.push_back(DeviceImage::of(d.base, d.size_bytes));
    return copies;
  }
  const std::vector<device::Device>& devices() const { return devices_; }

  // Bytes of the data page at a logical address, for damaging it.
  u8* medium_page(u64 address) {
    raid::PageLocation location{};
    const Status status = raid::find_page(fs_->space, address, &location);
    GPU4FS_CHECK_OK(status);
    return raid::page_memory(fs_->space, location);
  }

  // All steps of a checkpoint in order. `after(name)` is called by the leader after each call. The names:
  // give_back, relocate, copy, snapshot, begin, write, chunk, superblocks, publish.
  template <class Group, class Observer>
  Status checkpoint(Group g, Observer&& after) {
    fs::FileSystem& fs = *fs_;
    const auto report = [&](const char* name) { on_leader(g, [&] { after(name); }); };
    constexpr u32 unit = 8;  // frames a call
    const u32 emptied = on_leader(g, [&] { return fs::emptied_count(fs); });
    for (u32 first = 0; first < emptied; first += unit) {
      fs::give_back_inode_pages(g, fs, first / unit, first, minimum(unit, emptied - first));
      report("give_back");
    }
    fs::end_giving_back(g, fs);
    const u32 dirty = on_leader(g, [&] { return fs.dirty.count; });
    for (u32 first = 0; first < dirty; first += unit) {
      fs::place_frames(g, fs, first / unit, first, minimum(unit, dirty - first));
      report("relocate");
    }
    for (u32 first = 0; first < dirty; first += unit) {
      fs::copy_frames(g, fs, first, minimum(unit, dirty - first));
      report("copy");
    }
    for (u32 chunk = 0; chunk < fs.space.chunk_count; ++chunk) {
      space::snapshot_chunk(g, fs, chunk);
      report("snapshot");
    }
    const u64 epoch = on_leader(g, [&] { return fs.epoch_open; });
    const u32 staged = fs::begin_epoch(g, fs);
    report("begin");
    for (u32 first = 0; first < staged; first += unit) {
      GPU4FS_TRY(fs::write_staged(g, fs, first, minimum(unit, staged - first)));
      report("write");
    }
    for (u32 chunk = 0; chunk < fs.space.chunk_count; ++chunk) {
      GPU4FS_TRY(space::write_chunk(g, fs, chunk, epoch));
      report("chunk");
    }
    GPU4FS_TRY(fs::write_superblocks(g, fs, epoch, options_.now, false));
    report("superblocks");
    for (u32 chunk = 0; chunk < fs.space.chunk_count; ++chunk) {
      space::publish_chunk(g, fs, chunk);
      report("publish");
    }
    on_leader(g, [&] { fs.epoch_durable = epoch; });
    return Status::ok;
  }
  template <class Group>
  Status checkpoint(Group g) {
    return checkpoint(g, [](const char*) {});
  }

 private:
  void open(const DeviceImages& images) {
    const format::Superblock superblock = small_pool::newest_superblock(images);
    if (superblock.epoch == 0) throw std::runtime_error("the images hold no superblock");
    for (u32 d = 0; d < images.size(); ++d) {
      u8* base = memory_.array<u8>(images[d].size_bytes);
      for (const auto& [offset, page] : images[d].pages) std::memcpy(base + offset, page.data(), page_size);
      devices_.push_back({device::DeviceKind::memory, d, images[d].size_bytes, base, 0, 0});
    }
    fs_ = new (memory_.array<fs::FileSystem>(1)) fs::FileSystem{};
    fs_->space = pool::build_logical_space(memory_, superblock, devices_, chunk_sources(), true);
    build_page_table();
    build_shards();
    fs_->superblocks = memory_.array<format::Superblock>(devices_.size());
    for (u32 d = 0; d < devices_.size(); ++d) {
      fs_->superblocks[d] = superblock;
      fs_->superblocks[d].device.device_index = d;
      fs_->superblocks[d].device.size_bytes = devices_[d].size_bytes;
    }
    fs_->inode_file = superblock.inode_file;
    fs_->inode_scan = 1;
    fs_->inode_used = superblock.inode_used;
    fs_->epoch_open = superblock.epoch + 1;
    fs_->epoch_durable = superblock.epoch;
    fs_->name_hash_seed = superblock.name_hash_seed;
    for (u32 chunk = 0; chunk < fs_->space.chunk_count && load_status_ == Status::ok; ++chunk) {
      load_status_ = space::load_chunk(Lane{}, *fs_, chunk, superblock.epoch);
    }
    if (load_status_ == Status::ok) load_status_ = space::check_page_used(*fs_, superblock.page_used);
    if (load_status_ == Status::ok) load_status_ = space::check_slot_sum(Lane{}, *fs_, superblock.slot_sum);
  }

  std::vector<pool::OpenedChunk> chunk_sources() const {
    std::vector<pool::OpenedChunk> sources(options_.chunk_count);
    for (u32 chunk = 0; chunk < options_.chunk_count; ++chunk) {
      format::ChunkDescriptor& d = sources[chunk].descriptor;
      d.base_address = small_pool::chunk_base(options_, chunk);
      d.size_bytes = options_.chunk_bytes;
      d.level = format::RaidLevel::single;
      d.column_count = 1;
      d.flags = format::chunk_flag_data | format::chunk_flag_metadata;
      d.epoch_created = 1;
      sources[chunk].columns = {
          format::ColumnAddress::make(chunk % options_.device_count, small_pool::column_offset(options_, chunk))};
    }
    return sources;
  }

  void build_page_table() {
    fs::PageTable& table = fs_->pages;
    table.frame_count = options_.frame_count;
    table.staging_count = options_.staging_count;
    table.bucket_count = 1;
    while (table.bucket_count < table.frame_count) table.bucket_count *= 2;
    table.bucket_lock_count = 16;
    table.frames = memory_.array<fs::Frame>(table.frame_count);
    table.data = memory_.array<u8>(u64{table.frame_count} * page_size);
    table.inode_locks = memory_.array<CommandLock>(u64{table.frame_count} * format::inodes_per_page);
    table.buckets = memory_.array<u32>(table.bucket_count);
    table.bucket_locks = memory_.array<TicketLock>(table.bucket_lock_count);
    table.dirty_list = memory_.array<u32>(table.frame_count);
    table.limbo_list = memory_.array<u32>(table.frame_count);
    table.emptied_list = memory_.array<u32>(table.frame_count);
    table.staging = memory_.array<u8>(u64{table.staging_count} * page_size);
    table.staged_frames = memory_.array<u32>(table.staging_count);
    table.staged_addresses = memory_.array<u64>(table.staging_count);
    for (u32 i = 0; i < table.bucket_count; ++i) table.buckets[i] = fs::no_frame;
    for (u32 i = 0; i < table.frame_count; ++i) {
      table.frames[i].key = fs::no_page_key;
      table.frames[i].next = i + 1 == table.frame_count ? fs::no_frame : i + 1;
    }
    table.free_head = 0;
    table.free_count = table.frame_count;
  }

  void build_shards() {
    fs_->shard_count = options_.shard_count;
    fs_->shards = memory_.array<space::AllocationShard>(options_.shard_count);
  }

  SmallPoolOptions options_;
  HeapMemory memory_;
  std::vector<device::Device> devices_;
  fs::FileSystem* fs_ = nullptr;
  Status load_status_ = Status::ok;
};

}  // namespace gpu4fs::test
