// The layout of every structure on medium and wire, compared with the golden listing. A difference is a change of the
// format and needs a new version number. GPU4FS_UPDATE_GOLDEN=1 rewrites the listing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>

#include "format/attribute_format.hpp"
#include "format/block_pointer_format.hpp"
#include "format/chunk_format.hpp"
#include "format/directory_format.hpp"
#include "format/inode_format.hpp"
#include "format/log_format.hpp"
#include "format/superblock_format.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::format {
namespace {

// Collects the lines of one structure and checks that fields follow each other without a gap.
class Listing {
 public:
  template <class T>
  void begin(const char* name) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>);
    text_ += fmt::format("{} {} bytes\n", name, sizeof(T));
    end_ = 0;
  }
  void field(const char* name, std::size_t offset, std::size_t size) {
    EXPECT_EQ(offset, end_) << "padding in front of " << name;
    end_ = offset + size;
    text_ += fmt::format("  {:>5} {:>5} {}\n", offset, size, name);
  }
  template <class T>
  void finish(const char* name) {
    EXPECT_EQ(end_, sizeof(T)) << "padding behind the last field of " << name;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::size_t end_ = 0;
};

#define BEGIN(type) listing.begin<type>(#type)
#define FIELD(type, name) listing.field(#name, offsetof(type, name), sizeof(type::name))
#define END(type) listing.finish<type>(#type)

void list_pointers_and_inodes(Listing& listing) {
  BEGIN(BlockPointer);
  FIELD(BlockPointer, raw);
  END(BlockPointer);
  BEGIN(Inode);
  FIELD(Inode, size_bytes);
  FIELD(Inode, access_time);
  FIELD(Inode, modification_time);
  FIELD(Inode, change_time);
  FIELD(Inode, birth_time);
  FIELD(Inode, uid);
  FIELD(Inode, gid);
  FIELD(Inode, link_count);
  FIELD(Inode, mode);
  FIELD(Inode, height);
  FIELD(Inode, version);
  FIELD(Inode, attributes);
  FIELD(Inode, flags);
  FIELD(Inode, generation);
  FIELD(Inode, slots);
  FIELD(Inode, inline_tail);
  FIELD(Inode, page_count);
  FIELD(Inode, parent_or_device);
  FIELD(Inode, entry_count);
  FIELD(Inode, profile);
  FIELD(Inode, attribute_height);
  FIELD(Inode, reserved);
  END(Inode);
}

void list_superblock(Listing& listing) {
  BEGIN(DevicePart);
  FIELD(DevicePart, device_uuid);
  FIELD(DevicePart, size_bytes);
  FIELD(DevicePart, tree_offset);
  FIELD(DevicePart, tree_pages);
  FIELD(DevicePart, chunk_map_offset);
  FIELD(DevicePart, chunk_map_pages);
  FIELD(DevicePart, log_offset);
  FIELD(DevicePart, log_bytes);
  FIELD(DevicePart, chunk_area_offset);
  FIELD(DevicePart, chunk_area_granules);
  FIELD(DevicePart, device_index);
  FIELD(DevicePart, reserved0);
  FIELD(DevicePart, reserved);
  END(DevicePart);
  BEGIN(Superblock);
  FIELD(Superblock, magic);
  FIELD(Superblock, version);
  FIELD(Superblock, slot);
  FIELD(Superblock, checksum);
  FIELD(Superblock, epoch);
  FIELD(Superblock, pool_uuid);
  FIELD(Superblock, feature_compatible);
  FIELD(Superblock, feature_read_only_compatible);
  FIELD(Superblock, feature_incompatible);
  FIELD(Superblock, chunk_size_bytes);
  FIELD(Superblock, name_hash_seed);
  FIELD(Superblock, creation_time);
  FIELD(Superblock, checkpoint_time);
  FIELD(Superblock, device_count);
  FIELD(Superblock, chunk_count);
  FIELD(Superblock, tree_root);
  FIELD(Superblock, tree_height);
  FIELD(Superblock, tree_replica_count);
  FIELD(Superblock, clean);
  FIELD(Superblock, reserved0);
  FIELD(Superblock, tree_node_count);
  FIELD(Superblock, page_total);
  FIELD(Superblock, page_used);
  FIELD(Superblock, inode_used);
  FIELD(Superblock, data_profile);
  FIELD(Superblock, metadata_profile);
  FIELD(Superblock, reserved1);
  FIELD(Superblock, label);
  FIELD(Superblock, log_start);
  FIELD(Superblock, log_seed);
  FIELD(Superblock, log_capacity);
  FIELD(Superblock, slot_sum);
  FIELD(Superblock, reserved2);
  FIELD(Superblock, device);
  FIELD(Superblock, inode_file);
  FIELD(Superblock, device_uuids);
  FIELD(Superblock, stale_since);
  FIELD(Superblock, reserved3);
  END(Superblock);
}

void list_chunks(Listing& listing) {
  BEGIN(ChunkHeader);
  FIELD(ChunkHeader, magic);
  FIELD(ChunkHeader, version);
  FIELD(ChunkHeader, column_index);
  FIELD(ChunkHeader, checksum);
  FIELD(ChunkHeader, pool_uuid);
  FIELD(ChunkHeader, base_address);
  FIELD(ChunkHeader, size_bytes);
  FIELD(ChunkHeader, epoch_created);
  FIELD(ChunkHeader, reserved);
  END(ChunkHeader);
  BEGIN(BitmapSlotHeader);
  FIELD(BitmapSlotHeader, magic);
  FIELD(BitmapSlotHeader, version);
  FIELD(BitmapSlotHeader, slot);
  FIELD(BitmapSlotHeader, checksum);
  FIELD(BitmapSlotHeader, bitmap_checksum);
  FIELD(BitmapSlotHeader, base_address);
  FIELD(BitmapSlotHeader, epoch);
  FIELD(BitmapSlotHeader, bit_count);
  FIELD(BitmapSlotHeader, set_count);
  FIELD(BitmapSlotHeader, descriptor_table_checksum);
  FIELD(BitmapSlotHeader, reserved);
  END(BitmapSlotHeader);
  BEGIN(PageDescriptor);
  FIELD(PageDescriptor, checksum);
  FIELD(PageDescriptor, birth_epoch);
  FIELD(PageDescriptor, flags);
  END(PageDescriptor);
  BEGIN(ChunkTreeNode);
  FIELD(ChunkTreeNode, magic);
  FIELD(ChunkTreeNode, version);
  FIELD(ChunkTreeNode, level);
  FIELD(ChunkTreeNode, reserved0);
  FIELD(ChunkTreeNode, checksum);
  FIELD(ChunkTreeNode, epoch);
  FIELD(ChunkTreeNode, entry_count);
  FIELD(ChunkTreeNode, used_bytes);
  FIELD(ChunkTreeNode, entries);
  END(ChunkTreeNode);
  BEGIN(ChunkTreeBranch);
  FIELD(ChunkTreeBranch, base_address);
  FIELD(ChunkTreeBranch, child);
  FIELD(ChunkTreeBranch, reserved);
  END(ChunkTreeBranch);
  BEGIN(ChunkDescriptor);
  FIELD(ChunkDescriptor, base_address);
  FIELD(ChunkDescriptor, size_bytes);
  FIELD(ChunkDescriptor, level);
  FIELD(ChunkDescriptor, redundancy);
  FIELD(ChunkDescriptor, column_count);
  FIELD(ChunkDescriptor, stripe_length_bytes);
  FIELD(ChunkDescriptor, flags);
  FIELD(ChunkDescriptor, physical_device);
  FIELD(ChunkDescriptor, epoch_created);
  END(ChunkDescriptor);
  BEGIN(ColumnAddress);
  FIELD(ColumnAddress, raw);
  END(ColumnAddress);
}

void list_directories(Listing& listing) {
  BEGIN(DirectoryPageHeader);
  FIELD(DirectoryPageHeader, magic);
  FIELD(DirectoryPageHeader, version);
  FIELD(DirectoryPageHeader, level);
  FIELD(DirectoryPageHeader, depth);
  FIELD(DirectoryPageHeader, entry_count);
  FIELD(DirectoryPageHeader, heap_begin);
  FIELD(DirectoryPageHeader, heap_garbage);
  FIELD(DirectoryPageHeader, reserved0);
  FIELD(DirectoryPageHeader, prefix);
  FIELD(DirectoryPageHeader, reserved1);
  END(DirectoryPageHeader);
  BEGIN(DirectorySlot);
  FIELD(DirectorySlot, hash);
  FIELD(DirectorySlot, entry_offset);
  FIELD(DirectorySlot, name_length);
  FIELD(DirectorySlot, type);
  FIELD(DirectorySlot, reserved);
  END(DirectorySlot);
  BEGIN(DirectoryEntry);
  FIELD(DirectoryEntry, inode);
  END(DirectoryEntry);
  BEGIN(AttributePageHeader);
  FIELD(AttributePageHeader, magic);
  FIELD(AttributePageHeader, version);
  FIELD(AttributePageHeader, entry_count);
  FIELD(AttributePageHeader, used_bytes);
  FIELD(AttributePageHeader, reserved);
  END(AttributePageHeader);
  BEGIN(AttributeEntry);
  FIELD(AttributeEntry, value_length);
  FIELD(AttributeEntry, value_hash);
  FIELD(AttributeEntry, name_length);
  FIELD(AttributeEntry, reserved);
  FIELD(AttributeEntry, value_slot);
  END(AttributeEntry);
}

void list_log(Listing& listing) {
  BEGIN(LogRecord);
  FIELD(LogRecord, lsn);
  FIELD(LogRecord, checksum);
  FIELD(LogRecord, length);
  FIELD(LogRecord, opcode);
  FIELD(LogRecord, flags);
  FIELD(LogRecord, durable_lsn);
  FIELD(LogRecord, time);
  FIELD(LogRecord, inode);
  FIELD(LogRecord, second_inode);
  FIELD(LogRecord, offset);
  FIELD(LogRecord, size);
  FIELD(LogRecord, device);
  FIELD(LogRecord, number);
  FIELD(LogRecord, uid);
  FIELD(LogRecord, gid);
  FIELD(LogRecord, mode);
  FIELD(LogRecord, mask);
  FIELD(LogRecord, umask_bits);
  FIELD(LogRecord, data_length);
  FIELD(LogRecord, name_length);
  FIELD(LogRecord, second_name_length);
  FIELD(LogRecord, extent_count);
  FIELD(LogRecord, reserved);
  FIELD(LogRecord, epoch);
  END(LogRecord);
  BEGIN(LogExtent);
  FIELD(LogExtent, address);
  FIELD(LogExtent, digest);
  FIELD(LogExtent, page_count);
  FIELD(LogExtent, flags);
  FIELD(LogExtent, page);
  END(LogExtent);
}

using wire::DirectoryRecord;
using wire::RingDescriptor;
using wire::RingUnit;
using wire::StatfsRecord;

void list_ring(Listing& listing) {
  BEGIN(RingUnit);
  FIELD(RingUnit, value);
  FIELD(RingUnit, word);
  FIELD(RingUnit, sequence);
  END(RingUnit);
  BEGIN(RingDescriptor);
  FIELD(RingDescriptor, units);
  END(RingDescriptor);
  BEGIN(AttributeRecord);
  FIELD(AttributeRecord, inode);
  FIELD(AttributeRecord, size_bytes);
  FIELD(AttributeRecord, blocks_512);
  FIELD(AttributeRecord, access_seconds);
  FIELD(AttributeRecord, modification_seconds);
  FIELD(AttributeRecord, change_seconds);
  FIELD(AttributeRecord, birth_seconds);
  FIELD(AttributeRecord, access_nanoseconds);
  FIELD(AttributeRecord, modification_nanoseconds);
  FIELD(AttributeRecord, change_nanoseconds);
  FIELD(AttributeRecord, birth_nanoseconds);
  FIELD(AttributeRecord, mode);
  FIELD(AttributeRecord, link_count);
  FIELD(AttributeRecord, uid);
  FIELD(AttributeRecord, gid);
  FIELD(AttributeRecord, device);
  FIELD(AttributeRecord, generation);
  FIELD(AttributeRecord, flags);
  FIELD(AttributeRecord, parent);
  FIELD(AttributeRecord, reserved);
  END(AttributeRecord);
  BEGIN(DirectoryRecord);
  FIELD(DirectoryRecord, inode);
  FIELD(DirectoryRecord, next_cursor);
  FIELD(DirectoryRecord, record_length);
  FIELD(DirectoryRecord, name_length);
  FIELD(DirectoryRecord, type);
  FIELD(DirectoryRecord, has_attributes);
  END(DirectoryRecord);
  BEGIN(StatfsRecord);
  FIELD(StatfsRecord, page_total);
  FIELD(StatfsRecord, page_free);
  FIELD(StatfsRecord, page_available);
  FIELD(StatfsRecord, inode_used);
  FIELD(StatfsRecord, inode_free);
  FIELD(StatfsRecord, epoch_open);
  FIELD(StatfsRecord, epoch_durable);
  FIELD(StatfsRecord, reserved);
  END(StatfsRecord);
}

TEST(FormatLayout, equals_golden_listing) {
  Listing listing;
  list_superblock(listing);
  list_chunks(listing);
  list_pointers_and_inodes(listing);
  list_directories(listing);
  list_ring(listing);
  list_log(listing);

  const char* source = std::getenv("GPU4FS_SOURCE");
  const std::string path = std::string(source != nullptr ? source : ".") + "/tests/golden/format_layout.txt";
  if (std::getenv("GPU4FS_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << listing.text();
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << "cannot read " << path;
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(listing.text(), golden.str());
}

TEST(FormatLayout, magics_spell_their_names) {
  const auto letters = [](std::uint64_t magic, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text.push_back(static_cast<char>(magic >> (8 * i)));
    return text;
  };
  EXPECT_EQ(letters(superblock_magic, 8), "!GPU4FS1");
  EXPECT_EQ(letters(chunk_header_magic, 4), "G4CH");
  EXPECT_EQ(letters(bitmap_slot_magic, 4), "G4CB");
  EXPECT_EQ(letters(chunk_tree_magic, 4), "G4CT");
  EXPECT_EQ(letters(directory_leaf_magic, 4), "G4DL");
  EXPECT_EQ(letters(directory_node_magic, 4), "G4DN");
  EXPECT_EQ(letters(attribute_page_magic, 4), "G4XA");
}

// Header areas of every chunk size in version 1, calculated by hand from the format's rules.
TEST(FormatLayout, chunk_header_areas) {
  const ChunkLayout smallest = chunk_layout((8u << 20) / page_size);
  EXPECT_EQ(smallest.bitmap_pages, 1u);
  EXPECT_EQ(smallest.table_pages, 1u);
  EXPECT_EQ(smallest.descriptor_pages, 8u);
  EXPECT_EQ(smallest.bitmap_b_page, 4u);
  EXPECT_EQ(smallest.descriptors_page, 7u);
  EXPECT_EQ(smallest.descriptor_page(7, 0), 14u);
  EXPECT_EQ(smallest.descriptor_page(0, 1), 15u);
  EXPECT_EQ(smallest.header_pages, 32u);
  const ChunkLayout largest = chunk_layout((1u << 30) / page_size);
  EXPECT_EQ(largest.bitmap_pages, 8u);
  EXPECT_EQ(largest.table_pages, 2u);
  EXPECT_EQ(largest.descriptor_pages, 1024u);
  EXPECT_EQ(largest.bitmap_b_page, 12u);
  EXPECT_EQ(largest.descriptors_page, 23u);
  EXPECT_EQ(largest.header_pages, 2080u);
  EXPECT_TRUE(descriptor_entry_fits(descriptor_entry(0, 1), 1));
  EXPECT_NE(descriptor_entry(0, 0), descriptor_page_unwritten);
  EXPECT_FALSE(descriptor_entry_fits(descriptor_page_unwritten, 0));
  EXPECT_EQ(chunk_layout(bits_per_page + 1).bitmap_pages, 2u);
}

}  // namespace
}  // namespace gpu4fs::format
