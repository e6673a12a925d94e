#include "tools/verbs.hpp"

namespace gpu4fs::tools {

std::span<const cli::Verb* const> all_verbs() {
  static constexpr const cli::Verb* verbs[] = {
      &mkfs_verb, &mount_verb,  &umount_verb,  &fsck_verb,  &info_verb,        &status_verb,  &scrub_verb,
      &trim_verb, &device_verb, &balance_verb, &df_verb,    &set_profile_verb, &convert_verb, &defragment_verb,
      &nvme_verb, &dump_verb,   &doctor_verb,  &trace_verb, &calibrate_verb,   &bench_verb,   &completion_verb,
  };
  return verbs;
}

}  // namespace gpu4fs::tools
