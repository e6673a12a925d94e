// gpu4fs bench programs: databases on a mount with the CPU engine and on ext4 over a loop device, with the files of
// both on the same medium; the rounds alternate.
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>

#include "bench/loop_device.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"
#include "bench/verbs.hpp"

namespace gpu4fs::bench {

namespace {

namespace filesystem = std::filesystem;

constexpr double ratio_min = 0.5;
constexpr u64 medium_bytes = u64{1} << 30;
constexpr const char* postgres_user = "postgres";

struct ProgramScale {
  u32 transactions;
  u32 rounds;
  u32 postgres_seconds;
};

// ext4 over a loop device over a file.
class LoopMount final : public Mount {
 public:
  LoopMount(const std::string& file, std::string folder) : Mount(std::move(folder)) {
    run_program({"truncate", "-s", std::to_string(medium_bytes), file});
    device_ = std::make_unique<LoopDevice>(file);
    run_program({"mkfs.ext4", "-q", "-F", device_->path()});
  }
  ~LoopMount() override {
    if (is_up_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  void up() override {
    if (::mount(device_->path().c_str(), folder_.c_str(), "ext4", 0, nullptr) != 0) fail_by_errno("mounting ext4");
    is_up_ = true;
  }
  void down() override {
    if (::umount(folder_.c_str()) != 0) fail_by_errno("unmounting ext4");
    is_up_ = false;
  }

 private:
  std::unique_ptr<LoopDevice> device_;
  bool is_up_ = false;
};

using Samples = std::map<std::string, std::vector<double>>;

struct SqliteCase {
  const char* name;
  const char* what;
  const char* journal;
  u32 inserts_per_transaction;
};
constexpr SqliteCase sqlite_cases[] = {
    {"sqlite-wal-1", "SQLite, WAL, 1 insert a transaction", "WAL", 1},
    {"sqlite-wal-10", "SQLite, WAL, 10 inserts a transaction", "WAL", 10},
    {"sqlite-rollback-1", "SQLite, rollback journal, 1 insert a transaction", "DELETE", 1},
    {"sqlite-rollback-10", "SQLite, rollback journal, 10 inserts a transaction", "DELETE", 10},
};

std::string sqlite_script(const SqliteCase& which, u32 transactions) {
  std::string script = fmt::format(
      ".bail on\nPRAGMA journal_mode={};\nPRAGMA synchronous=FULL;\nCREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);\n",
      which.journal);
  for (u32 i = 0; i < transactions; ++i) {
    script += "BEGIN;";
    for (u32 k = 0; k < which.inserts_per_transaction; ++k) {
      script += fmt::format("INSERT INTO t(v) VALUES('{:0100}');", i * which.inserts_per_transaction + k);
    }
    script += "COMMIT;\n";
  }
  return script + "SELECT count(*) FROM t;\n";
}

void run_sqlite(Mount& mount, const std::string& folder, const ProgramScale& scale, Samples& samples) {
  for (const SqliteCase& which : sqlite_cases) {
    const std::string script = folder + "/script.sql";
    std::ofstream(script) << sqlite_script(which, scale.transactions);
    const std::string database = fmt::format("{}/{}.db", mount.folder(), which.name);
    const double began = now_seconds();
    const std::string answer = program_output({"sqlite3", "-init", script, database, ".quit"});
    const double seconds = now_seconds() - began;
    const u32 inserts = scale.transactions * which.inserts_per_transaction;
    if (answer.find(fmt::format("{}\n", inserts)) == std::string::npos) {
      throw std::runtime_error(fmt::format("{}: the database does not hold what was inserted", which.name));
    }
    samples[which.name].push_back(inserts / seconds);
    for (const char* suffix : {"", "-wal", "-shm", "-journal"}) filesystem::remove(database + suffix);
  }
}

// The newest version that is installed in Debian's folders.
std::string find_postgres() {
  std::string found;
  std::error_code error;
  for (const auto& entry : filesystem::directory_iterator("/usr/lib/postgresql", error)) {
    const std::string folder = entry.path().string() + "/bin";
    if (filesystem::exists(folder + "/initdb") && filesystem::exists(folder + "/pgbench"))
      found = std::max(found, folder);
  }
  if (found.empty()) throw std::runtime_error("PostgreSQL is not installed (package postgresql)");
  return found;
}

// A database on the mount with its sockets in `folder`.
class PostgresServer {
 public:
  PostgresServer(std::string programs, const std::string& mount, std::string folder)
      : programs_(std::move(programs)), data_(mount + "/postgres"), folder_(std::move(folder)) {
    filesystem::create_directory(data_);
    run_program({"chown", postgres_user, data_, folder_});
    as_user({programs_ + "/initdb", "-D", data_, "-A", "trust", "-E", "UTF8", "--locale=C"});
    as_user({programs_ + "/pg_ctl", "-D", data_, "-w", "-l", folder_ + "/postgres.log", "-o",
             fmt::format("-k {} -c listen_addresses=", folder_), "start"});
    runs_ = true;
  }
  ~PostgresServer() {
    try {
      if (runs_) as_user({programs_ + "/pg_ctl", "-D", data_, "-w", "-m", "fast", "stop"});
    } catch (const std::runtime_error&) {
    }
    std::error_code ignored;
    filesystem::remove_all(data_, ignored);
  }
  PostgresServer(const PostgresServer&) = delete;
  PostgresServer& operator=(const PostgresServer&) = delete;

  double transactions_per_second(u32 seconds) {
    as_user({programs_ + "/pgbench", "-h", folder_, "-i", "-s", "2", "-q", "postgres"});
    const std::string text = program_output({"runuser", "-u", postgres_user, "--", programs_ + "/pgbench", "-h",
                                             folder_, "-c", "4", "-j", "1", "-T", std::to_string(seconds), "postgres"});
    const std::size_t at = text.find("tps = ");
    if (at == std::string::npos) throw std::runtime_error("pgbench told no rate");
    return std::stod(text.substr(at + 6));
  }

 private:
  static void as_user(std::vector<std::string> words) {
    words.insert(words.begin(), {"runuser", "-u", postgres_user, "--"});
    run_program(words, true);
  }

  std::string programs_;
  std::string data_;
  std::string folder_;
  bool runs_ = false;
};

void run_postgres(Mount& mount, const std::string& folder, const ProgramScale& scale, Samples& samples) {
  const std::string sockets = folder + "/postgres";
  filesystem::create_directory(sockets);
  PostgresServer server(find_postgres(), mount.folder(), sockets);
  samples["pgbench"].push_back(server.transactions_per_second(scale.postgres_seconds));
}

struct Part {
  const char* name;
  void (*run)(Mount&, const std::string&, const ProgramScale&, Samples&);
  bool warms_up;
};
constexpr Part parts[] = {{"sqlite", run_sqlite, true}, {"postgres", run_postgres, false}};

void add_row(BenchResult& result, const std::string& name, const std::string& what, const char* unit, Samples& own,
             Samples& peer) {
  BenchRow row;
  row.name = name;
  row.what = what;
  row.unit = unit;
  set_samples(row, own.at(name));
  BenchRow limit;
  set_samples(limit, peer.at(name));
  row.limit = limit.value;
  row.limit_what = "ext4, loop device";
  row.requirement = Requirement::at_least;
  row.required = ratio_min;
  result.rows.push_back(std::move(row));
}

void measure(const Part& part, const ProgramScale& scale, const std::string& folder, Mount& own, Mount& peer,
             BenchResult& result) {
  Samples samples[2];
  for (u32 round = part.warms_up ? 0 : 1; round <= scale.rounds; ++round) {
    for (Mount* mount : {&own, &peer}) {
      Samples unused;
      mount->up();
      try {
        part.run(*mount, folder, scale, round == 0 ? unused : samples[mount == &own ? 0 : 1]);
      } catch (...) {
        mount->down();
        throw;
      }
      mount->down();
    }
  }
  for (const SqliteCase& which : sqlite_cases) {
    if (samples[0].contains(which.name)) add_row(result, which.name, which.what, "inserts/s", samples[0], samples[1]);
  }
  if (samples[0].contains("pgbench")) {
    add_row(result, "pgbench", "PostgreSQL, pgbench with 4 clients", "1/s", samples[0], samples[1]);
  }
}

}  // namespace

int bench_programs(const BenchProgramsOptions& options) {
  const ProgramScale scale = options.quick ? ProgramScale{200, 2, 3} : ProgramScale{1000, 5, 10};
  BenchResult result = new_result("programs", "cpu", options.quick);
  const TemporaryFolder folder(options.folder.empty() ? "/dev/shm" : options.folder);
  // Other users must be able to reach the mounts.
  if (::chmod(folder.path().c_str(), 0755) != 0) fail_by_errno(folder.path());
  PoolMount own(folder.path() + "/pool", folder.path() + "/mount", medium_bytes, "engine=cpu,allow_other");
  LoopMount peer(folder.path() + "/loop", folder.path() + "/ext4");
  for (const Part& part : parts) {
    const bool is_wanted =
        options.only.empty() || std::find(options.only.begin(), options.only.end(), part.name) != options.only.end();
    if (!is_wanted) continue;
    try {
      measure(part, scale, folder.path(), own, peer, result);
    } catch (const std::exception& error) {
      result.left_out.push_back(fmt::format("{}: {}", part.name, error.what()));
    }
  }
  print_rows(result);
  if (!options.output.empty()) write_result(result, options.output);
  return result.left_out.empty() ? 0 : 8;
}

}  // namespace gpu4fs::bench
