#include "frontend/fuse/fuse_mount.hpp"

#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "fmt/format.h"
#include "frontend/fuse/fuse_operations.hpp"
#include "frontend/fuse/fuse_raw.hpp"

namespace gpu4fs::frontend {
namespace {

constexpr int interrupt_signal = SIGUSR1;

// libfuse reads and writes with these functions, so each thread uses its own channel.
ssize_t read_request(int, void* buffer, size_t length, void*) {
  return ::read(FuseWorker::current().device, buffer, length);
}

// libfuse requests at most 128 KiB of read-ahead from the kernel; here root may request more, once INIT is answered.
// The directory is not accessed: an access keeps the mount busy for a moment, and a umount(2) at that time fails with
// EBUSY.
void set_readahead(const FuseShared& shared) {
  if (shared.device_number == 0) return;
  std::ofstream file(
      fmt::format("/sys/class/bdi/{}:{}/read_ahead_kb", major(shared.device_number), minor(shared.device_number)));
  if (file) file << shared.options.readahead_kib;
}

size_t length_of(const iovec* parts, int count) {
  size_t length = 0;
  for (int i = 0; i < count; ++i) length += parts[i].iov_len;
  return length;
}

ssize_t write_reply(int, iovec* parts, int count, void*) {
  FuseWorker& worker = FuseWorker::current();
  if (worker.answers_nobody) return static_cast<ssize_t>(length_of(parts, count));
  if (!worker.answering_init || count < 2) return ::writev(worker.device, parts, count);
  worker.answering_init = false;
  extend_init_reply(worker.receive_buffer(), parts[1].iov_base, parts[1].iov_len, worker.shared().options);
  const ssize_t written = ::writev(worker.device, parts, count);
  set_readahead(worker.shared());
  return written;
}

constexpr fuse_custom_io channel_io = {write_reply, read_request, nullptr, nullptr};

void init(void* user, fuse_conn_info* connection) {
  auto& shared = *static_cast<FuseShared*>(user);
  const FuseOptions& options = shared.options;
  constexpr unsigned always = FUSE_CAP_ASYNC_READ | FUSE_CAP_DONT_MASK | FUSE_CAP_READDIRPLUS |
                              FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS |
                              FUSE_CAP_POSIX_ACL | FUSE_CAP_CACHE_SYMLINKS | FUSE_CAP_NO_OPENDIR_SUPPORT |
                              FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_IOCTL_DIR;
  unsigned wanted = always;
  if (options.writeback) wanted |= FUSE_CAP_WRITEBACK_CACHE;
  if (options.fast_close && !options.direct_io) wanted |= FUSE_CAP_NO_OPEN_SUPPORT;
  connection->want = wanted & connection->capable;
  shared.opens_without_asking = (connection->want & FUSE_CAP_NO_OPEN_SUPPORT) != 0;
  shared.lists_without_asking = (connection->want & FUSE_CAP_NO_OPENDIR_SUPPORT) != 0;
  shared.has_long_setxattr = offers_long_setxattr(shared.init_request);
  connection->max_write = fuse_max_write;
  connection->max_background = 64;
  connection->congestion_threshold = 48;
  connection->time_gran = 1;
  FuseWorker::current().answering_init = true;
}

fuse_lowlevel_ops make_operations() {
  fuse_lowlevel_ops operations{};
  operations.init = init;
  add_name_operations(operations);
  add_file_operations(operations);
  add_directory_operations(operations);
  add_attribute_operations(operations);
  add_control_operations(operations);
  return operations;
}

unsigned default_threads() {
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  // A thread waits during its fsync, so there are more threads than processors.
  return std::clamp(2 * processors, 8u, 32u);
}

// The form that libfuse needs in a list of options.
std::string escape_option(const std::string& text) {
  std::string escaped;
  for (const char character : text) {
    if (character == ',' || character == '\\') escaped += '\\';
    escaped += character;
  }
  return escaped;
}

fuse_session* new_session(const FuseOptions& options, FuseShared& shared) {
  std::string kernel_options = "default_permissions,subtype=gpu4fs,fsname=" + escape_option(options.source);
  if (options.allow_other) kernel_options += ",allow_other";
  if (options.read_only) kernel_options += ",ro";
  for (const std::string& flag : options.kernel_flags) kernel_options += "," + flag;
  std::vector<std::string> words = {"gpu4fs", "-o", kernel_options};
  if (options.debug) words.emplace_back("-d");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  fuse_args arguments = FUSE_ARGS_INIT(static_cast<int>(pointers.size()), pointers.data());
  const fuse_lowlevel_ops operations = make_operations();
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof(operations), &shared);
  fuse_opt_free_args(&arguments);
  return session;
}

}  // namespace

FuseMount::FuseMount(FuseOptions options, SessionSource& source)
    : options_(std::move(options)),
      shared_{.options = options_, .source = source, .inodes = {}, .files = {}},
      thread_count_(options_.threads != 0 ? options_.threads : default_threads()) {}

FuseMount::~FuseMount() {
  workers_.clear();
  shared_.flag_setter.reset();
  if (fuse_ == nullptr) return;
  if (mounted_) unmount();
  fuse_session_destroy(fuse_);
}

void FuseMount::open_sessions() {
  for (unsigned i = 0; i < thread_count_; ++i) {
    workers_.push_back(std::make_unique<FuseWorker>(shared_, shared_.source.open_session(fuse_area_bytes)));
  }
}

void FuseMount::mount() {
  open_sessions();
  open_channel(options_.mountpoint);
}

// `place`: the directory, or "/dev/fd/N" for an open channel.
void FuseMount::open_channel(const std::string& place) {
  fuse_ = new_session(options_, shared_);
  if (fuse_ == nullptr) throw FuseError("the mount options were refused by libfuse");
  if (fuse_session_mount(fuse_, place.c_str()) != 0) {
    throw FuseError(fmt::format("cannot mount on '{}'", options_.mountpoint));
  }
  mounted_ = true;
  own_.emplace(options_.mountpoint);
  shared_.device_number = own_->device_number();
  if (fuse_session_custom_io(fuse_, &channel_io, fuse_session_fd(fuse_)) != 0) {
    throw FuseError("libfuse refused the channel");
  }
}

int FuseMount::clone_device() const {
  const int clone = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  auto original = static_cast<u32>(fuse_session_fd(fuse_));
  if (clone >= 0 && ::ioctl(clone, FUSE_DEV_IOC_CLONE, &original) == 0) return clone;
  if (clone >= 0) ::close(clone);
  return ::dup(fuse_session_fd(fuse_));
}

// The kernel waits for answers while it is being notified, so it gets them until this has ended, even from a dead
// engine.
bool FuseMount::must_answer() const {
  return telling_ || shared_.cached.is_busy();
}

void FuseMount::serve(FuseWorker& worker) {
  worker.make_current();
  fuse_buf request{};
  while ((!stopping_ || must_answer()) && fuse_session_exited(fuse_) == 0) {
    request = {};
    request.mem = worker.receive_buffer();
    const int length = fuse_session_receive_buf(fuse_, &request);
    if (length == -EINTR || length == -EAGAIN) continue;
    if (length <= 0) break;
    if (is_init_request(request.mem, static_cast<u64>(length))) {
      shared_.init_request.assign(static_cast<const char*>(request.mem), static_cast<size_t>(length));
    }
    if (!answer_raw_request(worker, request.mem, static_cast<u64>(length))) {
      fuse_session_process_buf(fuse_, &request);
    }
  }
  const std::lock_guard guard(mutex_);
  --serving_;
  changed_.notify_all();
}

FuseMount::RunEnd FuseMount::run() {
  std::thread teller;
  if (is_resumed_) {
    telling_ = true;
    teller = std::thread([this] {
      tell_kernel();
      const std::lock_guard guard(mutex_);
      telling_ = false;
      changed_.notify_all();
    });
  }
  serve_all();
  if (teller.joinable()) teller.join();
  // It is still mounted: a destructor that runs would unmount it.
  if (suspending_ && !unmounting_ && fuse_session_exited(fuse_) == 0) return RunEnd::suspended;
  // Closing the last channel ends all requests of the kernel that are still waiting.
  unmount();
  mounted_ = false;
  for (const u64 inode : shared_.inodes.take_orphans()) workers_[0]->reclaim(inode);
  return RunEnd::unmounted;
}

void FuseMount::serve_all() {
  struct sigaction action {};
  action.sa_handler = [](int) {};  // only to end a read(2)
  ::sigaction(interrupt_signal, &action, nullptr);
  std::vector<std::thread> threads;
  serving_ = thread_count_;
  workers_[0]->device = fuse_session_fd(fuse_);
  shared_.cached.start([this] {
    const std::lock_guard guard(mutex_);
    changed_.notify_all();
  });
  for (unsigned i = 0; i < thread_count_; ++i) {
    if (i != 0) workers_[i]->device = clone_device();
    threads.emplace_back([this, i] { serve(*workers_[i]); });
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return serving_ == 0 || (stopping_ && !must_answer()); });
    // The signal can arrive just before a read(2) begins, so it is repeated.
    while (!changed_.wait_for(lock, std::chrono::milliseconds(5), [this] { return serving_ == 0; })) {
      for (std::thread& thread : threads) ::pthread_kill(thread.native_handle(), interrupt_signal);
    }
  }
  for (std::thread& thread : threads) thread.join();
  shared_.cached.stop();
  for (unsigned i = 1; i < thread_count_; ++i) ::close(workers_[i]->device);
}

void FuseMount::suspend() {
  const std::lock_guard guard(mutex_);
  suspending_ = true;
  stopping_ = true;
  changed_.notify_all();
}

void FuseMount::stop() {
  {
    // If the engine dies below, the mount ends nevertheless, and with it everything that waits for the engine here.
    const std::lock_guard guard(mutex_);
    unmounting_ = true;
  }
  // Pages of shared mappings are written while a thread can still receive them.
  const int directory = ::open(options_.mountpoint.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::syncfs(directory);
    ::close(directory);
  }
  const std::lock_guard guard(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

}  // namespace gpu4fs::frontend
