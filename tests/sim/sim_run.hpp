// One seed: clients with several commands in progress each, checkpoints, quiet points at which everything is compared,
// and at the end a power failure, after which the same pool continues.
//
// The kinds of seeds (SimKind): only the power fails; some commands have deadlines that flushes exceed; devices answer
// with errors; devices store or keep wrong bytes. With errors, operations may be refused, and nothing acknowledged is
// lost. With wrong bytes there is only one requirement: a read is right or refused. A third of the seeds runs on a pool
// that is nearly full.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crash/crash_history.hpp"
#include "crash/crash_medium.hpp"
#include "device/stack/fault_layer.hpp"
#include "model/actor.hpp"
#include "sim/shared_folder.hpp"
#include "sim/sim_engine.hpp"

namespace gpu4fs::test {

enum class SimKind { plain, deadlines, errors, silent };

struct SimOutcome {
  std::string problem;  // "" for none
  std::string tail;     // what happened last
  u64 trace = 0;        // of all decisions, answers and writes
  u64 operations = 0;
  u64 quiet_points = 0;
  u64 power_failures = 0;
  u64 replayed = 0;
  u64 faults = 0;
  u64 timeouts = 0;
  u64 refusals = 0;    // for lack of space
  u64 given_back = 0;  // pages of the inode file
};

// Faults only while `armed`.
class ArmedFaults : public device::FaultLayer {
 public:
  ArmedFaults(device::FaultRules rules, const bool& armed) : FaultLayer(std::move(rules)), armed_(armed) {}
  Status may_read(u64 offset, u64 length) override {
    return armed_ ? FaultLayer::may_read(offset, length) : Status::ok;
  }
  Status may_write(u64 offset, u64 length) override {
    return armed_ ? FaultLayer::may_write(offset, length) : Status::ok;
  }
  Status may_flush() override { return armed_ ? FaultLayer::may_flush() : Status::ok; }
  bool read(u64 offset, std::span<u8> bytes) override { return armed_ && FaultLayer::read(offset, bytes); }
  void write(std::vector<device::StackWrite>& writes) override {
    if (armed_) FaultLayer::write(writes);
  }

 private:
  const bool& armed_;
};

class SimRun {
 public:
  // `filler`: a file of the base in which to make a little room, 0 for none: the pool is nearly full.
  SimRun(u64 seed, const CrashBase& base, u64 filler, SimFlaw flaw = SimFlaw::none)
      : world_(seed), name_("GPU4FS_SIM_SEED=" + std::to_string(seed)), kind_(kind_of(seed)), filler_(filler) {
    world_.flaw = flaw;
    if (kind_ == SimKind::deadlines) world_.flush_ns = 2'000'000 + world_.below(6'000'000);
    image_ = std::make_unique<CrashImage>(base.devices);
  }

  SimOutcome run() {
    world_of_clock = &world_;
    const u64 lives = kind_ == SimKind::silent ? 2 : 2 + world_.below(3);
    for (u64 life = 0; life < lives && outcome_.problem.empty(); ++life) {
      try {
        if (!begin_life(life)) break;
        if (kind_ == SimKind::silent && life > 0) break;
        work(20 + world_.below(60));
      } catch (const std::exception& error) {
        fail(error.what());
      }
      if (!outcome_.problem.empty()) break;
      end_life(life + 1 == lives);
    }
    if (!outcome_.problem.empty()) strand();
    world_of_clock = nullptr;
    outcome_.trace = world_.trace();
    for (const std::string& line : recent_) outcome_.tail += "  " + line + "\n";
    return std::move(outcome_);
  }

 private:
  static constexpr u64 nobody = ~u64{0};
  static constexpr u64 slots_per_client = 3;

  struct Slot {
    client::Session* session = nullptr;
    std::optional<FileClient> files;
    u64 actor = nobody;  // the owner of the folder; nobody: the shared one
    u64 shared_client = 0;
    bool is_busy = false;
    bool waits = false;  // for a quiet point, because the result is unknown
    bool is_sync = false;
    bool has_deadline = false;
    u64 position = 0;
    FileOperation op;
    StepCounts seen;
    StepCounts records_seen;
    bool comes_and_goes = false;  // creates and frees files without names: pages of the inode file are created and
                                  // given back
    bool frees = false;
    std::vector<u64> nameless;
  };

  static SimKind kind_of(u64 seed) {
    const u64 place = seed % 10;
    return place < 5 ? SimKind::plain : place < 6 ? SimKind::deadlines : place < 9 ? SimKind::errors : SimKind::silent;
  }

  void fail(const std::string& text) {
    if (outcome_.problem.empty()) outcome_.problem = text;
  }
  void note(const std::string& line) {
    recent_.push_back(line);
    if (recent_.size() > 30) recent_.pop_front();
  }
  SimEngine& engine() { return static_cast<SimEngine&>(pool_->host()); }
  FileClient& plain_client() { return *plain_client_; }

  // ---- a life: from a mount to the power failure

  void mount() {
    log_ = std::make_shared<device::MemoryWriteLog>();
    armed_ = false;
    world_.is_mounted = false;
    CrashPoolSetup setup;
    setup.log = log_;
    setup.where = name_.c_str();
    setup.logs_recovery = true;
    setup.options.worker_count = 8;
    setup.options.config.inline_transfer_pages = world_.chance(50) ? 2 : 32;
    setup.options.config.task_pages = 1 + static_cast<u32>(world_.below(4));
    setup.options.config.batch_max = 1 + static_cast<u32>(world_.below(8));
    if (kind_ == SimKind::deadlines) setup.options.config.sweep_interval_ms = 1;
    setup.make_engine = [this](engine::Engine* e, FlushDevices flush) {
      return std::make_unique<SimEngine>(e, std::move(flush), name_.c_str(), world_);
    };
    faults_.clear();
    if (kind_ == SimKind::errors || kind_ == SimKind::silent) {
      setup.add_layers = [this](u32 device, DeviceLayers& layers) { add_faults(device, layers); };
    }
    pool_ = std::make_unique<CrashPool>(*image_, std::move(setup));
    outcome_.replayed += pool_->replayed_count();
    plain_client_.emplace(pool_->session());
  }

  void add_faults(u32 device, DeviceLayers& layers) {
    if (device == 0) faults_.clear();  // of the engine that recovered
    const std::string seed = fmt::format("seed={},", world_.below(1u << 30) + device);
    const char* const errors[] = {"read-error=0.2", "write-error=0.04", "flush-error=0.2",
                                  "read-error=0.05,write-error=0.02,flush-error=0.05"};
    const char* const silent[] = {"flip=0.04", "decay=0.1", "flip=0.02,decay=0.05"};
    const std::string rules = seed + (kind_ == SimKind::errors ? errors[world_.below(4)] : silent[world_.below(3)]);
    auto layer = std::make_unique<ArmedFaults>(device::parse_fault_rules(rules), armed_);
    faults_.push_back(layer.get());
    layers.push_back(std::move(layer));
  }
  u64 fault_count() const {
    u64 count = 0;
    for (const ArmedFaults* layer : faults_) count += layer->fault_count();
    return count;
  }

  bool begin_life(u64 life) {
    try {
      mount();
    } catch (const std::exception& error) {
      if (kind_ == SimKind::silent && life > 0) return false;  // the damage is too severe
      throw;
    }
    if (life == 0) {
      prepare();
    } else {
      compare_after_crash();
    }
    open_clients();
    armed_ = true;
    world_.is_mounted = true;
    return outcome_.problem.empty();
  }

  void prepare() {
    if (filler_ != 0) {
      const client::Reply punched = plain_client().simple(wire::Opcode::fallocate, filler_, 0, 256 * page_size, 3);
      CrashPool::require(punched.status, "making room");
      CrashPool::require(pool_->checkpoint(), "making room");
    }
    const u64 count = 2 + world_.below(5);
    for (u64 i = 0; i < count; ++i) {
      const bool shares = world_.flaw == SimFlaw::shares_folder && i == 1;
      const u64 folder =
          shares ? actors_[0].folder() : make(wire::Opcode::mkdir, PosixModel::root, fmt::format("actor{}", i));
      actors_.emplace_back(world_.seed() * 100 + i, folder);
      if (filler_ != 0) actors_.back().set_tight();
    }
    const u64 folder = make(wire::Opcode::mkdir, PosixModel::root, "shared");
    shared_client_count_ = 1 + world_.below(3);
    const u64 log_file = make(wire::Opcode::create, PosixModel::root, "shared log");
    shared_.emplace(folder, log_file, shared_client_count_);
    if (filler_ != 0) leave_pages(8 + world_.below(40));
    CrashPool::require(plain_client().simple(wire::Opcode::sync).status, "the first sync");
  }
  void leave_pages(u64 count) {
    for (u64 page = 0; page < 256; ++page) {
      const fs::FileSystem& fs = pool_->engine()->fs;
      if (space::room_of(fs, fs.space.data_class).available <= count) return;
      if (plain_client().simple(wire::Opcode::fallocate, filler_, page * page_size, page_size, 1).status != Status::ok)
        return;
    }
  }
  u64 make(wire::Opcode opcode, u64 directory, const std::string& name) {
    FileOperation op;
    op.opcode = opcode;
    op.inode = directory;
    op.name = name;
    op.mode = 0755;
    const client::Reply reply = plain_client().call(op);
    CrashPool::require(reply.status, name.c_str());
    return reply.result;
  }

  void open_clients() {
    slots_.resize(actors_.size() + shared_client_count_ + 1);
    slots_.back().comes_and_goes = true;
    for (u64 i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (i % slots_per_client == 0) sessions_.push_back(pool_->open_session());
      slot.session = sessions_.back().get();
      slot.files.emplace(*slot.session, i % slots_per_client * actor_area_bytes, actor_area_bytes);
      slot.actor = i < actors_.size() ? i : nobody;
      slot.shared_client = i < actors_.size() ? 0 : i - actors_.size();
    }
  }

  // ---- commands

  void work(u64 operation_count) {
    const u64 end = outcome_.operations + operation_count;
    u64 next_quiet = outcome_.operations + 10 + world_.below(40);
    while (outcome_.operations < end && outcome_.problem.empty()) {
      if (world_.chance(20)) submit_to(slots_[world_.below(slots_.size())]);
      if (world_.below(300) == 0) ask_for_checkpoint();
      advance();
      if (outcome_.operations < next_quiet) continue;
      next_quiet = outcome_.operations + 10 + world_.below(40);
      become_quiet();
    }
  }

  // One decision of the engine, and the processing of the answers so far.
  void advance() {
    const bool moves = engine().decide();
    bool is_waiting = false;
    for (Slot& slot : slots_) {
      if (slot.is_busy && slot.session->is_done(slot.position)) end_command(slot);
      is_waiting = is_waiting || slot.is_busy;
    }
    if (!moves && is_waiting) fail("nothing moves any more, and commands are under way");
    if (checkpoint_position_) poll_checkpoint();
    const bool all_wait =
        std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.waits || slot.comes_and_goes; });
    if (all_wait) become_quiet();
  }

  void submit_to(Slot& slot) {
    if (slot.is_busy || slot.waits || !has_room(slot)) return;
    if (slot.comes_and_goes) return submit_nameless(slot);
    slot.seen.clear();
    slot.records_seen.clear();
    for (const Actor& actor : actors_) slot.seen.push_back(actor.ended_count());
    for (u64 i = 0; i < shared_client_count_; ++i) slot.records_seen.push_back(shared_->records_done(i));
    slot.is_sync = world_.chance(8);
    std::vector<u8> content;
    FileOperation form;
    if (slot.is_sync) {
      slot.op = sync_step();
      form = slot.op;
    } else if (slot.actor != nobody) {
      Actor& actor = actors_[slot.actor];
      slot.op = actor.begin(slot.seen);
      form = actor.engine_form(slot.op);
      content = Actor::content(slot.op);
    } else {
      slot.op = shared_->next(shared_random_, slot.shared_client);
      form = slot.op;
      content = shared_->content(slot.op, slot.shared_client);
    }
    wire::Command command = slot.files->command_of(form);
    if (!content.empty()) std::memcpy(slot.files->data(), content.data(), content.size());
    slot.has_deadline = kind_ == SimKind::deadlines && world_.chance(40);
    if (slot.has_deadline) command.deadline_ms = 1 + static_cast<u32>(world_.below(4));
    CrashPool::require(slot.session->submit(command, &slot.position), "submitting");
    engine().wake();
    slot.is_busy = true;
    ++outcome_.operations;
  }
  void submit_nameless(Slot& slot) {
    constexpr std::size_t several_pages = 40;
    if (slot.nameless.empty()) slot.frees = false;
    if (slot.nameless.size() == several_pages) slot.frees = true;
    slot.op = FileOperation{};
    slot.op.opcode = slot.frees ? wire::Opcode::reclaim : wire::Opcode::tmpfile;
    slot.op.inode = slot.frees ? slot.nameless.back() : u64{PosixModel::root};
    slot.op.mode = 0600;
    if (slot.frees) slot.nameless.pop_back();
    CrashPool::require(slot.session->submit(slot.files->command_of(slot.op), &slot.position), "submitting");
    engine().wake();
    slot.is_busy = true;
  }
  // If it is refused, the existing file is freed.
  void end_nameless(Slot& slot, const client::Reply& reply) {
    if (slot.op.opcode == wire::Opcode::reclaim) return;
    if (reply.status == Status::ok) slot.nameless.push_back(reply.result);
    slot.frees = reply.status != Status::ok;
  }

  // When a ring wraps around, its oldest command has to end first.
  bool has_room(const Slot& slot) const {
    u64 oldest = ~u64{0};
    u64 newest = 0;
    for (const Slot& other : slots_) {
      if (other.session != slot.session) continue;
      newest = std::max(newest, other.position);
      if (other.is_busy) oldest = std::min(oldest, other.position);
    }
    return oldest == ~u64{0} || newest + 1 - oldest < slot.session->depth();
  }
  static FileOperation sync_step() {
    FileOperation op;
    op.opcode = wire::Opcode::sync;
    return op;
  }

  void end_command(Slot& slot) {
    slot.is_busy = false;
    const client::Reply reply = slot.session->finish(slot.position);
    const int error = to_errno(reply.status);
    world_.note(static_cast<u64>(error) * 1000 + reply.result);
    if (slot.comes_and_goes) return end_nameless(slot, reply);
    note(fmt::format("{} {}: {} = {} {}", slot.actor == nobody ? "shared" : "actor",
                     slot.actor == nobody ? slot.shared_client : slot.actor, to_text(slot.op),
                     status_name(reply.status), reply.result));
    std::set<int> doubtful;
    std::set<int> refusals;
    if (slot.has_deadline) doubtful.insert(ETIMEDOUT);
    if (slot.has_deadline && error == ETIMEDOUT) ++outcome_.timeouts;
    if (fault_count() != 0) {
      doubtful.insert({EIO, EUCLEAN});
      refusals.insert(EROFS);
    }
    if (filler_ != 0) (Actor::changes_content(slot.op) ? doubtful : refusals).insert(ENOSPC);
    if (filler_ != 0 && error == ENOSPC) ++outcome_.refusals;
    const bool syncs = slot.op.opcode == wire::Opcode::sync || slot.op.opcode == wire::Opcode::fsync;
    if (slot.is_sync) {
      if (error != 0 && doubtful.count(error) == 0 && refusals.count(error) == 0) {
        fail(fmt::format("a sync answers {}", status_name(reply.status)));
      }
    } else if (slot.actor != nobody) {
      Actor& actor = actors_[slot.actor];
      fail(actor.end(reply, &*slot.files, doubtful, refusals));
      slot.waits = actor.is_uncertain();
    } else {
      end_shared(slot, reply, doubtful, refusals);
    }
    if (syncs && error == 0) promise(slot);
  }
  void end_shared(Slot& slot, const client::Reply& reply, const std::set<int>& doubtful,
                  const std::set<int>& refusals) {
    const int error = to_errno(reply.status);
    if (refusals.count(error) != 0) return;
    if (doubtful.count(error) == 0) return fail(shared_->end(slot.op, slot.shared_client, reply));
    shared_->doubt(slot.op);
    slot.waits = true;
  }
  void promise(const Slot& slot) {
    for (u64 i = 0; i < actors_.size(); ++i) actors_[i].promise(slot.seen[i]);
    for (u64 i = 0; i < shared_client_count_; ++i) shared_->promise_records(i, slot.records_seen[i]);
  }

  void ask_for_checkpoint() {
    if (checkpoint_position_) return;
    wire::Command command{};
    command.opcode = wire::Opcode::checkpoint;
    u64 position = 0;
    CrashPool::require(pool_->management().producer().publish(command, &position), "asking for a checkpoint");
    checkpoint_position_ = position;
    engine().wake();
  }
  void poll_checkpoint() {
    ring::Completion completion{};
    if (!pool_->management().producer().poll(*checkpoint_position_, &completion)) return;
    checkpoint_position_.reset();
    note(fmt::format("a checkpoint = {}", status_name(completion.status)));
    if (completion.status != Status::ok && fault_count() == 0) {
      fail(fmt::format("a checkpoint answers {}", status_name(completion.status)));
    }
  }

  // ---- comparing

  bool is_idle() const {
    for (const Slot& slot : slots_) {
      if (slot.is_busy) return false;
    }
    return true;
  }

  // Waits for the commands in progress and compares everything.
  void become_quiet() {
    while (!is_idle() && outcome_.problem.empty()) {
      const bool moves = engine().decide();
      for (Slot& slot : slots_) {
        if (slot.is_busy && slot.session->is_done(slot.position)) end_command(slot);
      }
      if (!moves && !is_idle()) fail("nothing moves any more, and commands are under way");
    }
    if (kind_ == SimKind::silent || !outcome_.problem.empty()) return;
    armed_ = false;
    ++outcome_.quiet_points;
    note("a quiet point");
    for (u64 i = 0; i < actors_.size() && outcome_.problem.empty(); ++i) {
      fail(actors_[i].settle(PoolText(pool_->session(), actors_[i].folder()).text(), plain_client()));
    }
    if (outcome_.problem.empty()) fail(shared_->check(plain_client(), false));
    for (Slot& slot : slots_) slot.waits = false;
    armed_ = true;
  }

  void compare_after_crash() {
    std::vector<std::string> found;
    for (const Actor& actor : actors_) found.push_back(PoolText(pool_->session(), actor.folder()).text());
    if (kind_ == SimKind::silent) return compare_lines(found);
    std::vector<const Actor*> actors;
    for (Actor& actor : actors_) {
      actor.consider_mixtures(plain_client());
      actors.push_back(&actor);
    }
    std::vector<u64> kept;
    fail(survivors_problem(actors, found, &kept));
    if (!outcome_.problem.empty()) return;
    for (u64 i = 0; i < actors_.size(); ++i) fail(actors_[i].survive(kept[i], found[i], plain_client()));
    if (outcome_.problem.empty()) fail(shared_->check(plain_client(), true));
  }
  void compare_lines(const std::vector<std::string>& found) {
    for (u64 i = 0; i < actors_.size(); ++i) {
      actors_[i].consider_mixtures(plain_client());
      const std::set<std::string> lines = actors_[i].all_lines();
      for (std::size_t at = 0; at < found[i].size();) {
        const std::size_t end = std::min(found[i].find('\n', at), found[i].size());
        const std::string line = found[i].substr(at, end - at);
        at = end + 1;
        // An unreadable part is reported in the middle of a line, and ends it.
        const bool is_part = line.empty() || line.front() != '/' || line.find(" answers ") != std::string::npos;
        if (is_part || lines.count(line) != 0) continue;
        fail("was never so: " + line);
      }
    }
  }

  // ---- the end of a life

  void end_life(bool is_last) {
    bool is_whole = false;
    try {
      is_whole = end_clean(is_last);
      outcome_.given_back += pool_->engine()->fs.inode_pages_given_back;
    } catch (const std::exception& error) {
      fail(error.what());
    }
    if (!outcome_.problem.empty()) return;
    armed_ = false;
    const u64 cut = log_->entries().size();
    world_.is_mounted = false;
    outcome_.faults += fault_count();
    pool_->drain();
    for (const Slot& slot : slots_) {
      if (slot.is_busy && !slot.session->is_done(slot.position)) return fail("nothing moves any more at the end");
    }
    if (checkpoint_position_) poll_checkpoint();
    if (checkpoint_position_) return fail("nothing moves any more, and a checkpoint is under way");
    slots_.clear();
    sessions_.clear();
    plain_client_.reset();
    pool_.reset();
    faults_.clear();
    fail_power(cut, is_whole);
  }

  // From time to time, if nothing has failed: true if nothing can be lost.
  bool end_clean(bool is_last) {
    if (kind_ == SimKind::silent || (!is_last && !world_.chance(25))) return false;
    become_quiet();
    if (!outcome_.problem.empty() || fault_count() != 0) return false;
    armed_ = false;
    CrashPool::require(pool_->checkpoint(true), "the last checkpoint");
    for (Actor& actor : actors_) actor.promise(actor.ended_count());
    return true;
  }

  void fail_power(u64 cut, bool is_whole) {
    std::vector<device::WriteLogEntry> entries = log_->entries();
    number_devices(entries);
    CrashMedium medium(*image_, entries);
    for (u64 i = 0; i < cut; ++i) {
      medium.follow(i);
      world_.note(entries[i].offset ^ text_hash(entries[i].bytes.data(), entries[i].bytes.size()));
    }
    medium.build(world_.below(~u64{0}), is_whole ? 1 : world_.below(6));
    note(fmt::format("the power fails behind {} writes and flushes of {}", cut, entries.size()));
    ++outcome_.power_failures;
    const bool checks = kind_ != SimKind::silent && world_.chance(30);
    try {
      if (checks) check();
      CrashPool::complete(*image_);
    } catch (const std::exception& error) {
      if (kind_ != SimKind::silent) fail(error.what());
    }
    image_ = std::make_unique<CrashImage>(image_->bytes());
  }

  void check() {
    fsck::CheckOptions options;
    options.device_paths = image_->paths();
    const fsck::CheckResult result = fsck::check_pool(options);
    if (errors_of_a_crash(result) != 0) fail("fsck:" + findings_text(result));
  }

  // An engine that is stuck cannot be destroyed: its sessions wait for their commands.
  void strand() {
    struct Stranded {
      std::unique_ptr<CrashPool> pool;
      std::unique_ptr<CrashImage> image;
      std::vector<std::unique_ptr<client::Session>> sessions;
    };
    static auto& all = *new std::vector<Stranded*>;  // never destroyed: leak checkers see its content
    all.push_back(new Stranded{std::move(pool_), std::move(image_), std::move(sessions_)});
  }

  SimWorld world_;
  std::string name_;
  SimKind kind_;
  u64 filler_;
  SimOutcome outcome_;
  std::deque<std::string> recent_;
  std::unique_ptr<CrashImage> image_;
  std::shared_ptr<device::MemoryWriteLog> log_;
  bool armed_ = false;
  std::vector<ArmedFaults*> faults_;
  std::unique_ptr<CrashPool> pool_;
  std::optional<FileClient> plain_client_;
  std::vector<Actor> actors_;
  std::optional<SharedFolder> shared_;
  u64 shared_client_count_ = 0;
  Sequence shared_random_{world_.below(~u64{0})};
  std::vector<std::unique_ptr<client::Session>> sessions_;
  std::vector<Slot> slots_;
  std::optional<u64> checkpoint_position_;
};

}  // namespace gpu4fs::test
