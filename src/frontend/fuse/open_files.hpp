// Open file descriptions, and which of them have to report an error.
//
// When acknowledged changes could not be made durable, every description of a changed file reports it once: by fsync or
// by close, whichever comes first. Linux' local file systems report it in the same way by fsync (errseq_t). The engine
// counts such failures in a sequence (engine/write_errors.hpp). A file knows whether it changed since it was last made
// durable. When the sequence has grown, a changed file stores the new number as that of its error. A description
// reports if its file's number is greater than the one that it has seen. A description that was opened after the
// failure reports nothing. A change that a regular checkpoint has made durable meanwhile still counts as a change, so a
// file that has lost nothing may report an error; the opposite never happens.
//
// A description costs a lookup when it is opened and a lock of its file at each change; descriptions of one file share
// only its lock. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/types.hpp"
#include "frontend/fuse/saved_mount.hpp"

namespace gpu4fs::frontend {

class OpenFiles {
 public:
  // The description of one open(2).
  struct Description;

  OpenFiles() = default;
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;
  ~OpenFiles();

  // `sequence` is the engine's, here and below; it never decreases. close() ends a description.
  Description* open(u64 inode, u64 sequence);
  void close(Description* description);

  // The file is about to change, or has changed, through this description.
  void changed(Description* description, u64 sequence);
  // Whether an error has to be reported; true only once.
  [[nodiscard]] bool take_error(Description* description, u64 sequence);

  // Around a command that makes the file durable: after a success the file counts as unchanged. True: an error has to
  // be reported, although the command may have succeeded.
  void begin_sync(Description* description, u64 sequence);
  [[nodiscard]] bool end_sync(Description* description, u64 sequence, bool succeeded);

  [[nodiscard]] u64 size() const;  // descriptions

  // The kernel's handle of a description, never 0, and back. Handles from an earlier process of this mount stay valid.
  [[nodiscard]] static u64 handle_of(const Description* description);
  [[nodiscard]] Description* find(u64 handle) const;

  // For a mount that continues in a new process: save() when no description is in use, restore() before any is used.
  // `sequence` is the value that the saved ones had seen.
  [[nodiscard]] std::vector<SavedDescription> save() const;
  void restore(const SavedDescription& saved, u64 sequence);

 private:
  struct File;
  static constexpr unsigned shard_count = 64;
  Description* add(u64 inode, u64 sequence, u64 handle);
  Description* new_description() const;
  static void see(File& file, u64 sequence);

  std::array<std::mutex, shard_count> mutexes_;
  std::array<std::unordered_map<u64, File*>, shard_count> files_;  // by inode; each under its mutex
  std::atomic<u64> size_{0};
  // Descriptions of an earlier process, by their addresses there.
  mutable std::mutex inherited_mutex_;
  std::unordered_map<u64, Description*> inherited_;  // under inherited_mutex_
  std::atomic<u64> inherited_count_{0};
};

}  // namespace gpu4fs::frontend
