// The verbs of the gpu4fs program, each in a source file of its own; verbs.cpp has the table.
#pragma once

#include <span>

#include "cli/verb.hpp"

namespace gpu4fs::tools {

extern const cli::Verb mkfs_verb;
extern const cli::Verb mount_verb;
extern const cli::Verb umount_verb;
extern const cli::Verb info_verb;
extern const cli::Verb df_verb;
extern const cli::Verb set_profile_verb;
extern const cli::Verb convert_verb;
extern const cli::Verb defragment_verb;
extern const cli::Verb dump_verb;
extern const cli::Verb fsck_verb;
extern const cli::Verb doctor_verb;
extern const cli::Verb scrub_verb;
extern const cli::Verb trim_verb;
extern const cli::Verb device_verb;
extern const cli::Verb balance_verb;
extern const cli::Verb status_verb;
extern const cli::Verb nvme_verb;
extern const cli::Verb trace_verb;
extern const cli::Verb calibrate_verb;
extern const cli::Verb bench_verb;
extern const cli::Verb completion_verb;

// In the order in which the help text lists them.
std::span<const cli::Verb* const> all_verbs();

}  // namespace gpu4fs::tools
