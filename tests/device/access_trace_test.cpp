// Traces of accesses: their text, the files that are continued or refused, and what the layer lists.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/medium_file.hpp"
#include "device/stack/access_trace.hpp"
#include "device/stack/device_stack.hpp"
#include "device/stack/fault_layer.hpp"
#include "device/stack/stack_spec.hpp"
#include "device/stack/trace_layer.hpp"

namespace gpu4fs::device {
namespace {

class AccessTraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string pattern = (std::filesystem::temp_directory_path() / "gpu4fs-access-trace-XXXXXX").string();
    std::vector<char> name(pattern.begin(), pattern.end());
    name.push_back('\0');
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name.data();
    path_ = (folder_ / "trace").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> lines() const {
    std::ifstream file(path_);
    std::vector<std::string> result;
    for (std::string line; std::getline(file, line);) result.push_back(line);
    return result;
  }
  // What the file lists, without times.
  std::vector<std::string> accesses() const {
    std::vector<std::string> result;
    u64 time_ns = 0;
    for (const std::string& line : lines()) {
      if (line.starts_with('#')) continue;
      TracedAccess access = parse_access_line(line);
      EXPECT_GE(access.time_ns, time_ns);
      time_ns = access.time_ns;
      access.time_ns = 0;
      result.push_back(access_line(access));
    }
    return result;
  }
  void put(const std::string& text) const { std::ofstream(path_) << text; }

  std::filesystem::path folder_;
  std::string path_;
};

TEST(AccessTrace, LinesAreReadAsTheyWereWritten) {
  for (const std::string& device : {std::string("/dev/sda"), std::string(" a  b "), std::string("new\nline\\ \x7f\t"),
                                    std::string("\xc3\xa4"), std::string(1, '\0')}) {
    for (const AccessKind kind : {AccessKind::read, AccessKind::write, AccessKind::flush, AccessKind::discard}) {
      const std::string line = access_line({~u64{0}, kind, 4096, 512, device});
      EXPECT_EQ(line.find_first_of(std::string("\n\t\x7f\0", 4)), std::string::npos) << line;
      const TracedAccess access = parse_access_line(line);
      EXPECT_EQ(access.time_ns, ~u64{0});
      EXPECT_EQ(access.kind, kind);
      EXPECT_EQ(access.offset, 4096u);
      EXPECT_EQ(access.length, 512u);
      EXPECT_EQ(access.device, device);
    }
  }
  EXPECT_EQ(access_line({7, AccessKind::discard, 0, 8, "a\\"}), "7 D 0 8 a\\134");
}

TEST(AccessTrace, LinesThatAreNoAccessesSayWhy) {
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"", "time"},
      {"x R 0 1 a", "time"},
      {"1", "operation"},
      {"1 Q 0 1 a", "'Q' is no operation"},
      {"1 RW 0 1 a", "operation"},
      {"1 R -1 1 a", "'-1' is no offset"},
      {"1 R 0 18446744073709551616 a", "length"},
      {"1 R 0 1k a", "length"},
      {"1 R 0 1", "no device"},
      {"1 R 0 1 ", "no device"},
      {"1 R 0 1 a\\12", "octal"},
      {"1 R 0 1 a\\129", "octal"},
      {"1 R 0 1 a\\777", "octal"},
  };
  for (const auto& [line, fault] : lines) {
    try {
      parse_access_line(line);
      ADD_FAILURE() << line;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(fault), std::string::npos) << line << ": " << error.what();
    }
  }
}

TEST_F(AccessTraceFile, AFileIsContinued) {
  for (const char* device : {"/a", "/b"}) AccessTrace(path_).add(AccessKind::read, 0, 4096, device);
  EXPECT_EQ(accesses(), (std::vector<std::string>{"0 R 0 4096 /a", "0 R 0 4096 /b"}));
  EXPECT_EQ(lines()[0], "# gpu4fs trace 1");
  EXPECT_EQ(lines().size(), 3u);
}

TEST_F(AccessTraceFile, OtherFilesAreRefusedAndKept) {
  for (const char* text : {"# gpu4fs trace 2\n", "# gpu4fs trace 10\n", "important", "# gpu4fs trace 1"}) {
    put(text);
    EXPECT_THROW(AccessTrace{path_}, DeviceError) << text;
    std::ostringstream content;
    content << std::ifstream(path_).rdbuf();
    EXPECT_EQ(content.str(), text);
  }
  EXPECT_THROW(AccessTrace{(folder_ / "missing" / "trace").string()}, DeviceError);
}

TEST_F(AccessTraceFile, DevicesWithOneFileShareIt) {
  const std::shared_ptr<AccessTrace> first = open_access_trace(path_);
  EXPECT_EQ(first, open_access_trace(path_));
  EXPECT_NE(first, open_access_trace(path_ + "2"));
}

// Neither the end of the process nor a full buffer is needed: a flush writes out what was listed.
TEST_F(AccessTraceFile, TheLayerListsReadsWritesAndFlushes) {
  const auto stack = make_stack(parse_device_spec("trace=" + path_ + ":/some device"));
  std::vector<u8> bytes(8192);
  u64 stored = 0;
  const auto store = [&stored](u64, const u8*, u64 length) { stored += length; };
  EXPECT_EQ(stack->write(4096, bytes.data(), 8192, store), Status::ok);
  EXPECT_EQ(stack->read(512, bytes.data(), 100), Status::ok);
  EXPECT_EQ(stack->begin_flush(), Status::ok);
  EXPECT_TRUE(lines().empty());
  stack->end_flush();
  EXPECT_EQ(stored, 8192u);
  EXPECT_EQ(accesses(), (std::vector<std::string>{"0 W 4096 8192 /some device", "0 R 512 100 /some device",
                                                  "0 F 0 0 /some device"}));
}

// Above the faults it lists what was meant, below them what reached the medium.
TEST_F(AccessTraceFile, ThePlaceInTheStackDecidesWhatIsListed) {
  const std::string below = path_ + "-below";
  {
    const auto stack =
        make_stack(parse_device_spec("trace=" + path_ + ":fault=lost#1,read-error@0+512:trace=" + below + ":/a"));
    std::vector<u8> bytes(4096);
    const auto store = [](u64, const u8*, u64) {};
    EXPECT_EQ(stack->write(0, bytes.data(), 4096, store), Status::ok);
    EXPECT_EQ(stack->write(4096, bytes.data(), 4096, store), Status::ok);
    EXPECT_EQ(stack->read(0, bytes.data(), 4096), Status::medium_error);
  }
  EXPECT_EQ(accesses(), (std::vector<std::string>{"0 W 0 4096 /a", "0 W 4096 4096 /a", "0 R 0 4096 /a"}));
  path_ = below;
  EXPECT_EQ(accesses(), (std::vector<std::string>{"0 W 4096 4096 /a"}));
}

}  // namespace
}  // namespace gpu4fs::device
