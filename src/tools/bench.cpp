// gpu4fs bench: the benchmarks are a separate program, gpu4fs-bench, in the same folder as this one. In a build tree it
// is built on demand.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/verbs.hpp"

namespace gpu4fs::tools {

namespace {

constexpr const char* program_name = "gpu4fs-bench";

// Runs a program of PATH with this process's output and waits for it; throws if it fails.
void run_program(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error(fmt::format("fork: {}", std::strerror(errno)));
  if (child == 0) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);  // standard output is the benchmark's
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error(fmt::format("{} failed with status {}", fmt::join(words, " "), status));
}

int run_raw(int, char** arguments) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path program = folder / program_name;
  if (std::filesystem::exists(folder / "CMakeCache.txt")) {
    fmt::print(stderr, "gpu4fs bench: bringing {} up to date\n", program.string());
    run_program({"cmake", "--build", folder.string(), "--target", program_name});
  }
  const std::string name = program.string();
  arguments[0] = const_cast<char*>(name.c_str());
  ::execv(name.c_str(), arguments);
  throw std::runtime_error(fmt::format("cannot start {}: {}", name, std::strerror(errno)));
}

}  // namespace

const cli::Verb bench_verb = {"bench", "measure against the machine's limits", nullptr, nullptr, nullptr, 16, 8,
                              run_raw};

}  // namespace gpu4fs::tools
