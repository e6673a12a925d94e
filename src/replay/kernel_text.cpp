#include "replay/kernel_text.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>

namespace gpu4fs::replay {

namespace {

constexpr u64 sector_bytes = 512;
constexpr std::string_view blanks = " \t\r";

[[noreturn]] void fail_word(std::string_view word, const std::string& what) {
  throw std::invalid_argument("'" + std::string(word.substr(0, 40)) + "' is no " + what);
}

std::string_view without_leading_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(blanks), text.size()));
}

// Takes the first word off; empty at the end.
std::string_view take_word(std::string_view& text) {
  text = without_leading_blanks(text);
  const std::string_view word = text.substr(0, text.find_first_of(blanks));
  text.remove_prefix(word.size());
  return word;
}

std::optional<u64> number_of(std::string_view word) {
  u64 number = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (word.empty() || error != std::errc{} || stop != word.data() + word.size()) return std::nullopt;
  return number;
}

u64 take_number(std::string_view& text, const char* what) {
  const std::string_view word = take_word(text);
  const std::optional<u64> number = number_of(word);
  if (!number) fail_word(word, what);
  return *number;
}

bool is_device(std::string_view word) {
  const std::size_t comma = word.find(',');
  return comma != std::string_view::npos && number_of(word.substr(0, comma)) && number_of(word.substr(comma + 1));
}

bool is_time(std::string_view word) {
  const std::size_t point = word.find('.');
  return number_of(word.substr(0, point)) && (point == std::string_view::npos || number_of(word.substr(point + 1)));
}

// What the letters say, without offset and length.
KernelRequest operation_of(std::string_view letters) {
  KernelRequest request{};
  const std::string_view whole = letters;
  if (letters.starts_with('F')) {
    request.flushes_before = true;
    letters.remove_prefix(1);
  }
  const auto has_only_letters = [](std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  };
  if (whole.empty() || !has_only_letters(whole)) fail_word(whole, "operation");
  request.moves_data = true;
  if (letters.starts_with('R')) {
    request.kind = device::AccessKind::read;
  } else if (letters.starts_with('W')) {
    request.kind = device::AccessKind::write;
  } else if (letters.starts_with('D')) {
    request.kind = device::AccessKind::discard;
  } else {
    request.moves_data = false;
  }
  return request;
}

// "SECTOR + COUNT"
void take_sectors(std::string_view& text, KernelRequest& request) {
  const u64 first = take_number(text, "sector");
  const std::string_view plus = take_word(text);
  if (plus != "+") fail_word(plus, "'+' between sector and number of sectors");
  const u64 count = take_number(text, "number of sectors");
  constexpr u64 sectors_max = ~u64{0} / sector_bytes;
  if (count > sectors_max || first > sectors_max - count) fail_word(std::to_string(first), "sector of a device");
  request.offset = first * sector_bytes;
  request.length = count * sector_bytes;
  if (count == 0) request.moves_data = false;
}

KernelLine line_of(RequestEvent event, const KernelRequest& request) {
  const bool is_request = request.moves_data || request.flushes_before;
  return {is_request ? KernelLineKind::request : KernelLineKind::ignored, event, request};
}

struct EventLine {
  std::string_view name;
  std::string_view text;
};

// Splits "TASK-PID [CPU] FLAGS TIME: EVENT: TEXT" behind the bracket; FLAGS may be missing.
std::optional<EventLine> split_behind_cpu(std::string_view text) {
  std::string_view word = take_word(text);
  if (!word.ends_with(':')) word = take_word(text);
  if (!word.ends_with(':') || !is_time(word.substr(0, word.size() - 1))) return std::nullopt;
  std::string_view name = take_word(text);
  if (name.size() < 2 || !name.ends_with(':')) return std::nullopt;
  name.remove_suffix(1);
  const std::size_t colon = name.rfind(':');  // perf script: block:block_rq_issue
  if (colon != std::string_view::npos) name.remove_prefix(colon + 1);
  return EventLine{name, without_leading_blanks(text)};
}

// The name of a task may look like a processor, so each bracket is tried.
std::optional<EventLine> split_event_line(std::string_view line) {
  for (std::size_t open = line.find('['); open != std::string_view::npos; open = line.find('[', open + 1)) {
    const std::size_t close = line.find(']', open);
    if (close == std::string_view::npos) break;
    if (!number_of(line.substr(open + 1, close - open - 1))) continue;
    if (const std::optional<EventLine> split = split_behind_cpu(line.substr(close + 1))) return split;
  }
  return std::nullopt;
}

KernelRequest take_device_and_operation(std::string_view& text) {
  const std::string_view device = take_word(text);
  if (!is_device(device)) fail_word(device, "device MAJOR,MINOR");
  KernelRequest request = operation_of(take_word(text));
  request.device = device;
  return request;
}

// The bytes of a command in parentheses.
void skip_command(std::string_view& text) {
  text = without_leading_blanks(text);
  const std::size_t close = text.find(')');
  if (!text.starts_with('(') || close == std::string_view::npos) fail_word(take_word(text), "command in parentheses");
  text.remove_prefix(close + 1);
}

}  // namespace

KernelLine parse_ftrace_line(std::string_view line) {
  constexpr KernelLine ignored{KernelLineKind::ignored, {}, {}};
  const std::string_view text = without_leading_blanks(line);
  if (text.starts_with("CPU:") && text.find("[LOST") != std::string_view::npos) {
    return {KernelLineKind::lost_events, {}, {}};
  }
  if (text.starts_with("cpus=") || text.starts_with("version =")) return ignored;  // trace-cmd report
  const std::optional<EventLine> split = split_event_line(text);
  if (!split) throw std::invalid_argument("the line is no event");
  std::string_view rest = split->text;
  if (split->name == "block_bio_queue") {
    KernelRequest request = take_device_and_operation(rest);
    take_sectors(rest, request);
    return line_of(RequestEvent::queued, request);
  }
  const bool is_issue = split->name == "block_rq_issue";
  if (!is_issue && split->name != "block_rq_complete") return ignored;
  KernelRequest request = take_device_and_operation(rest);
  if (is_issue) take_number(rest, "number of bytes");
  skip_command(rest);
  take_sectors(rest, request);
  return line_of(is_issue ? RequestEvent::issued : RequestEvent::completed, request);
}

bool looks_like_blkparse(std::string_view line) {
  return is_device(take_word(line));
}

KernelLine parse_blkparse_line(std::string_view line) {
  std::string_view text = line;
  // The summary at the end.
  const std::string_view first = take_word(text);
  const bool is_summary = first.starts_with("CPU") || first == "Total" || first == "Events";
  if (is_summary && without_leading_blanks(text).starts_with('(')) return {KernelLineKind::end_of_trace, {}, {}};
  if (!is_device(first)) fail_word(first, "device MAJOR,MINOR");
  take_number(text, "processor");
  take_number(text, "sequence number");
  const std::string_view time = take_word(text);
  if (!is_time(time)) fail_word(time, "time");
  take_number(text, "process");
  const std::string_view action = take_word(text);
  if (action.empty()) throw std::invalid_argument("the action is missing");
  if (action != "D" && action != "C" && action != "Q") return {KernelLineKind::ignored, {}, {}};
  KernelRequest request = operation_of(take_word(text));
  request.device = first;
  text = without_leading_blanks(text);
  if (text.starts_with('(')) {  // a command of a driver, which has no sectors
    skip_command(text);
    request.moves_data = false;
  } else if (!text.empty() && !text.starts_with('[')) {  // a flush has no sectors either
    take_sectors(text, request);
  } else {
    request.moves_data = false;
  }
  const RequestEvent event = action == "D"   ? RequestEvent::issued
                             : action == "C" ? RequestEvent::completed
                                             : RequestEvent::queued;
  return line_of(event, request);
}

}  // namespace gpu4fs::replay
