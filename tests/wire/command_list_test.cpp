// The lists of commands and of the operation log's records: stable numbers, and agreement with the documentation for
// readers of the medium.
#include "wire/record_commands.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "wire/ring_format.hpp"

namespace gpu4fs::wire {
namespace {

std::string source_text(const std::string& path) {
  const char* source = std::getenv("GPU4FS_SOURCE");
  std::ifstream file(std::string(source != nullptr ? source : ".") + "/" + path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(trimmed(part));
  return parts;
}

std::set<std::string> expected_records() {
  std::set<std::string> records;
  for (const format::LogRow& row : format::log_rows)
    records.insert(std::to_string(static_cast<unsigned>(row.opcode)) + " " + row.name);
  return records;
}

TEST(CommandList, NumbersOnTheWireStay) {
  EXPECT_EQ(static_cast<unsigned>(Opcode::noop), 1u);
  EXPECT_EQ(static_cast<unsigned>(Opcode::write), 20u);
  EXPECT_EQ(static_cast<unsigned>(Opcode::reclaim), 34u);
  EXPECT_EQ(static_cast<unsigned>(Opcode::relocate), 46u);
  std::set<std::string> names;
  for (const CommandRow& row : command_rows) EXPECT_TRUE(names.insert(command_name(row.opcode)).second);
  for (const Opcode opcode : {Opcode::none, Opcode::count, static_cast<Opcode>(64), static_cast<Opcode>(0xffff)}) {
    EXPECT_FALSE(is_command(opcode));
    EXPECT_TRUE(changes_the_pool(opcode));
    EXPECT_TRUE(needs_step_gate(opcode));
    EXPECT_FALSE(takes_records(opcode));
    EXPECT_FALSE(may_send(Sender::server, opcode));
    EXPECT_EQ(output_bytes(opcode), sizeof(format::AttributeRecord));
  }
}

TEST(CommandList, OutputsAreAsLongAsTheirRecords) {
  EXPECT_EQ(output_bytes(Opcode::getattr), sizeof(format::AttributeRecord));
  EXPECT_EQ(output_bytes(Opcode::statfs), sizeof(StatfsRecord));
  EXPECT_EQ(output_bytes(Opcode::memcopy), 0u);
  EXPECT_EQ(output_bytes(Opcode::noop), sizeof(format::AttributeRecord));
}

// docs/internals/format.md, section 11: "| 7, 8 | unlink, rmdir | ... |".
TEST(LogList, IsWhatTheDocumentationLists) {
  std::set<std::string> documented;
  std::stringstream text(source_text("docs/internals/format.md"));
  bool is_table = false;
  for (std::string line; std::getline(text, line);) {
    if (line.rfind("| opcode | | done |", 0) == 0) is_table = true;
    if (line.empty()) is_table = false;
    const std::vector<std::string> cells = split(line, '|');
    if (!is_table || cells.size() < 3 || cells[1].find_first_of("0123456789") != 0) continue;
    const std::vector<std::string> numbers = split(cells[1], ',');
    const std::vector<std::string> names = split(cells[2], ',');
    ASSERT_EQ(numbers.size(), names.size()) << line;
    for (std::size_t i = 0; i < numbers.size(); ++i) documented.insert(numbers[i] + " " + names[i]);
  }
  EXPECT_EQ(documented, expected_records());
}

// tests/format_reader/log.py: its OPCODES, by position.
TEST(LogList, IsWhatTheIndependentReaderKnows) {
  const std::string text = source_text("tests/format_reader/log.py");
  const std::size_t begin = text.find("OPCODES = (");
  ASSERT_NE(begin, std::string::npos);
  std::string words = text.substr(begin, text.find(").split()", begin) - begin);
  words = words.substr(words.find('\n'));
  for (char& c : words) c = c == '"' || c == '\n' ? ' ' : c;
  std::set<std::string> read;
  std::stringstream stream(words);
  unsigned number = 0;
  for (std::string word; stream >> word; ++number) {
    if (word != "none") read.insert(std::to_string(number) + " " + word);
  }
  EXPECT_EQ(read, expected_records());
}

TEST(LogList, WhatHasNoRowIsNoRecord) {
  for (const unsigned number : {0u, static_cast<unsigned>(format::LogOpcode::count), 64u, 0xffffu}) {
    const format::LogOpcode opcode = static_cast<format::LogOpcode>(number);
    EXPECT_FALSE(format::is_log_opcode(opcode));
    EXPECT_EQ(format::find_log_row(opcode), nullptr);
  }
  for (const format::LogRow& row : format::log_rows) EXPECT_EQ(format::find_log_row(row.opcode), &row);
}

}  // namespace
}  // namespace gpu4fs::wire
