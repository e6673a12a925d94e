// Sessions of a mount whose engine cannot be restarted: every command answers engine_died. Host only.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "frontend/fuse/fuse_worker.hpp"

namespace gpu4fs::frontend {

class DeadSessions final : public SessionSource {
 public:
  DeadSessions(std::string reason, std::string control_path, u64 write_errors)
      : reason_(std::move(reason)), control_path_(std::move(control_path)), write_errors_(write_errors) {}

  std::unique_ptr<client::Session> open_session(u64 data_bytes) override;
  std::string statistics_json() override;
  std::string control_path() override { return control_path_; }
  u64 write_errors() override { return write_errors_; }

 private:
  std::string reason_;
  std::string control_path_;
  u64 write_errors_;
};

}  // namespace gpu4fs::frontend
