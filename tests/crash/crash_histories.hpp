// The histories of the crash tests: every operation alone, every pair of operations on names, effects of checkpoints
// and of a full pool in between, and random ones.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "crash/crash_history.hpp"

namespace gpu4fs::test {

struct NamedStep {
  const char* name;
  void (*run)(CrashWriter&);
};

// On a limited set of names. Any step may follow any other; some then fail, which is a history too.
inline const std::vector<NamedStep>& name_steps() {
  static const std::vector<NamedStep> steps = {
      {"create", [](CrashWriter& w) { w.create("n"); }},
      {"mkdir", [](CrashWriter& w) { w.mkdir("m"); }},
      {"mknod", [](CrashWriter& w) { w.mknod("p"); }},
      {"symlink", [](CrashWriter& w) { w.symlink("l", "somewhere/else"); }},
      {"link", [](CrashWriter& w) { w.link("h", "d/h2"); }},
      {"unlink", [](CrashWriter& w) { w.unlink("a"); }},
      {"unlink_link", [](CrashWriter& w) { w.unlink("h"); }},
      {"rmdir", [](CrashWriter& w) { w.rmdir("e"); }},
      {"rename", [](CrashWriter& w) { w.rename("h", "h3"); }},
      {"rename_over", [](CrashWriter& w) { w.rename("d/f", "a"); }},
      {"rename_directory", [](CrashWriter& w) { w.rename("d", "e/d"); }},
      {"exchange", [](CrashWriter& w) { w.rename("s", "e", 2); }},
      {"whiteout", [](CrashWriter& w) { w.rename("d/f", "a", PosixModel::rename_whiteout); }},
      {"chmod", [](CrashWriter& w) { w.chmod("", 0711); }},
      {"set_attribute", [](CrashWriter& w) { w.set_attribute("", "user.y", 300); }},
      {"tmpfile", [](CrashWriter& w) { w.tmpfile(); }},
  };
  return steps;
}

inline const std::vector<NamedStep>& attribute_steps() {
  static const std::vector<NamedStep> steps = {
      {"remove_attribute", [](CrashWriter& w) { w.remove_attribute("a", "user.x"); }},
      {"large_attribute", [](CrashWriter& w) { w.set_attribute("a", "user.z", 3000); }},
      {"greatest_attribute", [](CrashWriter& w) { w.set_attribute("a", "user.z", 65536); }},
      {"great_attribute_by_small",
       [](CrashWriter& w) {
         w.set_attribute("a", "user.z", 20000);
         w.checkpoint();
         w.set_attribute("a", "user.z", 10);
         w.set_attribute("a", "user.z", 9000);
       }},
      {"great_attribute_removed",
       [](CrashWriter& w) {
         w.set_attribute("a", "user.z", 9000);
         w.set_attribute("a", "user.w", 2000);
         w.checkpoint();
         w.remove_attribute("a", "user.z");
         w.write("a", 0, 300);
       }},
      {"attributes_of_two_pages",
       [](CrashWriter& w) {
         for (const char* name : {"user.1", "user.2", "user.3", "user.4", "user.5"}) w.set_attribute("a", name, 1000);
         w.checkpoint();
         w.remove_attribute("a", "user.2");
         w.set_attribute("a", "user.6", 900);
         w.unlink("a");
       }},
  };
  return steps;
}

inline const std::vector<NamedStep>& content_steps() {
  using wire::Opcode;
  static const std::vector<NamedStep> steps = {
      {"write_inline", [](CrashWriter& w) { w.write("a", 20, 50); }},
      {"write_grow", [](CrashWriter& w) { w.write("a", 90, 500); }},
      {"write_middle", [](CrashWriter& w) { w.write("h", 1000, 2000); }},
      {"write_pages", [](CrashWriter& w) { w.write("h", page_size, 2 * page_size); }},
      {"write_end", [](CrashWriter& w) { w.write("h", 3 * page_size + 100, 40000); }},
      {"write_hole", [](CrashWriter& w) { w.write("a", 60000, 300); }},
      {"append", [](CrashWriter& w) { w.write("h", 3 * page_size + 100, 10); }},
      {"truncate_zero", [](CrashWriter& w) { w.on_file(Opcode::truncate, "h", 0, 0); }},
      {"truncate_part", [](CrashWriter& w) { w.on_file(Opcode::truncate, "h", page_size + 7, 0); }},
      {"truncate_grow", [](CrashWriter& w) { w.on_file(Opcode::truncate, "a", 30000, 0); }},
      {"fallocate", [](CrashWriter& w) { w.on_file(Opcode::fallocate, "a", 0, 5 * page_size); }},
      {"punch", [](CrashWriter& w) { w.on_file(Opcode::fallocate, "h", 100, 2 * page_size, 3); }},
      {"zero_range", [](CrashWriter& w) { w.on_file(Opcode::fallocate, "h", page_size, page_size, 0x10); }},
      {"zero_unaligned", [](CrashWriter& w) { w.on_file(Opcode::fallocate, "h", 100, 2 * page_size, 0x11); }},
      {"zero_grow", [](CrashWriter& w) { w.on_file(Opcode::fallocate, "h", page_size + 50, 6 * page_size, 0x10); }},
      {"zero_inline", [](CrashWriter& w) { w.on_file(Opcode::fallocate, "a", 10, 100, 0x10); }},
      {"punch_in_page", [](CrashWriter& w) { w.on_file(Opcode::fallocate, "h", page_size + 10, 1000, 3); }},
      {"allocate_holes",
       [](CrashWriter& w) {
         w.write("a", 3 * page_size, 100);
         w.checkpoint();
         w.on_file(Opcode::fallocate, "a", 100, 8 * page_size);
       }},
      {"cut_chmod", [](CrashWriter& w) { w.resize("h", page_size + 7); }},
      {"grow_chmod", [](CrashWriter& w) { w.resize("a", 9000); }},
      {"chown_capability",
       [](CrashWriter& w) {
         w.set_attribute("h", "security.capability", 20);
         w.checkpoint();
         w.chmod("h", 0640);
       }},
      {"cut_capability",
       [](CrashWriter& w) {
         w.set_attribute("h", "security.capability", 20);
         w.checkpoint();
         w.resize("h", 5000);
       }},
      {"punch_capability",
       [](CrashWriter& w) {
         w.set_attribute("h", "security.capability", 20);
         w.checkpoint();
         w.on_file(Opcode::fallocate, "h", 100, 2 * page_size, 3);
       }},
      {"copy_range", [](CrashWriter& w) { w.copy("h", "a", 0, page_size, 2 * page_size); }},
      {"set_profile", [](CrashWriter& w) { w.set_profile("a", "single"); }},
      {"set_directory_profile",
       [](CrashWriter& w) {
         w.set_profile("d", "single");
         w.create("d/g");
         w.write("d/g", 0, 2 * page_size);
       }},
  };
  return steps;
}

namespace detail {

// A step may need a name that does not exist; then it is left out.
template <class Step>
void try_step(CrashWriter& w, const Step& step) {
  try {
    step(w);
  } catch (const std::out_of_range&) {
  }
}

// The step, made durable, and another operation that was not promised.
inline CrashHistory alone(const NamedStep& step, CrashPlace place) {
  CrashHistory history{fmt::format("alone_{}_{}", step.name, static_cast<u32>(place)), place, 6, {}};
  history.body = [run = step.run](CrashWriter& w) {
    try_step(w, run);
    w.sync();
    w.create("last");
    w.fsync("");
    try_step(w, [](CrashWriter& writer) { writer.write("last", 0, 6000); });
    w.checkpoint();
  };
  return history;
}

inline CrashHistory pair(const NamedStep& first, const NamedStep& second, bool syncs_between) {
  CrashHistory history{fmt::format("pair_{}_{}", first.name, second.name), CrashPlace::one_device, 1, {}};
  history.body = [first, second, syncs_between](CrashWriter& w) {
    try_step(w, first.run);
    if (syncs_between) w.sync();
    try_step(w, second.run);
    w.sync();
  };
  return history;
}

inline CrashHistory random_walk(u64 seed, CrashPlace place) {
  CrashHistory history{fmt::format("random_{}", seed), place, 2, {}};
  history.body = [seed, place](CrashWriter& w) {
    SourceOptions options;
    options.offset_max = u64{40} << 10;
    options.length_max = u64{12} << 10;
    options.big_length = u64{24} << 10;
    options.sparse = false;
    options.node_max = 25;
    options.name_count = 4;
    options.whiteouts = true;
    options.attribute_max = 40000;
    options.flags = true;
    OperationSource source(seed, options);
    for (u32 i = 0; i < 24; ++i) {
      FileOperation op = source.next(w.model());
      // Removing the filling of a full pool is not the subject, and takes many commits.
      const auto big = w.model().nodes.at(PosixModel::root).entries.find("big");
      const bool fills = place == CrashPlace::nearly_full &&
                         big != w.model().nodes.at(PosixModel::root).entries.end() &&
                         (op.inode == big->second || op.second_inode == big->second);
      if (!fills) w.run(op);
      if (source.below(7) == 0) w.sync();
      if (source.below(11) == 0) w.checkpoint();
    }
    w.sync();
  };
  return history;
}

// Depends only on the seed, so an id identifies it.
inline CrashHistory random_walk(u64 seed) {
  return random_walk(seed, static_cast<CrashPlace>(seed % crash_place_count));
}

// The pool becomes full in the middle of the work.
inline CrashHistory full_pool() {
  CrashHistory history{"full_pool", CrashPlace::nearly_full, 3, {}};
  history.body = [](CrashWriter& w) {
    for (u32 i = 0; i < 12; ++i) {
      const std::string name = fmt::format("x{}", i);
      w.create(name);
      if (w.model().nodes.at(PosixModel::root).entries.count(name) == 0) break;
      w.write(name, 0, 5 * page_size);
      if (i % 4 == 3) w.sync();
    }
    w.unlink("h");
    w.unlink("d/f");
    w.sync();
    w.write("a", 0, 3 * page_size);
    w.fsync("a");
  };
  return history;
}

// Pages move to other places between operations whose records name them, or are replayed over them.
inline std::vector<NamedStep> relocation_steps() {
  using wire::Opcode;
  return {
      {"named",
       [](CrashWriter& w) {
         w.write("h", 0, 10 * page_size);
         w.fsync("h");
         w.freeze(0);
         w.move_everything();
         w.write("h", 5 * page_size, 3 * page_size);
         w.fsync("h");
         w.move("h", wire::relocate_scattered);
         w.write("h", page_size + 100, 200);
         w.sync();
         w.checkpoint();
         w.write("h", 2 * page_size, 100);
         w.sync();
       }},
      {"unwritten",
       [](CrashWriter& w) {
         w.on_file(Opcode::fallocate, "a", 0, 6 * page_size);
         w.sync();
         w.freeze(0);
         w.move_everything();
         w.write("a", page_size, 2 * page_size);
         w.fsync("a");
         w.unfreeze(0);
         w.freeze(1);
         w.move_everything();
         w.write("a", 4 * page_size, page_size);
         w.sync();
       }},
      {"checkpointed",
       [](CrashWriter& w) {
         w.freeze(0);
         w.move_everything();
         w.checkpoint();
         w.create("n");
         w.write("n", 0, 3 * page_size);
         w.unfreeze(0);
         w.freeze(1);
         w.move_everything();
         w.sync();
         w.checkpoint();
         w.unlink("n");
         w.sync();
       }},
      {"removed",
       [](CrashWriter& w) {
         w.write("h", 0, 6 * page_size);
         w.sync();
         w.freeze(0);
         w.move_everything();
         w.on_file(Opcode::truncate, "h", 2 * page_size, 0);
         w.unlink("h");
         w.set_attribute("a", "user.y", 200);
         w.sync();
       }},
  };
}

// Files fill pages of the inode file and of their directory, all of which are given back; then their numbers are
// reused.
inline CrashHistory shrinking(CrashPlace place) {
  CrashHistory history{fmt::format("shrinking_{}", static_cast<u32>(place)), place, 3, {}};
  history.body = [](CrashWriter& w) {
    const auto name = [](u32 i) { return fmt::format("t/{}{}", i, std::string(220, 'n')); };
    w.mkdir("t");
    for (u32 i = 0; i < 36; ++i) try_step(w, [&](CrashWriter& writer) { writer.create(name(i)); });
    w.checkpoint();
    for (u32 i = 0; i < 36; ++i) {
      try_step(w, [&](CrashWriter& writer) { writer.remove(name(i)); });
      if (i == 20) w.sync();
      if (i == 30) w.checkpoint();
    }
    w.sync();
    w.checkpoint();
    for (u32 i = 0; i < 4; ++i) try_step(w, [&](CrashWriter& writer) { writer.create(name(i)); });
    w.sync();
    try_step(w, [&](CrashWriter& writer) { writer.remove(name(1)); });
    w.checkpoint();
  };
  return history;
}

inline CrashHistory relocation(const NamedStep& step, CrashPlace place) {
  CrashHistory history{fmt::format("relocation_{}_{}", step.name, static_cast<u32>(place)), place, 4, {}};
  history.body = step.run;
  return history;
}

}  // namespace detail

// `random_count`: number of random histories, from `first_seed` on.
inline std::vector<CrashHistory> crash_histories(u64 first_seed, u64 random_count) {
  std::vector<CrashHistory> list;
  for (u32 place = 0; place < crash_place_count; ++place) {
    for (const NamedStep& step : name_steps()) list.push_back(detail::alone(step, static_cast<CrashPlace>(place)));
    for (const NamedStep& step : content_steps()) list.push_back(detail::alone(step, static_cast<CrashPlace>(place)));
    for (const NamedStep& step : attribute_steps()) list.push_back(detail::alone(step, static_cast<CrashPlace>(place)));
  }
  u32 number = 0;
  for (const NamedStep& first : name_steps()) {
    for (const NamedStep& second : name_steps()) list.push_back(detail::pair(first, second, number++ % 2 == 0));
  }
  list.push_back(detail::full_pool());
  for (u32 place = 0; place < crash_place_count; ++place)
    list.push_back(detail::shrinking(static_cast<CrashPlace>(place)));
  for (const NamedStep& step : detail::relocation_steps())
    list.push_back(detail::relocation(step, CrashPlace::two_devices));
  for (u64 seed = first_seed; seed < first_seed + random_count; ++seed) list.push_back(detail::random_walk(seed));
  return list;
}

// The history with that id, or none.
inline std::vector<CrashHistory> crash_histories_of(const std::string& id) {
  const std::string_view prefix = "random_";
  std::vector<CrashHistory> found;
  if (id.starts_with(prefix)) {
    u64 seed = 0;
    const auto [end, error] = std::from_chars(id.data() + prefix.size(), id.data() + id.size(), seed);
    if (error == std::errc() && end == id.data() + id.size()) found.push_back(detail::random_walk(seed));
    return found;
  }
  for (CrashHistory& history : crash_histories(0, 0)) {
    if (history.id == id) found.push_back(std::move(history));
  }
  return found;
}

}  // namespace gpu4fs::test
