// The options of a command line as data, for the completion in shells. Host only.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.hpp"

namespace gpu4fs::cli {

struct OptionDescription {
  std::vector<std::string> names;  // including their dashes, short ones first
  std::string text;                // its effect, in one line
  bool takes_value;
  bool may_be_repeated;
  std::vector<std::string> values;  // the allowed ones; empty: any
};

struct LineDescription {
  std::string name;  // of the verb or subcommand
  std::string summary;
  std::vector<OptionDescription> options;  // without hidden ones
  std::vector<LineDescription> subcommands;
  bool takes_words;  // it has positional arguments
};

LineDescription describe_command_line(const std::string& name, const std::string& summary,
                                      void (*add_options)(CommandLine line));

}  // namespace gpu4fs::cli
