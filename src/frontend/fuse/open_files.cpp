#include "frontend/fuse/open_files.hpp"

#include <memory>
#include <unordered_set>
#include <utility>

#include "base/check.hpp"
#include "base/mutant.hpp"

namespace gpu4fs::frontend {

struct OpenFiles::File {
  u64 inode;
  std::unordered_set<Description*> users;  // under the shard's mutex
  std::mutex mutex;                        // protects everything below
  u64 seen = 0;                            // the engine's sequence
  u64 error = 0;                           // the sequence when changes of this file were last lost
  bool is_changed = false;
  bool is_syncing = false;  // changes up to begin_sync() may become durable
  bool changed_before_sync = false;
};

struct OpenFiles::Description {
  File* file;
  u64 reported;   // error number, under the file's mutex
  u64 inherited;  // handle of an earlier process, 0: none
};

OpenFiles::~OpenFiles() {
  // The kernel has ended the mount without closing them.
  for (auto& files : files_) {
    for (const auto& [inode, file] : files) {
      for (const Description* description : file->users) delete description;
      delete file;
    }
  }
}

// Its address must not be equal to the handle of another description.
OpenFiles::Description* OpenFiles::new_description() const {
  std::vector<std::unique_ptr<Description>> taken;
  for (;;) {
    auto description = std::make_unique<Description>();
    if (inherited_count_.load() == 0) return description.release();
    const std::lock_guard guard(inherited_mutex_);
    if (!inherited_.contains(handle_of(description.get()))) return description.release();
    taken.push_back(std::move(description));
  }
}

OpenFiles::Description* OpenFiles::open(u64 inode, u64 sequence) {
  return add(inode, sequence, 0);
}

OpenFiles::Description* OpenFiles::add(u64 inode, u64 sequence, u64 handle) {
  const unsigned shard = inode % shard_count;
  auto* const description = new_description();
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
  *description = {file, file->error, handle};
  return description;
}

void OpenFiles::close(Description* description) {
  File* file = description->file;
  const unsigned shard = file->inode % shard_count;
  const std::lock_guard guard(mutexes_[shard]);
  GPU4FS_CHECK_EQ(file->users.erase(description), std::size_t{1});
  if (description->inherited != 0) {
    const std::lock_guard inherited_guard(inherited_mutex_);
    inherited_.erase(description->inherited);
    inherited_count_.fetch_sub(1);
  }
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
  file.error = GPU4FS_MUTANT(write_error_forgotten, sequence, file.error);
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
  // Another thread's sync may be running; then no success counts for all changes.
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

u64 OpenFiles::handle_of(const Description* description) {
  return reinterpret_cast<u64>(description);
}

OpenFiles::Description* OpenFiles::find(u64 handle) const {
  if (inherited_count_.load(std::memory_order_relaxed) != 0) {
    const std::lock_guard guard(inherited_mutex_);
    const auto found = inherited_.find(handle);
    if (found != inherited_.end()) return found->second;
  }
  return reinterpret_cast<Description*>(handle);
}

std::vector<SavedDescription> OpenFiles::save() const {
  std::vector<SavedDescription> saved;
  for (const auto& files : files_) {
    for (const auto& [inode, file] : files) {
      for (const Description* description : file->users) {
        const u64 handle = description->inherited != 0 ? description->inherited : handle_of(description);
        const bool changed = file->is_changed || file->changed_before_sync;
        saved.push_back({handle, inode, description->reported, file->error, changed});
      }
    }
  }
  return saved;
}

void OpenFiles::restore(const SavedDescription& saved, u64 sequence) {
  Description* const description = add(saved.inode, sequence, saved.handle);
  description->reported = saved.reported;
  description->file->error = saved.file_error;
  description->file->is_changed = saved.file_changed;
  const std::lock_guard guard(inherited_mutex_);
  inherited_[saved.handle] = description;
  inherited_count_.fetch_add(1);
}

u64 OpenFiles::size() const {
  return size_.load();
}

}  // namespace gpu4fs::frontend
