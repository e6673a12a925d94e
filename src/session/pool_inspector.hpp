// Queries of the management process to its engine about a mounted pool: a session of its own, for commands that only it
// may send and some that everybody may send. Used by one thread at a time; must be destroyed before the engine stops.
// Host only.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_host.hpp"
#include "session/server_session.hpp"
#include "wire/health_format.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::session {

// A chunk of the logical space, as numbered by the engine.
struct ChunkRange {
  u64 base_address;
  u64 page_count;
};

struct PoolHealth {
  wire::HealthRecord record{};
  std::vector<wire::DamageRecord> damage;
};

struct DirectoryEntry {
  std::string name;
  u64 inode;
  u32 type;        // DT_*
  u32 link_count;  // with attributes only
};

class PoolInspector {
 public:
  // The page limit of one verify().
  static constexpr u64 verify_page_max = 65536;

  // PoolError if no session is left.
  PoolInspector(engine::EngineHost& host, std::mutex& open_close);

  struct Verified {
    Status status;
    u32 page_count;     // that were in use
    u32 damaged_count;  // see is_damaged() for which
  };
  // Pages [first, first + count) of a chunk, count <= verify_page_max.
  Verified verify(u32 chunk, u64 first, u64 count);
  // The same, and the engine's table of damage records the result: damaged pages belong to `owner`.
  Verified verify_and_record(u32 chunk, u64 first, u64 count, u64 owner, wire::DamageKind kind);
  // Of the last verification; `page` counts from its first.
  [[nodiscard]] bool is_damaged(u64 page) const;

  // Every block of the inode. *is_complete: the whole map could be read.
  Status list_blocks(u64 inode, const std::function<void(const wire::BlockRecord&)>& visit, bool* is_complete);
  Status read_directory(u64 inode, bool with_attributes, std::vector<DirectoryEntry>* entries);

  Status health(PoolHealth* health);
  // One bit for each. PoolError.
  u64 lost_devices();
  Status checkpoint();
  Status sync();

  // Extended attributes; nothing if there is none, or if it cannot be read.
  std::optional<std::string> get_attribute(u64 inode, std::string_view name);
  Status set_attribute(u64 inode, std::string_view name, std::string_view value);

 private:
  static constexpr u64 data_bytes = u64{256} << 10;
  static constexpr u64 name_bytes = page_size;  // before the data

  u8* data() { return session_.producer().data + name_bytes; }
  [[nodiscard]] const u8* data() const { return data_; }
  wire::Command command(wire::Opcode opcode, u64 inode);
  void set_name(wire::Command& command, std::string_view name);
  Verified run_verify(wire::Command& command, u32 chunk, u64 first, u64 count);

  ServerSession session_;
  const u8* data_;
};

}  // namespace gpu4fs::session
