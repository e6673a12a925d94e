// The gpu4fs program: finds the verb by program name or first argument and passes it the rest.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "tools/verbs.hpp"

namespace {

using gpu4fs::cli::run_verb;
using gpu4fs::cli::Verb;
using gpu4fs::tools::all_verbs;

constexpr int usage_status = 16;

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// mount(8) and umount(8) call the helpers for the type of a mount: mount.fuse.gpu4fs.
std::string plain_name(std::string_view name) {
  constexpr std::string_view typed = ".fuse.gpu4fs";
  if (!name.ends_with(typed)) return std::string(name);
  return std::string(name.substr(0, name.size() - typed.size())) + ".gpu4fs";
}

void print_help(std::FILE* to) {
  fmt::print(to, "usage: gpu4fs VERB [OPTION...]\n\n");
  for (const Verb* verb : all_verbs()) fmt::print(to, "  {:<11} {}\n", verb->name, verb->summary);
  fmt::print(to, "\n'gpu4fs VERB --help' explains a verb's options, 'gpu4fs --version' prints the version.\n");
}

}  // namespace

int main(int count, char** arguments) {
  const std::string called = plain_name(base_name(count > 0 ? arguments[0] : "gpu4fs"));
  for (const Verb* verb : all_verbs()) {
    if (verb->program_name != nullptr && called == verb->program_name) {
      return run_verb(*verb, called, count, arguments);
    }
  }
  if (count < 2) {
    print_help(stderr);
    return usage_status;
  }
  const std::string_view name = arguments[1];
  if (name == "--version" || name == "-V") {
    fmt::print("gpu4fs " GPU4FS_VERSION "\n");
    return 0;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    print_help(stdout);
    return 0;
  }
  for (const Verb* verb : all_verbs()) {
    if (name == verb->name) {
      return run_verb(*verb, fmt::format("gpu4fs {}", name), count - 1, arguments + 1);
    }
  }
  fmt::print(stderr, "gpu4fs: unknown verb '{}'\n", name);
  print_help(stderr);
  return usage_status;
}
