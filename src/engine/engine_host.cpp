#include "engine/engine_host.hpp"

#include <algorithm>
#include <iterator>

#include "base/check.hpp"

namespace gpu4fs::engine {

void fill_session(Session& session, const SessionRequest& request) {
  const ring::SessionLayout& layout = request.layout;
  GPU4FS_CHECK(request.memory != nullptr);
  GPU4FS_CHECK(is_aligned(request.memory, page_size));
  GPU4FS_CHECK_LE(layout.depth_log2, ring::ring_depth_log2_max);
  GPU4FS_CHECK_GE(layout.depth_log2, 1u);
  // `phase` is read by workers at any time; everything else only while the session is open.
  session.poll_word = 0;
  session.in_flight = 0;
  std::fill(std::begin(session.regions), std::end(session.regions), Region{});
  session.trusted = request.trusted ? 1 : 0;
  session.internal = request.internal ? 1 : 0;
  session.uid = request.uid;
  session.gid = request.gid;
  session.group_count = static_cast<u32>(std::min<std::size_t>(request.groups.size(), session_group_max));
  std::copy_n(request.groups.begin(), session.group_count, session.groups);
  session.ring.descriptors =
      reinterpret_cast<format::RingDescriptor*>(request.memory + layout.descriptor_offset);
  session.ring.completions =
      reinterpret_cast<format::RingCompletion*>(request.memory + layout.completion_offset);
  session.ring.depth_log2 = layout.depth_log2;
  session.control = reinterpret_cast<ring::RingControl*>(request.memory);
  session.regions[0] = Region{request.memory + layout.data_offset, layout.data_length};
  ring::RingControl& control = *session.control;
  control.magic = ring::ring_magic;
  control.version = ring::ring_version;
  control.depth_log2 = layout.depth_log2;
  control.data_offset = layout.data_offset;
  control.data_length = layout.data_length;
}

}  // namespace gpu4fs::engine
