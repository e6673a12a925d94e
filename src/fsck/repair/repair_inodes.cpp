// The new state of inodes, and the pool's own files.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "format/format_text.hpp"
#include "fsck/check/tree_reader.hpp"
#include "fsck/repair/repair_context.hpp"

namespace gpu4fs::fsck::repair {

namespace {

using format::Inode;

constexpr u64 bits_per_page = format::bits_per_page;

bool is_own(u64 number) {
  return number < format::inode_number_first_free && number != format::inode_number_root;
}

void settle_times(Inode& inode) {
  for (u64* time : {&inode.access_time, &inode.modification_time, &inode.change_time, &inode.birth_time}) {
    if (!format::is_time(*time)) *time &= ~((u64{1} << 30) - 1);
  }
}

bool target_is_readable(RepairContext& context, const Inode& inode) {
  if (inode.size_bytes == 0 || inode.size_bytes >= path_length_max) return false;
  if (inode.is_inline()) return inode.size_bytes <= format::inode_inline_capacity;
  const auto page = std::make_unique<PageBuffer>();
  try {
    format::BlockPointer pointer{};
    const u64 address = find_page(context.old_state.reader, inode, 0, &pointer);
    const bool is_single = !pointer.is_unwritten() && pointer.size() == format::BlockSize::page_4k;
    return address != 0 && is_single && context.old_state.reader.read_page(address, page.get()) == PageState::good;
  } catch (const pool::PoolError&) {
    return false;
  }
}

// Invalid fields get their defaults.
void settle_fields(Inode& inode) {
  const u32 type = inode.mode & S_IFMT;
  inode.version = 1;
  inode.flags &= format::inode_flag_known;
  inode.profile = inode.profile > format::profile_max ? u16{0} : inode.profile;
  settle_times(inode);
  std::memset(inode.reserved, 0, sizeof(inode.reserved));
  const bool may_be_inline = type == S_IFREG || type == S_IFLNK;
  const bool has_content = may_be_inline || type == S_IFDIR;
  const bool has_map = has_content && !inode.is_inline() && inode.height <= check::map_height_max;
  const bool is_inline = may_be_inline && inode.is_inline();
  if (is_inline) inode.height = 0;
  if (!has_map && !is_inline) {
    std::memset(inode.inline_data(), 0, format::inode_inline_capacity);
    inode.flags &= format::inode_flags_of_users;
    inode.height = 0;
    if (!has_content) inode.size_bytes = 0;
  }
  if (!inode.is_inline()) std::memset(inode.inline_tail, 0, sizeof(inode.inline_tail));
  if (type != S_IFDIR) inode.entry_count = 0;
}

// False: it cannot be repaired.
bool take_inode(RepairContext& context, u64 number, Inode inode) {
  const u32 type = inode.mode & S_IFMT;
  const bool has_type = format::inode_type_text(inode.mode) != "unknown";
  if (!has_type || (type == S_IFLNK && !target_is_readable(context, inode))) {
    context.note(fmt::format("inode {}", number),
                 has_type ? "a symbolic link whose target cannot be read is freed"
                          : fmt::format("mode {:07o} is no file's; the inode is freed", inode.mode));
    return false;
  }
  const Inode before = inode;
  settle_fields(inode);
  context.inodes[number] = inode;
  if (std::memcmp(&before, &inode, sizeof(inode)) != 0) context.note_inode(number, "impossible fields get defaults");
  return true;
}

// An inode that is not in use: only its generation stays, incremented if it is freed by the repair.
Inode free_inode(u64 number, const Inode& before) {
  Inode inode{};
  if (is_own(number)) return inode;
  const bool was_used = before.mode != 0;
  inode.version = was_used || before.version != 0 ? 1 : 0;
  inode.generation = inode.version == 0 ? 0
                     : was_used         ? format::generation_after(before.generation, 0)
                                        : before.generation;
  return inode;
}

Inode own_file(RepairContext& context, const std::vector<PageBuffer>& content, u32 height) {
  Inode inode{};
  inode.mode = S_IFREG | 0600;
  inode.version = 1;
  inode.link_count = 1;
  const u64 now = context.pool.superblock.checkpoint_time;
  inode.access_time = inode.modification_time = inode.change_time = inode.birth_time = now;
  inode.size_bytes = content.size() * page_size;
  PageAddresses addresses;
  for (const PageBuffer& page : content) addresses.emplace(addresses.size(), context.pages.add(page.bytes));
  build_map(context, addresses, height, inode);
  return inode;
}

void set_bit(std::vector<PageBuffer>& pages, u64 bit) {
  if (pages.size() <= bit / bits_per_page) pages.resize(bit / bits_per_page + 1);
  u8& byte = pages[bit / bits_per_page].bytes[bit % bits_per_page / 8];
  byte = static_cast<u8>(byte | (1u << (bit % 8)));
}

}  // namespace

void read_inodes(RepairContext& context, const PageAddresses& inode_pages) {
  const auto page = std::make_unique<PageBuffer>();
  for (const auto& [index, address] : inode_pages) {
    if (context.old_state.reader.read_page(address, page.get()) != PageState::good) {
      context.note("inode file",
                   fmt::format("inodes {} to {} cannot be read and are freed", index * format::inodes_per_page,
                               (index + 1) * format::inodes_per_page - 1));
      continue;
    }
    (void)context.pages.claim(address, 1);
    for (u32 i = 0; i < format::inodes_per_page; ++i) {
      const u64 number = index * format::inodes_per_page + i;
      Inode inode{};
      std::memcpy(&inode, page->bytes + i * sizeof(inode), sizeof(inode));
      if (!is_own(number) && inode.mode != 0) (void)take_inode(context, number, inode);
    }
  }
}

namespace {

// Writes one page of the inode file. Returns its address in the new state.
u64 write_inode_page(RepairContext& context, u64 index, u64 old_address, const std::map<u64, Inode>& own) {
  const auto before = std::make_unique<PageBuffer>();
  const bool was_readable =
      old_address != 0 && context.old_state.reader.read_page(old_address, before.get()) == PageState::good;
  if (!was_readable) *before = PageBuffer{};
  const auto after = std::make_unique<PageBuffer>();
  for (u32 i = 0; i < format::inodes_per_page; ++i) {
    const u64 number = index * format::inodes_per_page + i;
    Inode old{};
    std::memcpy(&old, before->bytes + i * sizeof(old), sizeof(old));
    const auto used = context.inodes.find(number);
    const auto own_inode = own.find(number);
    const Inode inode = used != context.inodes.end() ? used->second
                        : own_inode != own.end()     ? own_inode->second
                                                     : free_inode(number, old);
    if (inode.mode == 0 && old.mode == 0 && std::memcmp(&old, &inode, sizeof(inode)) != 0) {
      context.note(fmt::format("inode {}", number), "is free and becomes zero");
    }
    std::memcpy(after->bytes + i * sizeof(inode), &inode, sizeof(inode));
  }
  if (was_readable && std::memcmp(before->bytes, after->bytes, page_size) == 0) return old_address;
  if (was_readable) context.pages.release(old_address);
  return context.pages.add(after->bytes);
}

}  // namespace

Inode write_own_files(RepairContext& context, const PageAddresses& inode_pages, u64* inode_used) {
  std::vector<PageBuffer> used_bits(1);
  std::vector<PageBuffer> orphan_bits(1);
  for (u64 number = 0; number < format::inode_number_first_free; ++number) set_bit(used_bits, number);
  *inode_used = format::inode_number_first_free;
  PageAddresses addresses = inode_pages;
  addresses.emplace(0, 0);
  for (const auto& [number, inode] : context.inodes) {
    addresses.emplace(number / format::inodes_per_page, 0);
    if (number < format::inode_number_first_free) continue;
    set_bit(used_bits, number);
    ++*inode_used;
    if (inode.link_count == 0) set_bit(orphan_bits, number);
  }
  for (const FindingId id : {FindingId::inode_bitmap, FindingId::orphan_bitmap}) {
    if (context.old_state.result.findings.count(id) == 0) continue;
    context.note(id == FindingId::inode_bitmap ? "inode bitmap" : "orphan bitmap", "is made anew");
  }
  std::map<u64, Inode> own;
  own[format::inode_number_inode_bitmap] = own_file(context, used_bits, format::inode_bitmap_height);
  own[format::inode_number_orphan_bitmap] = own_file(context, orphan_bits, format::inode_bitmap_height);
  for (auto& [index, address] : addresses) address = write_inode_page(context, index, address, own);
  Inode inode_file = own_file(context, {}, 0);
  // The generations of inodes that could not be read are unknown.
  inode_file.generation = context.pool.superblock.inode_file.generation;
  for (const auto& [number, inode] : context.inodes) {
    if (format::generation_is_later(inode.generation, inode_file.generation)) inode_file.generation = inode.generation;
  }
  inode_file.size_bytes = (addresses.rbegin()->first + 1) * page_size;
  build_map(context, addresses, format::inode_file_height, inode_file);
  return inode_file;
}

}  // namespace gpu4fs::fsck::repair
