// The gpu4fs program: finds the verb by program name or first argument and hands it the rest.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "tools/verbs.hpp"

namespace {

using gpu4fs::cli::run_verb;
using gpu4fs::cli::Verb;

constexpr const Verb* verbs[] = {
    &gpu4fs::tools::mkfs_verb, &gpu4fs::tools::mount_verb, &gpu4fs::tools::umount_verb,
    &gpu4fs::tools::fsck_verb,   &gpu4fs::tools::info_verb, &gpu4fs::tools::status_verb,
    &gpu4fs::tools::scrub_verb,  &gpu4fs::tools::trim_verb,   &gpu4fs::tools::device_verb, &gpu4fs::tools::balance_verb,
    &gpu4fs::tools::df_verb,     &gpu4fs::tools::set_profile_verb, &gpu4fs::tools::convert_verb,
    &gpu4fs::tools::defragment_verb,
    &gpu4fs::tools::dump_verb, &gpu4fs::tools::doctor_verb, &gpu4fs::tools::bench_verb,
};

constexpr int usage_status = 16;

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

void print_help(std::FILE* to) {
  fmt::print(to, "usage: gpu4fs VERB [OPTION...]\n\n");
  for (const Verb* verb : verbs) fmt::print(to, "  {:<11} {}\n", verb->name, verb->summary);
  fmt::print(to, "\n'gpu4fs VERB --help' explains a verb's options, 'gpu4fs --version' prints the version.\n");
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view called = base_name(count > 0 ? arguments[0] : "gpu4fs");
  for (const Verb* verb : verbs) {
    if (verb->program_name != nullptr && called == verb->program_name) {
      return run_verb(*verb, std::string(called), count, arguments);
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
  for (const Verb* verb : verbs) {
    if (name == verb->name) {
      return run_verb(*verb, fmt::format("gpu4fs {}", name), count - 1, arguments + 1);
    }
  }
  fmt::print(stderr, "gpu4fs: unknown verb '{}'\n", name);
  print_help(stderr);
  return usage_status;
}
