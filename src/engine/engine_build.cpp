#include "engine/engine_build.hpp"

#include <algorithm>
#include <cstring>

#include "base/bits.hpp"
#include "base/check.hpp"

namespace gpu4fs::engine {
namespace {

template <class T>
T* allocate_zeroed(EngineAllocator& allocator, u64 count) {
  const u64 bytes = align_up(std::max<u64>(count, 1) * sizeof(T), cache_line);
  void* memory = allocator.allocate(bytes, std::max<u64>(alignof(T), cache_line));
  GPU4FS_CHECK(memory != nullptr);
  allocator.zero(memory, bytes);
  return static_cast<T*>(memory);
}

template <class T>
T* allocate_copy(EngineAllocator& allocator, const std::vector<T>& image) {
  T* memory = allocate_zeroed<T>(allocator, image.size());
  allocator.copy_in(memory, image.data(), image.size() * sizeof(T));
  return memory;
}

void build_page_table(EngineAllocator& allocator, fs::PageTable& pages, const MemorySizes& sizes) {
  GPU4FS_CHECK_GE(sizes.frame_count, 64u);
  GPU4FS_CHECK_GE(sizes.staging_count, 16u);
  pages.frame_count = sizes.frame_count;
  pages.staging_count = std::min(sizes.staging_count, sizes.frame_count);
  pages.bucket_count = u32{1} << log2_ceil(u64{2} * sizes.frame_count);
  pages.bucket_lock_count = std::min<u32>(pages.bucket_count, 4096);
  std::vector<fs::Frame> frames(sizes.frame_count);
  std::memset(static_cast<void*>(frames.data()), 0, frames.size() * sizeof(fs::Frame));
  for (u32 i = 0; i < sizes.frame_count; ++i) {
    frames[i].key = fs::no_page_key;
    frames[i].next = i + 1 < sizes.frame_count ? i + 1 : fs::no_frame;
  }
  pages.frames = allocate_copy(allocator, frames);
  pages.free_head = 0;
  pages.free_count = sizes.frame_count;
  pages.buckets = allocate_copy(allocator, std::vector<u32>(pages.bucket_count, fs::no_frame));
  pages.bucket_locks = allocate_zeroed<TicketLock>(allocator, pages.bucket_lock_count);
  const u64 data_bytes = u64{sizes.frame_count} * page_size;
  pages.data = static_cast<u8*>(allocator.allocate(data_bytes, page_size));
  allocator.zero(pages.data, data_bytes);
  pages.inode_locks = allocate_zeroed<CommandLock>(allocator, u64{sizes.frame_count} * format::inodes_per_page);
  pages.dirty_list = allocate_zeroed<u32>(allocator, sizes.frame_count);
  pages.limbo_list = allocate_zeroed<u32>(allocator, sizes.frame_count);
  pages.emptied_list = allocate_zeroed<u32>(allocator, sizes.frame_count);
  const u64 staging_bytes = u64{pages.staging_count} * page_size;
  pages.staging = static_cast<u8*>(allocator.allocate(staging_bytes, page_size));
  allocator.zero(pages.staging, staging_bytes);
  pages.staged_frames = allocate_zeroed<u32>(allocator, pages.staging_count);
  pages.staged_addresses = allocate_zeroed<u64>(allocator, pages.staging_count);
}

void build_commands(EngineAllocator& allocator, Engine& engine) {
  const u32 count = engine.config.command_count;
  GPU4FS_CHECK_GE(count, 2u + linked_command_max);
  GPU4FS_CHECK_LT(count, u32{no_command});
  engine.commands = allocate_zeroed<CommandState>(allocator, count);
  // Only the index is not zero. A strided copy of single words would be slow over a bus, but a copy of one row per
  // command is not.
  const auto first = std::make_unique<CommandState>();
  const auto row_bytes = reinterpret_cast<const u8*>(&first->stage) - reinterpret_cast<const u8*>(first.get());
  for (u32 i = 0; i < count; ++i) {
    first->index = i;
    allocator.copy_in(&engine.commands[i], first.get(), static_cast<u64>(row_bytes));
  }
  std::vector<u32> next(count, 0);
  for (u32 i = first_client_command; i + 1 < count; ++i) next[i] = i + 2;
  engine.free_commands.next = allocate_copy(allocator, next);
  engine.free_commands.top = first_client_command + 1;
  engine.free_commands.count = count - first_client_command;
  // Every command once as itself, and once for tasks that were held back or left to the next kernel.
  const u64 items = u64{2} * count;
  engine.run_queue.capacity = u32{1} << log2_ceil(2 * items);
  engine.run_queue.cells = allocate_zeroed<u64>(allocator, engine.run_queue.capacity);
  engine.held_back = allocate_zeroed<u32>(allocator, engine.run_queue.capacity);
}

void build_worker_memory(EngineAllocator& allocator, Engine& engine) {
  const u32 count = worker_memory_count(engine.config);
  // Cached slots must not starve workers that find the free list empty. Only the workers of a kernel cache slots.
  if (engine.config.caches_slots != 0) {
    GPU4FS_CHECK_GE(engine.config.command_count, 2 * cached_slot_max * engine.config.worker_count);
  }
  std::vector<WorkerMemory> image(count);
  std::memset(static_cast<void*>(image.data()), 0, image.size() * sizeof(WorkerMemory));
  engine.worker_memory = allocate_copy(allocator, image);
}

void reset_gate(Gate& gate) {
  gate.closer = no_command;
  gate.owner = no_command;
  gate.queue_head = no_command;
  gate.queue_tail = no_command;
}
}  // namespace

EngineImage prepare_engine(EngineAllocator& allocator, const EngineConfig& config, const MemorySizes& sizes,
                           ring::UpcallRing* upcalls) {
  GPU4FS_CHECK_GE(config.worker_count, 1u);
  GPU4FS_CHECK_GE(config.task_pages, 1u);
  GPU4FS_CHECK_GE(config.batch_max, 1u);
  EngineImage image(new Engine{});
  image->config = config;
  image->upcalls = upcalls;
  build_commands(allocator, *image);
  build_worker_memory(allocator, *image);
  build_page_table(allocator, image->fs.pages, sizes);
  reset_gate(image->commit_gate);
  reset_gate(image->step_gate);
  image->epochs.head = no_command;
  image->epochs.tail = no_command;
  image->log_queue.head = no_command;
  image->log_queue.tail = no_command;
  image->log_queue.flusher = no_command;
  image->media_queue.head = no_command;
  image->media_queue.tail = no_command;
  image->fs.shard_count = std::max<u32>(sizes.shard_count, 1);
  image->fs.shards = allocate_zeroed<space::AllocationShard>(allocator, image->fs.shard_count);
  return image;
}

void build_log(EngineAllocator& allocator, fs::FileSystem& fs, const format::Superblock& superblock,
               const std::vector<format::DevicePart>& parts, u64 seed, bool records) {
  fs::OperationLog& log = fs.log;
  log.seed = seed;
  log.device_count = superblock.tree_replica_count;
  log.start = log.start_staged = log.tail = log.durable = superblock.log_start;
  if (!records || !format::has_log(superblock)) return;
  log.capacity = format::log_capacity(superblock, parts.data());
  if (log.capacity == 0) return;
  fs.has_log = 1;
  log.room = log.capacity - 2 * format::log_record_bytes_max;
  log.ring = static_cast<u8*>(allocator.allocate(log.capacity, page_size));
  log.ready = allocate_zeroed<u64>(allocator, log.capacity / format::log_record_granule);
}

void build_check(EngineAllocator& allocator, Engine& engine, u64 inode_count) {
  CheckTables& tables = engine.check;
  tables.inode_count = inode_count;
  tables.inodes = allocate_zeroed<wire::CheckInode>(allocator, inode_count);
  tables.buffer_count = std::min(worker_memory_count(engine.config), check_buffer_max);
  tables.buffers = static_cast<CheckBuffer*>(allocator.allocate(tables.buffer_count * sizeof(CheckBuffer), page_size));
}

Engine* place_engine(EngineAllocator& allocator, const EngineImage& image) {
  void* memory = allocator.allocate(sizeof(Engine), alignof(Engine));
  GPU4FS_CHECK(memory != nullptr);
  allocator.copy_in(memory, image.get(), sizeof(Engine));
  return static_cast<Engine*>(memory);
}

}  // namespace gpu4fs::engine
