// A virtual queue with its memory for tests. All that lanes and the controller share lies in one piece, in the order
// extra bytes of the test, completion entries, doorbells, queue, table.
#pragma once

#include <cstdlib>
#include <cstring>

#include "device/nvme/queue_build.hpp"

namespace gpu4fs::nvme::test {

class QueueMemory {
 public:
  explicit QueueMemory(u32 depth, u32 first_ticket = 0, u64 extra_bytes = 0)
      : extra_bytes_(align_up(extra_bytes, cache_line)) {
    const u64 completion_bytes = align_up(depth * sizeof(CompletionEntry), cache_line);
    const u64 doorbell_bytes = 2 * cache_line;
    watched_bytes_ = extra_bytes_ + completion_bytes + doorbell_bytes + sizeof(VirtualQueue) + depth * sizeof(u32);
    const u64 begin = align_up(depth * sizeof(SubmissionEntry), cache_line);
    bytes_ = align_up(
        begin + extra_bytes_ + completion_bytes + doorbell_bytes + sizeof(VirtualQueue) + queue_table_bytes(depth),
        cache_line);
    memory_ = static_cast<u8*>(std::aligned_alloc(cache_line, bytes_));
    if (memory_ == nullptr) std::abort();
    std::memset(memory_, 0, bytes_);
    watched_ = memory_ + begin;
    u8* const completions = watched_ + extra_bytes_;
    u8* const doorbells = completions + completion_bytes;
    queue_ = reinterpret_cast<VirtualQueue*>(doorbells + doorbell_bytes);
    const QueueEntries entries{reinterpret_cast<SubmissionEntry*>(memory_),
                               reinterpret_cast<CompletionEntry*>(completions), reinterpret_cast<u32*>(doorbells),
                               reinterpret_cast<u32*>(doorbells + cache_line)};
    place_queue(*queue_, entries, reinterpret_cast<u8*>(queue_ + 1), depth, queue_id, &controller_);
    reset(first_ticket);
  }
  ~QueueMemory() { std::free(memory_); }
  QueueMemory(const QueueMemory&) = delete;
  QueueMemory& operator=(const QueueMemory&) = delete;

  static constexpr u16 queue_id = 3;

  VirtualQueue& queue() { return *queue_; }
  ControllerState& controller() { return controller_; }
  const u8* watched() const { return watched_; }
  u64 watched_bytes() const { return watched_bytes_; }
  u8* extra() { return watched_; }
  void reset(u32 first_ticket) {
    controller_ = {};
    *queue_->submission_doorbell = 0;
    *queue_->completion_doorbell = 0;
    reset_queue(*queue_, first_ticket);
  }

 private:
  ControllerState controller_{};
  u64 extra_bytes_;
  u64 bytes_ = 0;
  u64 watched_bytes_ = 0;
  u8* memory_ = nullptr;
  u8* watched_ = nullptr;
  VirtualQueue* queue_ = nullptr;
};

// A command whose every part tells which one it is, so that a torn or outdated entry is noticed.
inline SubmissionEntry command_of(u64 cookie) {
  SubmissionEntry entry{};
  entry.opcode = 2;
  entry.namespace_id = static_cast<u32>(cookie);
  entry.metadata = cookie * 3;
  entry.data.prp = {cookie * 5, cookie * 7};
  entry.dword10 = static_cast<u32>(cookie * 11);
  entry.dword15 = static_cast<u32>(cookie * 13);
  return entry;
}
inline bool is_command_of(const SubmissionEntry& entry, u64 cookie) {
  SubmissionEntry wanted = command_of(cookie);
  wanted.command_id = entry.command_id;
  return std::memcmp(&wanted, &entry, sizeof(entry)) == 0;
}

}  // namespace gpu4fs::nvme::test
