// Options of a command line and its subcommands. The parser (CLI11) is compiled in one source file, because its headers
// take longer to compile than the code that uses them. Host only.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gpu4fs::cli {

// An option or flag of a command line; lives as long as the command line. A contradiction between options (a name that
// does not exist in needs()) throws std::logic_error.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required();
  Option excludes(Option other);
  Option needs(Option other);
  Option one_of(std::vector<std::string> values);
  Option in_range(unsigned first, unsigned last);  // of a number, both included
  Option one_value_each();                         // of a list: the next word is not another value
  Option hidden();                                 // not in the help text

 private:
  CLI::Option* option_;
};

// A command line with options, positional arguments (names without a dash) and subcommands. The variables must live
// until the command line is parsed.
class CommandLine {
 public:
  explicit CommandLine(CLI::App* app) : app_(app) {}

  Option option(const std::string& name, std::string& value, const std::string& text = "");
  Option option(const std::string& name, int& value, const std::string& text = "");
  Option option(const std::string& name, unsigned& value, const std::string& text = "");
  Option option(const std::string& name, std::vector<std::string>& values, const std::string& text);  // may be repeated
  Option flag(const std::string& name, bool& value, const std::string& text);

  CommandLine subcommand(const std::string& name, const std::string& summary);
  void require_subcommand();  // exactly one
  void on_selected(std::function<void()> action);
  bool is_selected() const;  // for a subcommand: the parsed line named it

 private:
  CLI::App* app_;
};

enum class ParseOutcome { ready, answered, wrong };

// Calls `add_options` to describe the options, then parses `arguments` (the first is the program's name) and sets their
// variables. `answered`: help or version was requested and printed. `wrong`: the error was printed to stderr.
ParseOutcome parse_command_line(const std::string& program, const std::string& summary, int count, char** arguments,
                                void (*add_options)(CommandLine line));

}  // namespace gpu4fs::cli
