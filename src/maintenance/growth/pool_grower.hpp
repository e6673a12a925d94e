// Creates and deletes chunks, adds and removes devices while a pool is mounted. Host only.
//
//   PoolGrower grower(mounted, mapper, host);
//   grower.add_device(path, force);   // prepared, then a member with the next checkpoint
//   grower.add_chunks(1);             // columns where most is free; their pages can be allocated when it returns
//   grower.erase_chunks({5});         // empty ones; their space on the devices is free when it returns
//   grower.remove_device(2);          // without columns; the file is closed when it returns
//
// space/growth.hpp explains the steps before, in and after the checkpoint that makes a change valid, and why a crash at
// any moment leaves the pool either before or after the change. write() is the server's part in the checkpoint.
//
// Devices and chunks of the pool change under `tables` held exclusively. The elements never move, so a thread that
// holds it shared while it reads their number may use them. A deleted chunk keeps its number, without columns. Later
// chunks may get this number, unless it is from the mount: a scrub uses these numbers.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "maintenance/chunk_mapper.hpp"
#include "maintenance/growth/chunk_blocks.hpp"
#include "maintenance/growth/chunk_usage.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/pool_host.hpp"
#include "pool/chunk_tree/chunk_tree.hpp"
#include "pool/growth/free_granules.hpp"
#include "pool/growth/growth_forecast.hpp"
#include "pool/pool_open.hpp"
#include "space/growth.hpp"

namespace gpu4fs::maintenance {

class PoolGrower {
 public:
  // Everything outlives it; the pool has room in its tables for additions.
  PoolGrower(MountedPool& mounted, ChunkMapper& mapper, PoolHost& host)
      : mounted_(mounted),
        mapper_(mapper),
        host_(host),
        first_new_slot_(static_cast<u32>(mounted.pool.chunks.size())) {}
  PoolGrower(const PoolGrower&) = delete;
  PoolGrower& operator=(const PoolGrower&) = delete;

  // At most `count` chunks like the newest one of the class (pool/chunk_shape.hpp); fewer if there is no more room.
  // Returns their number. Any thread. PoolError.
  u64 add_chunks(u64 count, u32 page_class);
  u64 add_chunks(u64 count) { return add_chunks(count, mounted_.setup.space.data_class); }
  // True if chunks of several classes share the space outside of chunks.
  bool is_mixed() const {
    return (mounted_.pool.superblock.feature_incompatible & format::feature_mixed_profiles) != 0;
  }
  // Adds an existing file, with `force` also if it holds something. Returns its index. Any thread. PoolError: exists,
  // no_space etc.; then nothing has changed except for the device itself.
  u32 add_device(const std::string& path, bool force);

  // Deletes empty chunks, by number; all or none. One of each class stays. Any thread. PoolError: busy (one is not
  // empty), no_space (its class needs it), invalid_argument.
  void erase_chunks(const std::vector<u32>& chunks);
  // Of all chunks. Any thread. PoolError.
  std::vector<ChunkUsage> usage();
  // Numbers of the chunks with a column on the device.
  std::vector<u32> chunks_on(u32 device) const;
  // Removes a device without columns, tree and log from the pool. Any thread. PoolError.
  void remove_device(u32 device);
  // Why the device can never leave the pool, even if it is empty; "" if it can.
  std::string removal_obstacle(u32 device) const;
  // Whether the others can hold the device's content: "" or why not. Writes checkpoints before it says no. Any thread.
  // PoolError.
  std::string room_problem(u32 device);
  // The chunk of the fullest device whose replacement would even out the devices' free space the most. Any thread.
  // PoolError.
  std::optional<ChunkUsage> find_unbalanced();
  // Unfreezes the chunks, which are used again. Any thread.
  void thaw_chunks(const std::vector<u32>& chunks);
  // Chunks get no columns on it, or get them again. Any thread.
  void avoid_device(u32 device, bool avoids);
  // Creates a chunk like this one, with columns where most is free but not on avoided devices. Any thread. PoolError.
  u64 replace_chunk(u32 chunk);

  // Tells the engine which chunks could still be created. Any thread.
  void tell_engine();
  // While a device is being replaced nothing grows, and the tree is not kept open. Any thread; see GrowthHold.
  void hold();
  void release();

  // In the upcall thread: writes the parts of plan `number` to the medium, for a checkpoint of `epoch`. stale: the plan
  // was withdrawn.
  Status write(u64 epoch, u32 number);

 private:
  struct Plan {
    std::vector<pool::OpenedChunk> chunks;  // new ones
    std::vector<u32> slots;                 // their numbers
    std::vector<u32> erased;                // numbers
    u64 joining = 0;                        // one bit for each device
    u64 leaving = 0;
    u64 maps_changed = 0;
    u32 tree_replica_count = 0;
    u32 number = 0;         // space::PoolGrowth::number
    u64 epoch = 0;          // of the parts that were written for it
    bool is_armed = false;  // a checkpoint may take it up
    bool written = false;
  };

  void require_all_devices();
  void open_tree();
  void open_store(u32 replica_count);
  bool may_hold_columns(u32 device) const;
  bool has_chunks(u32 page_class) const;
  // The form of chunks like this one.
  pool::ChunkForm form_like(const pool::OpenedChunk& chunk) const;
  std::array<pool::GrowthForecast, format::profile_max> forecast() const;
  std::optional<u64> find_base(u64 size_bytes, const Plan& plan) const;
  std::optional<u32> find_slot(const Plan& plan) const;
  std::optional<pool::OpenedChunk> plan_chunk(const pool::ChunkForm& form, u64 base_address);
  bool add_to_plan(Plan& plan, const pool::ChunkForm& form);
  u64 make_chunks(const pool::ChunkForm& form, u64 count);
  void tell_of_room() noexcept;
  void set_unallocated(u32 page_class, u64 page_count);
  void freeze_all(const std::vector<u32>& chunks);
  void thaw_all(const std::vector<u32>& chunks);
  std::vector<ChunkUsage> list_usage();
  std::string look_at_room(u32 device);
  u64 room_by_replacing(const std::vector<u32>& chunks, u64 page_count);
  double spread_after(const pool::OpenedChunk& old, const pool::OpenedChunk& replacement) const;
  void require_one_of_each_class(const std::vector<u32>& erased) const;
  u32 index_of_new_device() const;
  void require_room(const std::string& path) const;
  void prepare_access(u32 index, device::MappedFile& file);
  void prepare_chunk(const pool::OpenedChunk& chunk, raid::ChunkState& state);
  void make_durable(Plan plan);
  void hand_over(const Plan& plan, const std::vector<raid::ChunkState>& states);
  void write_chunk_map(u32 device, u64 epoch);
  void restore_chunk_maps(const Plan& plan);
  void withdraw();
  Status stage_and_wait();
  void forget(const Plan& plan);
  void remember(const Plan& plan);
  void remember_members(const Plan& plan);
  void close_removed(u32 device);
  void give_up(const Plan& plan);

  MountedPool& mounted_;
  ChunkMapper& mapper_;
  PoolHost& host_;
  std::mutex one_at_a_time_;
  std::vector<pool::TreeDevice> tree_devices_;
  std::unique_ptr<pool::DeviceNodeStore> store_;
  std::unique_ptr<pool::ChunkTree> tree_;
  std::unique_ptr<pool::FreeGranules> free_;
  u32 held_ = 0;
  u64 avoided_ = 0;     // one bit for each device
  u32 plan_count_ = 0;  // the number of the newest one
  u32 first_new_slot_;  // chunks of the mount have smaller numbers
  ChunkBlocks blocks_;
  bool failed_ = false;  // a checkpoint could not be written: nothing is changed afterwards
  // Between the caller's thread and the upcall thread:
  std::mutex plan_mutex_;
  Plan plan_;
};

class GrowthHold {
 public:
  explicit GrowthHold(PoolGrower& grower) : grower_(grower) { grower_.hold(); }
  ~GrowthHold() { grower_.release(); }
  GrowthHold(const GrowthHold&) = delete;
  GrowthHold& operator=(const GrowthHold&) = delete;

 private:
  PoolGrower& grower_;
};

}  // namespace gpu4fs::maintenance
