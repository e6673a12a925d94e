// One of several users of a pool, each in a folder of its own with one operation in progress: its operations, the
// model's state, and every state in which a crash may leave its folder.
//
// The folder is the model's root (inode 1 there, `folder` in the engine). A step is an operation; the state after the
// first i steps is state i. The last step may be in progress, or may have failed without showing whether it happened:
// then the state after it is one more candidate. A step that is a series of commits may be present in part even if it
// had ended. This state is a candidate with the step's number, but not if another actor had seen the step's end.
//
// Steps of several actors are ordered by what each had seen when it began: the number of ended steps of every actor. An
// acknowledged sync promises these steps. After a crash each folder is in one of its states, none from before its
// promise, and no step is present without those that it had seen: survivors_problem().
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crash/crash_state.hpp"
#include "model/operation_source.hpp"

namespace gpu4fs::test {

inline SourceOptions actor_source_options() {
  SourceOptions options;
  options.offset_max = u64{24} << 10;
  options.length_max = u64{12} << 10;
  options.big_length = u64{20} << 10;
  options.sparse = false;
  options.node_max = 9;
  options.name_count = 4;
  options.directory_max = 4;
  options.attribute_max = 28000;  // it lies in the area
  return options;
}

// The area that a FileClient needs for any of an actor's operations.
inline constexpr u64 actor_area_bytes = u64{48} << 10;

using StepCounts = std::vector<u64>;  // by actor

// The number of steps of a state; without `is_whole` only a part of the last one.
struct StepMatch {
  u64 count;
  bool is_whole;
  u64 whole_count() const { return is_whole ? count : count - 1; }
  bool operator==(const StepMatch&) const = default;
};

class Actor {
 public:
  Actor(u64 seed, u64 folder, const SourceOptions& options = actor_source_options())
      : folder_(folder), source_(seed, options) {
    begin_anew(PosixModel{});
  }
  // In a pool of its own, which holds this.
  explicit Actor(PosixModel model) : Actor(0, PosixModel::root) { begin_anew(std::move(model)); }

  u64 folder() const { return folder_; }
  const PosixModel& model() const { return model_; }
  // The pool may become full: writes may be short, and a crash may cut them off.
  void set_tight() { is_tight_ = true; }
  u64 ended_count() const { return ended_count_; }
  bool is_under_way() const { return ended_count_ < steps_.size(); }
  bool is_uncertain() const { return uncertain_; }

  // The next operation, in terms of the model. `seen`: the ended steps of all actors.
  const FileOperation& begin(StepCounts seen) {
    FileOperation op = source_.next(model_);
    // Others have inodes too.
    if (op.opcode == wire::Opcode::getattr && model_.find(op.inode) == nullptr) op.inode = PosixModel::root;
    return begin(std::move(seen), op);
  }
  const FileOperation& begin(StepCounts seen, const FileOperation& op) {
    steps_.push_back({op, std::move(seen)});
    return steps_.back().op;
  }
  // For the engine.
  FileOperation engine_form(const FileOperation& op) const {
    FileOperation form = op;
    if (form.inode == PosixModel::root) form.inode = folder_;
    if (form.second_inode == PosixModel::root) form.second_inode = folder_;
    return form;
  }
  static std::vector<u8> content(const FileOperation& op) {
    return op.opcode == wire::Opcode::write ? content_of(op) : std::vector<u8>{};
  }

  static bool changes_content(const FileOperation& op) {
    using wire::Opcode;
    return op.opcode == Opcode::write || op.opcode == Opcode::fallocate || op.opcode == Opcode::copy_range ||
           op.opcode == Opcode::truncate;
  }

  // The operation in progress has been answered. `client` still has the answer's data (nullptr: they are not compared).
  // `doubtful`: errno values, besides those of the model, that leave open whether it happened; `refusals`: those that
  // say that it did not. Returns "" or the fault.
  std::string end(const client::Reply& reply, FileClient* client, const std::set<int>& doubtful = {},
                  const std::set<int>& refusals = {}) {
    const FileOperation& op = steps_.back().op;
    const int error = to_errno(reply.status);
    const std::set<int> expected = model_.expect(op);
    const bool is_stray = op.opcode == wire::Opcode::reclaim && !is_orphan(op.inode);
    if (error == 0 && !is_stray) {
      if (expected.count(0) == 0) return to_text(op) + " succeeds";
      const std::string problem = client == nullptr ? "" : result_problem(op, reply.result, *client);
      if (!problem.empty()) return to_text(op) + ": " + problem;
      model_.commit(op, reply.result, content(op));
    } else if (doubtful.count(error) != 0 && !changes_nothing(op)) {
      uncertain_ = true;
      return "";
    } else if (expected.count(error) == 0 && refusals.count(error) == 0 && doubtful.count(error) == 0 && !is_stray) {
      return fmt::format("{} answers {}", to_text(op), status_name(reply.status));
    }
    note_end();
    return "";
  }

  // Compares the folder's text when no operation is in progress, which settles what was uncertain. "" if it is as
  // expected.
  std::string settle(const std::string& found, FileClient& client) {
    if (found == states_.back()) {
      if (uncertain_) note_end();
      uncertain_ = false;
      return "";
    }
    if (uncertain_) {
      consider_mixtures(client);
      for (const Candidate& candidate : candidates()) {
        if (candidate.steps.count != states_.size() || ModelText(candidate.model).text() != found) continue;
        uncertain_ = false;
        model_ = PosixModel(candidate.model);
        note_end();
        return renumber(client);
      }
    }
    return difference_text(found, states_.size() - 1);
  }

  void promise(u64 step_count) { promised_ = std::max(promised_, step_count); }

  // The steps that explain a state after a crash, by their count; empty if there is no explanation.
  std::vector<StepMatch> matches(const std::string& found) const {
    std::vector<StepMatch> list;
    for (u64 i = promised_; i < states_.size(); ++i) {
      if (states_[i] == found) list.push_back({i, true});
    }
    for (const Candidate& candidate : candidates()) {
      if (candidate.steps.count > promised_ && ModelText(candidate.model).text() == found)
        list.push_back(candidate.steps);
    }
    std::stable_sort(list.begin(), list.end(),
                     [](const StepMatch& a, const StepMatch& b) { return a.count < b.count; });
    return list;
  }
  std::string mismatch_text(const std::string& found) const {
    std::string text = difference_text(found, promised_);
    for (u64 i = 0; i < states_.size(); ++i) {
      if (states_[i] == found) text += fmt::format("that is the state after {} steps; ", i);
    }
    text += fmt::format("{} were promised, {} ended, {} began\n", promised_, ended_count_, steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) text += fmt::format("  {} {}\n", i, to_text(steps_[i].op));
    return text;
  }
  const StepCounts& seen_by(u64 step) const { return steps_[step].seen; }

  // A failed operation on contents may have changed a part of the file. So may a series of commits that a crash
  // interrupted, in progress or ended and not promised: a fallocate, or a write if space is tight
  // (docs/internals/durability.md). Call it before matches() and survive().
  void consider_mixtures(FileClient& client) {
    mixtures_.clear();
    for (u64 i = promised_; i < steps_.size(); ++i) {
      const FileOperation& op = steps_[i].op;
      const bool has_ended = i < ended_count_;
      if (models_[i].expect(op).count(0) == 0 || (has_ended && states_[i] == states_[i + 1])) continue;
      std::optional<PosixModel> mixture;
      if (changes_content(op) && may_be_cut(op, has_ended)) {
        mixture = mixture_of(op, models_[i], has_ended ? models_[i + 1] : model_after_op(op), client);
      }
      if (!mixture) continue;
      const std::string text = ModelText(*mixture).text();
      if (text == states_[i] || (has_ended && text == states_[i + 1])) continue;
      mixtures_.push_back({{i + 1, false}, std::move(*mixture)});
    }
  }

  // Continues after a crash that left `step_count` steps and this text. Returns "" or the fault.
  std::string survive(u64 step_count, const std::string& found, FileClient& client) {
    PosixModel model = models_[std::min(step_count, ended_count_)];
    if (step_count > ended_count_ || states_[step_count] != found) {
      for (const Candidate& candidate : candidates()) {
        if (candidate.steps.count == step_count && ModelText(candidate.model).text() == found) model = candidate.model;
      }
    }
    model.drop_orphans();
    uncertain_ = false;
    begin_anew(std::move(model));
    return renumber(client);
  }

  // Every line that any state has; the hashes of contents are in them.
  std::set<std::string> all_lines() const {
    std::set<std::string> lines;
    const auto add = [&](const std::string& text) {
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at);
        lines.insert(text.substr(at, end - at));
        at = end + 1;
      }
    };
    for (const std::string& state : states_) add(state);
    for (const Candidate& candidate : candidates()) add(ModelText(candidate.model).text());
    return lines;
  }

 private:
  struct Step {
    FileOperation op;
    StepCounts seen;
  };
  struct Candidate {
    StepMatch steps;
    PosixModel model;
  };

  bool may_be_cut(const FileOperation& op, bool has_ended) const {
    const bool is_series = op.opcode == wire::Opcode::fallocate || op.opcode == wire::Opcode::write;
    return (is_series && is_tight_) || (!has_ended && (uncertain_ || is_tight_));
  }

  // The current state of the file of `op`, if each byte of it is one of `before` or `after`. With fallocate each page
  // must be, because commits consist of pages, and the size comes last.
  std::optional<PosixModel> mixture_of(const FileOperation& op, const PosixModel& before, const PosixModel& after,
                                       FileClient& client) const {
    const u64 number = op.opcode == wire::Opcode::copy_range ? op.second_inode : op.inode;
    if (client.simple(wire::Opcode::getattr, number).status != Status::ok) return {};
    const u64 size = client.attributes().size_bytes;
    const u32 mode = client.attributes().mode;
    const ModelNode& old_node = before.nodes.at(number);
    const ModelNode& new_node = after.nodes.at(number);
    const u64 old_size = old_node.content.size();
    const u64 new_size = new_node.content.size();
    const bool by_page = op.opcode == wire::Opcode::fallocate;
    if (by_page && size != old_size) return {};
    const bool is_between = is_tight_ && size >= std::min(old_size, new_size) && size <= std::max(old_size, new_size);
    if (size != old_size && size != new_size && !is_between) return {};
    if (mode != old_node.mode && mode != new_node.mode) return {};
    PosixModel mixed = before;
    ModelNode& node = mixed.nodes.at(number);
    node.mode = mode;
    node.content.resize(size);
    for (u64 at = 0; at < size; at += content_unit) {
      const client::Reply reply = client.simple(wire::Opcode::read, number, at, content_unit);
      if (reply.status != Status::ok) return {};
      const std::vector<u8> old_bytes = old_node.content.read(at, reply.result);
      const std::vector<u8> new_bytes = new_node.content.read(at, reply.result);
      bool is_old = true;
      bool is_new = true;
      for (u64 i = 0; i < reply.result; ++i) {
        const u8 byte = client.data()[i];
        const bool continues = by_page && i % page_size != 0;
        is_old = (is_old || !continues) && i < old_bytes.size() && byte == old_bytes[i];
        is_new = (is_new || !continues) && i < new_bytes.size() && byte == new_bytes[i];
        if (!is_old && !is_new) return {};
      }
      node.content.write(at, client.data(), reply.result);
    }
    return mixed;
  }

  void begin_anew(PosixModel model) {
    model_ = std::move(model);
    steps_.clear();
    models_.clear();
    states_ = {ModelText(model_).text()};
    models_.push_back(model_);
    mixtures_.clear();
    ended_count_ = 0;
    promised_ = 0;
  }
  void note_end() {
    mixtures_.clear();
    ++ended_count_;
    states_.push_back(ModelText(model_).text());
    models_.push_back(model_);
  }
  bool is_orphan(u64 number) const {
    const ModelNode* node = model_.find(number);
    return node != nullptr && node->link_count == 0;
  }
  bool changes_nothing(const FileOperation& op) const {
    return model_.expect(op).count(0) == 0 || state_after(op) == states_.back();
  }

  // The state after the operation, as if it had succeeded completely; a created inode gets an unused number.
  PosixModel model_after_op(const FileOperation& op) const {
    PosixModel model = model_;
    if (model.expect(op).count(0) == 0) return model;
    u64 result = u64{1} << 50;
    if (op.opcode == wire::Opcode::write) result = op.length;
    if (op.opcode == wire::Opcode::copy_range) {
      const u64 size = model.nodes.at(op.inode).content.size();
      result = op.offset >= size ? 0 : std::min(op.length, size - op.offset);
    }
    if (op.opcode == wire::Opcode::reclaim && !is_orphan(op.inode)) return model;
    model.commit(op, result, content(op));
    return model;
  }
  std::string state_after(const FileOperation& op) const { return ModelText(model_after_op(op)).text(); }
  std::vector<Candidate> candidates() const {
    std::vector<Candidate> list = mixtures_;
    if (is_under_way()) list.push_back({{states_.size(), true}, model_after_op(steps_.back().op)});
    return list;
  }

  std::string result_problem(const FileOperation& op, u64 result, FileClient& client) const {
    using wire::Opcode;
    const ModelNode* node = model_.find(op.inode);
    const auto differs = [&](const void* expected, u64 length) {
      if (result != length) return fmt::format("{} bytes instead of {}", result, length);
      return length == 0 || std::memcmp(client.data(), expected, length) == 0 ? std::string()
                                                                              : std::string("other bytes");
    };
    switch (op.opcode) {
      case Opcode::write:
        return result == op.length || (is_tight_ && result != 0) ? "" : "a short write";
      case Opcode::read: {
        const std::vector<u8> bytes = node->content.read(op.offset, op.length);
        return differs(bytes.data(), bytes.size());
      }
      case Opcode::readlink: {
        const std::string target = node->target.substr(0, op.length);
        return differs(target.data(), target.size());
      }
      case Opcode::get_attribute: {
        const std::string& value = node->attributes.at(op.name);
        return op.length == 0 ? "" : differs(value.data(), value.size());
      }
      case Opcode::lookup:
        return result == node->entries.at(op.name) ? "" : "another inode";
      case Opcode::getattr: {
        const format::AttributeRecord& a = client.attributes();
        const bool same = a.mode == node->mode && a.uid == node->uid && a.link_count == node->link_count &&
                          (!node->is_regular() || a.size_bytes == node->content.size());
        return same ? "" : "other attributes";
      }
      default:
        return "";
    }
  }

  std::string difference_text(const std::string& found, u64 state) const {
    return fmt::format("the folder holds\n{}instead of\n{}", found, states_[state]);
  }

  // Gives the model the engine's inode numbers, by looking up every name.
  std::string renumber(FileClient& client) {
    std::map<u64, u64> number_of = {{PosixModel::root, PosixModel::root}};
    const std::string problem = look_up(client, PosixModel::root, number_of);
    if (!problem.empty()) return problem;
    PosixModel model = model_;
    model.nodes.clear();
    for (const auto& [old, node] : model_.nodes) {
      if (number_of.count(old) == 0) number_of[old] = old;  // without a name
    }
    for (const auto& [old, node] : model_.nodes) {
      ModelNode copy = node;
      for (auto& [name, child] : copy.entries) child = number_of.at(child);
      if (number_of.count(copy.parent) != 0) copy.parent = number_of.at(copy.parent);
      model.nodes[number_of.at(old)] = std::move(copy);
    }
    model_ = std::move(model);
    models_.back() = model_;
    return "";
  }
  std::string look_up(FileClient& client, u64 directory, std::map<u64, u64>& number_of) const {
    for (const auto& [name, child] : model_.nodes.at(directory).entries) {
      FileOperation op;
      op.opcode = wire::Opcode::lookup;
      op.inode = number_of.at(directory);
      op.name = name;
      const client::Reply reply = client.call(engine_form(op));
      if (reply.status != Status::ok) return fmt::format("{} answers {}", to_text(op), status_name(reply.status));
      number_of[child] = reply.result;
      if (!model_.nodes.at(child).is_directory()) continue;
      const std::string problem = look_up(client, child, number_of);
      if (!problem.empty()) return problem;
    }
    return "";
  }

  u64 folder_;
  OperationSource source_;
  PosixModel model_;
  std::vector<Step> steps_;
  std::vector<std::string> states_;  // by number of steps
  std::vector<PosixModel> models_;
  u64 ended_count_ = 0;
  u64 promised_ = 0;
  bool uncertain_ = false;
  bool is_tight_ = false;
  std::vector<Candidate> mixtures_;
};

// The content of each actor's folder in crashed pools, in the order of `actors`. Sets the number of steps that each has
// kept. Returns "" or the fault.
inline std::string survivors_problem(const std::vector<const Actor*>& actors, const std::vector<std::string>& found,
                                     std::vector<u64>* kept) {
  struct Range {
    u64 least;  // steps that must be present, possibly one in part
    u64 whole;  // this number may be present, none of them in part
  };
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < actors.size(); ++i) {
    const std::vector<StepMatch> matches = actors[i]->matches(found[i]);
    if (matches.empty()) return fmt::format("actor {}: {}", i, actors[i]->mismatch_text(found[i]));
    Range range{matches.front().count, 0};
    for (const StepMatch& match : matches) range.whole = std::max(range.whole, match.whole_count());
    ranges.push_back(range);
    kept->push_back(matches.back().count);
  }
  for (std::size_t i = 0; i < actors.size(); ++i) {
    if (ranges[i].least == 0) continue;
    const StepCounts& seen = actors[i]->seen_by(ranges[i].least - 1);
    for (std::size_t k = 0; k < actors.size() && k < seen.size(); ++k) {
      if (ranges[k].whole >= seen[k]) continue;
      return fmt::format("step {} of actor {} is there, and of actor {} only {} steps, of which it had seen {}",
                         ranges[i].least - 1, i, k, ranges[k].whole, seen[k]);
    }
  }
  return "";
}

}  // namespace gpu4fs::test
