#include "frontend/fuse/saved_mount.hpp"

#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace gpu4fs::frontend {
namespace {

template <class T>
void put(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  std::string text() {
    const auto length = get<u64>();
    return {take(length), length};
  }
  template <class T>
  std::vector<T> list() {
    const auto count = get<u64>();
    if (count > (bytes_.size() - at_) / sizeof(T)) throw std::runtime_error("a saved mount is cut off");
    std::vector<T> values;
    values.reserve(count);
    for (u64 i = 0; i < count; ++i) values.push_back(get<T>());
    return values;
  }
  [[nodiscard]] bool is_at_end() const { return at_ == bytes_.size(); }

 private:
  const char* take(u64 length) {
    if (length > bytes_.size() - at_) throw std::runtime_error("a saved mount is cut off");
    at_ += length;
    return bytes_.data() + at_ - length;
  }

  const std::string& bytes_;
  u64 at_ = 0;
};

template <class T>
void put_list(std::string& bytes, const std::vector<T>& values) {
  put(bytes, u64{values.size()});
  for (const T& value : values) put(bytes, value);
}

}  // namespace

std::string to_bytes(const SavedMount& saved) {
  std::string bytes;
  put(bytes, u64{saved.init_request.size()});
  bytes += saved.init_request;
  put(bytes, saved.write_errors);
  put_list(bytes, saved.inodes);
  put_list(bytes, saved.descriptions);
  return bytes;
}

SavedMount saved_mount_from(const std::string& bytes) {
  Reader reader(bytes);
  SavedMount saved;
  saved.init_request = reader.text();
  saved.write_errors = reader.get<u64>();
  saved.inodes = reader.list<SavedInode>();
  saved.descriptions = reader.list<SavedDescription>();
  if (!reader.is_at_end()) throw std::runtime_error("a saved mount is too long");
  return saved;
}

}  // namespace gpu4fs::frontend
