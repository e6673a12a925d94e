// Requests and capabilities that libfuse 3.14 does not know, handled on the raw messages. Private to this
// folder, and apart from fuse_operations.hpp because the kernel's header and libfuse's do not mix well.
#pragma once

#include "frontend/fuse/fuse_worker.hpp"

namespace gpu4fs::frontend {

// True: `message` was such a request, and it was answered.
bool answer_raw_request(FuseWorker& worker, const void* message, u64 length);

[[nodiscard]] bool is_init_request(const void* message, u64 length);

// `init_request` is the kernel's INIT as received.
[[nodiscard]] bool offers_long_setxattr(const std::string& init_request);

// Of a READ or WRITE: it goes past the kernel's page cache.
[[nodiscard]] bool is_past_cache(const void* message);
[[nodiscard]] u64 unique_of(const void* message);

// Answers a WRITE.
void answer_write(int device, u64 unique, u32 length);

// Answers an IOCTL without data; `error` 0: it was carried out.
void answer_ioctl(int device, u64 unique, int error);

// Of a WRITE or SETATTR: the caller's change of content takes the file's set-id bits away.
[[nodiscard]] bool takes_set_id_bits(const void* message);

// Tell the kernel that what it has cached of an inode, or all names, may not be true any more. With pages it waits for
// requests under way, so some thread must be answering then. False: it does not know the inode; or is too old for the
// message.
bool notify_attributes_changed(int device, u64 inode);
bool notify_pages_changed(int device, u64 inode, u64 offset, u64 length);
[[nodiscard]] bool notify_names_changed(int device);

// `reply` is the body of libfuse's answer to INIT. Adds HANDLE_KILLPRIV_V2 if the kernel offers it: the
// engine clears set-id bits and security.capability itself when a file changes; and SETXATTR_EXT. With the option
// direct_io also that files may be mapped shared nevertheless, with idmap that the mount may be idmapped.
void extend_init_reply(const void* request, void* reply, u64 reply_length, const FuseOptions& options);

}  // namespace gpu4fs::frontend
