// gpu4fs bench: measurements against limits taken in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/bench_result.hpp"
#include "tools/bench_verbs.hpp"
#include "tools/verb.hpp"

namespace gpu4fs::tools {

namespace {

enum class Action { run, fuse, programs, btrfs, report };
Action action = Action::report;
BenchRunOptions run_options;
BenchFuseOptions fuse_options;
BenchProgramsOptions programs_options;
BenchBtrfsOptions btrfs_options;
std::vector<std::string> report_paths;

void add_options(CLI::App& app) {
  run_options = {};
  fuse_options = {};
  programs_options = {};
  btrfs_options = {};
  report_paths.clear();
  app.require_subcommand(1);
  CLI::App* run =
      app.add_subcommand("run", "measure an engine in this process through the client library");
  run->add_option("--engine", run_options.engine, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  run->add_option("-o,--output", run_options.output, "Write the result as JSON to this file");
  run->add_option("--step", run_options.step,
                  "Bytes that one command of a large transfer moves (default 256M)");
  run->add_flag("--quick", run_options.quick, "Less data and fewer repetitions");
  run->add_option("--only", run_options.only,
                  "Parts to run: first, files, vram, scrub, latency, rate, sync, recovery, idle, checkpoint, checksums, raid, rebuild; "
                  "sweep only when named")
      ->check(CLI::IsMember(
          {"first", "files", "vram", "scrub", "latency", "rate", "sync", "recovery", "idle", "checkpoint",
           "checksums", "raid", "rebuild", "sweep"}));
  run->add_option("--level", run_options.levels, "Pools of the parts raid, rebuild and sweep; default all")
      ->check(CLI::IsMember({"raid0", "raid1", "raid5-3+1", "raid6-4+2", "raid7-5+3"}));
  run->callback([] { action = Action::run; });
  CLI::App* fuse =
      app.add_subcommand("fuse", "measure a mount against libfuse's passthrough file systems");
  fuse->add_option("--peer", fuse_options.peers,
                   "Passthrough programs; otherwise libfuse's examples are built");
  fuse->add_option("--folder", fuse_options.folder,
                   "Where pool and peer keep their data, default /dev/shm");
  fuse->add_option("-o,--output", fuse_options.output, "Write the result as JSON to this file");
  fuse->add_flag("--quick", fuse_options.quick, "Less data and fewer repetitions");
  fuse->callback([] { action = Action::fuse; });
  CLI::App* programs =
      app.add_subcommand("programs", "measure databases on a mount against ext4 on the same medium");
  programs->add_option("--folder", programs_options.folder, "Where both keep their data, default /dev/shm");
  programs->add_option("-o,--output", programs_options.output, "Write the result as JSON to this file");
  programs->add_flag("--quick", programs_options.quick, "Fewer transactions and repetitions");
  programs->add_option("--only", programs_options.only, "Parts to run: sqlite, postgres")
      ->check(CLI::IsMember({"sqlite", "postgres"}));
  programs->callback([] { action = Action::programs; });
  CLI::App* btrfs = app.add_subcommand("btrfs", "measure pools with redundancy against btrfs on the same medium");
  btrfs->add_option("--folder", btrfs_options.folder, "Where both keep their devices, default /dev/shm");
  btrfs->add_option("-o,--output", btrfs_options.output, "Write the result as JSON to this file");
  btrfs->add_flag("--quick", btrfs_options.quick, "Less data and fewer repetitions");
  btrfs->add_option("--only", btrfs_options.only, "Parts to run: mount, ring")->check(CLI::IsMember({"mount", "ring"}));
  btrfs->callback([] { action = Action::btrfs; });
  CLI::App* report =
      app.add_subcommand("report", "print results: what, measured, required, met or short");
  report->add_option("results", report_paths, "JSON files, default bench/results/*.json");
  report->callback([] { action = Action::report; });
}

int run() {
  switch (action) {
    case Action::run:
      return bench_run(run_options);
    case Action::fuse:
      return bench_fuse(fuse_options);
    case Action::programs:
      return bench_programs(programs_options);
    case Action::btrfs:
      return bench_btrfs(btrfs_options);
    case Action::report:
      return bench_report(report_paths);
  }
  return 0;
}

}  // namespace

int bench_report(const std::vector<std::string>& paths) {
  std::vector<std::string> files = paths;
  if (files.empty()) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("bench/results", error)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
  }
  if (files.empty())
    throw std::runtime_error("no results: name files, or run it where bench/results lies");
  for (const std::string& file : files) {
    fmt::print("{}: ", file);
    print_rows(read_result(file));
  }
  return 0;
}

const Verb bench_verb = {
    "bench", "measure against the machine's limits", nullptr, add_options, run, 16, 8};

}  // namespace gpu4fs::tools
