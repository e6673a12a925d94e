// gpu4fs completion: prints the script that a shell needs to complete gpu4fs command lines. The packages install it, so
// it always has the verbs and options of the installed program.
//
// Both scripts walk the same tree: the verbs, their subcommands and their options. A word that is neither an option nor
// a subcommand is completed as a file.
#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/describe.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

using cli::LineDescription;
using cli::OptionDescription;

std::string shell;

void add_options(cli::CommandLine line) {
  line.option("shell", shell, "bash or zsh").required().one_of({"bash", "zsh"});
}

LineDescription describe_program() {
  LineDescription program{"gpu4fs", "a file system whose engine runs on the GPU", {}, {}, false};
  program.options = {{{"-h", "--help"}, "Print the list of verbs", false, false, {}},
                     {{"-V", "--version"}, "Print the version", false, false, {}}};
  for (const cli::Verb* verb : all_verbs()) {
    program.subcommands.push_back(verb->run_raw != nullptr
                                      ? LineDescription{verb->name, verb->summary, {}, {}, true}
                                      : cli::describe_command_line(verb->name, verb->summary, verb->add_options));
  }
  return program;
}

std::vector<std::string> own_program_names() {
  std::vector<std::string> names;
  for (const cli::Verb* verb : all_verbs()) {
    if (verb->program_name != nullptr) names.push_back(verb->program_name);
  }
  return names;
}

// Calls `visit` with each line of the tree and its path: "", "device", "device add".
void walk(const LineDescription& line, const std::string& path,
          const std::function<void(const LineDescription&, const std::string&)>& visit) {
  visit(line, path);
  for (const LineDescription& inner : line.subcommands) {
    walk(inner, path.empty() ? inner.name : path + " " + inner.name, visit);
  }
}

std::string names_of(const std::vector<LineDescription>& lines) {
  std::string names;
  for (const LineDescription& line : lines) names += (names.empty() ? "" : " ") + line.name;
  return names;
}

void print_bash_function(const std::string& name, const std::string& cases) {
  fmt::print("{}() {{\n  case \"$1\" in\n{}  esac\n}}\n\n", name, cases);
}

// The script of bash: three tables keyed by the path of the subcommand, and one function that reads them.
constexpr const char* bash_reader = R"bash(_gpu4fs() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} program=${COMP_WORDS[0]##*/}
  local path= word values
  case "$program" in
    *.gpu4fs) path=${program%.gpu4fs} ;;
  esac
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case " $(_gpu4fs_subcommands "$path") " in
      *" $word "*) path=${path:+$path }$word ;;
    esac
  done
  values=$(_gpu4fs_values "$path $previous")
  if [[ -n $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_gpu4fs_options "$path")" -- "$current")
  elif [[ -n $(_gpu4fs_subcommands "$path") ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_gpu4fs_subcommands "$path")" -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
    compopt -o filenames 2>/dev/null
  fi
}
)bash";

void print_bash() {
  std::string subcommands;
  std::string options;
  std::string values;
  walk(describe_program(), "", [&](const LineDescription& line, const std::string& path) {
    if (!line.subcommands.empty()) {
      subcommands += fmt::format("    \"{}\") echo \"{}\" ;;\n", path, names_of(line.subcommands));
    }
    std::string names;
    for (const OptionDescription& option : line.options) {
      for (const std::string& name : option.names) {
        names += (names.empty() ? "" : " ") + name;
        if (!option.values.empty()) {
          values += fmt::format("    \"{} {}\") echo \"{}\" ;;\n", path, name, fmt::join(option.values, " "));
        }
      }
    }
    options += fmt::format("    \"{}\") echo \"{}\" ;;\n", path, names);
  });
  fmt::print("# bash completion for gpu4fs, made by 'gpu4fs completion bash'\n\n");
  print_bash_function("_gpu4fs_subcommands", subcommands);
  print_bash_function("_gpu4fs_options", options);
  print_bash_function("_gpu4fs_values", values);
  fmt::print("{}\ncomplete -F _gpu4fs gpu4fs {}\n", bash_reader, fmt::join(own_program_names(), " "));
}

// Text inside the brackets of an _arguments specification in single quotes.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
      result += c;
    }
  }
  return result;
}

std::string zsh_option(const OptionDescription& option) {
  const std::string value = !option.takes_value     ? ""
                            : option.values.empty() ? ":value:_files"
                                                    : fmt::format(":value:({})", fmt::join(option.values, " "));
  // The names of one option exclude each other, unless it may be repeated.
  const std::string exclusion = option.may_be_repeated ? "*" : fmt::format("({})", fmt::join(option.names, " "));
  std::string specifications;
  for (const std::string& name : option.names) {
    specifications += fmt::format("    '{}{}[{}]{}' \\\n", exclusion, name, zsh_text(option.text), value);
  }
  return specifications;
}

std::string zsh_function_name(const std::string& path) {
  std::string name = "_gpu4fs";
  if (!path.empty()) name += "_" + path;
  for (char& c : name) {
    if (c == ' ' || c == '-') c = '_';
  }
  return name;
}

void print_zsh() {
  fmt::print("#compdef gpu4fs {}\n# zsh completion for gpu4fs, made by 'gpu4fs completion zsh'\n\n",
             fmt::join(own_program_names(), " "));
  walk(describe_program(), "", [](const LineDescription& line, const std::string& path) {
    fmt::print("{}{}() {{\n", zsh_function_name(path), path.empty() ? "_program" : "");
    if (!line.subcommands.empty()) {
      fmt::print("  local state\n  local -a commands=(\n");
      for (const LineDescription& inner : line.subcommands) {
        fmt::print("    '{}:{}'\n", inner.name, zsh_text(inner.summary));
      }
      fmt::print("  )\n");
    }
    fmt::print("  _arguments -s -S{} \\\n", line.subcommands.empty() ? "" : " -C");
    for (const OptionDescription& option : line.options) fmt::print("{}", zsh_option(option));
    if (line.subcommands.empty()) {
      fmt::print("    '*:file:_files'\n}}\n\n");
      return;
    }
    fmt::print(
        "    '1: :->command' '*:: :->arguments'\n"
        "  case $state in\n"
        "    command) _describe command commands ;;\n"
        "    arguments) {}_${{words[1]//-/_}} ;;\n"
        "  esac\n}}\n\n",
        zsh_function_name(path));
  });
  fmt::print(
      "case $service in\n  *.gpu4fs) _gpu4fs_${{service%.gpu4fs}} \"$@\" ;;\n"
      "  *) _gpu4fs_program \"$@\" ;;\nesac\n");
}

int run() {
  if (shell == "bash") {
    print_bash();
  } else {
    print_zsh();
  }
  if (std::fflush(stdout) != 0) throw std::runtime_error("standard output cannot be written");
  return 0;
}

}  // namespace

const cli::Verb completion_verb = {
    "completion", "print what a shell needs to complete gpu4fs command lines", nullptr, add_options, run, 16, 8};

}  // namespace gpu4fs::tools
