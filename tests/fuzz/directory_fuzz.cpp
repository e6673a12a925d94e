// A damaged directory: its leaves and nodes, its inode and map, and attribute pages. Every function that reads returns
// an answer, and if a prepare function accepts something, its commit function survives.
#include <cstdlib>
#include <memory>
#include <string>

#include "format/format_text.hpp"
#include "fs/inode/inode_rules.hpp"
#include "fs/names/directory_shrink.hpp"
#include "fs/names/directory_walk.hpp"
#include "fs/names/set_attribute.hpp"
#include "fuzz/small_world.hpp"

namespace gpu4fs::fuzz {

const char target_name[] = "directory";

namespace {

constexpr u32 name_count = 260;
constexpr u64 crowded_hash = u64{0x155} << 55;  // the common prefix of the hashes that need a second level

std::string name_text(u64 i) {
  return std::to_string(i) + std::string(i % 90, 'n');
}

// The root directory, one whole operation at a time.
class Directory {
 public:
  explicit Directory(SmallFileSystem& small) : fs_(small.fs()), op_(small.operation()) {}
  ~Directory() { fs::release_reservations(fs_, op_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // If the engine would refuse the inode, there is nothing to do.
  bool open() {
    if (answered(fs::get_inode(Lane{}, fs_, op_, format::inode_number_root, &dir_)) != Status::ok) return false;
    return fs::is_directory(dir_.inode->mode) && fs::inode_is_sound(*dir_.inode);
  }
  fs::HashedName hashed(const std::string& name) const {
    return fs::make_name(fs_, reinterpret_cast<const u8*>(name.data()), static_cast<u32>(name.size()));
  }

  Status insert(const fs::HashedName& name) {
    fs::InsertPlan plan{};
    GPU4FS_TRY(fs::directory_prepare_insert(Lane{}, fs_, op_, dir_, name, &plan));
    GPU4FS_TRY(fs::reserve_attributes(Lane{}, fs_, op_, plan.touched_pages, plan.new_pages));
    fs::directory_commit_insert(Lane{}, fs_, op_, dir_, {plan, name, {17, 8}}, scratch_);
    return Status::ok;
  }
  Status change(const fs::HashedName& name, bool remove) {
    fs::RemovePlan plan{};
    GPU4FS_TRY(fs::directory_prepare_remove(Lane{}, fs_, op_, dir_, name, &plan));
    GPU4FS_TRY(fs::reserve_metadata(Lane{}, fs_, op_, {1, fs::touched_pages(plan), 0}));
    if (remove) {
      fs::directory_commit_remove(Lane{}, fs_, op_, dir_, plan, scratch_);
    } else {
      fs::directory_commit_replace(Lane{}, fs_, op_, dir_, plan.name, {18, 4});
    }
    return Status::ok;
  }
  Status find(const fs::HashedName& name) {
    fs::FoundName found{};
    return fs::directory_find(Lane{}, fs_, op_, dir_, name, &found);
  }
  // In hash order, so it ends; a name lies inside of its page.
  Status enumerate(u64 cursor) {
    fs::DirectoryWalk walk{};
    GPU4FS_TRY(fs::directory_begin(cursor, &walk));
    for (u32 i = 0; i < 100'000; ++i) {
      fs::DirectoryItem item{};
      GPU4FS_TRY(fs::directory_next(Lane{}, fs_, op_, dir_, &walk, &item));
      require(item.next_cursor > cursor, "the cursor does not move");
      cursor = item.next_cursor;
      checksum_ = xxh3_64(item.name, item.name_length, checksum_);
    }
    fail("an enumeration without end");
  }
  Status check_page(u64 index) {
    u32 frame = fs::no_frame;
    GPU4FS_TRY(fs::get_page(Lane{}, fs_, op_, dir_, {0, index}, &frame));
    const u8* page = fs::page_data(fs_, frame);
    require(!format::directory_page_text(page).empty(), "no text");
    look_at_copy(page);
    return fs::directory_check_page(Lane{}, page, dir_.inode->size_bytes / page_size, index == 0, fs_.name_hash_seed);
  }
  Status use_attributes(Input& input) {
    static constexpr u8 name[] = {'u', 's', 'e', 'r', '.', 'a'};
    static constexpr u8 value[20000] = {};
    const fs::AttributeName wanted{name, 5 + input.byte() % 2u, 0};
    alignas(16) u8 work[page_size];
    u8 names[256];
    fs::NameList list{names, sizeof(names), 0, false};
    (void)answered(fs::attributes_list(Lane{}, fs_, op_, dir_, &list));
    fs::FoundAttribute found{};
    const Status status = fs::attribute_find(Lane{}, fs_, op_, dir_, wanted, &found);
    if (status == Status::ok) {
      u8 read[65536];
      (void)answered(fs::attribute_read(Lane{}, fs_, op_, dir_, found, read));
    }
    if (status == Status::ok && input.byte() % 2 == 0) {
      GPU4FS_TRY(fs::attribute_prepare_remove(Lane{}, fs_, op_, dir_, found));
      GPU4FS_TRY(fs::reserve_attributes(Lane{}, fs_, op_, fs::attribute_removal_pages, 0));
      fs::attribute_commit_remove(Lane{}, fs_, op_, dir_, found);
      return Status::ok;
    }
    fs::AttributePlan plan{};
    const u32 value_length = input.byte() * u32{input.byte() % 4 == 0 ? 70u : 1u} % sizeof(value);
    GPU4FS_TRY(fs::attribute_prepare_set(Lane{}, fs_, op_, dir_, {wanted, value_length, 0, work, nullptr}, &plan));
    GPU4FS_TRY(fs::reserve_attributes(Lane{}, fs_, op_, plan.touched_pages, plan.new_pages));
    fs::attribute_commit_set(Lane{}, fs_, op_, dir_, plan, {wanted, value_length, 0, nullptr, value});
    return Status::ok;
  }

 private:
  // With the canary in the environment: trusts the slots.
  void look_at_copy(const u8* page) {
    static const bool has_canary = std::getenv("GPU4FS_FUZZ_CANARY") != nullptr;
    if (!has_canary) return;
    const auto copy = std::make_unique<u8[]>(page_size);
    std::memcpy(copy.get(), page, page_size);
    for (u32 i = 0; i < fs::detail::page_header(copy.get()).entry_count; ++i) {
      checksum_ += copy[fs::detail::leaf_slots(copy.get())[i].entry_offset];
    }
  }

  fs::FileSystem& fs_;
  fs::Operation op_;
  fs::InodeRef dir_{};
  u64 checksum_ = 0;
  alignas(16) u8 scratch_[page_size] = {};
};

void fill(SmallFileSystem& small) {
  Directory directory(small);
  GPU4FS_CHECK(directory.open());
  for (u64 i = 0; i < name_count; ++i) {
    const std::string name = name_text(i);
    fs::HashedName hashed = directory.hashed(name);
    if (i % 3 == 0) hashed.hash = crowded_hash | hashed.hash >> 9;
    GPU4FS_CHECK_OK(directory.insert(hashed));
  }
  Input values(reinterpret_cast<const u8*>("\0\0\x20"), 3);
  GPU4FS_CHECK_OK(directory.use_attributes(values));
}

void use(Directory& directory, Input& input) {
  const u32 operation = input.byte();
  const std::string name = name_text(input.below(name_count));
  fs::HashedName known = directory.hashed(name);
  if (operation / 16 % 2 == 0) known.hash = crowded_hash | known.hash >> 9;
  switch (operation % 7) {
    case 0:
      (void)answered(directory.find(known));
      break;
    case 1:
      (void)answered(directory.change(known, true));
      break;
    case 2:
      (void)answered(directory.change(known, false));
      break;
    case 3: {
      const std::string text = "new" + std::to_string(input.byte()) + std::string(operation % 240, 'x');
      fs::HashedName fresh = directory.hashed(text);
      if (operation % 16 < 7) fresh.hash = crowded_hash | fresh.hash >> 9;
      (void)answered(directory.insert(fresh));
      break;
    }
    case 4:
      (void)answered(directory.enumerate(operation < 128 ? fs::cursor_first_name : input.number(8) >> 1));
      break;
    case 5:
      (void)answered(directory.check_page(input.below(24)));
      break;
    default:
      (void)answered(directory.use_attributes(input));
      break;
  }
}

}  // namespace

void run_input(const u8* data, std::size_t length) {
  static const SmallWorld world(fill);
  Input input(data, length);
  const DeviceImages images = world.damaged(input);
  SmallFileSystem small(small_options(), images);
  require(small.load_status() == Status::ok, "the chunks do not load");
  {
    Directory directory(small);
    if (!directory.open()) return;
    for (u64 page = 0; page < 24; ++page) (void)answered(directory.check_page(page));
    (void)answered(directory.enumerate(fs::cursor_first_name));
    for (u32 count = 0; count < 24 && !input.empty(); ++count) use(directory, input);
  }
  (void)answered(small.checkpoint(Lane{}));
}

}  // namespace gpu4fs::fuzz
