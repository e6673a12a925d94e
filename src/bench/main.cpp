// gpu4fs-bench, which `gpu4fs bench` starts: measurements compared with limits that are measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/process_client.hpp"
#include "bench/result.hpp"
#include "bench/verbs.hpp"
#include "cli/verb.hpp"

namespace gpu4fs::bench {

namespace {

enum class Action { run, trace, fuse, programs, btrfs, nvme, drives, process_client, report };
Action action = Action::report;
BenchRunOptions run_options;
BenchTraceOptions trace_options;
BenchFuseOptions fuse_options;
BenchProgramsOptions programs_options;
BenchBtrfsOptions btrfs_options;
BenchNvmeOptions nvme_options;
BenchDrivesOptions drives_options;
std::string process_client_socket;
std::vector<std::string> report_paths;

void add_drives_options(cli::CommandLine& line) {
  drives_options = {};
  cli::CommandLine drives =
      line.subcommand("drives", "measure pools on files and block devices of a disk, accessed directly");
  drives.option("--engine", drives_options.engine, "cpu or cuda").one_of({"cpu", "cuda"});
  drives.option("--access", drives_options.access, "direct, or emulated: pools on emulated NVMe drives in memory")
      .one_of({"direct", "emulated"});
  drives.option("--drive", drives_options.drive,
                "Emulated drives: unlimited, p5800x, 980pro, pm1735 or a latency like 10us");
  drives.option("--folder", drives_options.folder, "Where all files are made, on a disk; default: the current folder");
  drives.option("--peer", drives_options.peer, "fio, or bare: a loop of this program; default fio if it is installed")
      .one_of({"auto", "fio", "bare"});
  drives.option("-o,--output", drives_options.output, "Write the result as JSON to this file");
  drives.flag("--quick", drives_options.quick, "Less data and fewer repetitions");
  drives
      .option(
          "--only", drives_options.only,
          "Parts to run: file, block, idle, sync, raid, hits; emulated drives: emulated, misses, recovery, readahead")
      .one_of({"file", "block", "idle", "sync", "raid", "hits", "emulated", "misses", "recovery", "readahead"});
  drives.on_selected([] { action = Action::drives; });
}

// For this program itself.
void add_process_client_options(cli::CommandLine& line) {
  process_client_socket = {};
  cli::CommandLine client = line.subcommand("process-client", "a client of the part processes, which starts it");
  client.option("--socket", process_client_socket, "Session socket of the server").required();
  client.on_selected([] { action = Action::process_client; });
}

void add_options(cli::CommandLine line) {
  run_options = {};
  trace_options = {};
  fuse_options = {};
  programs_options = {};
  btrfs_options = {};
  nvme_options = {};
  report_paths.clear();
  line.require_subcommand();
  cli::CommandLine run = line.subcommand("run", "measure an engine in this process through the client library");
  run.option("--engine", run_options.engine, "auto, cpu or cuda").one_of({"auto", "cpu", "cuda"});
  run.option("-o,--output", run_options.output, "Write the result as JSON to this file");
  run.option("--step", run_options.step, "Bytes that one command of a large transfer moves (default 256M)");
  run.flag("--quick", run_options.quick, "Less data and fewer repetitions");
  run.option(
         "--only", run_options.only,
         "Parts to run: first, files, vram, scrub, latency, rate, paths, sync, recovery, processes, idle, checkpoint, "
         "tier, checksums, raid, rebuild, emptying, empty; sweep only when named")
      .one_of({"first", "files", "vram", "scrub", "latency", "rate", "paths", "sync", "recovery", "processes", "idle",
               "checkpoint", "tier", "checksums", "raid", "rebuild", "emptying", "empty", "sweep"});
  run.option("--level", run_options.levels, "Pools of the parts raid, rebuild and sweep; default all")
      .one_of({"raid0", "raid1", "raid5-3+1", "raid6-4+2", "raid7-5+3"});
  run.on_selected([] { action = Action::run; });
  cli::CommandLine trace = line.subcommand("trace", "say which phases of small commands take how many cycles");
  trace.option("--engine", trace_options.engine, "auto, cpu or cuda").one_of({"auto", "cpu", "cuda"});
  trace.option("-o,--output", trace_options.output, "Write the result as JSON to this file");
  trace.flag("--quick", trace_options.quick, "Fewer repetitions");
  trace.on_selected([] { action = Action::trace; });
  cli::CommandLine fuse =
      line.subcommand("fuse", "measure mounts: engines against each other, and libfuse's passthrough file systems");
  fuse.option("--engine", fuse_options.engine, "cpu, cuda or both").one_of({"cpu", "cuda", "both"});
  fuse.option("--peer", fuse_options.peers, "Passthrough programs; otherwise libfuse's examples are built");
  fuse.option("--folder", fuse_options.folder, "Where pool and peer keep their data, default /dev/shm");
  fuse.option("-o,--output", fuse_options.output, "Write the result as JSON to this file");
  fuse.flag("--quick", fuse_options.quick, "Less data and fewer repetitions");
  fuse.option("--only", fuse_options.only, "Parts to run: small, passthrough (with the CPU engine)")
      .one_of({"small", "passthrough"});
  fuse.on_selected([] { action = Action::fuse; });
  cli::CommandLine programs =
      line.subcommand("programs", "measure databases on a mount against ext4 on the same medium");
  programs.option("--folder", programs_options.folder, "Where both keep their data, default /dev/shm");
  programs.option("-o,--output", programs_options.output, "Write the result as JSON to this file");
  programs.flag("--quick", programs_options.quick, "Fewer transactions and repetitions");
  programs.option("--only", programs_options.only, "Parts to run: sqlite, postgres").one_of({"sqlite", "postgres"});
  programs.on_selected([] { action = Action::programs; });
  cli::CommandLine btrfs = line.subcommand("btrfs", "measure pools with redundancy against btrfs on the same medium");
  btrfs.option("--folder", btrfs_options.folder, "Where both keep their devices, default /dev/shm");
  btrfs.option("-o,--output", btrfs_options.output, "Write the result as JSON to this file");
  btrfs.flag("--quick", btrfs_options.quick, "Less data and fewer repetitions");
  btrfs.option("--only", btrfs_options.only, "Parts to run: mount, ring").one_of({"mount", "ring"});
  btrfs.on_selected([] { action = Action::btrfs; });
  cli::CommandLine nvme = line.subcommand("nvme", "measure the NVMe driver on an emulated drive");
  nvme.option("--engine", nvme_options.engine, "auto, cpu or cuda").one_of({"auto", "cpu", "cuda"});
  nvme.option("-o,--output", nvme_options.output, "Write the result as JSON to this file");
  nvme.flag("--quick", nvme_options.quick, "Shorter runs and fewer repetitions");
  nvme.option("--only", nvme_options.only,
              "Parts to run: rate, sharing, latency, tail, mapper, classes, sizes, size-latency, cache")
      .one_of({"rate", "sharing", "latency", "tail", "mapper", "classes", "sizes", "size-latency", "cache"});
  nvme.on_selected([] { action = Action::nvme; });
  add_drives_options(line);
  add_process_client_options(line);
  cli::CommandLine report = line.subcommand("report", "print results: what, measured, required, met or short");
  report.option("results", report_paths, "JSON files, default bench/results/*.json");
  report.on_selected([] { action = Action::report; });
}

int run() {
  switch (action) {
    case Action::run:
      return bench_run(run_options);
    case Action::trace:
      return bench_trace(trace_options);
    case Action::fuse:
      return bench_fuse(fuse_options);
    case Action::programs:
      return bench_programs(programs_options);
    case Action::btrfs:
      return bench_btrfs(btrfs_options);
    case Action::nvme:
      return bench_nvme(nvme_options);
    case Action::drives:
      return bench_drives(drives_options);
    case Action::process_client:
      return run_process_client(process_client_socket);
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
  if (files.empty()) throw std::runtime_error("no results: name files, or run it where bench/results lies");
  for (const std::string& file : files) {
    fmt::print("{}: ", file);
    print_rows(read_result(file));
  }
  return 0;
}

const cli::Verb verb = {"bench", "measure against the machine's limits", nullptr, add_options, run, 16, 8};

}  // namespace gpu4fs::bench

int main(int count, char** arguments) {
  return gpu4fs::cli::run_verb(gpu4fs::bench::verb, "gpu4fs bench", count, arguments);
}
