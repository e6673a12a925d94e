// A pool in heap memory for tests of the layers above devices: devices, empty chunks on them, the logical space and the
// parts of FileSystem that belong to the layer space. No superblocks and no files; engine memory is the heap.
//
//     SpaceFixture pool({.device_count = 2, .chunks_per_device = 3});
//     pool.load(1);                         // as a mount at epoch 1 does
//     pool.fs ... pool.operation(shard) ...
//     SpaceFixture again = pool.remount(2); // what a mount at epoch 2 finds on the same devices
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <vector>

#include "base/group.hpp"
#include "base/xxh3.hpp"
#include "device/memory/mapped_file.hpp"
#include "fs/fs_types.hpp"
#include "pool/logical_space/logical_space.hpp"
#include "space/space.hpp"
#include "support/heap_allocator.hpp"
#include "support/scattered_memory.hpp"
#include "support/staged_memory.hpp"

namespace gpu4fs::test {

struct SpaceOptions {
  u32 device_count = 1;
  u32 chunks_per_device = 1;
  u64 granule_bytes = format::chunk_size_min;
  u32 granules_per_chunk = 1;
  u32 shard_count = 4;
  bool data_checksums = true;
  bool accessible = true;
  // Of every chunk; its columns lie on devices 0 to column_count - 1.
  format::RaidLevel level = format::RaidLevel::single;
  u32 column_count = 1;
  u32 stripe_length_bytes = 0;
  // This number of additional chunks, before the others, is for metadata and has a profile of its own.
  u32 metadata_chunks = 0;
  format::RaidLevel metadata_level = format::RaidLevel::single;
  u32 metadata_column_count = 1;
  // On scattered devices lie pages of data, and only the functions of this fixture may access header areas.
  device::DeviceKind kind = device::DeviceKind::memory;
  u32 worker_count = 1;  // that use staged devices
};
class SpaceFixture {
 public:
  explicit SpaceFixture(const SpaceOptions& options = {}) : options_(options) {
    make_layout();
    for (u32 i = 0; i < options.device_count; ++i) memory_.push_back(make_memory(device_bytes_));
    for (u32 i = 0; i < chunks.size(); ++i) format_chunk(i);
    if (options.kind == device::DeviceKind::scattered) scattered_ = std::make_unique<ScatteredMemory>(copies_of({}));
    build();
  }

  // A second fixture on copies of the same devices: a mount after a crash, or a second mount.
  SpaceFixture remount() const {
    if (staged_ != nullptr) (void)staged_->write_back();
    return SpaceFixture(options_, memory_, scattered_.get());
  }

  Status load_chunk(u32 chunk, u64 epoch) { return space::load_chunk(Lane{}, *fs, chunk, epoch); }
  Status load(u64 epoch) {
    return with_header_areas([&] {
      for (u32 i = 0; i < fs->space.chunk_count; ++i) GPU4FS_TRY(load_chunk(i, epoch));
      return Status::ok;
    });
  }

  fs::Operation operation(u32 shard = 0) const {
    fs::Operation op{};
    op.shard = shard % fs->shard_count;
    op.wanted_chunk = raid::no_chunk;
    return op;
  }

  // A whole checkpoint by one lane. Returns the first failure of write_chunk.
  Status checkpoint(u64 epoch) {
    Lane g;
    const u32 count = fs->space.chunk_count;
    return with_header_areas([&] {
      for (u32 i = 0; i < count; ++i) space::snapshot_chunk(g, *fs, i);
      for (u32 i = 0; i < count; ++i) GPU4FS_TRY(space::write_chunk(g, *fs, i, epoch));
      for (u32 i = 0; i < count; ++i) space::publish_chunk(g, *fs, i);
      fs->space.epoch_open = epoch + 1;
      return Status::ok;
    });
  }

  // Medium memory of page `page` of a chunk's header area.
  u8* header_page(u32 chunk, u64 page, u32 column = 0) {
    const format::ColumnAddress address = chunks[chunk].columns[column];
    return device_base(address.device_index()) + address.offset_bytes() + page * page_size;
  }
  u8* device_base(u32 device) { return memory_[device].base(); }
  // A page of data as it is on the medium, for a test between two calls into raid; `offset` is in the page.
  u8* page_at(u32 device, u64 offset) {
    finish_call();
    if (staged_ != nullptr) staged_->discard(device, offset);
    return scattered_ == nullptr ? memory_[device].base() + offset : scattered_->pages(device).memory(offset);
  }
  u8* page_at(const raid::DevicePlace& place) { return page_at(place.device, place.offset); }
  u8* page_at(const raid::PageLocation& location, u32 copy = 0) {
    return page_at(raid::page_place(fs->space, location, copy));
  }
  u8* parity_at(const raid::RowView& view, u32 j) { return page_at(raid::parity_place(fs->space, view, j)); }
  // `count` pages of data from `offset` on.
  std::vector<u8> bytes_at(u32 device, u64 offset, u64 count) {
    std::vector<u8> bytes;
    for (u64 i = 0; i < count; ++i) {
      const u8* page = page_at(device, offset + i * page_size);
      bytes.insert(bytes.end(), page, page + page_size);
    }
    return bytes;
  }
  // Expects that all accesses of the last call into raid were announced, and that no frame is in use.
  void finish_call() {
    if (scattered_ != nullptr) scattered_->finish_call();
    if (staged_ != nullptr) staged_->finish_call();
  }
  // The offsets of pages of a device that is no memory device; reads of them are refused from now on.
  std::set<u64>& refused_reads(u32 device) {
    if (staged_ == nullptr) return scattered_->pages(device).refused_reads;
    staged_->discard(device);
    return staged_->refused(device).reads;
  }
  StagedMemory* staged() { return staged_.get(); }
  ScatteredMemory* scattered() { return scattered_.get(); }
  // For a chunk of data if none is given.
  u64 chunk_bytes(u32 chunk = raid::no_chunk) const {
    const u32 columns = is_metadata(chunk) ? options_.metadata_column_count : options_.column_count;
    const u32 data_columns = raid::with_level(level_of(chunk), [&](auto level) { return level.data_columns(columns); });
    return options_.granule_bytes * options_.granules_per_chunk * data_columns;
  }
  u64 chunk_pages(u32 chunk = raid::no_chunk) const { return chunk_bytes(chunk) / page_size; }
  format::ChunkLayout layout(u32 chunk = raid::no_chunk) const { return format::chunk_layout(chunk_pages(chunk)); }

  format::Superblock superblock{};
  std::vector<pool::OpenedChunk> chunks;
  std::vector<device::Device> devices;
  std::unique_ptr<fs::FileSystem> fs;

  // Writes a bitmap slot as a checkpoint of `epoch` would; `bitmap` has whole pages. No page of descriptors has been
  // written.
  void write_slot(u32 chunk, u32 slot, u64 epoch, const std::vector<u64>& bitmap) {
    const u64 base = chunks[chunk].descriptor.base_address;
    const std::vector<u64> table(layout(chunk).table_pages * format::descriptor_entries_per_page);
    const u64 page = slot == 0 ? layout(chunk).bitmap_a_page : layout(chunk).bitmap_b_page;
    format::BitmapSlotHeader header{};
    header.magic = format::bitmap_slot_magic;
    header.version = 2;
    header.slot = static_cast<u16>(slot);
    header.bitmap_checksum = xxh3_64(bitmap.data(), bitmap.size() * sizeof(u64), base);
    header.base_address = base;
    header.epoch = epoch;
    header.bit_count = chunk_pages(chunk);
    for (const u64 word : bitmap) header.set_count += popcount(word);
    header.descriptor_table_checksum =
        xxh3_64(table.data(), table.size() * sizeof(u64), format::descriptor_table_seed(base));
    header.checksum = xxh3_64(&header, sizeof(header), base ^ slot);
    for (u32 column = 0; column <= chunks[chunk].descriptor.redundancy; ++column) {
      std::memcpy(header_page(chunk, page + 1, column), bitmap.data(), bitmap.size() * sizeof(u64));
      std::memcpy(header_page(chunk, page + 1 + layout(chunk).bitmap_pages, column), table.data(),
                  table.size() * sizeof(u64));
      std::memcpy(header_page(chunk, page, column), &header, sizeof(header));
    }
  }
  std::vector<u64> empty_bitmap(u32 chunk = raid::no_chunk) const {
    return std::vector<u64>(layout(chunk).bitmap_pages * page_size / 8);
  }

 private:
  SpaceFixture(const SpaceOptions& options, const std::vector<device::MappedFile>& memory,
               const ScatteredMemory* scattered)
      : options_(options) {
    make_layout();
    memory_ = copies_of(memory);
    if (scattered != nullptr) scattered_ = std::make_unique<ScatteredMemory>(copies_of(scattered->files()));
    build();
  }

  // Files of the devices' size with the same bytes; empty ones if there are none to copy.
  std::vector<device::MappedFile> copies_of(const std::vector<device::MappedFile>& files) const {
    std::vector<device::MappedFile> copies;
    for (u32 i = 0; i < options_.device_count; ++i) {
      copies.push_back(make_memory(device_bytes_));
      if (!files.empty()) copy_written(files[i], copies.back());
    }
    return copies;
  }

  // The devices are memory devices during `body`, which accesses header areas.
  template <class Body>
  Status with_header_areas(Body&& body) {
    if (scattered_ == nullptr) return body();
    scattered_->finish_call();
    for (u32 d = 0; d < memory_.size(); ++d) {
      device::Device& device = fs->space.devices[d];
      device.kind = device::DeviceKind::memory;
      device.stack = nullptr;
      if (device.base != nullptr) device.base = memory_[d].base();
    }
    fs->space.pages_apart = 0;
    const Status status = body();
    scattered_->take_over(fs->space);
    return status;
  }

  // A memfd, because its holes can be distinguished from written parts.
  static device::MappedFile make_memory(u64 bytes) {
    const int descriptor = memfd_create("gpu4fs-space-fixture", MFD_CLOEXEC);
    if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) throw std::bad_alloc();
    return device::MappedFile::adopt(descriptor, "space fixture", {.lock = false});
  }

  static void copy_written(const device::MappedFile& from, const device::MappedFile& to) {
    off_t end = 0;
    for (off_t begin; (begin = lseek(from.descriptor(), end, SEEK_DATA)) >= 0;) {
      end = lseek(from.descriptor(), begin, SEEK_HOLE);
      std::memcpy(to.base() + begin, from.base() + begin, static_cast<u64>(end - begin));
    }
  }
  bool is_metadata(u32 chunk) const { return chunk < options_.metadata_chunks; }
  format::RaidLevel level_of(u32 chunk) const { return is_metadata(chunk) ? options_.metadata_level : options_.level; }

  format::ChunkDescriptor describe(u32 chunk) const {
    const u32 columns = is_metadata(chunk) ? options_.metadata_column_count : options_.column_count;
    format::ChunkDescriptor descriptor{};
    descriptor.size_bytes = chunk_bytes(chunk);
    descriptor.level = level_of(chunk);
    descriptor.column_count = static_cast<u16>(columns);
    raid::with_level(descriptor.level, [&](auto level) {
      descriptor.redundancy = static_cast<u8>(level.redundancy(columns));
      if (level.has_stripes) descriptor.stripe_length_bytes = is_metadata(chunk) ? 4096 : options_.stripe_length_bytes;
    });
    descriptor.flags = format::chunk_flag_any_content;
    if (options_.metadata_chunks != 0) {
      descriptor.flags = is_metadata(chunk) ? format::chunk_flag_metadata : format::chunk_flag_data;
    }
    return descriptor;
  }

  // Neighbouring chunks are on different devices, as with mkfs.
  void make_layout() {
    const bool spread = options_.level == format::RaidLevel::single;
    const u32 chunk_count =
        options_.metadata_chunks + (spread ? options_.device_count : 1) * options_.chunks_per_device;
    std::vector<u64> ends(options_.device_count, u64{format::layout_area_offset});
    u64 base = options_.granule_bytes;
    for (u32 i = 0; i < chunk_count; ++i) {
      pool::OpenedChunk chunk{describe(i), {}};
      chunk.descriptor.base_address = base;
      base += chunk.descriptor.size_bytes;
      for (u32 c = 0; c < chunk.descriptor.column_count; ++c) {
        const u32 row = is_metadata(i) ? i : i - options_.metadata_chunks;
        const u32 device = level_of(i) == format::RaidLevel::single ? row % options_.device_count : c;
        chunk.columns.push_back(format::ColumnAddress::make(device, ends[device]));
        ends[device] += align_up(raid::column_length(chunk.descriptor), 65536);
      }
      superblock.page_total += chunk.descriptor.size_bytes / page_size;
      chunks.push_back(chunk);
    }
    device_bytes_ = *std::max_element(ends.begin(), ends.end());
    superblock.epoch = 1;
    superblock.chunk_size_bytes = options_.granule_bytes;
    superblock.device_count = options_.device_count;
    superblock.chunk_count = chunk_count;
    superblock.feature_incompatible = options_.data_checksums ? u64{format::feature_data_checksums} : 0;
    if (options_.metadata_chunks == 0) return;
    superblock.feature_incompatible |= format::feature_mixed_profiles;
    superblock.metadata_profile =
        static_cast<u16>(format::profile_of(options_.metadata_level, options_.metadata_column_count));
    superblock.data_profile = static_cast<u16>(format::profile_of(options_.level, options_.column_count));
  }

  void format_chunk(u32 chunk) {
    const format::ChunkDescriptor& descriptor = chunks[chunk].descriptor;
    for (u32 column = 0; column <= descriptor.redundancy; ++column) {
      format::ChunkHeader header{};
      header.magic = format::chunk_header_magic;
      header.version = 1;
      header.column_index = static_cast<u16>(column);
      header.base_address = descriptor.base_address;
      header.size_bytes = descriptor.size_bytes;
      header.checksum = xxh3_64(&header, sizeof(header), header.base_address);
      std::memcpy(header_page(chunk, 0, column), &header, sizeof(header));
    }
    write_slot(chunk, 0, 1, empty_bitmap(chunk));
  }

  void build() {
    devices.clear();
    for (u32 i = 0; i < memory_.size(); ++i) {
      devices.push_back(memory_[i].device(i));
    }
    fs = std::make_unique<fs::FileSystem>();
    std::memset(static_cast<void*>(fs.get()), 0, sizeof(*fs));
    fs->space = pool::build_logical_space(allocator_, superblock, devices, chunks, options_.accessible);
    if (options_.kind == device::DeviceKind::staged) {
      staged_ = std::make_unique<StagedMemory>(fs->space, options_.worker_count);
    }
    fs->shard_count = options_.shard_count;
    const u64 shard_bytes = options_.shard_count * sizeof(space::AllocationShard);
    fs->shards = static_cast<space::AllocationShard*>(allocator_.allocate(shard_bytes, 128));
    allocator_.zero(fs->shards, shard_bytes);
  }

  SpaceOptions options_;
  u64 device_bytes_ = 0;
  std::vector<device::MappedFile> memory_;
  HeapAllocator allocator_;
  std::unique_ptr<ScatteredMemory> scattered_;
  std::unique_ptr<StagedMemory> staged_;
};

}  // namespace gpu4fs::test
