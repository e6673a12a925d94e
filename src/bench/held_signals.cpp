#include "bench/held_signals.hpp"

#include <atomic>

namespace gpu4fs::bench {

namespace {

std::atomic<bool> is_held = false;
std::atomic<int> noted = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  int none = 0;
  noted.compare_exchange_strong(none, signal);
}

}  // namespace

HeldSignals::HeldSignals() {
  noted = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (u32 i = 0; i < std::size(signals_); ++i) {
    ::sigaction(signals_[i], nullptr, &before_[i]);
    // As nohup(1) does it: it stays ignored.
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(signals_[i], &action, nullptr);
  }
  is_held = true;
}

HeldSignals::~HeldSignals() {
  is_held = false;
  for (u32 i = 0; i < std::size(signals_); ++i) ::sigaction(signals_[i], &before_[i], nullptr);
  const int signal = noted.exchange(0);
  if (signal != 0) std::raise(signal);
}

bool HeldSignals::exist() {
  return is_held;
}

void HeldSignals::check() {
  if (is_held && noted != 0) throw Interrupted();
}

}  // namespace gpu4fs::bench
