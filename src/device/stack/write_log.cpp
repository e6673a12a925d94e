#include "device/stack/write_log.hpp"

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "base/bits.hpp"
#include "base/xxh3.hpp"
#include "device/memory/mapped_file.hpp"

namespace gpu4fs::device {

namespace {

struct FileHeader {
  u64 magic;
  u32 version;
  u32 reserved;
};
static_assert(sizeof(FileHeader) == 16);

struct EntryHeader {
  u64 sequence;
  u32 kind;
  u32 device;
  u64 offset;
  u64 length;
  u64 bytes_checksum;
  u64 checksum;
};
static_assert(sizeof(EntryHeader) == 48);

constexpr u64 log_magic = 0x676f6c7773663467ull;  // "g4fswlog" in the byte order of the file
constexpr u32 log_version = 1;
constexpr u64 entry_bytes_max = u64{1} << 30;

u64 header_checksum(const EntryHeader& header) {
  return xxh3_64(&header, offsetof(EntryHeader, checksum), 0);
}

[[noreturn]] void fail_log(const std::string& path, const std::string& what, int error_number) {
  std::string message = path + ": " + what;
  if (error_number != 0) message += std::string(": ") + std::strerror(error_number);
  throw DeviceError(message, error_number);
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<std::FILE, FileCloser>;

// False: the file is empty. DeviceError if it is not a log of this version.
bool read_file_header(const std::string& path, std::FILE* file) {
  FileHeader header{};
  const std::size_t count = std::fread(&header, 1, sizeof(header), file);
  if (count == 0 && std::ferror(file) == 0) return false;
  if (count != sizeof(header) || header.magic != log_magic) fail_log(path, "is no log of writes", 0);
  if (header.version != log_version) {
    fail_log(path, "is a log of writes of version " + std::to_string(header.version) + ", not 1", 0);
  }
  return true;
}

class FileWriteLog : public WriteLog {
 public:
  explicit FileWriteLog(std::string path) : path_(std::move(path)) {
    const FileHandle old(std::fopen(path_.c_str(), "rbe"));
    if (old) {
      read_file_header(path_, old.get());
    } else if (errno != ENOENT) {
      fail_log(path_, "cannot be opened", errno);
    }
  }

 protected:
  bool keep(WriteLogEntry entry) override {
    if (!file_ && !begin()) return false;
    EntryHeader header{};
    header.sequence = entry.sequence;
    header.kind = static_cast<u32>(entry.kind);
    header.device = entry.device;
    header.offset = entry.offset;
    header.length = entry.bytes.size();
    header.bytes_checksum = xxh3_64(entry.bytes.data(), entry.bytes.size(), 0);
    header.checksum = header_checksum(header);
    entry.bytes.resize(align_up(entry.bytes.size(), u64{8}));
    bool kept = std::fwrite(&header, sizeof(header), 1, file_.get()) == 1;
    kept &= entry.bytes.empty() || std::fwrite(entry.bytes.data(), entry.bytes.size(), 1, file_.get()) == 1;
    if (entry.kind != WriteLogKind::write) kept &= std::fflush(file_.get()) == 0;
    return kept;
  }

 private:
  bool begin() {
    file_.reset(std::fopen(path_.c_str(), "wbe"));
    const FileHeader header{log_magic, log_version, 0};
    return file_ && std::fwrite(&header, sizeof(header), 1, file_.get()) == 1;
  }

  std::string path_;
  FileHandle file_;
};

}  // namespace

u32 WriteLog::add_device(const std::string& path, u64 size_bytes) {
  const std::lock_guard guard(mutex_);
  const u32 device = device_count_++;
  add_locked(WriteLogKind::device, device, size_bytes, reinterpret_cast<const u8*>(path.data()), path.size());
  return device;
}

void WriteLog::add(WriteLogKind kind, u32 device, u64 offset, const u8* bytes, u64 length) {
  const std::lock_guard guard(mutex_);
  add_locked(kind, device, offset, bytes, length);
}

void WriteLog::add_locked(WriteLogKind kind, u32 device, u64 offset, const u8* bytes, u64 length) {
  WriteLogEntry entry{next_sequence_++, kind, device, offset, {}};
  if (length != 0) entry.bytes.assign(bytes, bytes + length);
  failed_ = failed_ || !keep(std::move(entry));
}

bool WriteLog::has_failed() const {
  const std::lock_guard guard(mutex_);
  return failed_;
}

bool MemoryWriteLog::keep(WriteLogEntry entry) {
  entries_.push_back(std::move(entry));
  return true;
}

std::shared_ptr<WriteLog> open_write_log(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<WriteLog>> open_logs;
  const std::lock_guard guard(mutex);
  std::weak_ptr<WriteLog>& known = open_logs[path];
  std::shared_ptr<WriteLog> log = known.lock();
  if (!log) {
    log = std::make_shared<FileWriteLog>(path);
    known = log;
  }
  return log;
}

std::vector<WriteLogEntry> read_write_log(const std::string& path) {
  const FileHandle file(std::fopen(path.c_str(), "rbe"));
  if (!file) fail_log(path, "cannot be opened", errno);
  std::vector<WriteLogEntry> entries;
  if (!read_file_header(path, file.get())) return entries;
  EntryHeader header{};
  while (std::fread(&header, sizeof(header), 1, file.get()) == 1) {
    const bool holds = header.checksum == header_checksum(header) && header.sequence == entries.size() &&
                       header.length <= entry_bytes_max;
    if (!holds) break;
    std::vector<u8> bytes(align_up(header.length, u64{8}));
    if (!bytes.empty() && std::fread(bytes.data(), bytes.size(), 1, file.get()) != 1) break;
    bytes.resize(header.length);
    if (xxh3_64(bytes.data(), bytes.size(), 0) != header.bytes_checksum) break;
    entries.push_back(
        {header.sequence, static_cast<WriteLogKind>(header.kind), header.device, header.offset, std::move(bytes)});
  }
  return entries;
}

}  // namespace gpu4fs::device
