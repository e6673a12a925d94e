#include "engine/engine_host.hpp"

#include <algorithm>
#include <iterator>

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"

namespace gpu4fs::engine {

SessionGroups::SessionGroups(std::vector<u32> groups) : count_(static_cast<u32>(groups.size())) {
  if (groups.empty()) return;
  std::sort(groups.begin(), groups.end());
  memory_.reset(static_cast<u32*>(std::aligned_alloc(page_size, memory_bytes())));
  GPU4FS_CHECK(memory_ != nullptr);
  std::copy(groups.begin(), groups.end(), memory_.get());
}

u64 SessionGroups::memory_bytes() const {
  return align_up(u64{count_} * sizeof(u32), page_size);
}

void fill_session(Session& session, const SessionRequest& request, const SessionGroups& groups) {
  const ring::SessionLayout& layout = request.layout;
  GPU4FS_CHECK(request.memory != nullptr);
  GPU4FS_CHECK(is_aligned(request.memory, page_size));
  GPU4FS_CHECK_LE(layout.depth_log2, ring::ring_depth_log2_max);
  GPU4FS_CHECK_GE(layout.depth_log2, 1u);
  // Workers read `phase` at any time, and all other fields only while the session is open. A look at many rings
  // acquires nothing, so it may see `phase` and not yet this word. It looks again when it takes the token.
  store<Order::relaxed, Scope::engine>(&session.poll_word, u64{0});
  session.in_flight = 0;
  std::fill(std::begin(session.buffers), std::end(session.buffers), SessionBuffer{});
  session.trusted = request.trusted ? 1 : 0;
  session.internal = request.internal ? 1 : 0;
  session.uid = request.uid;
  session.gid = request.gid;
  session.group_count = groups.count();
  session.groups = groups.begin();
  session.ring.descriptors = reinterpret_cast<wire::RingDescriptor*>(request.memory + layout.descriptor_offset);
  session.ring.completions = reinterpret_cast<wire::RingCompletion*>(request.memory + layout.completion_offset);
  session.ring.depth_log2 = layout.depth_log2;
  session.control = reinterpret_cast<ring::RingControl*>(request.memory);
  session.buffers[0] = SessionBuffer{request.memory + layout.data_offset, layout.data_length};
  ring::RingControl& control = *session.control;
  control.magic = ring::ring_magic;
  control.version = ring::ring_version;
  control.depth_log2 = layout.depth_log2;
  control.data_offset = layout.data_offset;
  control.data_length = layout.data_length;
}

void add_counters_of(const WorkerCounters& worker, EngineCounters& sums) {
  sums.commands_started += load<Order::relaxed, Scope::engine>(&worker.commands_started);
  sums.commands_completed += load<Order::relaxed, Scope::engine>(&worker.commands_completed);
  sums.commands_failed += load<Order::relaxed, Scope::engine>(&worker.commands_failed);
  sums.commands_optimistic += load<Order::relaxed, Scope::engine>(&worker.commands_optimistic);
  sums.descriptors_rejected += load<Order::relaxed, Scope::engine>(&worker.descriptors_rejected);
}

}  // namespace gpu4fs::engine
