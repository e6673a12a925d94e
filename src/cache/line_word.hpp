// The word of a line: which page is in the frame, and what is happening to it.
//
//   bits 0-37 page, 38-43 device, 44-56 pins, 57 ahead, 58 referenced, 59 verified, 60-61 transfer, 62-63 content
//
// Page and state are one word, so a single compare-exchange pins a line only if it still holds the page that was looked
// for. A word of zero is a free line. There are six kinds of states:
//
//   content  transfer
//   none     idle      free: the whole word is 0
//   none     loading   the only holder of a pin fills the frame
//   clean    idle      the frame has what the device has
//   dirty    idle      the frame has newer bytes
//   clean    writing   the frame is being written to the device
//   dirty    writing   the same, and bytes were stored since this began
//
// Dirty and writing exist twice: with each parity of the number of the flush that has to wait for them
// (cache/flush_count.hpp).
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::cache {

struct PageKey {
  u32 device;  // index in the pool
  u64 page;    // offset on the device in pages

  friend constexpr bool operator==(const PageKey&, const PageKey&) = default;
};

enum class Content : u32 { none, clean, dirty_even, dirty_odd };
enum class Transfer : u32 { idle, loading, writing_even, writing_odd };

inline constexpr u32 page_bits = 38;  // devices of up to 1 PiB
inline constexpr u32 device_bits = 6;
inline constexpr u32 pin_bits = 13;
inline constexpr u32 pin_shift = page_bits + device_bits;
inline constexpr u32 pin_max = (1u << pin_bits) - 1;
inline constexpr u64 pin_unit = u64{1} << pin_shift;
// The page was loaded before anybody asked for it, and nobody has yet (cache/ahead.hpp).
inline constexpr u64 ahead_bit = pin_unit << pin_bits;
inline constexpr u64 referenced_bit = ahead_bit << 1;
inline constexpr u64 verified_bit = referenced_bit << 1;
// Of a line that is loading, only in tables of copies: the page is changing, so what is loaded must not stay.
inline constexpr u64 outdated_bit = verified_bit;
inline constexpr u32 transfer_shift = pin_shift + pin_bits + 3;
inline constexpr u32 content_shift = transfer_shift + 2;
static_assert(content_shift + 2 == 64 && device_count_max <= 1u << device_bits);

GPU4FS_FN constexpr Content dirty_content(u32 parity) {
  return parity == 0 ? Content::dirty_even : Content::dirty_odd;
}
GPU4FS_FN constexpr Transfer writing_transfer(u32 parity) {
  return parity == 0 ? Transfer::writing_even : Transfer::writing_odd;
}

// The part of a word that names the page.
GPU4FS_FN inline u64 tag_of(PageKey key) {
  GPU4FS_CHECK_LT(key.device, device_count_max);
  GPU4FS_CHECK_LT(key.page, u64{1} << page_bits);
  return u64{key.device} << page_bits | key.page;
}

struct LineWord {
  u64 bits;

  GPU4FS_FN constexpr Content content() const { return static_cast<Content>(bits >> content_shift); }
  GPU4FS_FN constexpr Transfer transfer() const { return static_cast<Transfer>(bits >> transfer_shift & 3); }
  GPU4FS_FN constexpr u32 pins() const { return static_cast<u32>(bits >> pin_shift) & pin_max; }
  GPU4FS_FN constexpr PageKey key() const {
    return {static_cast<u32>(bits >> page_bits & low_bits(device_bits)), bits & low_bits(page_bits)};
  }

  GPU4FS_FN constexpr bool is_free() const { return bits == 0; }
  GPU4FS_FN constexpr bool has_tag(u64 tag) const { return bits != 0 && (bits & low_bits(pin_shift)) == tag; }
  GPU4FS_FN constexpr bool is_loading() const { return transfer() == Transfer::loading; }
  GPU4FS_FN constexpr bool is_writing() const { return transfer() >= Transfer::writing_even; }
  GPU4FS_FN constexpr bool is_usable() const { return content() != Content::none; }
  GPU4FS_FN constexpr bool is_dirty() const { return content() >= Content::dirty_even; }
  GPU4FS_FN constexpr bool is_verified() const { return (bits & verified_bit) != 0; }
  GPU4FS_FN constexpr bool is_outdated() const { return is_loading() && (bits & outdated_bit) != 0; }
  GPU4FS_FN constexpr bool is_referenced() const { return (bits & referenced_bit) != 0; }
  GPU4FS_FN constexpr bool is_ahead() const { return (bits & ahead_bit) != 0; }
  // Only of lines that are dirty, and only of lines that are writing.
  GPU4FS_FN constexpr u32 dirty_parity() const { return content() == Content::dirty_odd ? 1 : 0; }
  GPU4FS_FN constexpr u32 writing_parity() const { return transfer() == Transfer::writing_odd ? 1 : 0; }

  GPU4FS_FN constexpr LineWord with(Content content) const {
    return {(bits & low_bits(content_shift)) | static_cast<u64>(content) << content_shift};
  }
  GPU4FS_FN constexpr LineWord with(Transfer transfer) const {
    return {(bits & ~(u64{3} << transfer_shift)) | static_cast<u64>(transfer) << transfer_shift};
  }
  GPU4FS_FN constexpr LineWord with_bits(u64 added) const { return {bits | added}; }
  GPU4FS_FN constexpr LineWord without_bits(u64 removed) const { return {bits & ~removed}; }
};

// A line that its only holder fills.
GPU4FS_FN constexpr LineWord loading_word(u64 tag) {
  return LineWord{tag | pin_unit}.with(Transfer::loading);
}

GPU4FS_FN constexpr bool is_possible(LineWord word) {
  if (word.is_usable()) return !word.is_loading();
  if (word.is_loading()) return word.pins() == 1 && !word.is_referenced() && !word.is_ahead();
  return word.is_free();
}

}  // namespace gpu4fs::cache
