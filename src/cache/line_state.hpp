// Changes of a line's word. An impossible state is a mistake of this program.
#pragma once

#include "base/check.hpp"
#include "cache/cache_types.hpp"

namespace gpu4fs::cache::detail {

GPU4FS_FN inline void check_possible(LineWord word) {
  if (!is_possible(word)) GPU4FS_CHECK_EQ(word.bits, u64{0});
}

// A strong compare-exchange. A failure puts the word that was found into `seen`.
template <Order order>
GPU4FS_FN bool replace(Line& line, LineWord& seen, LineWord desired) {
  check_possible(seen);
  check_possible(desired);
  return compare_exchange<order, Scope::engine>(&line.word, seen.bits, desired.bits);
}

// Replaces the word by change(word), and returns what it was.
template <Order order, class Change>
GPU4FS_FN LineWord change_word(Line& line, Change&& change) {
  LineWord seen = peek(line);
  while (!replace<order>(line, seen, change(seen))) {
  }
  return seen;
}

}  // namespace gpu4fs::cache::detail
