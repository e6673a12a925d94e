// Layers over devices, separately: their effect on accesses, how they stack, how they are named.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "base/limits.hpp"
#include "device/device_access.hpp"
#include "device/memory/mapped_file.hpp"
#include "device/stack/device_stack.hpp"
#include "device/stack/fault_layer.hpp"
#include "device/stack/record_layer.hpp"
#include "device/stack/stack_spec.hpp"

namespace gpu4fs::device {
namespace {

constexpr u64 device_bytes = 64 * page_size;

std::vector<u8> pattern(u64 seed, u64 length) {
  std::mt19937_64 random(seed);
  std::vector<u8> bytes(length);
  for (u8& byte : bytes) byte = static_cast<u8>(random());
  return bytes;
}

// Memory under layers, written as by the engine.
class StackedMemory {
 public:
  explicit StackedMemory(std::vector<std::unique_ptr<StackLayer>> layers)
      : stack_(std::make_shared<DeviceStack>(std::move(layers))),
        file_(MappedFile::anonymous(device_bytes, stack_)),
        device_(file_.device(0)) {}
  explicit StackedMemory(const std::string& rules) : StackedMemory(faults(rules)) {}

  static std::vector<std::unique_ptr<StackLayer>> faults(const std::string& rules) {
    std::vector<std::unique_ptr<StackLayer>> layers;
    layers.push_back(std::make_unique<FaultLayer>(parse_fault_rules(rules)));
    return layers;
  }

  Status write(u64 offset, const std::vector<u8>& bytes) {
    GPU4FS_TRY(begin_write(device_, offset, bytes.size()));
    std::memcpy(device_.base + offset, bytes.data(), bytes.size());
    end_write(device_, offset, bytes.size());
    return Status::ok;
  }
  Status read(u64 offset, u64 length, std::vector<u8>* bytes) {
    GPU4FS_TRY(begin_read(device_, offset, length));
    bytes->assign(device_.base + offset, device_.base + offset + length);
    return Status::ok;
  }
  std::vector<u8> content() const { return {device_.base, device_.base + device_bytes}; }
  MappedFile& file() { return file_; }
  DeviceStack& stack() { return *stack_; }

 private:
  std::shared_ptr<DeviceStack> stack_;
  MappedFile file_;
  Device device_;
};

u64 differing_bits(const std::vector<u8>& a, const std::vector<u8>& b) {
  u64 count = 0;
  for (u64 i = 0; i < a.size(); ++i) count += static_cast<u64>(__builtin_popcount(a[i] ^ b[i]));
  return count;
}

TEST(Stack, ReadErrorOfARangeSparesOthers) {
  StackedMemory memory("read-error@4096+8192");
  std::vector<u8> bytes;
  EXPECT_EQ(memory.read(0, page_size, &bytes), Status::ok);
  EXPECT_EQ(memory.read(page_size, page_size, &bytes), Status::medium_error);
  EXPECT_EQ(memory.read(2 * page_size + 100, 1, &bytes), Status::medium_error);
  EXPECT_EQ(memory.read(3 * page_size, page_size, &bytes), Status::ok);
  EXPECT_EQ(memory.read(0, device_bytes, &bytes), Status::medium_error);
}

TEST(Stack, NthWriteFailsAndNoOther) {
  StackedMemory memory("write-error#3");
  for (u64 i = 1; i <= 5; ++i) {
    EXPECT_EQ(memory.write(i * page_size, pattern(i, page_size)), i == 3 ? Status::device_failed : Status::ok);
  }
  const std::vector<u8> content = memory.content();
  for (u64 i = 1; i <= 5; ++i) {
    const std::vector<u8> expected = i == 3 ? std::vector<u8>(page_size) : pattern(i, page_size);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), content.begin() + static_cast<i64>(i * page_size))) << i;
  }
}

TEST(Stack, LostWriteLeavesTheOldBytes) {
  StackedMemory memory("lost#2");
  EXPECT_EQ(memory.write(0, pattern(1, page_size)), Status::ok);
  const std::vector<u8> before = memory.content();
  EXPECT_EQ(memory.write(0, pattern(2, page_size)), Status::ok);
  EXPECT_EQ(memory.content(), before);
}

TEST(Stack, FlippedWriteDiffersInOneBit) {
  StackedMemory memory("flip=1");
  EXPECT_EQ(memory.write(page_size, pattern(1, 3 * page_size)), Status::ok);
  std::vector<u8> expected(device_bytes);
  const std::vector<u8> written = pattern(1, 3 * page_size);
  std::copy(written.begin(), written.end(), expected.begin() + page_size);
  EXPECT_EQ(differing_bits(memory.content(), expected), 1u);
}

TEST(Stack, DecayChangesOneBitForGood) {
  StackedMemory memory("decay#1");
  EXPECT_EQ(memory.write(0, pattern(1, page_size)), Status::ok);
  std::vector<u8> first, second;
  EXPECT_EQ(memory.read(0, page_size, &first), Status::ok);
  EXPECT_EQ(memory.read(0, page_size, &second), Status::ok);
  EXPECT_EQ(differing_bits(first, pattern(1, page_size)), 1u);
  EXPECT_EQ(first, second);
}

// New bytes up to some sector, old ones after it.
TEST(Stack, TornWriteKeepsAPrefixOfSectors) {
  std::vector<u64> lengths;
  for (u64 seed = 1; seed <= 40; ++seed) {
    StackedMemory memory("torn#2,seed=" + std::to_string(seed));
    const std::vector<u8> old = pattern(1, page_size), fresh = pattern(2, page_size);
    EXPECT_EQ(memory.write(0, old), Status::ok);
    EXPECT_EQ(memory.write(0, fresh), Status::ok);
    const std::vector<u8> content = memory.content();
    u64 kept = 0;
    while (kept < page_size && content[kept] == fresh[kept]) ++kept;
    kept = kept / 512 * 512;
    EXPECT_LT(kept, page_size);
    EXPECT_TRUE(std::equal(old.begin() + static_cast<i64>(kept), old.end(), content.begin() + static_cast<i64>(kept)));
    lengths.push_back(kept);
  }
  EXPECT_GT(*std::max_element(lengths.begin(), lengths.end()), *std::min_element(lengths.begin(), lengths.end()));
}

TEST(Stack, MisdirectedWriteStandsOnAnotherPage) {
  StackedMemory memory("misdirect#1,seed=5");
  EXPECT_EQ(memory.write(7 * page_size, pattern(1, page_size)), Status::ok);
  const std::vector<u8> content = memory.content(), written = pattern(1, page_size);
  const auto found = std::search(content.begin(), content.end(), written.begin(), written.end());
  ASSERT_NE(found, content.end());
  EXPECT_NE(found - content.begin(), static_cast<i64>(7 * page_size));
  EXPECT_EQ((found - content.begin()) % static_cast<i64>(page_size), 0);
}

TEST(Stack, GoneDeviceFailsEverythingFromThenOn) {
  StackedMemory memory("gone#3");
  std::vector<u8> bytes;
  EXPECT_EQ(memory.read(0, 1, &bytes), Status::ok);
  EXPECT_EQ(memory.write(0, {1}), Status::ok);
  EXPECT_EQ(memory.read(0, 1, &bytes), Status::device_failed);
  EXPECT_EQ(memory.write(0, {1}), Status::device_failed);
  EXPECT_THROW(memory.file().flush(), DeviceError);
}

TEST(Stack, FlushErrorReachesTheCaller) {
  StackedMemory memory("flush-error#2");
  EXPECT_NO_THROW(memory.file().flush());
  EXPECT_THROW(memory.file().flush(), DeviceError);
  EXPECT_NO_THROW(memory.file().flush());
}

// The GPU would access its memory unseen, and the layers have to see its flushes.
TEST(Stack, DeviceIsFlushedAndKeptFromTheGpu) {
  StackedMemory memory("delay=0");
  EXPECT_TRUE(memory.file().needs_flush());
  const GpuRegistration registration = memory.file().gpu_registration();
  EXPECT_FALSE(registration.possible);
  EXPECT_NE(registration.reason.find("CPU engine"), std::string::npos) << registration.reason;
  const MappedFile plain = MappedFile::anonymous(device_bytes);
  EXPECT_FALSE(plain.needs_flush());
  EXPECT_TRUE(plain.gpu_registration().possible);
  EXPECT_EQ(plain.device(0).stack, nullptr);
}

TEST(Stack, EqualSeedsGiveEqualFaults) {
  const auto run = [](const std::string& rules) {
    StackedMemory memory(rules);
    for (u64 i = 0; i < 200; ++i) (void)memory.write(i % 60 * page_size, pattern(i, page_size));
    return memory.content();
  };
  const std::string rules = "flip=0.2,lost=0.2,torn=0.2,misdirect=0.1,write-error=0.1,seed=";
  EXPECT_EQ(run(rules + "3"), run(rules + "3"));
  EXPECT_NE(run(rules + "3"), run(rules + "4"));
}

TEST(Stack, RecordAboveAndBelowAFault) {
  auto above = std::make_shared<MemoryWriteLog>();
  auto below = std::make_shared<MemoryWriteLog>();
  std::vector<std::unique_ptr<StackLayer>> layers;
  layers.push_back(std::make_unique<RecordLayer>(above, "above"));
  layers.push_back(std::make_unique<FaultLayer>(parse_fault_rules("lost#2")));
  layers.push_back(std::make_unique<RecordLayer>(below, "below"));
  StackedMemory memory(std::move(layers));
  for (u64 i = 0; i < 3; ++i) EXPECT_EQ(memory.write(i * page_size, pattern(i, page_size)), Status::ok);
  memory.file().flush();
  const auto kinds = [](const MemoryWriteLog& log) {
    std::vector<WriteLogKind> list;
    for (const WriteLogEntry& entry : log.entries()) list.push_back(entry.kind);
    return list;
  };
  using Kind = WriteLogKind;
  EXPECT_EQ(kinds(*above), (std::vector<Kind>{Kind::device, Kind::write, Kind::write, Kind::write, Kind::flush_begin,
                                              Kind::flush_end}));
  EXPECT_EQ(kinds(*below),
            (std::vector<Kind>{Kind::device, Kind::write, Kind::write, Kind::flush_begin, Kind::flush_end}));
  EXPECT_EQ(above->entries()[2].bytes, pattern(1, page_size));
  EXPECT_EQ(below->entries()[2].offset, 2 * page_size);
}

// A replay of the log gives the device's content.
TEST(Stack, LogIsTheContent) {
  auto log = std::make_shared<MemoryWriteLog>();
  std::vector<std::unique_ptr<StackLayer>> layers;
  layers.push_back(std::make_unique<RecordLayer>(log, "memory"));
  StackedMemory memory(std::move(layers));
  std::mt19937_64 random(1);
  for (u64 i = 0; i < 300; ++i) {
    const u64 length = 1 + random() % (3 * page_size);
    EXPECT_EQ(memory.write(random() % (device_bytes - length), pattern(i, length)), Status::ok);
  }
  std::vector<u8> image(device_bytes);
  for (const WriteLogEntry& entry : log->entries()) {
    if (entry.kind != WriteLogKind::write) continue;
    std::copy(entry.bytes.begin(), entry.bytes.end(), image.begin() + static_cast<i64>(entry.offset));
  }
  EXPECT_EQ(image, memory.content());
}

class LogFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "gpu4fs_log_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return (folder_ / "log").string(); }

  std::filesystem::path folder_;
};

TEST_F(LogFile, RoundTripAndTornEnd) {
  {
    const std::shared_ptr<WriteLog> log = open_write_log(path());
    EXPECT_EQ(open_write_log(path()), log);
    EXPECT_EQ(log->add_device("a", 8192), 0u);
    EXPECT_EQ(log->add_device("bb", 4096), 1u);
    const std::vector<u8> bytes = pattern(1, 513);
    log->add(WriteLogKind::write, 1, 77, bytes.data(), bytes.size());
    log->add(WriteLogKind::flush_begin, 1, 0, nullptr, 0);
    log->mark(42);
    EXPECT_FALSE(log->has_failed());
  }
  std::vector<WriteLogEntry> entries = read_write_log(path());
  ASSERT_EQ(entries.size(), 5u);
  EXPECT_EQ(std::string(entries[1].bytes.begin(), entries[1].bytes.end()), "bb");
  EXPECT_EQ(entries[2].kind, WriteLogKind::write);
  EXPECT_EQ(entries[2].device, 1u);
  EXPECT_EQ(entries[2].offset, 77u);
  EXPECT_EQ(entries[2].bytes, pattern(1, 513));
  EXPECT_EQ(entries[4].kind, WriteLogKind::mark);
  EXPECT_EQ(entries[4].offset, 42u);
  const u64 size = std::filesystem::file_size(path());
  std::filesystem::resize_file(path(), size - 49);  // into the entry before the last
  EXPECT_EQ(read_write_log(path()).size(), 3u);
  std::filesystem::resize_file(path(), 0);
  EXPECT_TRUE(read_write_log(path()).empty());
}

TEST_F(LogFile, OtherFilesAreLeftAlone) {
  std::ofstream(path()) << "a letter to somebody";
  EXPECT_THROW(open_write_log(path()), DeviceError);
  EXPECT_THROW(read_write_log(path()), DeviceError);
  EXPECT_EQ(std::filesystem::file_size(path()), 20u);
}

TEST(StackSpec, PathsAndLayers) {
  for (const char* plain : {"/a", "a=b", "./record=x", "recorder=x", "/x/fault=1", "null", "record", "tracer=x"}) {
    const DeviceSpec spec = parse_device_spec(plain);
    EXPECT_EQ(spec.path, plain);
    EXPECT_FALSE(spec.has_stack());
  }
  const DeviceSpec spec = parse_device_spec("record=/tmp/log:fault=seed=7,flip=0.001:/dev/shm/a=b");
  ASSERT_EQ(spec.layers.size(), 2u);
  EXPECT_EQ(spec.layers[0].name, "record");
  EXPECT_EQ(spec.layers[0].argument, "/tmp/log");
  EXPECT_EQ(spec.layers[1].argument, "seed=7,flip=0.001");
  EXPECT_EQ(spec.path, "/dev/shm/a=b");
  EXPECT_EQ(parse_device_spec("null=64M:").null_bytes, u64{64} << 20);
  EXPECT_EQ(parse_device_spec("fault=lost=1:null=4096:").layers.size(), 1u);
}

TEST(StackSpec, MistakesAreNamed) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      const DeviceSpec spec = parse_device_spec(text);
      make_stack(spec);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  };
  const std::pair<const char*, const char*> cases[] = {
      {"record=log", "./record=log"},
      {"record=:/a", "needs something"},
      {"fault=lost=1:", "no device below"},
      {"null=64M:/a", "nothing can be below"},
      {"null=64Q:", "'Q'"},
      {"null=100:", "multiple of 4096"},
      {"fault=loss=1:/a", "'loss'"},
      {"fault=lost:/a", "says nowhere when"},
      {"fault=lost=2:/a", "from 0 to 1"},
      {"fault=lost@5:/a", "OFFSET+LENGTH"},
      {"fault=lost#0:/a", "from 1"},
      {"fault=seed=x:/a", "seed"},
      {"fault=lost=1,,flip=1:/a", "empty rule"},
      {"fault=flush-error@0+1:/a", "no range"},
      {"fault=lost#1x:/a", "not understood"},
  };
  for (const auto& [text, part] : cases) {
    EXPECT_NE(message(text).find(part), std::string::npos) << text << ": " << message(text);
  }
}

TEST(StackSpec, RulesAreUnderstood) {
  const FaultRules rules = parse_fault_rules("seed=0x10,delay-us=5,read-error@4096+0x2000#3=0.5,gone#9");
  EXPECT_EQ(rules.seed, 16u);
  EXPECT_EQ(rules.delay_us, 5u);
  ASSERT_EQ(rules.rules.size(), 2u);
  EXPECT_EQ(rules.rules[0].begin, 4096u);
  EXPECT_EQ(rules.rules[0].end, 4096u + 0x2000);
  EXPECT_EQ(rules.rules[0].nth, 3u);
  EXPECT_EQ(rules.rules[0].probability, 0.5);
  EXPECT_EQ(rules.rules[1].kind, FaultKind::gone);
}

TEST(StackSpec, EndsInLists) {
  const std::string list = "/a:record=l:fault=lost=1,flip=0.5:/b:null=64M::./record=c:d";
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = end_of_device(list, begin);
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  EXPECT_EQ(parts,
            (std::vector<std::string>{"/a", "record=l:fault=lost=1,flip=0.5:/b", "null=64M:", "./record=c", "d"}));
}

}  // namespace
}  // namespace gpu4fs::device
