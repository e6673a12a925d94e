#include "cli/command_line.hpp"

#include <CLI/CLI.hpp>
#include <map>
#include <utility>

#include "cli/describe.hpp"

namespace gpu4fs::cli {

namespace {

// The parser stores the values of one_of() only in a function. Its options are never removed.
std::map<const CLI::Option*, std::vector<std::string>>& allowed_values() {
  static std::map<const CLI::Option*, std::vector<std::string>> values;
  return values;
}

}  // namespace

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
  allowed_values()[option_] = values;
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

void CommandLine::require_subcommand() {
  app_->require_subcommand(1);
}

void CommandLine::on_selected(std::function<void()> action) {
  app_->callback(std::move(action));
}

bool CommandLine::is_selected() const {
  return app_->parsed();
}

namespace {

CLI::App& make_parser(const std::string& program, const std::string& summary, void (*add_options)(CommandLine line)) {
  // After parsing, commands ask which subcommand was selected, so the parser stays until the program ends.
  static std::vector<std::unique_ptr<CLI::App>> parsers;
  CLI::App& app = *parsers.emplace_back(std::make_unique<CLI::App>(summary, program));
  app.set_version_flag("-V,--version", std::string("gpu4fs " GPU4FS_VERSION));
  add_options(CommandLine(&app));
  return app;
}

OptionDescription describe_option(const CLI::Option& option) {
  OptionDescription description;
  for (const std::string& name : option.get_snames()) description.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) description.names.push_back("--" + name);
  description.text = option.get_description();
  description.takes_value = option.get_items_expected_max() > 0;
  description.may_be_repeated = option.get_items_expected_max() > 1;
  const auto values = allowed_values().find(&option);
  if (values != allowed_values().end()) description.values = values->second;
  return description;
}

LineDescription describe_line(const CLI::App& app, const std::string& name) {
  LineDescription line{name, app.get_description(), {}, {}, false};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) line.takes_words = true;
    const bool is_hidden = option->get_group().empty();
    if (option->nonpositional() && !is_hidden) line.options.push_back(describe_option(*option));
  }
  for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
    line.subcommands.push_back(describe_line(*subcommand, subcommand->get_name()));
  }
  return line;
}

}  // namespace

LineDescription describe_command_line(const std::string& name, const std::string& summary,
                                      void (*add_options)(CommandLine line)) {
  return describe_line(make_parser(name, summary, add_options), name);
}

ParseOutcome parse_command_line(const std::string& program, const std::string& summary, int count, char** arguments,
                                void (*add_options)(CommandLine line)) {
  CLI::App& app = make_parser(program, summary, add_options);
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? ParseOutcome::answered : ParseOutcome::wrong;
  }
  return ParseOutcome::ready;
}

}  // namespace gpu4fs::cli
