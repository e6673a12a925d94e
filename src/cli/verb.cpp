#include "cli/verb.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>

namespace gpu4fs::cli {

int run_verb(const Verb& verb, const std::string& program, int count, char** arguments) {
  try {
    if (verb.run_raw != nullptr) return verb.run_raw(count, arguments);
    switch (parse_command_line(program, verb.summary, count, arguments, verb.add_options)) {
      case ParseOutcome::answered:
        return 0;
      case ParseOutcome::wrong:
        return verb.usage_status;
      case ParseOutcome::ready:
        return verb.run();
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
  }
  return verb.failure_status;
}

}  // namespace gpu4fs::cli
