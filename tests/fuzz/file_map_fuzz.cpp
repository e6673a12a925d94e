// A damaged file map: inode, indirect blocks, the inode file's own map and the bitmap files. Every function that reads
// returns an answer; if a prepare function accepts something, its commit function survives; and no data page that does
// not match its checksum is returned.
#include "fs/map/file_map.hpp"
#include "fuzz/small_world.hpp"

namespace gpu4fs::fuzz {

const char target_name[] = "file_map";

namespace {

constexpr u64 places[] = {0, 5, 500, 3580, 4096, 262144 - 9, u64{1} << 27, fs::map_page_max - 5000};
constexpr u32 round_pages = 600;

class File {
 public:
  File(SmallFileSystem& small, u64 number) : fs_(small.fs()), op_(small.operation()), number_(number) {}
  ~File() { end(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  u64 number() const { return number_; }

  Status create() {
    GPU4FS_TRY(fs::claim_inode(Lane{}, fs_, op_, &number_));
    GPU4FS_TRY(fs::prepare_new_inode(Lane{}, fs_, op_, number_));
    GPU4FS_TRY(fs::reserve_metadata(Lane{}, fs_, op_, {1, 0, 0}));
    fs::NewInode values{};
    values.mode = 0100644;
    values.link_count = 1;
    ref_ = fs::commit_new_inode(Lane{}, fs_, op_, number_, values);
    return Status::ok;
  }
  // The engine's tests of the inode before it reads the map.
  bool open() {
    if (answered(fs::get_inode(Lane{}, fs_, op_, number_, &ref_)) != Status::ok) return false;
    const format::Inode& inode = *ref_.inode;
    if ((inode.mode & fs::mode_type_mask) != fs::mode_regular || inode.size_bytes > fs::file_size_max) return false;
    return !inode.is_inline();
  }
  Status replace(u64 first, u64 end_page, fs::MapKind kind) {
    fs::MapCost cost{};
    GPU4FS_TRY(fs::map_prepare(Lane{}, fs_, op_, ref_, {first, end_page}, &cost));
    GPU4FS_TRY(fs::reserve_metadata(Lane{}, fs_, op_, {1, cost.changed, cost.fresh}));
    GPU4FS_TRY(space::reserve_pages(fs_, op_, end_page - first));
    for (u64 page = first; page < end_page;) {
      const raid::Extent extent = space::allocate_run(Lane{}, fs_, op_, end_page - page, 1);
      if (kind == fs::MapKind::data) GPU4FS_CHECK_OK(write(extent));
      fs::map_replace(Lane{}, fs_, op_, ref_, page, {kind, 0, extent.address, extent.page_count});
      space::commit_extent(Lane{}, fs_, extent);
      page += extent.page_count;
    }
    return Status::ok;
  }
  Status remove(u64 first, u64 end_page, u32 budget) {
    fs::MapRemoval removal{{first, end_page}, budget, {}};
    GPU4FS_TRY(fs::map_prepare_remove(Lane{}, fs_, op_, ref_, &removal));
    GPU4FS_TRY(fs::reserve_metadata(Lane{}, fs_, op_, {1, removal.cost.changed, removal.cost.fresh}));
    fs::map_remove(Lane{}, fs_, op_, ref_, removal.range);
    return Status::ok;
  }
  Status mark_written(u64 first) {
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(Lane{}, fs_, op_, ref_, {first, first + round_pages}, &run));
    if (run.kind != fs::MapKind::unwritten) return Status::ok;
    fs::MapCost cost{};
    const u64 end_page = first + run.page_count;
    GPU4FS_TRY(fs::map_prepare(Lane{}, fs_, op_, ref_, {first, end_page}, &cost));
    GPU4FS_TRY(fs::reserve_metadata(Lane{}, fs_, op_, {1, cost.changed, cost.fresh}));
    fs::map_mark_written(Lane{}, fs_, op_, ref_, {first, end_page});
    return Status::ok;
  }
  Status look(u64 first, u64 limit) {
    fs::MapStretch stretch{};
    GPU4FS_TRY(fs::map_stretch(Lane{}, fs_, op_, ref_, {first, first + limit}, &stretch));
    require(stretch.page_count >= 1 && stretch.page_count <= limit, "a stretch of impossible length");
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(Lane{}, fs_, op_, ref_, {first, first + limit}, &run));
    require(run.page_count >= 1 && run.page_count <= limit, "a run of impossible length");
    if (run.kind != fs::MapKind::data) return Status::ok;
    return read(run.address + (run.page_count - 1) * page_size);
  }
  Status seek(u64 first, u64 end_page, bool want_data) {
    fs::MapSeek seek{{first, end_page}, want_data, false};
    GPU4FS_TRY(fs::map_seek(Lane{}, fs_, op_, ref_, 50, &seek));
    require(seek.range.first >= first, "a search backwards");
    return Status::ok;
  }
  Status allocate_inode() {
    u64 number = 0;
    GPU4FS_TRY(fs::claim_inode(Lane{}, fs_, op_, &number));
    require(number >= format::inode_number_first_free, "a reserved inode number was handed out");
    const Status status = fs::prepare_new_inode(Lane{}, fs_, op_, number);
    fs::unclaim_inode(fs_, op_);
    return status;
  }
  Status find_orphan() {
    u64 number = 0;
    return fs::next_orphan(Lane{}, fs_, op_, 1, &number);
  }
  void end() { fs::release_reservations(fs_, op_); }

 private:
  Status write(const raid::Extent& extent) {
    static constexpr u8 zeros[page_size] = {};
    for (u32 i = 0; i < extent.page_count; ++i) {
      GPU4FS_TRY(raid::write_page(Lane{}, fs_.space, extent.address + i * page_size, zeros, raid::PageUse::data));
    }
    return Status::ok;
  }
  Status read(u64 address) {
    u8 page[page_size];
    GPU4FS_TRY(raid::read_page(Lane{}, fs_.space, address, page, raid::PageUse::data));
    raid::PageLocation location{};
    GPU4FS_TRY(raid::find_page(fs_.space, address, &location));
    const u64 stored = fs_.space.chunks[location.chunk].descriptors[location.page].checksum;
    require(xxh3_64(page, page_size, address) == stored, "data that does not match its checksum");
    return Status::ok;
  }

  fs::FileSystem& fs_;
  fs::Operation op_;
  u64 number_;
  fs::InodeRef ref_{};
};

u64 file_number = 0;
u64 low_file_number = 0;  // of height 0, with a page and holes

void fill(SmallFileSystem& small) {
  {
    File low(small, 0);
    GPU4FS_CHECK_OK(low.create());
    low_file_number = low.number();
    GPU4FS_CHECK_OK(low.replace(2, 3, fs::MapKind::data));
  }
  File file(small, 0);
  GPU4FS_CHECK_OK(file.create());
  file_number = file.number();
  u32 turn = 0;
  for (const u64 place : places) {
    const auto kind = ++turn % 3 == 0 ? fs::MapKind::unwritten : fs::MapKind::data;
    GPU4FS_CHECK_OK(file.replace(place, place + (turn == 5 ? 700 : 40 + turn), kind));
    file.end();
  }
}

void use(File& file, Input& input) {
  const u32 operation = input.byte();
  const u64 first = places[operation / 8 % 8] + input.below(600);
  const u64 count = 1 + input.below(round_pages);
  if (!file.open()) return;
  switch (operation % 8) {
    case 0:
    case 1:
      (void)answered(file.look(first, count));
      break;
    case 2:
      (void)answered(file.seek(first, first + count, count % 2 == 0));
      break;
    case 3:
      (void)answered(file.replace(first, first + count, count % 3 == 0 ? fs::MapKind::unwritten : fs::MapKind::data));
      break;
    case 4:
      (void)answered(file.remove(first, first + count, 20));
      break;
    case 5:
      (void)answered(file.mark_written(first));
      break;
    case 6:
      (void)answered(file.remove(first, ~u64{0} >> 12, 20));
      break;
    default:
      (void)answered(file.allocate_inode());
      (void)answered(file.find_orphan());
      break;
  }
  file.end();
}

}  // namespace

void run_input(const u8* data, std::size_t length) {
  static const SmallWorld world(fill);
  Input input(data, length);
  const DeviceImages images = world.damaged(input);
  SmallFileSystem small(small_options(), images);
  require(small.load_status() == Status::ok, "the chunks do not load");
  {
    File file(small, file_number);
    File low(small, low_file_number);
    if (file.open()) {
      for (const u64 place : places) (void)answered(file.look(place, round_pages));
    }
    for (u32 count = 0; count < 24 && !input.empty(); ++count) use(input.byte() % 3 == 0 ? low : file, input);
  }
  (void)answered(small.checkpoint(Lane{}));
}

}  // namespace gpu4fs::fuzz
