// One thread of a FUSE mount: its session with the engine, its buffers, and the state that all threads share.
//
// A thread's session has a data area in shared memory with this layout (bytes):
//   0    attributes, statfs record, names that must be contiguous (scratch_bytes); the first bytes stay unused, because
//        address 0 in a command means "none"
//   ...  receive buffer: the kernel's request is read directly into it, placed so that the data of a WRITE begins on a
//        page boundary; the engine takes names and data from there
//   ...  reply buffer: the engine puts file data, entries, values here; writev(2) sends them
//   ...  conversion buffer: directory entries in the kernel's form
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/limits.hpp"
#include "base/types.hpp"
#include "client/session.hpp"
#include "frontend/fuse/cached_pages.hpp"
#include "frontend/fuse/fuse_options.hpp"
#include "frontend/fuse/inode_table.hpp"
#include "frontend/fuse/open_files.hpp"
#include "wire/ring_format.hpp"

struct fuse_req;
struct fuse_session;

namespace gpu4fs::frontend {

// For an extended attribute that belongs to the mount (fuse_attributes.cpp).
bool is_server_name(std::string_view name);

// The errno for the kernel; the cause of an EIO is logged.
int answered_errno(Status status);

// For commands whose work grows with a file, or that wait for slow devices: fsync, truncation, freeing, copying.
inline constexpr u32 patient_deadline_ms = 600'000;

inline constexpr u64 fuse_max_write = u64{1} << 20;
// Bytes before a WRITE's data: fuse_in_header and fuse_write_in.
inline constexpr u64 fuse_write_head = 80;
// The size that libfuse 3.14 requests from read(2): 256 pages and a header page. Later versions request no more than
// the size of their buffer.
inline constexpr u64 fuse_receive_bytes = fuse_max_write + 2 * page_size;

inline constexpr u64 area_scratch = 0;
inline constexpr u64 scratch_bytes = 4 * page_size;
inline constexpr u64 area_receive = scratch_bytes + page_size - fuse_write_head;
inline constexpr u64 area_reply = scratch_bytes + 4 * page_size + fuse_max_write;
inline constexpr u64 area_convert = area_reply + fuse_max_write;
inline constexpr u64 fuse_area_bytes = area_convert + fuse_max_write;
static_assert(area_receive + fuse_receive_bytes <= area_reply);

// A server for all threads: gives each one a session.
class SessionSource {
 public:
  virtual ~SessionSource() = default;
  virtual std::unique_ptr<client::Session> open_session(u64 data_bytes) = 0;
  // JSON text about the server, which is read as an extended attribute of the root directory.
  virtual std::string statistics_json() = 0;
  // The path of the server's control socket, "" without one.
  virtual std::string control_path() = 0;
  // The number of times that acknowledged changes could not be made durable; never decreases.
  virtual u64 write_errors() = 0;
};

class FuseWorker;

// The state that all threads share.
struct FuseShared {
  const FuseOptions& options;
  SessionSource& source;
  InodeTable inodes;
  OpenFiles files;
  CachedPages cached = {};
  u64 device_number = 0;                         // st_dev of the mount's files, 0: not known
  bool opens_without_asking = false;             // the kernel can open and close files by itself
  bool lists_without_asking = false;             // ... directories
  bool has_long_setxattr = false;                // SETXATTR comes with flags of its own (FUSE_SETXATTR_EXT)
  std::string init_request = {};                 // the kernel's, for a process that continues this mount
  std::unique_ptr<FuseWorker> flag_setter = {};  // of the thread that drops pages, once it is needed
  std::atomic<u64> orphans_not_freed{0};         // orphan count at the last unsuccessful wait for room
};

// Whether a command that succeeded is made durable before it is answered.
bool waits_for_sync(const FuseOptions& options, wire::Opcode opcode);

class FuseWorker {
 public:
  FuseWorker(FuseShared& shared, std::unique_ptr<client::Session> session)
      : shared_(shared), session_(std::move(session)) {}

  // The worker whose thread this is; set for the thread's life by FuseMount.
  static FuseWorker& current() { return *current_; }
  void make_current() { current_ = this; }

  FuseShared& shared() { return shared_; }
  client::Session& session() { return *session_; }

  const u8* receive_buffer() const { return session_->data() + area_receive; }
  u8* receive_buffer() { return session_->data() + area_receive; }
  u8* reply_buffer() { return session_->data() + area_reply; }
  u8* convert_buffer() { return session_->data() + area_convert; }
  format::AttributeRecord& attributes() { return at<format::AttributeRecord>(128); }
  format::AttributeRecord& attributes_in() { return at<format::AttributeRecord>(256); }
  wire::StatfsRecord& statfs() { return at<wire::StatfsRecord>(384); }
  u8* name_buffer() { return session_->data() + area_scratch + 512; }

  // A command on behalf of the request's user.
  wire::Command command(fuse_req* request, wire::Opcode opcode, u64 inode);

  // Names and data that are already in the data area are used in place; others are copied into it.
  void set_name(wire::Command& command, std::string_view name);
  void set_names(wire::Command& command, std::string_view first, std::string_view second);
  void set_data(wire::Command& command, const void* data, u64 length);
  void want_attributes(wire::Command& command);

  // Submits and waits. Before it answers no_space, it waits for the space of files whose last reference the kernel is
  // just dropping. On a synchronous mount a change is durable before it is answered.
  client::Reply call(const wire::Command& command);
  // Makes everything durable that was answered before.
  Status sync();

  // Open files as the kernel's handles. 0 is the handle of files that are open only for reading or were opened without
  // a request; it is always accepted, and nothing is known of it. `flags` are those of open(2).
  u64 open_file(u64 inode, int flags);
  void close_file(u64 handle);
  void note_change(u64 handle);
  [[nodiscard]] bool take_error(u64 handle);
  // fsync: the answer to give.
  Status sync_file(const wire::Command& command, u64 handle);

  // Frees an orphan that nobody refers to.
  void reclaim(u64 inode);
  void forget(u64 inode, u64 count);
  void orphaned(u64 inode);

  int device = -1;              // this thread's channel to the kernel
  bool answering_init = false;  // the next message is the reply to INIT
  bool answers_nobody = false;  // the requests were already answered by an earlier process

 private:
  client::Reply call_with_room(const wire::Command& command);
  template <class T>
  T& at(u64 offset) {
    return *reinterpret_cast<T*>(session_->data() + area_scratch + offset);
  }
  bool in_data_area(const void* address) const;

  static thread_local FuseWorker* current_;
  FuseShared& shared_;
  std::unique_ptr<client::Session> session_;
};

}  // namespace gpu4fs::frontend
