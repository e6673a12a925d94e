// Requests and capabilities that libfuse 3.14 does not know, handled on the raw messages. Private to this folder, and
// separate from fuse_operations.hpp because the headers of the kernel and of libfuse are hard to combine.
#pragma once

#include "frontend/fuse/fuse_worker.hpp"

namespace gpu4fs::frontend {

// True: `message` was such a request, and it was answered.
bool answer_raw_request(FuseWorker& worker, const void* message, u64 length);

[[nodiscard]] bool is_init_request(const void* message, u64 length);

// `init_request` is the kernel's INIT as received.
[[nodiscard]] bool offers_long_setxattr(const std::string& init_request);

// For a READ or WRITE: it bypasses the kernel's page cache.
[[nodiscard]] bool is_past_cache(const void* message);
[[nodiscard]] u64 unique_of(const void* message);

// Answers a WRITE.
void answer_write(int device, u64 unique, u32 length);

// Answers an IOCTL without data; `error` 0: it succeeded.
void answer_ioctl(int device, u64 unique, int error);

// For a WRITE or SETATTR: the caller's change of content removes the file's set-id bits.
[[nodiscard]] bool takes_set_id_bits(const void* message);

// Tell the kernel that its cache of an inode, or of all names, may be outdated. With pages it waits for running
// requests, so another thread must answer them. False: the kernel does not know the inode or is too old for the
// message.
bool notify_attributes_changed(int device, u64 inode);
bool notify_pages_changed(int device, u64 inode, u64 offset, u64 length);
[[nodiscard]] bool notify_names_changed(int device);

// `reply` is the body of libfuse's answer to INIT. Adds HANDLE_KILLPRIV_V2 if the kernel offers it (the engine clears
// set-id bits and security.capability itself when a file changes), and SETXATTR_EXT. With the option direct_io it also
// allows shared mappings of files, with idmap it allows an idmapped mount.
void extend_init_reply(const void* request, void* reply, u64 reply_length, const FuseOptions& options);

}  // namespace gpu4fs::frontend
