#include "cli/command_line.hpp"

#include <CLI/CLI.hpp>
#include <utility>

namespace gpu4fs::cli {

Option Option::required() {
  option_->required();
  return *this;
}

Option Option::excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}

Option Option::needs(Option other) {
  option_->needs(other.option_);
  return *this;
}

Option Option::one_of(std::vector<std::string> values) {
  option_->check(CLI::IsMember(std::move(values)));
  return *this;
}

Option Option::in_range(unsigned first, unsigned last) {
  option_->check(CLI::Range(first, last));
  return *this;
}

Option Option::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::hidden() {
  option_->group("");
  return *this;
}

Option CommandLine::option(const std::string& name, std::string& value, const std::string& text) {
  return Option(app_->add_option(name, value, text));
}

Option CommandLine::option(const std::string& name, int& value, const std::string& text) {
  return Option(app_->add_option(name, value, text));
}

Option CommandLine::option(const std::string& name, unsigned& value, const std::string& text) {
  return Option(app_->add_option(name, value, text));
}

Option CommandLine::option(const std::string& name, std::vector<std::string>& values, const std::string& text) {
  return Option(app_->add_option(name, values, text));
}

Option CommandLine::flag(const std::string& name, bool& value, const std::string& text) {
  return Option(app_->add_flag(name, value, text));
}

CommandLine CommandLine::subcommand(const std::string& name, const std::string& summary) {
  return CommandLine(app_->add_subcommand(name, summary));
}

void CommandLine::require_subcommand() { app_->require_subcommand(1); }

void CommandLine::on_selected(std::function<void()> action) { app_->callback(std::move(action)); }

bool CommandLine::is_selected() const { return app_->parsed(); }

ParseOutcome parse_command_line(const std::string& program, const std::string& summary, int count, char** arguments,
                                void (*add_options)(CommandLine line)) {
  // Commands look after parsing which subcommand was selected, so the parser stays until the program ends.
  static std::vector<std::unique_ptr<CLI::App>> parsers;
  CLI::App& app = *parsers.emplace_back(std::make_unique<CLI::App>(summary, program));
  app.set_version_flag("-V,--version", std::string("gpu4fs " GPU4FS_VERSION));
  add_options(CommandLine(&app));
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? ParseOutcome::answered : ParseOutcome::wrong;
  }
  return ParseOutcome::ready;
}

}  // namespace gpu4fs::cli
