// State shared by the parts of a repair. Private to src/fsck/repair.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "fsck/check/check_context.hpp"
#include "fsck/repair/repair_pool.hpp"

namespace gpu4fs::fsck::repair {

using check::BitWords;
using check::PageAddresses;

struct Name {
  u64 hash;
  std::string text;
  u64 inode;
  u8 type = 0;  // as in a slot
};

struct DirectoryState {
  std::vector<Name> names;
  bool is_rebuilt = false;  // it gets new pages
  bool lacks_pages = false;
};

// Pages of the new state. A page can be taken if neither the old state nor, so far, the new one names it.
class NewPages {
 public:
  // `old_state` has been checked completely: its `chunks` contain the allocated and the reached pages.
  NewPages(pool::OpenedPool& pool, check::CheckContext& old_state, u64 epoch, bool writes);

  // Claims pages of the old state for the new one. False: some were already claimed; then none is.
  bool claim(u64 address, u64 count);
  // A claimed page is replaced after all. Its content stays, because the old state names it.
  void release(u64 address);
  // The address of a new page with this content; PoolError: no space.
  u64 add(const void* content);
  // The same without content, for unwritten blocks.
  u64 add_unwritten();

  const BitWords& claimed(u32 chunk) const { return claimed_[chunk]; }
  // The new content of the chunk's pages of descriptors that change, by number.
  const std::map<u64, PageBuffer>& descriptor_pages(u32 chunk) { return descriptors_[chunk]; }
  u64 page_used() const;

 private:
  u64 take();
  bool is_in_free_stripe(u32 chunk, u64 page) const;
  void put_descriptor(u32 chunk, u64 page, const format::PageDescriptor& descriptor);
  void write_parities(u32 chunk, u64 page);

  pool::OpenedPool& pool_;
  check::CheckContext& old_;
  u64 epoch_;
  bool writes_;
  std::vector<BitWords> claimed_;
  std::vector<std::map<u64, PageBuffer>> descriptors_;  // by chunk
  std::set<u64> written_;                               // addresses with content, in chunks with parities
  bool took_metadata_chunks_ = false;                   // the chunks for metadata are full, others are used
  u32 chunk_ = 0;                                       // where the next search begins
  u64 page_ = 0;
};

struct RepairContext {
  const RepairOptions& options;
  pool::OpenedPool& pool;
  check::CheckContext& old_state;
  NewPages& pages;
  RepairResult& result;
  std::map<u64, format::Inode> inodes;  // those in use with names, in their new state
  std::map<u64, DirectoryState> directories;
  std::set<u64> suspects;  // directories in which the check found something
  std::set<u64> orphans;   // as in the old bitmap

  void note(const std::string& place, const std::string& text) {
    ++result.repair_count;
    if (options.on_repair) options.on_repair(place, text);
  }
  void note_inode(u64 number, const std::string& text) {
    const auto found = inodes.find(number);
    note(found == inodes.end() ? "inode " + std::to_string(number) : check::inode_place(number, found->second), text);
  }
};

// Reads inodes, without the pool's own files. Skips those that cannot be repaired, and corrects fields.
void read_inodes(RepairContext& context, const PageAddresses& inode_pages);
// Settles the names of all directories: each name leads to an inode, each directory has one name, and everything is
// reached. Sets parents and counts of links and names.
void settle_names(RepairContext& context);
// Claims or replaces all pages of the files; sets slots, sizes and page counts.
void settle_maps(RepairContext& context);
// Writes the pool's own files. Returns the inode of the inode file.
format::Inode write_own_files(RepairContext& context, const PageAddresses& inode_pages, u64* inode_used);
// Whether a current bitmap slot is intact in no column.
bool has_lost_slots(const pool::OpenedPool& pool);
// Restores such slots if the pages that the tree reaches are their content, which the rest of the medium verifies.
// `old_state` has been checked completely. Returns the number of slots.
u64 restore_lost_slots(pool::OpenedPool& pool, check::CheckContext& old_state, bool writes);
// Overwrites damaged copies of header areas with good ones. In place, because the content is already the valid one.
void restore_header_copies(RepairContext& context);
// Bitmaps and page descriptors, chunk headers, chunk maps, chunk tree, and last the superblocks.
void write_medium(RepairContext& context, const format::Inode& inode_file, u64 inode_used);

// The same for an inode's extended attributes. Returns the number of their pages.
u64 repair_attributes(RepairContext& context, u64 number, format::Inode& inode);

// Builds a map with these pages, of the given height or, with ~0, of the least one. Sets height, slots and page_count.
void build_map(RepairContext& context, const PageAddresses& pages, u32 height, format::Inode& inode);
// Pages of a directory with these names, sorted; page 0 is the root.
std::vector<PageBuffer> build_directory(const std::vector<Name>& names);

}  // namespace gpu4fs::fsck::repair
