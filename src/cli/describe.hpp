// What a command line takes, as data: for the completion of shells. Host only.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.hpp"

namespace gpu4fs::cli {

struct OptionDescription {
  std::vector<std::string> names;  // with their dashes, short ones first
  std::string text;                // what it does, in one line
  bool takes_value;
  bool may_be_repeated;
  std::vector<std::string> values;  // those that are allowed; empty: any
};

struct LineDescription {
  std::string name;  // of the verb or subcommand
  std::string summary;
  std::vector<OptionDescription> options;  // without hidden ones
  std::vector<LineDescription> subcommands;
  bool takes_words;  // positional arguments
};

LineDescription describe_command_line(const std::string& name, const std::string& summary,
                                      void (*add_options)(CommandLine line));

}  // namespace gpu4fs::cli
