#include "block/uring.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"

namespace gpu4fs::block {
namespace {

// The kernel's limit of one registered buffer.
constexpr u64 buffer_bytes_max = u64{1} << 30;

std::string refusal_text(int error) {
  switch (error) {
    case ENOSYS:
      return "io_uring: the kernel has none";
    case EPERM:
    case EACCES:
      return "io_uring is not allowed here: by the sysctl kernel.io_uring_disabled or by a seccomp filter, as in "
             "containers";
    case ENOMEM:
      return "io_uring: not enough memory that may be locked (ulimit -l)";
    default:
      return std::string("io_uring: ") + std::strerror(error);
  }
}

}  // namespace

Uring::Uring(u32 entry_count, const std::vector<MemoryRange>& memory, const std::vector<int>& files) {
  open(entry_count);
  register_memory(memory);
  register_files(files);
}

// The kernel takes a ring apart later. Until then it would hold the files with their locks, and the memory.
Uring::~Uring() {
  if (!files_.empty()) ::io_uring_unregister_files(&ring_);
  if (!buffers_.empty()) ::io_uring_unregister_buffers(&ring_);
  ::io_uring_queue_exit(&ring_);
}

// The flags save interrupts of the thread: completions are handled when it asks for them. Kernels before 6.1 know
// fewer of them.
void Uring::open(u32 entry_count) {
  int result = -EINVAL;
  for (const u32 flags : {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0u}) {
    result = ::io_uring_queue_init(entry_count, &ring_, flags);
    if (result != -EINVAL) break;
  }
  if (result != 0) throw DeviceError(refusal_text(-result), -result);
}

void Uring::register_memory(const std::vector<MemoryRange>& memory) {
  for (const MemoryRange& range : memory) {
    for (u64 done = 0; done < range.length; done += buffer_bytes_max) {
      buffers_.push_back({static_cast<u8*>(range.begin) + done, std::min(buffer_bytes_max, range.length - done)});
    }
  }
  if (buffers_.empty()) return;
  std::sort(buffers_.begin(), buffers_.end(), [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
  const int result = ::io_uring_register_buffers(&ring_, buffers_.data(), static_cast<u32>(buffers_.size()));
  if (result == 0) return;
  buffers_.clear();
  remarks_ += std::string("; memory is not registered: ") + std::strerror(-result);
  if (result == -ENOMEM) remarks_ += ", see ulimit -l";
}

void Uring::register_files(const std::vector<int>& files) {
  if (files.empty()) return;
  const int result = ::io_uring_register_files(&ring_, files.data(), static_cast<u32>(files.size()));
  if (result == 0) {
    files_ = files;
  } else {
    remarks_ += std::string("; files are not registered: ") + std::strerror(-result);
  }
}

bool Uring::unregister_file(u32 device) {
  if (device >= files_.size() || files_[device] < 0) return true;
  const int none = -1;
  // Another file may get the same descriptor, so the number is forgotten in any case.
  files_[device] = none;
  return ::io_uring_register_files_update(&ring_, device, &none, 1) == 1;
}

io_uring_sqe* Uring::next_entry() {
  io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
  GPU4FS_CHECK(entry != nullptr);
  return entry;
}

int Uring::buffer_of(const void* begin, u64 length) const {
  const auto after = std::upper_bound(buffers_.begin(), buffers_.end(), begin,
                                      [](const void* address, const iovec& b) { return address < b.iov_base; });
  if (after == buffers_.begin()) return -1;
  const iovec& buffer = *(after - 1);
  const u64 offset = static_cast<u64>(static_cast<const u8*>(begin) - static_cast<const u8*>(buffer.iov_base));
  if (offset > buffer.iov_len || length > buffer.iov_len - offset) return -1;
  return static_cast<int>(after - 1 - buffers_.begin());
}

void Uring::set_file(io_uring_sqe* entry, u32 device, int descriptor) const {
  if (device < files_.size() && files_[device] == descriptor) {
    entry->fd = static_cast<int>(device);
    entry->flags |= IOSQE_FIXED_FILE;
  } else {
    entry->fd = descriptor;
  }
}

}  // namespace gpu4fs::block
