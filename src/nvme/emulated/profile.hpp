// How fast an emulated drive is. The numbers of drives are those of their data sheets, rounded.
#pragma once

#include <optional>
#include <string_view>

#include "base/types.hpp"

namespace gpu4fs::nvme {

// 0: no time or no limit.
struct DriveProfile {
  u64 read_latency_ns = 0;
  u64 write_latency_ns = 0;
  u64 flush_latency_ns = 0;
  u64 read_bytes_per_s = 0;
  u64 write_bytes_per_s = 0;
};

inline constexpr DriveProfile profile_unlimited{};
// Intel Optane P5800X 800 GB: no volatile cache to flush.
inline constexpr DriveProfile profile_p5800x{5000, 5000, 0, 7200000000, 6100000000};
// Samsung 980 PRO 1 TB.
inline constexpr DriveProfile profile_980_pro{50000, 15000, 500000, 7000000000, 5000000000};
// Samsung PM1735 1.6 TB: its cache is protected.
inline constexpr DriveProfile profile_pm1735{90000, 25000, 0, 8000000000, 3800000000};

// "unlimited", "p5800x", "980pro", "pm1735", or a latency of reads and writes without other limits: "10us", "2ms".
// Nothing if the text is none of these.
std::optional<DriveProfile> find_profile(std::string_view text);
inline constexpr const char* profile_names = "unlimited, p5800x, 980pro, pm1735 or a latency like 10us";

}  // namespace gpu4fs::nvme
