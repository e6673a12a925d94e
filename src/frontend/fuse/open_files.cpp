#include "frontend/fuse/open_files.hpp"

#include <unordered_set>

#include "base/check.hpp"

namespace gpu4fs::frontend {

struct OpenFiles::File {
  u64 inode;
  std::unordered_set<Description*> users;  // under the shard's mutex
  std::mutex mutex;                        // of what follows
  u64 seen = 0;                            // the engine's sequence
  u64 error = 0;                           // its number when this file's changes were lost last
  bool is_changed = false;
  bool is_syncing = false;                 // changes up to begin_sync() may become durable
  bool changed_before_sync = false;
};

struct OpenFiles::Description {
  File* file;
  u64 reported;  // error number, under the file's mutex
};

OpenFiles::~OpenFiles() {
  // The kernel is gone without having closed them.
  for (auto& files : files_) {
    for (const auto& [inode, file] : files) {
      for (const Description* description : file->users) delete description;
      delete file;
    }
  }
}

OpenFiles::Description* OpenFiles::open(u64 inode, u64 sequence) {
  const unsigned shard = inode % shard_count;
  auto* const description = new Description{};
  File* file = nullptr;
  {
    const std::lock_guard guard(mutexes_[shard]);
    File*& place = files_[shard][inode];
    if (place == nullptr) {
      place = new File{};
      place->inode = inode;
      place->seen = sequence;
    }
    file = place;
    file->users.insert(description);
  }
  const std::lock_guard guard(file->mutex);
  see(*file, sequence);
  size_.fetch_add(1);
  *description = {file, file->error};
  return description;
}

void OpenFiles::close(Description* description) {
  File* file = description->file;
  const unsigned shard = file->inode % shard_count;
  const std::lock_guard guard(mutexes_[shard]);
  GPU4FS_CHECK_EQ(file->users.erase(description), std::size_t{1});
  delete description;
  size_.fetch_sub(1);
  if (!file->users.empty()) return;
  files_[shard].erase(file->inode);
  delete file;
}

// Under the file's mutex.
void OpenFiles::see(File& file, u64 sequence) {
  if (sequence <= file.seen) return;
  file.seen = sequence;
  if (!file.is_changed && !file.changed_before_sync) return;
  file.error = sequence;
  file.is_changed = false;
  file.changed_before_sync = false;
}

void OpenFiles::changed(Description* description, u64 sequence) {
  File& file = *description->file;
  const std::lock_guard guard(file.mutex);
  see(file, sequence);
  file.is_changed = true;
}

bool OpenFiles::take_error(Description* description, u64 sequence) {
  File& file = *description->file;
  const std::lock_guard guard(file.mutex);
  see(file, sequence);
  if (file.error <= description->reported) return false;
  description->reported = file.error;
  return true;
}

void OpenFiles::begin_sync(Description* description, u64 sequence) {
  File& file = *description->file;
  const std::lock_guard guard(file.mutex);
  see(file, sequence);
  // Another thread's sync may be under way; then nobody's success is taken for all changes.
  if (file.is_syncing) return;
  file.is_syncing = true;
  file.changed_before_sync = file.is_changed;
  file.is_changed = false;
}

bool OpenFiles::end_sync(Description* description, u64 sequence, bool succeeded) {
  File& file = *description->file;
  const std::lock_guard guard(file.mutex);
  if (!succeeded) file.is_changed = file.is_changed || file.changed_before_sync;
  if (succeeded) file.changed_before_sync = false;
  see(file, sequence);
  file.changed_before_sync = false;
  file.is_syncing = false;
  if (file.error <= description->reported) return false;
  description->reported = file.error;
  return true;
}

u64 OpenFiles::size() const { return size_.load(); }

}  // namespace gpu4fs::frontend
