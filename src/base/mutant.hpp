// Mutants: wrong expressions in place of right ones. The tests have to notice each of them (tests/mutants).
//
//   GPU4FS_MUTANT(name, original, mutated)
//     The value of `original`. In a build with the option GPU4FS_MUTANTS it is the value of `mutated` while mutant
//     `name`, a row of mutant_list.hpp, is on. Both have one type. Device code and constants always have the original.
//     A const variable whose initial value could be constant counts as a constant.
//
// The environment of the process turns one mutant on. It is read once:
//
//   GPU4FS_MUTANT           its name; a name that is not in the list ends the process
//   GPU4FS_MUTANT_REACHED   path of a file that is created when the mutated expression is first chosen
#pragma once

#if !defined(GPU4FS_MUTANTS)

#define GPU4FS_MUTANT(name, original, mutated) (original)

#else

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "base/config.hpp"
#include "base/mutant_list.hpp"
#include "base/types.hpp"

namespace gpu4fs {

enum class Mutant : u32 {
  none = 0,
#define GPU4FS_MUTANT_NAME(name, program, tests, breaks) name,
  GPU4FS_MUTANT_LIST(GPU4FS_MUTANT_NAME)
#undef GPU4FS_MUTANT_NAME
};

namespace detail {

inline Mutant read_mutant_choice() {
  static const char* const names[] = {
#define GPU4FS_MUTANT_TEXT(name, program, tests, breaks) #name,
      GPU4FS_MUTANT_LIST(GPU4FS_MUTANT_TEXT)
#undef GPU4FS_MUTANT_TEXT
  };
  const char* chosen = std::getenv("GPU4FS_MUTANT");
  if (chosen == nullptr || chosen[0] == 0) return Mutant::none;
  for (u32 i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    if (std::strcmp(names[i], chosen) == 0) return static_cast<Mutant>(i + 1);
  }
  std::fprintf(stderr, "GPU4FS_MUTANT=%s: there is no such mutant in mutant_list.hpp\n", chosen);
  std::_Exit(2);
}

// Code that runs before this is set uses the originals.
inline const Mutant chosen_mutant = read_mutant_choice();
inline bool mutant_was_reached = false;

inline bool note_reached_mutant() {
  if (__atomic_exchange_n(&mutant_was_reached, true, __ATOMIC_RELAXED)) return true;
  const char* path = std::getenv("GPU4FS_MUTANT_REACHED");
  if (path == nullptr) return true;
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd >= 0) ::close(fd);
  return true;
}

}  // namespace detail

GPU4FS_FN constexpr bool mutant_is_on(Mutant mutant) {
#if GPU4FS_DEVICE_CODE
  (void)mutant;
  return false;
#else
  if (std::is_constant_evaluated()) return false;
  return __builtin_expect(detail::chosen_mutant == mutant, 0) && detail::note_reached_mutant();
#endif
}

}  // namespace gpu4fs

#define GPU4FS_MUTANT(name, original, mutated) (::gpu4fs::mutant_is_on(::gpu4fs::Mutant::name) ? (mutated) : (original))

#endif
