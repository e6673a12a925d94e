// The table of states: what each operation makes of each state, in a set of one line.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "cache/cache_memory.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"

namespace gpu4fs::test {
namespace {

using cache::Content;
using cache::LineWord;
using cache::PinMode;
using cache::PinOutcome;
using cache::Transfer;

enum class Operation {
  pin_same,
  pin_other,
  load_ok,
  load_failed,
  unpin,
  mark_dirty,
  mark_verified,
  begin_write_back,
  write_back_ok,
  write_back_failed,
  drop,
};

constexpr const char* operation_names[] = {"pin_same",      "pin_other",         "load_ok",  "load_failed",
                                           "unpin",         "mark_dirty",        "verified", "begin_write_back",
                                           "write_back_ok", "write_back_failed", "drop"};

// One row: the state, and the states that the operations lead to, in their order. A state is written as
// f(ree), l(oading), c(lean), d(irty), w(riting), r(edirtied: writing and dirty) with the number of pins.
// "!" is a failed check. "L1" is the other page that is being loaded. A prefix is the answer:
//   hit:, load:, busy: (loading), full: (no_room), back: (must_write_back), none: (nothing to write), left: (of drop)
struct Row {
  const char* state;
  const char* next[11];
};

// clang-format off
constexpr Row rows[] = {
  // pin same   pin other  load ok  fails  unpin  dirty  verify  begin      end ok end fails  drop
  {"f0", {"load:l1", "load:L1", "!",  "!",   "!",   "!",   "!",  "none:f0", "!",   "!",   "f0"}},
  {"l1", {"busy:l1", "full:l1", "c1", "f0",  "!",   "!",   "!",  "none:l1", "!",   "!",   "left:l1"}},
  {"c0", {"hit:c1",  "load:L1", "!",  "!",   "!",   "!",   "!",  "none:c0", "!",   "!",   "f0"}},
  {"c1", {"hit:c2",  "full:c1", "!",  "!",   "c0",  "d1",  "c1", "none:c1", "!",   "!",   "left:c1"}},
  {"c2", {"hit:c3",  "full:c2", "!",  "!",   "c1",  "d2",  "c2", "none:c2", "!",   "!",   "left:c2"}},
  {"d0", {"hit:d1",  "back:d0", "!",  "!",   "!",   "!",   "!",  "w0",      "!",   "!",   "left:d0"}},
  {"d1", {"hit:d2",  "full:d1", "!",  "!",   "d0",  "d1",  "d1", "w1",      "!",   "!",   "left:d1"}},
  {"w0", {"hit:w1",  "full:w0", "!",  "!",   "!",   "!",   "!",  "none:w0", "c0",  "d0",  "left:w0"}},
  {"w1", {"hit:w2",  "full:w1", "!",  "!",   "w0",  "r1",  "w1", "none:w1", "c1",  "d1",  "left:w1"}},
  {"r0", {"hit:r1",  "full:r0", "!",  "!",   "!",   "!",   "!",  "none:r0", "d0",  "d0",  "left:r0"}},
  {"r1", {"hit:r2",  "full:r1", "!",  "!",   "r0",  "r1",  "r1", "none:r1", "d1",  "d1",  "left:r1"}},
};
// clang-format on

constexpr cache::PageKey own_page{3, 100};
constexpr cache::PageKey other_page{3, 200};

struct FailedCheck : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class LineStates : public ::testing::Test {
 protected:
  LineStates() : memory_(1, 1) {
    previous_ = set_check_handler([](const CheckFailure& failure) { throw FailedCheck(failure.expression); });
  }
  ~LineStates() override { set_check_handler(previous_); }

  const cache::Cache& table() { return memory_.cache(); }
  LineWord word() const { return memory_.word(0); }

  void bring_to(const std::string& state) {
    memory_.clear();
    if (state[0] == 'f') return;
    EXPECT_EQ(pin(Lane{}, table(), own_page, PinMode::read).outcome, PinOutcome::must_load);
    if (state[0] == 'l') return;
    finish_load(table(), 0, true);
    if (state[0] != 'c') mark_dirty(table(), 0);
    if (state[0] == 'w' || state[0] == 'r') {
      EXPECT_EQ(begin_write_back(table(), 0).line, 0u);
    }
    if (state[0] == 'r') mark_dirty(table(), 0);
    for (char pins = '1'; pins < state[1]; ++pins) {
      EXPECT_EQ(pin(Lane{}, table(), own_page, PinMode::read).outcome, PinOutcome::hit);
    }
    if (state[1] == '0') unpin(table(), 0);
  }

  std::string state() const {
    const LineWord now = word();
    EXPECT_TRUE(is_possible(now));
    std::string text = now.is_free()       ? "f"
                       : now.is_loading()  ? "l"
                       : !now.is_writing() ? (now.is_dirty() ? "d" : "c")
                       : now.is_dirty()    ? "r"
                                           : "w";
    if (!now.is_free() && now.key() != own_page) text[0] = 'L';
    return text + std::to_string(now.pins());
  }

  std::string pin_with(cache::PageKey key, PinMode mode) {
    switch (pin(Lane{}, table(), key, mode).outcome) {
      case PinOutcome::hit:
        return "hit:";
      case PinOutcome::must_load:
        return mode == PinMode::overwrite ? "?" : "load:";
      case PinOutcome::fills:
        return mode == PinMode::overwrite ? "load:" : "?";
      case PinOutcome::loading:
        return "busy:";
      case PinOutcome::must_write_back:
        return "back:";
      case PinOutcome::no_room:
        return "full:";
    }
    return "?";
  }

  std::string apply(Operation operation, PinMode mode) {
    switch (operation) {
      case Operation::pin_same:
        return pin_with(own_page, mode);
      case Operation::pin_other:
        return pin_with(other_page, mode);
      case Operation::load_ok:
        return finish_load(table(), 0, true), "";
      case Operation::load_failed:
        return finish_load(table(), 0, false), "";
      case Operation::unpin:
        return unpin(table(), 0), "";
      case Operation::mark_dirty:
        return mark_dirty(table(), 0), "";
      case Operation::mark_verified:
        return mark_verified(table(), 0), "";
      case Operation::begin_write_back:
        return begin_write_back(table(), 0).line == 0 ? "" : "none:";
      case Operation::write_back_ok:
        return finish_write_back(table(), 0, true), "";
      case Operation::write_back_failed:
        return finish_write_back(table(), 0, false), "";
      case Operation::drop:
        return drop(Lane{}, table(), 3, 100, 1) == 0 ? "" : "left:";
    }
    return "?";
  }

  CacheMemory memory_;

 private:
  CheckHandler previous_;
};

TEST_F(LineStates, EachOperationLeadsWhereTheTableSays) {
  for (const PinMode mode : {PinMode::read, PinMode::overwrite, PinMode::modify}) {
    for (const Row& row : rows) {
      for (u32 i = 0; i < 11; ++i) {
        bring_to(row.state);
        ASSERT_EQ(state(), row.state);
        std::string found;
        try {
          found = apply(static_cast<Operation>(i), mode);
          found += state();
        } catch (const FailedCheck&) {
          found = "!";
        }
        EXPECT_EQ(found, row.next[i]) << operation_names[i] << " in " << row.state;
        if (found == "!") continue;
        const LineWord now = word();
        EXPECT_EQ(cache::dirty_line_count(table(), 3), u64{now.is_dirty()} + u64{now.is_writing()})
            << operation_names[i] << " in " << row.state;
      }
    }
  }
}

TEST_F(LineStates, WhatTheTableDoesNotNameIsImpossible) {
  u32 possible = 0;
  for (u32 content = 0; content < 4; ++content) {
    for (u32 transfer = 0; transfer < 4; ++transfer) {
      for (const u64 rest : {u64{0}, u64{7}, 7 | cache::pin_unit, 7 | cache::verified_bit, 7 | cache::referenced_bit,
                             7 | cache::ahead_bit, 7 | cache::pin_unit | cache::verified_bit}) {
        const LineWord now = LineWord{rest}.with(static_cast<Content>(content)).with(static_cast<Transfer>(transfer));
        const bool is_filled = rest == (7 | cache::pin_unit) || rest == (7 | cache::pin_unit | cache::outdated_bit);
        const bool is_named =
            content == 0 ? (transfer == 0 && rest == 0) || (transfer == 1 && is_filled) : transfer != 1;
        EXPECT_EQ(is_possible(now), is_named) << std::hex << now.bits;
        possible += is_named ? 1 : 0;
        if (is_named || now.key().page != 7) continue;
        memory_.clear();
        table().lines[0].word = now.bits;
        EXPECT_THROW(cache::detail::change_word<Order::relaxed>(table().lines[0], [](LineWord w) { return w; }),
                     FailedCheck);
      }
    }
  }
  EXPECT_EQ(possible, 3u + 3 * 3 * 7);
}

TEST_F(LineStates, AWordHoldsAllOfItsFields) {
  const cache::PageKey key{device_count_max - 1, (u64{1} << cache::page_bits) - 1};
  LineWord now = cache::loading_word(cache::tag_of(key));
  EXPECT_EQ(now.key(), key);
  EXPECT_EQ(now.pins(), 1u);
  now =
      LineWord{now.bits + (cache::pin_max - 1) * cache::pin_unit}.with(Content::dirty_odd).with(Transfer::writing_even);
  EXPECT_EQ(now.key(), key);
  EXPECT_EQ(now.pins(), cache::pin_max);
  EXPECT_FALSE(now.is_referenced() || now.is_verified() || now.is_ahead());
  EXPECT_EQ(now.content(), Content::dirty_odd);
  EXPECT_EQ(now.transfer(), Transfer::writing_even);
  EXPECT_EQ(now.dirty_parity(), 1u);
  EXPECT_EQ(now.writing_parity(), 0u);
  EXPECT_EQ(now.with_bits(cache::ahead_bit | cache::referenced_bit | cache::verified_bit).bits,
            ~u64{0} ^ (u64{1} << cache::transfer_shift));
  EXPECT_THROW(cache::tag_of({device_count_max, 0}), FailedCheck);
  EXPECT_THROW(cache::tag_of({0, u64{1} << cache::page_bits}), FailedCheck);
}

// The first page of the first device has the tag 0.
TEST_F(LineStates, PageZeroIsNoFreeLine) {
  EXPECT_EQ(find(Lane{}, table(), {0, 0}).line, cache::no_line);
  EXPECT_EQ(pin(Lane{}, table(), {0, 0}, PinMode::read).outcome, PinOutcome::must_load);
  finish_load(table(), 0, true);
  unpin(table(), 0);
  EXPECT_FALSE(word().is_free());
  EXPECT_EQ(pin(Lane{}, table(), {0, 0}, PinMode::read).outcome, PinOutcome::hit);
}

}  // namespace
}  // namespace gpu4fs::test
