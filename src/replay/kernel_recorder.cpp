#include "replay/kernel_recorder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace gpu4fs::replay {

namespace {

// Of each processor; for about a hundred thousand requests between two calls of copy_to().
constexpr const char* buffer_kibibytes = "8192";
constexpr unsigned kernel_minor_bits = 20;  // MKDEV() of the kernel

[[noreturn]] void fail(const std::string& path, const std::string& what, int error_number) {
  std::string text = path + ": " + what + ": " + std::strerror(error_number);
  if (error_number == EACCES || error_number == EPERM) text += " (only the superuser can record)";
  throw TraceError(text);
}

// A file of tracefs takes a text with one call.
void put(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail(path, "cannot be opened", errno);
  const ssize_t written = ::write(fd, text.data(), text.size());
  const int error_number = errno;
  ::close(fd);
  if (written != static_cast<ssize_t>(text.size())) fail(path, "does not take '" + text + "'", error_number);
}

u64 number_in(const std::filesystem::path& path) {
  u64 number = 0;
  std::ifstream(path) >> number;
  return number;
}

}  // namespace

std::string tracing_folder() {
  for (const char* folder : {"/sys/kernel/tracing", "/sys/kernel/debug/tracing"}) {
    struct stat facts {};
    const std::string instances = std::string(folder) + "/instances";
    if (::stat(instances.c_str(), &facts) == 0) return folder;
    if (errno != ENOENT) fail(instances, "cannot be reached", errno);
  }
  throw TraceError("the kernel's tracing is not mounted: mount -t tracefs tracefs /sys/kernel/tracing");
}

RequestSelection requests_to(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) fail(path, "cannot be found", errno);
  if (!S_ISBLK(facts.st_mode)) throw TraceError(path + ": is no block device");
  const unsigned major = ::gnu_dev_major(facts.st_rdev);
  const unsigned minor = ::gnu_dev_minor(facts.st_rdev);
  const auto is_device = [](unsigned a, unsigned b) {
    return "dev == " + std::to_string((u64{a} << kernel_minor_bits) | b);
  };
  std::filesystem::path folder = "/sys/dev/block/" + std::to_string(major) + ":" + std::to_string(minor);
  std::string filter = is_device(major, minor);
  // The requests to a partition are those to its part of the disk, with the disk's sectors.
  if (std::filesystem::exists(folder / "partition")) {
    const u64 first = number_in(folder / "start");
    const u64 end = first + number_in(folder / "size");
    folder = std::filesystem::canonical(folder).parent_path();
    unsigned disk_major = 0, disk_minor = 0;
    char colon = 0;
    std::ifstream disk(folder / "dev");
    if (!(disk >> disk_major >> colon >> disk_minor)) throw TraceError(path + ": its disk is not known");
    filter = "(" + filter + " || " + is_device(disk_major, disk_minor) +
             ") && (nr_sector == 0 || (sector >= " + std::to_string(first) + " && sector < " + std::to_string(end) +
             "))";
  }
  const bool has_requests = std::filesystem::exists(folder / "mq");
  return {has_requests ? "block_rq_issue" : "block_bio_queue", filter};
}

KernelRecorder::KernelRecorder(const std::string& folder, const std::string& name, const RequestSelection& requests)
    : instance_(folder + "/instances/" + name), event_(instance_ + "/events/block/" + requests.event) {
  if (::mkdir(instance_.c_str(), 0700) != 0) fail(instance_, "cannot be created", errno);
  try {
    prepare(requests.filter);
  } catch (const TraceError&) {
    if (pipe_ >= 0) ::close(pipe_);
    ::rmdir(instance_.c_str());
    throw;
  }
}

void KernelRecorder::prepare(const std::string& filter) {
  put(instance_ + "/buffer_size_kb", buffer_kibibytes);
  put(instance_ + "/trace_clock", "mono");  // as in the traces of gpu4fs
  put(event_ + "/filter", filter);
  const std::string pipe = instance_ + "/trace_pipe";
  pipe_ = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (pipe_ < 0) fail(pipe, "cannot be opened", errno);
  put(event_ + "/enable", "1");
}

KernelRecorder::~KernelRecorder() {
  ::close(pipe_);
  // Its events end with it.
  ::rmdir(instance_.c_str());
}

u64 KernelRecorder::copy_to(std::FILE* file) {
  char text[64 << 10];
  u64 sum = 0;
  for (;;) {
    const ssize_t count = ::read(pipe_, text, sizeof(text));
    if (count == 0 || (count < 0 && errno == EAGAIN)) return sum;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(instance_ + "/trace_pipe", "cannot be read", errno);
    if (std::fwrite(text, 1, static_cast<std::size_t>(count), file) != static_cast<std::size_t>(count)) {
      throw TraceError(std::string("the trace cannot be written: ") + std::strerror(errno));
    }
    sum += static_cast<u64>(count);
  }
}

void KernelRecorder::stop() {
  put(event_ + "/enable", "0");
}

}  // namespace gpu4fs::replay
