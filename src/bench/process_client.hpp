// A client of an engine in a process of its own, for measurements: this program, started again. Host only.
#pragma once

#include <sys/types.h>

#include <string>

#include "bench/session_load.hpp"

namespace gpu4fs::bench {

struct ProcessWork {
  SessionLoadOptions load;
  u64 milliseconds = 0;  // of small reads; 0: all figures
  u64 seed = 0;
};

// The subcommand of the process. It opens a session and says so. Then it reads its work, and writes what it measured:
// a line of JSON each. Returns the exit status.
int run_process_client(const std::string& socket);

class ProcessClient {
 public:
  // Returns when its session is open. std::runtime_error.
  explicit ProcessClient(const std::string& socket);
  ~ProcessClient();  // kills it if it runs
  ProcessClient(const ProcessClient&) = delete;
  ProcessClient& operator=(const ProcessClient&) = delete;

  void begin(const ProcessWork& work);
  // After begin(); waits for the end. std::runtime_error.
  SessionFigures figures();
  u64 read_count();

 private:
  std::string line();

  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
};

}  // namespace gpu4fs::bench
