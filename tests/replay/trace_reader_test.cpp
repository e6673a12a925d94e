// Traces as text: lines of the kernel's events, of blkparse and of gpu4fs, and files with bad lines.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>

#include "replay/kernel_text.hpp"
#include "replay/trace_reader.hpp"

namespace gpu4fs::replay {
namespace {

// "device kind offset length" of a request; what else the line is.
std::string text_of(const KernelLine& line) {
  if (line.kind == KernelLineKind::ignored) return "ignored";
  if (line.kind == KernelLineKind::lost_events) return "lost";
  if (line.kind == KernelLineKind::end_of_trace) return "end";
  const KernelRequest& request = line.request;
  std::string text = std::string(request.device) + (request.flushes_before ? " F" : "");
  if (request.moves_data) {
    text += std::string(" ") + "RWFD"[static_cast<u32>(request.kind)] + " " + std::to_string(request.offset) + " " +
            std::to_string(request.length);
  }
  return text + " " + "DCQ"[static_cast<u32>(line.event)];
}

template <class Parse>
std::string outcome(Parse parse, const std::string& line) {
  try {
    return text_of(parse(line));
  } catch (const std::invalid_argument& error) {
    return std::string("bad: ") + error.what();
  }
}

TEST(KernelText, FtraceLines) {
  const std::pair<const char*, const char*> cases[] = {
      {"           dd-1234    [001] d..1.  1234.567890: block_rq_issue: 8,0 R 4096 () 2048 + 8 [dd]",
       "8,0 R 1048576 4096 D"},
      // With a priority, as since Linux 6.9.
      {"dd-1 [001] ..... 5.000001: block_rq_issue: 259,3 WFS 8192 () 0 + 16 be,0,4 [dd]", "259,3 W 0 8192 D"},
      {"dd-1 [001] ..... 5.000001: block_rq_complete: 8,0 RA () 8 + 8 none,0,0 [0]", "8,0 R 4096 4096 C"},
      {"dd-1 [001] 5.000001: block_bio_queue: 8,0 D 100 + 1 [dd]", "8,0 D 51200 512 Q"},
      // The name of a task.
      {"a [1] b: x-7 [000] d..1. 1.5: block_bio_queue: 8,0 R 0 + 1 [a [1] b: x]", "8,0 R 0 512 Q"},
      {"   kworker/0:1H-98 [000] ..s1. 12: block_rq_issue: 8,0 FF 0 () 0 + 0 [kworker/0:1H]", "8,0 F D"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 FWFSM 4096 () 16 + 8 [x]", "8,0 F W 8192 4096 D"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 N 36 (12 00 00 00 24 00) 0 + 0 [x]", "ignored"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 DE 4096 () 16 + 8 [x]", "8,0 D 8192 4096 D"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 R 0 () 16 + 0 [x]", "ignored"},
      {"x 1 [000] 1.0: block:block_rq_issue: 8,0 R 512 () 16 + 1 [x]", "8,0 R 8192 512 D"},
      {"x-1 [000] 1.0: block_plug: [x]", "ignored"},
      {"x-1 [000] 1.0: sched_switch: prev_comm=block_rq_issue: prev_pid=1", "ignored"},
      {"CPU:3 [LOST 123 EVENTS]", "lost"},
      {"cpus=8", "ignored"},
  };
  for (const auto& [line, expected] : cases) EXPECT_EQ(outcome(parse_ftrace_line, line), expected) << line;
}

TEST(KernelText, FtraceLinesThatAreNotUnderstood) {
  const std::pair<const char*, const char*> cases[] = {
      {"garbage", "no event"},
      {"x-1 [000] 1.0 block_rq_issue: 8,0 R 512 () 16 + 1 [x]", "no event"},
      {"x-1 [00x] 1.0: block_rq_issue: 8,0 R 512 () 16 + 1 [x]", "no event"},
      {"x-1 [000] 1.0: block_rq_issue:", "no device"},
      {"x-1 [000] 1.0: block_rq_issue: 8 R 512 () 16 + 1 [x]", "'8' is no device"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 r 512 () 16 + 1 [x]", "'r' is no operation"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 R", "number of bytes"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 R 512 16 + 1 [x]", "command in parentheses"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 R 512 ( 16 + 1 [x]", "command in parentheses"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 R 512 () 16 + [x]", "number of sectors"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 R 512 () 16 1 [x]", "'+'"},
      {"x-1 [000] 1.0: block_rq_issue: 8,0 R 512 () -1 + 1 [x]", "'-1' is no sector"},
      {"x-1 [000] 1.0: block_bio_queue: 8,0 R 18446744073709551615 + 8 [x]", "sector of a device"},
      {"x-1 [000] 1.0: block_bio_queue: 8,0 R 0 + 18446744073709551615 [x]", "sector of a device"},
  };
  for (const auto& [line, fault] : cases) {
    const std::string text = outcome(parse_ftrace_line, line);
    EXPECT_TRUE(text.starts_with("bad: ") && text.find(fault) != std::string::npos) << line << ": " << text;
  }
}

TEST(KernelText, BlkparseLines) {
  const std::pair<const char*, const char*> cases[] = {
      {"  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]", "ignored"},
      {"  8,0    3        4     0.000001829   697  D   W 223490 + 8 [kjournald]", "8,0 W 114426880 4096 D"},
      {"  8,0    3       11     0.009507758     0  C   R 8 + 8 [0]", "8,0 R 4096 4096 C"},
      {"  8,0    3       12     0.01     7  Q FWS 8 + 8 [x]", "8,0 F W 4096 4096 Q"},
      {"  8,0    3       12     0.01     7  D FF [x]", "8,0 F D"},
      {"  8,0    3       12     0.01     7  D  R 36 (12 00 00 00 24 00 ..) [x]",
       "bad: '(12' is no '+' between sector "
       "and number of sectors"},
      {"  8,0    3       12     0.01     7  D  N (12 00) [x]", "ignored"},
      {"  8,0    1        0     0.000000000     0  m   N cfq697 insert_request", "ignored"},
      {"CPU0 (sda):", "end"},
      {"Total (8,0):", "end"},
      {"  8,0  x  12  0.01  7  D  R 8 + 8 [x]", "bad: 'x' is no processor"},
      {"  8,0  1  12  0.01  7", "bad: the action is missing"},
      {"nothing", "bad: 'nothing' is no device MAJOR,MINOR"},
  };
  for (const auto& [line, expected] : cases) EXPECT_EQ(outcome(parse_blkparse_line, line), expected) << line;
}

// Whatever a line is, the parsers end with a request or a fault.
TEST(KernelText, ChangedLinesAreRequestsOrFaults) {
  const std::string lines[] = {
      "dd-1 [001] ..... 5.000001: block_rq_issue: 259,3 WFS 8192 () 0 + 16 be,0,4 [dd]",
      "  8,0    3        4     0.000001829   697  D   W 223490 + 8 [kjournald]",
      "123 W 4096 8192 /dev/shm/a\\134",
  };
  std::mt19937_64 random(1);
  u64 understood = 0, bad = 0;
  for (u32 i = 0; i < 20'000; ++i) {
    std::string line = lines[i % 3];
    for (u64 changes = 1 + random() % 3; changes != 0; --changes) {
      const std::size_t at = random() % line.size();
      if (random() % 4 == 0) {
        line.resize(at + 1);
      } else {
        line[at] = static_cast<char>(random());
      }
    }
    try {
      if (i % 3 == 0) parse_ftrace_line(line);
      if (i % 3 == 1) parse_blkparse_line(line);
      if (i % 3 == 2) device::parse_access_line(line);
      ++understood;
    } catch (const std::invalid_argument&) {
      ++bad;
    }
  }
  EXPECT_GT(understood, 1000u);
  EXPECT_GT(bad, 1000u);
}

class TraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string pattern = (std::filesystem::temp_directory_path() / "gpu4fs-trace-XXXXXX").string();
    std::vector<char> name(pattern.begin(), pattern.end());
    name.push_back('\0');
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name.data();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  BlockTrace read(const std::string& text, TraceFormat format = TraceFormat::automatic) const {
    BlockTrace trace;
    read_trace(put("file", text), format, trace);
    return trace;
  }
  std::string refusal(const std::string& text, TraceFormat format = TraceFormat::automatic) const {
    try {
      read(text, format);
    } catch (const TraceError& error) {
      return error.what();
    }
    return "";
  }
  // "device kind offset length", one after the other.
  static std::string text_of(const BlockTrace& trace) {
    std::string text;
    for (const Request& request : trace.requests) {
      text += (text.empty() ? "" : ", ") + trace.devices[request.device] + " " + "RWFD"[static_cast<u32>(request.kind)];
      if (request.kind != AccessKind::flush) {
        text += " " + std::to_string(request.offset) + " " + std::to_string(request.length);
      }
    }
    return text;
  }

  std::filesystem::path folder_;
};

const char* const issue = "dd-1 [001] ..... 5.01: block_rq_issue: 8,0 W 4096 () 8 + 8 [dd]\n";
const char* const complete = "dd-1 [001] ..... 5.02: block_rq_complete: 8,0 W () 8 + 8 [0]\n";
const char* const queue = "dd-1 [001] ..... 5.00: block_bio_queue: 8,1 W 0 + 8 [dd]\n";

TEST_F(TraceFile, FormatsAreRecognised) {
  const std::string header = "# tracer: nop\n#\n# entries-in-buffer/entries-written: 1/1   #P:2\n\n";
  EXPECT_EQ(text_of(read(issue)), "8,0 W 4096 4096");
  EXPECT_EQ(text_of(read(header + issue)), "8,0 W 4096 4096");
  EXPECT_EQ(text_of(read("8,0 3 4 0.1 697 D W 8 + 8 [x]\nCPU0 (sda):\n Reads Queued: 0\n")), "8,0 W 4096 4096");
  EXPECT_EQ(text_of(read("# gpu4fs trace 1\n1 W 8 8 a b\r\n2 F 0 0 a b\n3 D 0 9 c")), "a b W 8 8, a b F, c D 0 9");
  EXPECT_EQ(text_of(read(issue, TraceFormat::ftrace)), "8,0 W 4096 4096");
}

TEST_F(TraceFile, EachRequestIsUsedOnce) {
  EXPECT_EQ(text_of(read(std::string(queue) + issue + complete)), "8,0 W 4096 4096");
  EXPECT_EQ(text_of(read(std::string(queue) + complete)), "8,0 W 4096 4096");
  EXPECT_EQ(text_of(read(queue)), "8,1 W 0 4096");
  EXPECT_EQ(text_of(read("x-1 [0] 1.0: block_rq_issue: 8,0 FWS 512 () 1 + 1 [x]")), "8,0 F, 8,0 W 512 512");
}

TEST_F(TraceFile, BadLinesAreCountedAndTheFirstAreNamed) {
  std::string text;
  for (int i = 0; i < 12; ++i) text += std::string("\nbroken ") + std::to_string(i) + "\n" + issue;
  const BlockTrace trace = read(text + "x-1 [000] 1.0: block_plug: [x]\nCPU:0 [LOST 5 EVENTS]\n");
  EXPECT_EQ(trace.requests.size(), 12u);
  EXPECT_EQ(trace.bad_line_count, 12u);
  EXPECT_EQ(trace.ignored_line_count, 1u);
  EXPECT_EQ(trace.lost_note_count, 1u);
  ASSERT_EQ(trace.bad_lines.size(), named_bad_lines_max);
  EXPECT_EQ(trace.bad_lines[0].line, 2u);
  EXPECT_EQ(trace.bad_lines[1].line, 5u);
  EXPECT_EQ(trace.bad_lines[0].file, (folder_ / "file").string());
  EXPECT_EQ(trace.bad_lines[0].fault, "the line is no event");
}

TEST_F(TraceFile, FaultsCanBePrinted) {
  const BlockTrace trace = read(std::string("x-1 [000] 1.0: block_bio_queue: \x1b[2J,0 R 0 + 1 [x]\n") + issue);
  ASSERT_EQ(trace.bad_lines.size(), 1u);
  EXPECT_EQ(trace.bad_lines[0].fault, "'?[2J,0' is no device MAJOR,MINOR");
}

TEST_F(TraceFile, RequestsThatNoDeviceCanHaveAreBadLines) {
  const BlockTrace trace = read(
      "# gpu4fs trace 1\n1 R 0 4294967296 a\n1 R 0 4294967297 a\n1 R 1125899906842624 1 a\n"
      "1 R 18446744073709551615 1 a\n1 D 0 1125899906842624 a\n1 W 0 0 a\n");
  EXPECT_EQ(text_of(trace), "a R 0 4294967296, a D 0 1125899906842624");
  EXPECT_EQ(trace.bad_line_count, 3u);
  EXPECT_EQ(trace.ignored_line_count, 1u);
}

TEST_F(TraceFile, FilesWithoutRequestsAreRefused) {
  EXPECT_NE(refusal("").find("there is no request in 0 lines"), std::string::npos);
  EXPECT_NE(refusal("# tracer: nop\n").find("no request"), std::string::npos);
  EXPECT_NE(refusal("# gpu4fs trace 1\n").find("no request"), std::string::npos);
  const std::string bad = refusal("one\n\ntwo\n");
  EXPECT_NE(bad.find("2 of them are not understood; line 1: the line is no event"), std::string::npos) << bad;
  EXPECT_NE(refusal("# gpu4fs trace 2\n1 R 0 1 a\n").find("version '2'"), std::string::npos);
  EXPECT_NE(refusal("1 R 0 1 a\n", TraceFormat::gpu4fs).find("header is missing"), std::string::npos);
  std::string devices = "# gpu4fs trace 1\n";
  for (int i = 0; i <= 64; ++i) devices += "1 R 0 1 " + std::to_string(i) + "\n";
  EXPECT_NE(refusal(devices).find("line 66: more than 64 devices"), std::string::npos);
  BlockTrace trace;
  EXPECT_THROW(read_trace((folder_ / "missing").string(), TraceFormat::automatic, trace), TraceError);
  EXPECT_THROW(read_trace(folder_.string(), TraceFormat::automatic, trace), TraceError);
}

TEST_F(TraceFile, FilesAreReadOneAfterTheOther) {
  BlockTrace trace;
  read_trace(put("1", "# gpu4fs trace 1\n9 R 0 1 a\n# gpu4fs trace 1\n8 R 0 2 b\n"), TraceFormat::automatic, trace);
  read_trace(put("2", "# gpu4fs trace 1\n1 W 0 3 b\n2 W 0 4 c\n"), TraceFormat::automatic, trace);
  EXPECT_EQ(text_of(trace), "a R 0 1, b R 0 2, b W 0 3, c W 0 4");
  EXPECT_EQ(trace.devices, (std::vector<std::string>{"a", "b", "c"}));
}

}  // namespace
}  // namespace gpu4fs::replay
