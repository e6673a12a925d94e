// Status codes of the engine.
//
// There is one code for each kind of failure, with the errno that a POSIX caller sees and a sentence for users. Inside
// the engine only Status exists. The client edge calls to_errno() once, and the log keeps the code. Add a code at the
// end of its section instead of reusing one with another meaning.
//
// X(name, parent errno, sentence)
#pragma once

#include <cerrno>

#include "base/config.hpp"
#include "base/types.hpp"

#define GPU4FS_STATUS_LIST(X)                                                                        \
  X(ok, 0, "Success.")                                                                               \
  /* control: the command is not finished and nothing went wrong; see is_control() */                \
  X(waits_for_lock, EINPROGRESS, "The command waits for a lock.")                                    \
  X(waits_for_gate, EINPROGRESS, "The command waits until a gate opens.")                            \
  X(waits_for_drain, EINPROGRESS, "The command waits until a gate is empty.")                        \
  X(waits_for_epoch, EINPROGRESS, "The command waits for a checkpoint.")                             \
  X(waits_for_log, EINPROGRESS, "The command waits for the writer of the log.")                      \
  X(waits_for_answer, EINPROGRESS, "The command waits for an answer of the server.")                 \
  X(waits_for_io, EINPROGRESS, "The command waits for pages of devices.")                            \
  X(waits_for_media, EINPROGRESS, "The command waits until fewer pages are being written.")          \
  X(again, EAGAIN, "The step runs again soon.")                                                      \
  X(retry_after_checkpoint, EAGAIN, "The command must be restarted after a checkpoint.")             \
  X(chunk_not_mapped, EAGAIN, "The engine cannot reach the chunk's memory yet; the server maps it.") \
  X(needs_new_chunk, EAGAIN, "The command needs a new chunk; the server makes one.")                 \
  /* names and files */                                                                              \
  X(not_found, ENOENT, "No such file or directory.")                                                 \
  X(exists, EEXIST, "The name exists already.")                                                      \
  X(not_directory, ENOTDIR, "A component of the path is not a directory.")                           \
  X(is_directory, EISDIR, "The file is a directory.")                                                \
  X(directory_not_empty, ENOTEMPTY, "The directory is not empty.")                                   \
  X(name_too_long, ENAMETOOLONG, "The name or path is too long.")                                    \
  X(loop, ELOOP, "Too many symbolic links.")                                                         \
  X(too_many_links, EMLINK, "The file has too many links.")                                          \
  X(file_too_large, EFBIG, "The file would become too large.")                                       \
  X(stale, ESTALE, "The handle's file no longer exists.")                                            \
  X(no_attribute, ENODATA, "No such extended attribute.")                                            \
  X(attribute_range, ERANGE, "The buffer is too small for the attribute.")                           \
  X(attribute_too_big, E2BIG, "The attribute or list is too big.")                                   \
  X(not_a_symlink, EINVAL, "The file is not a symbolic link.")                                       \
  X(would_orphan, EINVAL, "A directory cannot be moved below itself.")                               \
  X(no_such_data, ENXIO, "No data or hole beyond this offset.")                                      \
  X(page_absent, ENODATA, "The metadata page is a hole of its file.")                                \
  /* rights and limits */                                                                            \
  X(permission, EPERM, "Operation not permitted.")                                                   \
  X(access, EACCES, "Permission denied.")                                                            \
  X(read_only, EROFS, "The file system is mounted read-only.")                                       \
  X(no_space, ENOSPC, "No space left in the pool.")                                                  \
  X(no_inodes, ENOSPC, "No inode number left.")                                                      \
  X(no_memory, ENOMEM, "Not enough engine memory.")                                                  \
  X(too_many_sessions, EUSERS, "The table of sessions is full.")                                     \
  X(ring_full, EAGAIN, "No room in the ring; try again.")                                            \
  X(busy, EBUSY, "The object is in use.")                                                            \
  X(deadline_exceeded, ETIMEDOUT, "The command did not finish before its deadline.")                 \
  X(cancelled, ECANCELED, "The command was cancelled.")                                              \
  /* arguments */                                                                                    \
  X(invalid_argument, EINVAL, "Invalid argument.")                                                   \
  X(bad_descriptor, EINVAL, "The command descriptor is malformed.")                                  \
  X(bad_address, EFAULT, "The buffer lies outside the session's data area.")                         \
  X(out_of_range, EINVAL, "The offset or length is out of range.")                                   \
  X(unaligned, EINVAL, "The offset, length or address is not aligned.")                              \
  X(not_supported, EOPNOTSUPP, "The operation is not supported.")                                    \
  X(unknown_command, ENOSYS, "The command type is unknown.")                                         \
  /* medium */                                                                                       \
  X(io_error, EIO, "Input or output error.")                                                         \
  X(device_failed, EIO, "A device failed and redundancy does not cover it.")                         \
  X(medium_error, EIO, "The device cannot read this range.")                                         \
  X(checksum_mismatch, EIO, "The checksum does not match and no copy is good.")                      \
  X(corrupt_structure, EIO, "A structure on the medium is damaged.")                                 \
  X(corrupt_superblock, EIO, "No valid superblock of this pool.")                                    \
  X(corrupt_log, EIO, "The operation log is damaged before its end.")                                \
  X(no_device, ENXIO, "A device of the pool is missing.")                                            \
  X(unsupported_feature, ENOTSUP, "The pool uses a feature this version does not know.")             \
  X(wrong_pool, EINVAL, "The device belongs to another pool.")                                       \
  X(wrong_version, EINVAL, "The structure's version is unknown.")                                    \
  X(not_a_pool, EINVAL, "The device holds no gpu4fs pool.")                                          \
  X(already_mounted, EBUSY, "The pool is mounted already.")                                          \
  /* the engine itself */                                                                            \
  X(engine_died, EIO, "The engine died; the pool recovers from the medium.")                         \
  X(engine_stopped, ESHUTDOWN, "The engine is shutting down.")                                       \
  X(upcall_failed, EIO, "The management process could not carry out a request.")                     \
  X(gpu_error, EIO, "The GPU or its driver reported an error.")

namespace gpu4fs {

// The ring carries the value, so the order of the list belongs to the wire's version (docs/wire.md). Logs and
// messages carry names.
enum class [[nodiscard]] Status : u32{
#define GPU4FS_STATUS_ENUM(name, parent, sentence) name,
    GPU4FS_STATUS_LIST(GPU4FS_STATUS_ENUM)
#undef GPU4FS_STATUS_ENUM
};

#define GPU4FS_STATUS_COUNT(name, parent, sentence) +1
inline constexpr u32 status_count = 0 GPU4FS_STATUS_LIST(GPU4FS_STATUS_COUNT);
#undef GPU4FS_STATUS_COUNT

// True for the codes that mean "not finished". A step of the engine ends with them (engine/command_types.hpp); no
// client ever sees one.
GPU4FS_FN constexpr bool is_control(Status status) {
  return status >= Status::waits_for_lock && status <= Status::needs_new_chunk;
}

// True for the control codes of a command that is in the list of what it waits for. The step runs again when the
// command is woken, and finds everything that the command holds.
GPU4FS_FN constexpr bool is_wait(Status status) {
  return status >= Status::waits_for_lock && status <= Status::waits_for_media;
}

// The positive errno of a status, 0 for ok, EIO for a value that is not a status.
GPU4FS_FN constexpr i32 to_errno(Status status) {
  switch (status) {
#define GPU4FS_STATUS_ERRNO(name, parent, sentence) \
  case Status::name:                                \
    return parent;
    GPU4FS_STATUS_LIST(GPU4FS_STATUS_ERRNO)
#undef GPU4FS_STATUS_ERRNO
  }
  return EIO;
}

// The identifier ("not_found") and the sentence; "unknown" for a value that is not a status. The strings are static.
// Usable in device code, where they cost constant memory only if used.
GPU4FS_FN constexpr const char* status_name(Status status) {
  switch (status) {
#define GPU4FS_STATUS_NAME(name, parent, sentence) \
  case Status::name:                               \
    return #name;
    GPU4FS_STATUS_LIST(GPU4FS_STATUS_NAME)
#undef GPU4FS_STATUS_NAME
  }
  return "unknown";
}

GPU4FS_FN constexpr const char* status_text(Status status) {
  switch (status) {
#define GPU4FS_STATUS_TEXT(name, parent, sentence) \
  case Status::name:                               \
    return sentence;
    GPU4FS_STATUS_LIST(GPU4FS_STATUS_TEXT)
#undef GPU4FS_STATUS_TEXT
  }
  return "Unknown status.";
}

}  // namespace gpu4fs

// Returns from the enclosing function with any status that is not ok. The counter gives the variable of a nested use
// (in a lambda) another name.
#define GPU4FS_TRY(...) GPU4FS_TRY_EXPAND(__COUNTER__, __VA_ARGS__)
#define GPU4FS_TRY_EXPAND(unique, ...) GPU4FS_TRY_NAMED(unique, __VA_ARGS__)
#define GPU4FS_TRY_NAMED(unique, ...)                           \
  do {                                                          \
    const ::gpu4fs::Status gpu4fs_try_##unique = (__VA_ARGS__); \
    if (gpu4fs_try_##unique != ::gpu4fs::Status::ok) {          \
      return gpu4fs_try_##unique;                               \
    }                                                           \
  } while (false)
