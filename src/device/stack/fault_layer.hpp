// The layer `fault`: a device with the faults of bad devices.
//
//   read-error    a read fails (medium_error)
//   write-error   a write fails (device_failed); nothing of it is stored
//   flush-error   a flush fails (device_failed)
//   decay         a bit of what is read has changed on the medium
//   flip          a bit of what is written is stored wrong
//   lost          a write is acknowledged and not stored
//   torn          only some first sectors of 512 bytes of a write are stored
//   misdirect     a write is stored on another page
//   delay         an access takes longer
//   gone          the device disappears: every later access fails (device_failed)
//
// Rules, separated by commas, say when:
//
//   KIND=P                     each access of the kind's class, with probability P (0 to 1)
//   KIND@OFFSET+LENGTH         those that touch this range of the device
//   KIND#N                     only the Nth one, counted from 1
//   KIND@OFFSET+LENGTH#N       the Nth one that touches the range; with =P instead of #N, with probability P
//   seed=N                     of the pseudo random numbers, 1 if not given
//   delay-us=N                 length of a delay, 1000 if not given
//
// Classes: read-error and decay affect reads; write-error, flip, lost, torn and misdirect writes; flush-error flushes;
// delay and gone all three (ranges: reads and writes). An access is what the engine announces: a run of pages, or a
// page. Numbers may be hexadecimal (0x...). Equal seeds and equal accesses give equal faults.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "device/stack/device_stack.hpp"

namespace gpu4fs::device {

enum class FaultKind : u32 {
  read_error,
  write_error,
  flush_error,
  decay,
  flip,
  lost,
  torn,
  misdirect,
  delay,
  gone,
};

struct FaultRule {
  FaultKind kind;
  double probability = 1;
  u64 begin = 0;
  u64 end = ~u64{0};
  u64 nth = 0;   // 0: any
  u64 seen = 0;  // accesses so far
};

struct FaultRules {
  u64 seed = 1;
  u64 delay_us = 1000;
  std::vector<FaultRule> rules;
};

// DeviceError: names the rule and its fault.
FaultRules parse_fault_rules(std::string_view text);

class FaultLayer : public StackLayer {
 public:
  explicit FaultLayer(FaultRules rules);

  void attach(u64 size_bytes) override { size_bytes_ = size_bytes; }
  Status may_read(u64 offset, u64 length) override;
  Status may_write(u64 offset, u64 length) override;
  Status may_flush() override;
  bool read(u64 offset, std::span<u8> bytes) override;
  void write(std::vector<StackWrite>& writes) override;
  bool changes_writes() const override { return true; }

  // Number of faults so far, without delays.
  u64 fault_count() const;

 private:
  bool strikes(FaultKind kind, u64 offset, u64 length);
  bool strikes_locked(FaultKind kind, u64 offset, u64 length);
  Status may(FaultKind error, Status status, u64 offset, u64 length);
  void flip_bit(std::span<u8> bytes);
  u64 random();
  u64 random_below(u64 bound) { return random() % bound; }

  mutable std::mutex mutex_;  // protects everything below
  FaultRules rules_;
  u64 size_bytes_ = 0;
  u64 random_state_;
  u64 fault_count_ = 0;
  bool gone_ = false;
};

}  // namespace gpu4fs::device
