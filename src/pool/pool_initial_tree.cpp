#include "pool/pool_initial_tree.hpp"

#include <sys/stat.h>

#include <cstring>

#include "base/check.hpp"
#include "format/block_pointer_format.hpp"
#include "format/directory_format.hpp"

namespace gpu4fs::pool {

namespace {

using format::BlockPointer;
using format::BlockSize;
using format::Inode;

// Assigns consecutive pages.
class TreeBuilder {
 public:
  TreeBuilder(u64 begin, u64 now, const RootOwner& owner) : next_(begin), now_(now), owner_(owner) {}

  template <class T>
  u64 add_page(const T& content) {
    static_assert(sizeof(T) <= page_size);
    InitialPage page{next_, {}};
    std::memcpy(page.bytes.data(), &content, sizeof(T));
    pages_.push_back(page);
    next_ += page_size;
    return page.address;
  }

  // A file of one page whose slots are of level `height`: the page below `height` indirect blocks.
  template <class T>
  Inode one_page_file(u16 mode, u32 height, const T& content) {
    BlockPointer pointer = BlockPointer::data(add_page(content), BlockSize::page_4k);
    for (u32 level = 0; level < height; ++level) pointer = BlockPointer::indirect(add_page(pointer));
    Inode inode{};
    inode.size_bytes = page_size;
    inode.access_time = inode.modification_time = inode.change_time = inode.birth_time = now_;
    inode.link_count = 1;
    inode.mode = mode;
    inode.height = static_cast<u8>(height);
    inode.version = 1;
    inode.slots[0] = pointer;
    inode.page_count = 1 + height;
    return inode;
  }

  Inode root_directory() {
    format::DirectoryPageHeader leaf{};
    leaf.magic = format::directory_leaf_magic;
    leaf.version = 1;
    leaf.heap_begin = page_size;
    Inode root = one_page_file(static_cast<u16>(S_IFDIR | owner_.permissions), 0, leaf);
    root.uid = owner_.uid;
    root.gid = owner_.gid;
    root.link_count = 2;
    root.parent_or_device = format::inode_number_root;
    return root;
  }

  std::vector<InitialPage> take_pages() { return std::move(pages_); }

 private:
  u64 next_;
  u64 now_;
  RootOwner owner_;
  std::vector<InitialPage> pages_;
};

}  // namespace

InitialTree build_initial_tree(u64 begin, u64 now, const RootOwner& owner) {
  constexpr u16 hidden_file_mode = S_IFREG | 0600;
  TreeBuilder builder(begin, now, owner);
  std::array<Inode, format::inodes_per_page> inodes{};
  inodes[format::inode_number_root] = builder.root_directory();
  const u64 used_bits = (u64{1} << format::inode_number_first_free) - 1;
  inodes[format::inode_number_inode_bitmap] =
      builder.one_page_file(hidden_file_mode, format::inode_bitmap_height, used_bits);
  inodes[format::inode_number_orphan_bitmap] =
      builder.one_page_file(hidden_file_mode, format::inode_bitmap_height, u64{0});
  InitialTree tree{};
  tree.inode_file = builder.one_page_file(hidden_file_mode, format::inode_file_height, inodes);
  tree.pages = builder.take_pages();
  tree.inode_used = format::inode_number_first_free;
  GPU4FS_CHECK_EQ(tree.pages.size(), 1 + 2 * (1 + format::inode_bitmap_height) + (1 + format::inode_file_height));
  return tree;
}

}  // namespace gpu4fs::pool
