// The content of a file in a model: pages that were written; everything else reads as zeros.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::test {

class SparseBytes {
 public:
  using Page = std::array<u8, page_size>;

  u64 size() const { return size_; }
  const std::map<u64, Page>& pages() const { return pages_; }

  void write(u64 offset, const u8* data, u64 length) {
    size_ = std::max(size_, length == 0 ? size_ : offset + length);
    while (length > 0) {
      const u64 begin = offset % page_size;
      const u64 part = std::min(length, page_size - begin);
      std::memcpy(pages_[offset / page_size].data() + begin, data, part);
      offset += part;
      data += part;
      length -= part;
    }
  }

  std::vector<u8> read(u64 offset, u64 length) const {
    if (offset >= size_) return {};
    std::vector<u8> bytes(std::min(length, size_ - offset));
    for (u64 done = 0; done < bytes.size();) {
      const u64 begin = (offset + done) % page_size;
      const u64 part = std::min<u64>(bytes.size() - done, page_size - begin);
      const auto at = pages_.find((offset + done) / page_size);
      if (at != pages_.end()) std::memcpy(bytes.data() + done, at->second.data() + begin, part);
      done += part;
    }
    return bytes;
  }

  // The first of `length` bytes that differs from the content's byte as far after `offset`, inside the size: its
  // number. Makes no copy, because sanitizers make copies slow.
  std::optional<u64> first_difference(u64 offset, const u8* bytes, u64 length) const {
    static constexpr Page zeros{};
    for (u64 done = 0; done < length;) {
      const u64 begin = (offset + done) % page_size;
      const u64 part = std::min<u64>(length - done, page_size - begin);
      const auto at = pages_.find((offset + done) / page_size);
      const u8* const expected = (at == pages_.end() ? zeros : at->second).data() + begin;
      if (std::memcmp(bytes + done, expected, part) != 0)
        return done + static_cast<u64>(std::mismatch(expected, expected + part, bytes + done).first - expected);
      done += part;
    }
    return std::nullopt;
  }

  // Zeros in [offset, offset + length); the size does not change.
  void zero(u64 offset, u64 length) {
    const u64 end = offset + length;
    for (auto at = pages_.lower_bound(offset / page_size); at != pages_.end() && at->first * page_size < end;) {
      const u64 base = at->first * page_size;
      const u64 from = std::max(base, offset) - base;
      const u64 to = std::min(base + page_size, end) - base;
      std::memset(at->second.data() + from, 0, to - from);
      at = to - from == page_size ? pages_.erase(at) : std::next(at);
    }
  }

  void resize(u64 size) {
    if (size < size_) zero(size, size_ - size);
    size_ = size;
  }

  // True if all bytes of [begin, end) are zero.
  bool is_zero(u64 begin, u64 end) const {
    for (auto at = pages_.lower_bound(begin / page_size); at != pages_.end() && at->first * page_size < end; ++at) {
      const u64 base = at->first * page_size;
      for (u64 i = std::max(base, begin); i < std::min(base + page_size, end); ++i) {
        if (at->second[i - base] != 0) return false;
      }
    }
    return true;
  }

  u64 nonzero_page_count() const {
    u64 count = 0;
    for (const auto& [page, bytes] : pages_) {
      if (!is_zero(page * page_size, (page + 1) * page_size)) ++count;
    }
    return count;
  }

  friend bool operator==(const SparseBytes& a, const SparseBytes& b) {
    if (a.size_ != b.size_) return false;
    for (const auto* file : {&a, &b}) {
      const SparseBytes& other = file == &a ? b : a;
      for (const auto& [page, bytes] : file->pages_) {
        const auto at = other.pages_.find(page);
        if (at == other.pages_.end() ? !file->is_zero(page * page_size, (page + 1) * page_size) : at->second != bytes) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  std::map<u64, Page> pages_;
  u64 size_ = 0;
};

}  // namespace gpu4fs::test
