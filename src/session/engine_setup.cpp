#include "session/engine_setup.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/mutant.hpp"
#include "base/random.hpp"
#include "device/staged/detached_io.hpp"
#include "device/staged/staged_build.hpp"
#include "device/tier/page_tier_build.hpp"
#include "engine/engine_build.hpp"
#include "engine/wake.hpp"
#include "fmt/format.h"
#include "pool/chunk_reach.hpp"
#include "pool/logical_space/logical_space.hpp"
#include "pool/pool_error.hpp"
#include "session/page_tier_setup.hpp"
#include "session/thin_files.hpp"

namespace gpu4fs::session {
namespace {

constexpr u64 cache_bytes_min = u64{8} << 20;
// The default is a part of the memory of the engine's processor, within these limits.
constexpr u64 cache_default_min = u64{32} << 20;
constexpr u64 cache_default_max = u64{512} << 20;
constexpr u64 cache_default_share = 32;
constexpr u64 cache_bytes_max = u64{1} << 40;
// Threads that work for the engine while they wait, besides its own workers.
constexpr u32 lending_thread_max = engine::session_max;
// Of them, those that may use staged devices at the same time.
constexpr u32 staged_lender_max = 2;
constexpr u64 page_cache_bytes_max = u64{1} << 40;
constexpr u64 page_readahead_bytes_max = u64{1} << 30;
constexpr u64 page_cache_default_min = u64{64} << 20;
constexpr u64 page_cache_default_max = u64{1} << 30;
constexpr u64 page_cache_default_share = 16;

// Every GPU with the required compute capability has at least this much.
constexpr u64 gpu_memory_least = u64{64} << 30;

// The memory of the machine, or the part of it that this process may use.
u64 system_memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  u64 bytes = pages > 0 ? static_cast<u64>(pages) * static_cast<u64>(::sysconf(_SC_PAGESIZE)) : 0;
  u64 limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) bytes = std::min(bytes, limit);
  return bytes;
}

Status status_of(const device::DeviceError& error) {
  switch (error.error_number()) {
    case EBUSY:
      return Status::already_mounted;
    case ENOSPC:
      return Status::no_space;
    default:
      return Status::io_error;
  }
}

bool is_direct(DeviceAccess access) {
  return access == DeviceAccess::direct || access == DeviceAccess::direct_everywhere ||
         access == DeviceAccess::emulated;
}

// Whether files on tmpfs are accessed directly too.
bool is_everywhere(DeviceAccess access) {
  return access == DeviceAccess::direct_everywhere || access == DeviceAccess::emulated;
}

void warn_of_thin_memory(const device::MappedFile& file, std::vector<std::string>& warnings) {
  struct stat attributes {};
  struct statvfs medium {};
  if (::fstat(file.descriptor(), &attributes) != 0) return;
  if (::fstatvfs(file.descriptor(), &medium) != 0) return;
  const u64 allocated = static_cast<u64>(attributes.st_blocks) * 512;
  const u64 missing = file.size_bytes() > allocated ? file.size_bytes() - allocated : 0;
  const u64 room = static_cast<u64>(medium.f_bavail) * medium.f_frsize;
  if (missing <= room) return;
  warnings.push_back(fmt::format("{}: its file system has {} MiB left, the file may still grow by {} MiB", file.path(),
                                 room >> 20, missing >> 20));
}

// Whether free space of the file is to be given back, so it does not get all its blocks.
bool is_kept_thin(const device::MappedFile& file, const ServerOptions& options) {
  return options.discard == DiscardScope::all && file.medium() == device::MediumKind::file &&
         is_direct(resolve_access(options.device_access)) && DirectMedia::serves(file, false);
}

// A store to a mapped file that has run out of blocks would be a SIGBUS, and a write past the page cache an error of a
// flush. So disk files get their blocks here. Files on tmpfs and thin files get them chunk by chunk (map_chunk), so a
// pool occupies only the space that it uses.
void prepare_medium(device::MappedFile& file, const ServerOptions& options, std::vector<std::string>& warnings) {
  if (is_kept_thin(file, options)) file.make_thin();
  if (file.grows_with_use()) return warn_of_thin_memory(file, warnings);
  reserve_whole_file(file, is_direct(resolve_access(options.device_access)) && DirectMedia::serves(file, false));
}

struct Area {
  u32 device;
  u64 offset;
  u64 length;
};

// The areas that the engine reaches from the start: superblocks, the operation log, and the parts of the chunks' header
// areas that a mount needs. A check does not read the log, and reads only the header areas of chunks in use, which are
// mapped with their pages.
std::vector<Area> fixed_areas(const pool::OpenedPool& pool, ServerPurpose purpose) {
  std::vector<Area> areas;
  if (purpose == ServerPurpose::check) return areas;
  for (u32 i = 0; i < pool.devices.size(); ++i) {
    if (!pool.devices[i].is_here()) continue;
    areas.push_back({i, 0, format::layout_area_offset});
    const format::DevicePart& part = pool.devices[i].part;
    if (i < pool.superblock.tree_replica_count) areas.push_back({i, part.log_offset, part.log_bytes});
  }
  for (const pool::OpenedChunk& chunk : pool.chunks) {
    const u64 length = pool::mounted_bytes(pool, chunk);
    for (const format::ColumnAddress column : chunk.columns) {
      if (!pool.devices[column.device_index()].is_here()) continue;
      areas.push_back({column.device_index(), column.offset_bytes(), length});
    }
  }
  return areas;
}

std::vector<device::MappedFile> map_devices(pool::OpenedPool& pool, const ServerOptions& options) {
  std::vector<device::MappedFile> files;
  for (const pool::OpenedDevice& opened : pool.devices) {
    if (!opened.is_here()) {
      files.push_back(device::MappedFile::absent(opened.file.path(), pool.read_only));
      continue;
    }
    const int descriptor = ::fcntl(opened.file.fd(), F_DUPFD_CLOEXEC, 3);
    if (descriptor < 0) {
      throw pool::PoolError(Status::io_error, fmt::format("{}: {}", opened.file.path(), std::strerror(errno)));
    }
    files.push_back(device::MappedFile::adopt(
        descriptor, opened.file.path(),
        {.read_only = pool.read_only, .lock = true, .stack = opened.file.stack(), .drive = opened.file.drive()}));
    if (!pool.read_only) prepare_medium(files.back(), options, pool.warnings);
  }
  for (const Area& area : fixed_areas(pool, options.purpose)) {
    if (files[area.device].grows_with_use()) files[area.device].reserve_range(area.offset, area.length);
  }
  return files;
}

std::vector<device::Device> devices_of(const EngineSetup& setup) {
  std::vector<device::Device> devices;
  for (u32 i = 0; i < setup.files.size(); ++i) devices.push_back(setup.device(i));
  return devices;
}

engine::MemorySizes memory_sizes(const ServerOptions& options, u64 memory_bytes, u32 worker_count) {
  const u64 wanted = options.cache_bytes != 0 ? options.cache_bytes : default_cache_bytes(memory_bytes);
  const u64 bytes = std::clamp(wanted, cache_bytes_min, cache_bytes_max);
  engine::MemorySizes sizes;
  sizes.frame_count = static_cast<u32>(align_down(bytes / page_size, u64{64}));
  sizes.staging_count = sizes.frame_count / 2;
  sizes.shard_count = std::clamp(worker_count, 8u, 64u);
  return sizes;
}

fs::AccessTimeMode access_mode(AccessTimes times) {
  switch (times) {
    case AccessTimes::relative:
      return fs::AccessTimeMode::relative;
    case AccessTimes::never:
      return fs::AccessTimeMode::never;
    case AccessTimes::strict:
      return fs::AccessTimeMode::strict;
    case AccessTimes::directories_never:
      return fs::AccessTimeMode::directories_never;
  }
  return fs::AccessTimeMode::relative;
}

std::vector<format::DevicePart> device_parts(const pool::OpenedPool& pool) {
  std::vector<format::DevicePart> parts;
  for (const pool::OpenedDevice& device : pool.devices) parts.push_back(device.part);
  return parts;
}

// The superblock of each device from which the next checkpoint starts.
std::vector<format::Superblock> superblock_templates(const pool::OpenedPool& pool) {
  std::vector<format::Superblock> templates;
  for (const pool::OpenedDevice& device : pool.devices) {
    templates.push_back(pool.superblock);
    templates.back().device = device.part;
  }
  return templates;
}

// A mount records with a seed of its own; a recovery reads and keeps the existing seed.
void set_up_log(EngineAllocator& allocator, const ServerOptions& options, const pool::OpenedPool& pool,
                fs::FileSystem& fs) {
  const bool records = !pool.read_only && options.purpose == ServerPurpose::mount;
  engine::build_log(allocator, fs, pool.superblock, device_parts(pool),
                    GPU4FS_MUTANT(log_seed_kept, records, false) ? random_number<u64>() : pool.superblock.log_seed,
                    records);
}

// The room that a writing mount gets for growth: twice the chunks and some more, on as many devices as possible.
pool::SpaceRoom room_for_growth(const ServerOptions& options, const pool::OpenedPool& pool) {
  constexpr u32 chunks_least = 4096;
  if (pool.read_only || options.purpose != ServerPurpose::mount) return {};
  const u64 chunks = std::max<u64>(chunks_least, pool.chunks.size());
  const u64 granules = pool.chunks.back().end() / pool.superblock.chunk_size_bytes;
  return {device_count_max, static_cast<u32>(std::min<u64>(chunks, format::logical_granule_max)),
          std::max<u64>(u64{16} * chunks_least, granules)};
}

// Workers of a GPU that look at drives at the same time. On an H200 with four emulated drives, two carry 1.1 times what
// one does, four no more than two, and eight less than one.
constexpr u32 drive_watcher_max = 2;

// The parameters of an engine besides its pool.
struct EngineShape {
  engine::EngineConfig config;
  engine::MemorySizes sizes;
  pool::ReachedPages reached;         // from the beginning
  u32 page_cache_frames;              // 0: devices are not staged
  u64 tier_bytes;                     // of the second tier of the page cache
  EngineAllocator* shared = nullptr;  // memory that threads of the host access too; null: all memory of the engine
};

// Mapped if there is nothing to access in another way.
DeviceAccess decide_access(DeviceAccess wanted, const EngineSetup& setup) {
  const DeviceAccess access = resolve_access(wanted);
  const auto drive = std::find_if(setup.files.begin(), setup.files.end(),
                                  [](const device::MappedFile& file) { return file.drive() != nullptr; });
  if (drive != setup.files.end() && access != DeviceAccess::direct && access != DeviceAccess::direct_everywhere) {
    device::fail_medium(drive->path(), "gpu4fs drives it itself, which needs the access 'direct'", 0);
  }
  if (!is_direct(access)) return access;
  const bool everywhere = is_everywhere(access);
  const bool has_some = std::any_of(setup.files.begin(), setup.files.end(), [&](const device::MappedFile& file) {
    return DirectMedia::serves(file, everywhere);
  });
  return has_some ? access : DeviceAccess::mapped;
}

// The locked open files become those of the media, and the pool's accesses are not direct.
void leave_to_direct_access(const EngineSetup& setup, DeviceAccess access, pool::OpenedPool& pool) {
  if (!is_direct(access)) return;
  for (u32 i = 0; i < setup.files.size(); ++i) {
    if (!DirectMedia::serves(setup.files[i], is_everywhere(access))) continue;
    pool.devices[i].file.leave_locked_file();
  }
}

// Bytes of the page cache if nothing else is asked for. Tests get few frames, so that pages leave them.
u64 standard_page_cache_bytes(const ServerOptions& options, const pool::OpenedPool& pool) {
  if (options.device_access != DeviceAccess::direct && options.device_access != DeviceAccess::emulated) return 0;
  if (options.purpose != ServerPurpose::mount) return page_cache_default_min;
  u64 pool_bytes = 0;
  for (const pool::OpenedDevice& device : pool.devices) pool_bytes += device.file.size_bytes();
  return std::min(default_page_cache_bytes(system_memory_bytes()), pool_bytes);
}

// Frames of the page cache, of which at most `holders` workers pin some at the same time. Says it if that takes more
// memory than was asked for.
u32 page_cache_frames(const ServerOptions& options, const PageCacheSizes& sizes, u32 holders, pool::OpenedPool& pool) {
  if (options.device_access == DeviceAccess::mapped) return 0;
  const u64 bytes = sizes.frame_bytes != 0 ? sizes.frame_bytes : standard_page_cache_bytes(options, pool);
  const u64 wanted = std::min(bytes, page_cache_bytes_max) / page_size;
  const u32 least = device::staged_frames_min(holders);
  if (sizes.frame_bytes != 0 && wanted < least) {
    pool.warnings.push_back(fmt::format("{}={} MiB is too small for {} workers: {} MiB are used", sizes.frame_option,
                                        bytes >> 20, holders, u64{least} * page_size >> 20));
  }
  return static_cast<u32>(std::max<u64>(align_down(wanted, u64{cache::set_line_max}), least));
}

u32 read_ahead_pages(const ServerOptions& options) {
  return static_cast<u32>(std::min(options.page_readahead_bytes, page_readahead_bytes_max) / page_size);
}

void build_tier(EngineAllocator& allocator, u64 bytes, pool::OpenedPool& pool, EngineSetup& setup) {
  const bool has_checksums = (pool.superblock.feature_incompatible & format::feature_data_checksums) != 0;
  const u32 frames = page_tier_frames(bytes, has_checksums, &setup.tier_text, &pool.warnings);
  setup.tier = frames != 0 ? device::build_page_tier(allocator, frames) : nullptr;
}

engine::Engine* build_engine(EngineAllocator& allocator, const ServerOptions& options, pool::OpenedPool& pool,
                             EngineSetup& setup, const EngineShape& shape) {
  engine::EngineImage image = engine::prepare_engine(allocator, shape.config, shape.sizes, setup.upcalls);
  if (shape.page_cache_frames != 0) {
    device::QueuedMedia queued;
    if (setup.direct != nullptr) {
      queued = {setup.direct->queue(), DirectMedia::slot_count, shape.shared};
      if (setup.direct->has_drives()) queued.watcher_max = drive_watcher_max;
    }
    setup.staged = device::build_staged_devices(allocator, nullptr, shape.page_cache_frames,
                                                engine::worker_memory_count(shape.config), queued, &setup.staged_image);
  }
  build_tier(allocator, shape.tier_bytes, pool, setup);
  fs::FileSystem& fs = image->fs;
  const format::Superblock& superblock = pool.superblock;
  const pool::SpaceRoom room = room_for_growth(options, pool);
  fs.space = pool::build_logical_space(allocator, superblock, devices_of(setup), pool.chunks, shape.reached, room);
  if (setup.staged != nullptr) device::set_staged_devices(allocator, setup.staged, fs.space.devices);
  const std::vector<format::Superblock> templates = superblock_templates(pool);
  fs.superblocks = static_cast<format::Superblock*>(
      allocator.allocate(u64{fs.space.device_capacity} * sizeof(format::Superblock), page_size));
  allocator.copy_in(fs.superblocks, templates.data(), templates.size() * sizeof(format::Superblock));
  if (room.chunks != 0) {
    fs.growth = static_cast<space::PoolGrowth*>(allocator.allocate(sizeof(space::PoolGrowth), cache_line));
    allocator.zero(fs.growth, sizeof(space::PoolGrowth));
  }
  setup.space = fs.space;
  setup.superblocks = fs.superblocks;
  setup.growth = fs.growth;
  fs.inode_file = superblock.inode_file;
  fs.inode_file_staged = superblock.inode_file;
  fs.inode_scan = 1;  // the batch of numbers after the fixed ones
  fs.inode_used = superblock.inode_used;
  fs.inode_used_staged = superblock.inode_used;
  fs.page_used_staged = superblock.page_used;
  fs.epoch_open = superblock.epoch + 1;
  fs.epoch_durable = superblock.epoch;
  fs.name_hash_seed = superblock.name_hash_seed;
  fs.generation_skip = options.generation_skip;
  fs.access_time_mode = access_mode(options.access_times);
  fs.read_only = pool.read_only ? 1 : 0;
  set_up_log(allocator, options, pool, fs);
  fs.stop_on_error = options.stop_on_error ? 1 : 0;
  if (options.purpose == ServerPurpose::check) engine::build_check(allocator, *image, options.check_inode_count);
  return engine::place_engine(allocator, image);
}

// Pinned host memory, which a kernel and threads of the host access at the same addresses.
class SharedMemory final : public EngineAllocator {
 public:
  explicit SharedMemory(engine::CudaAllocator& gpu) : gpu_(gpu) {}

  void* allocate(u64 bytes, u64 /*alignment*/) override { return gpu_.allocate_shared(bytes); }
  void copy_in(void* destination, const void* source, u64 bytes) override { std::memcpy(destination, source, bytes); }
  void zero(void* destination, u64 bytes) override { std::memset(destination, 0, bytes); }

 private:
  engine::CudaAllocator& gpu_;
};

// `shared`: of the queue.
void open_directly(const ServerOptions& options, EngineSetup& setup, EngineAllocator& shared, bool producer_can_wake) {
  void* const queue = shared.allocate(device::io_queue_shared_bytes(DirectMedia::slot_count), cache_line);
  setup.direct =
      std::make_unique<DirectMedia>(setup.allocator(), device::IoQueueMemory{queue, queue}, producer_can_wake);
  const u32 device_count = static_cast<u32>(setup.files.size());
  if (setup.reached != nullptr) {
    setup.direct->use_drives(setup.allocator(), *setup.reached, device_count, options.drives, &setup.reached->memory());
  } else if (options.device_access == DeviceAccess::emulated) {
    setup.direct->use_drives(setup.allocator(), shared, device_count, options.drives);
  }
  for (u32 i = 0; i < setup.files.size(); ++i) setup.prepare_access(i, setup.files[i]);
}

// `all`: every data page. Media are open already.
pool::ReachedPages reached_pages(bool all, const pool::OpenedPool& pool, EngineSetup& setup) {
  pool::ReachedPages reached(all);
  setup.unbacked = find_unbacked_regions(pool, setup.files, setup.gpu == nullptr);
  reached.unbacked = setup.unbacked;
  return reached;
}

// The threads run before the engine does.
void start_direct_media(EngineSetup& setup, EngineWatch watch) {
  const cache::Cache& frames = setup.staged_image.cache;
  setup.direct->start({{frames.frames, u64{frames.line_count} * page_size}}, std::move(watch));
}

bool has_bus_drives(const EngineSetup& setup) {
  return std::any_of(setup.files.begin(), setup.files.end(),
                     [](const device::MappedFile& file) { return file.drive() != nullptr; });
}

// Frames, pages of workers, lists of commands, and queues of emulated drives.
u64 reached_bytes(const ServerOptions& options, const EngineSetup& setup, const engine::EngineConfig& config,
                  u32 frame_count) {
  const u64 own = u64{engine::worker_memory_count(config)} * device::bounce_page_count;
  const u64 lists = DirectMedia::slot_count * device::drive_list_bytes;
  return (u64{frame_count} + own) * page_size + lists +
         EmulatedDrives::shared_bytes(static_cast<u32>(setup.files.size()), options.drives);
}

void set_up_cpu(const ServerOptions& options, pool::OpenedPool& pool, EngineSetup& setup) {
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  const u32 workers = options.worker_count != 0 ? options.worker_count : std::min(processors, 16u);
  engine::EngineConfig config;
  config.worker_count = workers + lending_thread_max;
  config.read_ahead_pages = read_ahead_pages(options);
  setup.heap = std::make_unique<engine::HeapAllocator>();
  const PageCacheSizes sizes = page_cache_sizes(options, EngineChoice::cpu, setup.reason);
  const u32 frame_count = page_cache_frames(options, sizes, workers + staged_lender_max, pool);
  if (has_bus_drives(setup)) {
    setup.reached = std::make_unique<DriveReach>(setup.files, reached_bytes(options, setup, config, frame_count));
  }
  if (is_direct(options.device_access)) open_directly(options, setup, *setup.heap, true);
  setup.upcalls =
      static_cast<ring::UpcallRing*>(setup.heap->allocate(sizeof(ring::UpcallRing), alignof(ring::UpcallRing)));
  // A check gets its chunks one by one, so its behaviour is the same with every engine.
  const bool has_blocks = options.purpose != ServerPurpose::check &&
                          std::none_of(setup.files.begin(), setup.files.end(),
                                       [](const device::MappedFile& file) { return file.grows_with_use(); });
  engine::Engine* built =
      build_engine(*setup.heap, options, pool, setup,
                   {config, memory_sizes(options, system_memory_bytes(), workers),
                    reached_pages(has_blocks, pool, setup), frame_count, sizes.tier_bytes, setup.reached.get()});
  if (setup.direct != nullptr) {
    start_direct_media(setup, {[built] { engine::wake_workers(*built, 1); },
                               [staged = setup.staged] { return device::has_detached(*staged); }});
  }
  setup.host = std::make_unique<engine::CpuEngine>(built, workers);
}

// Why the GPU engine cannot serve this pool, "" if it can.
std::string find_gpu_obstacle(const EngineSetup& setup, DeviceAccess access) {
  if (access == DeviceAccess::staged) return "copies of mappings are for tests of the CPU engine";
  const engine::CudaAvailability gpu = engine::cuda_availability();
  if (!gpu.available) return gpu.reason;
  for (const device::MappedFile& file : setup.files) {
    if (file.is_absent()) continue;
    if (file.drive() == nullptr && is_direct(access) && DirectMedia::serves(file, is_everywhere(access))) continue;
    const device::GpuRegistration registration = file.gpu_registration();
    if (!registration.possible) return registration.reason;
  }
  return {};
}

void map_for_gpu(const EngineSetup& setup, const device::MappedFile& file, u64 offset, u64 length) {
  if (setup.reach(file, offset, length) == Status::ok) return;
  throw pool::PoolError(Status::gpu_error,
                        fmt::format("{}: {} KiB at {:#x} cannot be registered with the GPU; is the limit of "
                                    "locked memory (ulimit -l) high enough?",
                                    file.path(), length >> 10, offset));
}

// Maps the fixed areas. Data pages follow chunk by chunk at their first use, because registration touches every page.
void map_fixed_areas(const pool::OpenedPool& pool, ServerPurpose purpose, EngineSetup& setup) {
  for (const Area& area : fixed_areas(pool, purpose)) {
    map_for_gpu(setup, setup.files[area.device], area.offset, area.length);
  }
}

void set_up_cuda(const ServerOptions& options, pool::OpenedPool& pool, EngineSetup& setup) {
  engine::CudaOptions cuda;
  engine::EngineConfig config = engine::cuda_engine_config(cuda);
  config.read_ahead_pages = read_ahead_pages(options);
  setup.gpu = std::make_unique<engine::CudaAllocator>(cuda.device);
  SharedMemory shared(*setup.gpu);
  if (is_direct(options.device_access)) open_directly(options, setup, shared, false);
  setup.upcalls = static_cast<ring::UpcallRing*>(setup.gpu->allocate_shared(sizeof(ring::UpcallRing)));
  const PageCacheSizes sizes = page_cache_sizes(options, EngineChoice::cuda, setup.reason);
  engine::Engine* built = build_engine(
      *setup.gpu, options, pool, setup,
      {config, memory_sizes(options, gpu_memory_least, config.worker_count), reached_pages(false, pool, setup),
       page_cache_frames(options, sizes, config.worker_count, pool), sizes.tier_bytes, &shared});
  if (setup.direct != nullptr) {
    start_direct_media(setup, {});
    cuda.on_running = [direct = setup.direct.get()](bool runs) { direct->set_must_poll(runs); };
  }
  setup.host = std::make_unique<engine::CudaEngine>(built, setup.upcalls, *setup.gpu, cuda);
  map_fixed_areas(pool, options.purpose, setup);
}

// Tries the GPU engine; the reason of the setup describes the result.
bool try_cuda(const ServerOptions& options, pool::OpenedPool& pool, EngineSetup& setup) {
  const bool wanted = options.engine == EngineChoice::cuda;
  setup.reason = find_gpu_obstacle(setup, options.device_access);
  if (setup.reason.empty()) {
    try {
      set_up_cuda(options, pool, setup);
      setup.reason = wanted ? "as asked for" : "a GPU is here and reaches the pool";
      return true;
    } catch (const std::runtime_error& error) {
      setup.host.reset();
      setup.direct.reset();
      setup.staged = nullptr;
      setup.tier = nullptr;
      setup.gpu.reset();
      setup.reason = error.what();
    }
  }
  if (wanted) throw pool::PoolError(Status::gpu_error, "engine=cuda: " + setup.reason);
  return false;
}

}  // namespace

u64 default_page_cache_bytes(u64 memory_bytes) {
  return std::clamp(memory_bytes / page_cache_default_share, page_cache_default_min, page_cache_default_max);
}

u64 default_cache_bytes(u64 memory_bytes) {
  return std::clamp(memory_bytes / cache_default_share, cache_default_min, cache_default_max);
}

DeviceAccess resolve_access(DeviceAccess access) {
  if (access != DeviceAccess::automatic) return access;
  const char* const wanted = std::getenv("GPU4FS_DEVICE_ACCESS");
  if (wanted == nullptr) return DeviceAccess::direct;
  if (std::strcmp(wanted, "mapped") == 0) return DeviceAccess::mapped;
  if (std::strcmp(wanted, "staged") == 0) return DeviceAccess::staged;
  if (std::strcmp(wanted, "direct") == 0) return DeviceAccess::direct_everywhere;
  if (std::strcmp(wanted, "emulated") == 0) return DeviceAccess::emulated;
  throw pool::PoolError(Status::invalid_argument,
                        fmt::format("GPU4FS_DEVICE_ACCESS={}: it must be mapped, staged, direct or emulated", wanted));
}

bool EngineSetup::accesses_directly(const device::MappedFile& file) const {
  return direct != nullptr && DirectMedia::serves(file, is_direct_everywhere);
}

void EngineSetup::prepare_access(u32 index, device::MappedFile& file) {
  DirectMedia::refuse_drive(file, direct.get());
  if (accesses_directly(file)) direct->set(index, file);
}

Status EngineSetup::reach(const device::MappedFile& file, u64 offset, u64 length) const {
  return file.is_mapped() ? host->map_memory(file.base() + offset, length) : Status::ok;
}

std::string EngineSetup::access_text() const {
  const std::string copies = tier_text.empty() ? "" : ", " + tier_text;
  if (direct != nullptr) return (direct->has_drives() ? "" : "direct, by ") + direct->describe() + copies;
  return (staged != nullptr ? "by copies of their mappings" : "mapped") + copies;
}

device::Device EngineSetup::device(u32 index) const {
  device::Device device = files[index].device(index);
  device.tier = tier;
  // With direct accesses a device that is mapped is a memory device.
  if (staged == nullptr || (direct != nullptr && files[index].is_mapped())) return device;
  device.kind = device::DeviceKind::staged;
  device.staged = staged;
  if (direct != nullptr && direct->has_drives() && device.read_only == 0) device.needs_flush = 1;
  return device;
}

std::vector<std::string> discard_obstacles(const EngineSetup& setup) {
  std::vector<std::string> obstacles;
  for (u32 i = 0; i < setup.files.size(); ++i) {
    const device::MappedFile& file = setup.files[i];
    if (file.is_absent() || (file.is_mapped() && file.medium() == device::MediumKind::tmpfs)) continue;
    if (file.is_mapped()) {
      obstacles.push_back(
          fmt::format("{}: is mapped; only devices that are accessed directly are told of free space", file.path()));
    } else if (!setup.direct->can_discard(i)) {
      const bool is_disk = file.medium() == device::MediumKind::block || file.drive() != nullptr;
      obstacles.push_back(
          fmt::format("{}: {}, so its free space stays allocated", file.path(),
                      is_disk ? "the device has no discard (TRIM)" : "its file system cannot make holes in files"));
    }
  }
  return obstacles;
}

EngineSetup set_up_engine(const ServerOptions& wanted, pool::OpenedPool& pool) {
  EngineSetup setup;
  ServerOptions options = wanted;
  try {
    setup.files = map_devices(pool, options);
    options.device_access = decide_access(options.device_access, setup);
    setup.is_direct_everywhere = is_everywhere(options.device_access);
    leave_to_direct_access(setup, options.device_access, pool);
    if (options.engine == EngineChoice::cpu) {
      setup.reason = "as asked for";
      set_up_cpu(options, pool, setup);
    } else if (!try_cuda(options, pool, setup)) {
      set_up_cpu(options, pool, setup);
    }
  } catch (const device::DeviceError& error) {
    throw pool::PoolError(status_of(error), error.what());
  } catch (const std::bad_alloc&) {
    throw pool::PoolError(Status::no_memory, "not enough memory for the engine; see option 'cache'");
  }
  if (options.discard == DiscardScope::all && options.purpose == ServerPurpose::mount && !pool.read_only) {
    for (const std::string& obstacle : discard_obstacles(setup)) {
      pool.warnings.push_back(fmt::format("discard: {}", obstacle));
    }
  }
  return setup;
}

}  // namespace gpu4fs::session
