// Sizes in the notation of users. Host only.
#pragma once

#include <string>
#include <string_view>

#include "base/types.hpp"

namespace gpu4fs {

// A number with an optional unit: none or B bytes; K M G T and KiB MiB GiB TiB powers of 1024; KB MB GB TB powers of
// 1000. Case does not matter, and fractions are not allowed. Throws std::invalid_argument, which names the text, if it
// is anything else or does not fit 63 bits.
u64 parse_size(std::string_view text);

// With a binary unit and at most two decimals: "1.5 GiB", "512 B".
std::string size_text(u64 bytes);

}  // namespace gpu4fs
