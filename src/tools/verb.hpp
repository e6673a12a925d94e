// A verb of the gpu4fs program: `gpu4fs <name> ...`, for some also a program name of its own.
//
// main.cpp has the table. A verb keeps its options in its own source file: add_options() tells the
// command line parser about them, run() does the work and returns the exit status. What run()
// throws is printed as one line, "<program>: <message>", and becomes `failure_status`.
#pragma once

namespace CLI {
class App;
}

namespace gpu4fs::tools {

struct Verb {
  const char* name;
  const char* summary;       // one line of the list of verbs
  const char* program_name;  // name under which the verb is called directly, or null
  void (*add_options)(CLI::App& app);
  int (*run)();
  int usage_status;    // wrong command line
  int failure_status;  // the operation failed
};

extern const Verb mkfs_verb;
extern const Verb mount_verb;
extern const Verb umount_verb;
extern const Verb info_verb;
extern const Verb df_verb;
extern const Verb set_profile_verb;
extern const Verb convert_verb;
extern const Verb defragment_verb;
extern const Verb dump_verb;
extern const Verb fsck_verb;
extern const Verb doctor_verb;
extern const Verb scrub_verb;
extern const Verb device_verb;
extern const Verb balance_verb;
extern const Verb status_verb;
extern const Verb bench_verb;

}  // namespace gpu4fs::tools
