// A verb of a program: `gpu4fs <name> ...`. Some verbs also have a program name of their own. Host only.
//
// A verb keeps its options in its own source file: add_options() describes them, run() does the work and returns the
// exit status. An exception of run() is printed as one line, "<program>: <message>", and becomes `failure_status`.
#pragma once

#include <string>

#include "cli/command_line.hpp"

namespace gpu4fs::cli {

struct Verb {
  const char* name;
  const char* summary;       // one line of the list of verbs
  const char* program_name;  // program name that selects the verb directly, or null
  void (*add_options)(CommandLine line);
  int (*run)();
  int usage_status;    // wrong command line
  int failure_status;  // the operation failed
  // Passes all arguments, including options, to run_raw instead of add_options and run.
  int (*run_raw)(int count, char** arguments) = nullptr;
};

// Parses arguments[1..] and runs the verb; `program` is its name in messages. Returns the exit status.
int run_verb(const Verb& verb, const std::string& program, int count, char** arguments);

}  // namespace gpu4fs::cli
