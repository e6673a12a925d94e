// The profiles of a test's pool as one text: "raid5", or "raid5+raid1c3" for data and metadata.
#pragma once

#include <string>

#include "pool/pool_make.hpp"

namespace gpu4fs::test {

inline void set_profiles(pool::MakePoolOptions& make, const std::string& text) {
  const std::size_t plus = text.find('+');
  make.data_profile = text.substr(0, plus);
  make.metadata_profile = plus == std::string::npos ? make.data_profile : text.substr(plus + 1);
  make.metadata_share = 0.25;  // test pools are small
}

}  // namespace gpu4fs::test
