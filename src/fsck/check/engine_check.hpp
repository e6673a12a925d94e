// The host's side of the part of a check that runs on an engine (engine/handlers/check_ops.hpp). Private to
// src/fsck/check, and for its tests.
#pragma once

#include <functional>
#include <vector>

#include "fsck/check/check_context.hpp"
#include "session/server_session.hpp"
#include "wire/check_format.hpp"

namespace gpu4fs::fsck::check {

// The size of the session's data area in bytes.
u64 engine_check_session_bytes();

class EngineCheck {
 public:
  // `session` is an internal one of an engine that was built for a check (engine_build.hpp: build_check) of the pool of
  // `context`, with at least as many inodes as are in `inode_pages`, the pages of the inode file. `reach`, if set,
  // makes memory of a chunk reachable for the engine: of regions with a page in `allocated` or, if that is empty, of
  // all.
  using Reach = std::function<void(u32 chunk, const BitWords& allocated)>;
  EngineCheck(CheckContext& context, session::ServerSession& session, const PageAddresses& inode_pages,
              Reach reach = {});

  // Checks inodes and directories, and collects the data for later phases. False: the engine found more than its
  // answers can hold; then nothing was added. PoolError: the engine failed.
  bool run();

 private:
  struct Phase;
  using Fill = std::function<void(std::size_t item, u32 slot, wire::Command& command)>;
  using Done = std::function<void(std::size_t item, u32 slot, const ring::Completion& completion)>;

  void run_commands(std::size_t count, u32 in_flight, const Fill& fill, const Done& done);
  u8* input(u32 slot);
  u8* output(u32 slot);
  wire::Command command(wire::CheckPhase phase, u32 slot) const;
  void take_output(u32 slot);
  void load_chunks();
  bool reach_more_chunks();
  void walk(u32 mask);
  void run_pages(wire::CheckPhase phase, u32 mask, bool in_order);
  void verify_pages();
  void read_table();
  void find_leaks();
  void explain();
  void explain_record(const wire::CheckRecord& record);
  void explain_block(const wire::CheckRecord& record, const std::string& owner);

  CheckContext& context_;
  session::ServerSession& session_;
  std::vector<wire::CheckInodePage> pages_;
  std::vector<wire::CheckRecord> records_;
  enum class Reached : u8 { nothing, regions_in_use, all };
  std::vector<Reached> reached_;  // by chunk: the pages that are passed to the engine
  Reach reach_;
  wire::CheckCounts counts_{};
  bool overflowed_ = false;
  bool has_second_names_ = false;
};

}  // namespace gpu4fs::fsck::check
