// Devices with stacks as they are named on command lines and in tables of file systems:
//
//   PATH                     a device; it has a stack only if it begins with the name of a layer and '=': ./record=x is
//                            a path
//   record=LOGFILE:DEVICE    writes and flushes of DEVICE are recorded in LOGFILE (device/stack/write_log.hpp)
//   trace=FILE:DEVICE        reads, writes and flushes of DEVICE are listed in FILE (device/stack/access_trace.hpp)
//   fault=RULES:DEVICE       DEVICE with faults (device/stack/fault_layer.hpp)
//   null=SIZE:               reads zeros, discards writes; SIZE in bytes, or with K, M, G; no path follows
//   nvme:ADDRESS[/NAMESPACE] an NVMe drive that gpu4fs drives itself: its PCI address, as 0000:01:00.0, and the number
//                            of its namespace, 1 if there is none. Nothing can be above it; ./nvme:x is a path
//
// DEVICE may itself have a stack. Arguments cannot contain colons. In lists of devices, which use colons too, the colon
// after a layer's argument is not a separator.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"
#include "device/stack/device_stack.hpp"

namespace gpu4fs::device {

struct LayerSpec {
  std::string name;
  std::string argument;
};

struct DeviceSpec {
  std::vector<LayerSpec> layers;  // top first; without `null`
  std::string path;               // of the device below them; "null" of a null device
  u64 null_bytes = 0;             // not 0: a null device of this size
  std::string drive_address;      // of an NVMe drive; `path` is its name
  u32 drive_namespace = 0;

  bool is_null() const { return null_bytes != 0; }
  bool is_drive() const { return !drive_address.empty(); }
  bool has_stack() const { return is_null() || !layers.empty(); }
};

inline constexpr std::string_view drive_prefix = "nvme:";

// DeviceError: names the text and its fault.
DeviceSpec parse_device_spec(const std::string& text);

// The end of the device that begins at `begin` in a list with colons: the position of the colon after it, or the list's
// size.
std::size_t end_of_device(std::string_view list, std::size_t begin);

// The same device for a process in another folder: its paths made absolute, whether they exist or not. DeviceError.
std::string absolute_device(const std::string& text);

// The stack, without a medium yet; null if the device has none. DeviceError.
std::shared_ptr<DeviceStack> make_stack(const DeviceSpec& spec);

}  // namespace gpu4fs::device
