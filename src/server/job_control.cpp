#include "server/job_control.hpp"

#include <optional>
#include <string_view>

#include "fmt/format.h"
#include "pool/pool_error.hpp"
#include "session/control_socket.hpp"

namespace gpu4fs::server {
namespace {

using maintenance::BackgroundJob;

constexpr double rate_limit_max = 1e15;  // bytes/s

enum class Subject { scrub, rebuild, relocation, reshape, spares };

std::optional<Subject> subject_of(const std::string& what) {
  if (what.starts_with("scrub-")) return Subject::scrub;
  if (what.starts_with("rebuild-") || what == "device-replace" || what == "device-rebuild") return Subject::rebuild;
  if (what.starts_with("relocate-")) return Subject::relocation;
  if (what.starts_with("reshape-") || what == "device-remove" || what == "balance") return Subject::reshape;
  if (what.starts_with("spare-")) return Subject::spares;
  return std::nullopt;
}

void add_scrub(JsonWriter& json, const maintenance::ScrubReport& report) {
  begin_job(json, "scrub", report);
  json.add("looks_for_owners", report.looks_for_owners);
  json.add("pages_total", report.page_total);
  json.add("pages_verified", report.page_count);
  json.add("pages_damaged", report.damaged_count);
  json.add("pages_without_owner", report.ownerless_count);
  json.add("pages_suspect", report.suspect_count);
  json.add("pages_unreached", report.unreached_count);
  json.add("position", report.position);
  add_pace(json, report);
  json.begin_array("damaged_files");
  for (const maintenance::DamagedFile& file : report.files) {
    json.begin_object();
    json.add("path", file.path);
    json.add("inode", file.inode);
    json.add("pages", file.page_count);
    json.end();
  }
  json.end();
  json.end();
}

void add_rebuild(JsonWriter& json, const maintenance::RebuildReport& report) {
  begin_job(json, "rebuild", report);
  json.add("device", report.device);
  json.add("path", report.path);
  json.add("pages_total", report.page_total);
  json.add("pages_done", report.page_count);
  json.add("pages_written", report.written_count);
  json.add("pages_unverified", report.unverified_count);
  json.add("pages_unreadable", report.unreadable_count);
  add_pace(json, report);
  json.end();
}

void add_relocation(JsonWriter& json, const maintenance::RelocationReport& report) {
  begin_job(json, "relocation", report);
  json.add("kind", report.kind == maintenance::RelocationKind::convert ? "convert" : "defragment");
  json.add("inode", report.inode);
  json.add("files_total", report.file_total);
  json.add("files_done", report.file_count);
  json.add("pages_moved", report.page_count);
  json.add("pages_unreadable", report.stayed_count);
  add_pace(json, report);
  json.end();
}

void add_reshape(JsonWriter& json, const maintenance::ReshapeReport& report) {
  begin_job(json, "reshape", report);
  json.add("kind", maintenance::reshape_kind_name(report.kind));
  if (report.kind == maintenance::ReshapeKind::removal) {
    json.add("device", report.device);
    json.add("path", report.path);
  }
  json.add("chunks_total", report.chunk_total);
  json.add("chunks_done", report.chunk_count);
  json.add("pages_total", report.page_total);
  json.add("pages_done", report.page_count);
  json.add("pages_stayed", report.stayed_count);
  add_pace(json, report);
  json.end();
}

void add_spares(JsonWriter& json, const maintenance::SpareDevices& spares) {
  json.begin_array("spares");
  for (const maintenance::SpareReport& spare : spares.list()) {
    json.begin_object();
    json.add("path", spare.path);
    json.add("size_bytes", spare.size_bytes);
    json.add("state", spare_state_name(spare.state));
    json.end();
  }
  json.end();
}

void add_subject(JsonWriter& json, const JobControl& control, Subject subject) {
  switch (subject) {
    case Subject::scrub:
      return add_scrub(json, control.scrubber.report());
    case Subject::rebuild:
      return add_rebuild(json, control.rebuilder.report());
    case Subject::relocation:
      return add_relocation(json, control.relocator.report());
    case Subject::reshape:
      return add_reshape(json, control.reshaper.report());
    case Subject::spares:
      return add_spares(json, control.spares);
  }
}

BackgroundJob& job_of(const JobControl& control, Subject subject) {
  if (subject == Subject::scrub) return control.scrubber.job();
  if (subject == Subject::rebuild) return control.rebuilder.job();
  return subject == Subject::relocation ? control.relocator.job() : control.reshaper.job();
}

// Reads the request's limit in bytes a second; 0 without one. Returns "" or the error.
std::string read_rate(const JsonValue& request, u64* limit) {
  const JsonValue& rate = request["rate"];
  *limit = 0;
  if (rate.kind == JsonValue::Kind::null) return {};
  if (rate.kind != JsonValue::Kind::number) return "'rate' is no number";
  // NaN is not in the range either.
  if (!(rate.number >= 0 && rate.number <= rate_limit_max)) return "'rate' is out of range";
  *limit = static_cast<u64>(rate.number);
  return {};
}

std::string unknown_text(const std::string& what) {
  return fmt::format("unknown request '{}'", what.substr(0, 64));
}

std::string start_relocation(const JobControl& control, const JsonValue& request, u64 rate) {
  maintenance::RelocationJob job;
  const std::string& kind = request["kind"].text;
  const JsonValue& inode = request["inode"];
  if (kind != "convert" && kind != "defragment") return "'kind' is neither convert nor defragment";
  if (inode.kind != JsonValue::Kind::number || !(inode.number >= 1 && inode.number <= 1e15)) {
    return "'inode' is no inode number";
  }
  job.kind = kind == "convert" ? maintenance::RelocationKind::convert : maintenance::RelocationKind::defragment;
  job.inode = static_cast<u64>(inode.number);
  job.recursive = request["recursive"].boolean;
  job.rate_limit = rate;
  return control.relocator.start(job);
}

std::string start_removal(const JobControl& control, const JsonValue& request, u64 rate) {
  try {
    return control.reshaper.start_removal(control.exchange.find_device(request["device"].text), rate);
  } catch (const pool::PoolError& error) {
    return error.what();
  }
}

// All of these return "" or why not.
std::string change_job(const JobControl& control, Subject subject, const std::string& what, const JsonValue& request) {
  u64 rate = 0;
  std::string problem = read_rate(request, &rate);
  if (!problem.empty()) return problem;
  if (what == "scrub-start") return control.scrubber.start(rate);
  if (what == "device-replace") {
    return control.exchange.replace(request["device"].text, request["path"].text, request["force"].boolean, rate);
  }
  if (what == "device-rebuild") return control.exchange.rebuild(request["device"].text, rate);
  if (what == "relocate-start") return start_relocation(control, request, rate);
  if (what == "device-remove") return start_removal(control, request, rate);
  if (what == "balance") return control.reshaper.start_balance(rate);
  BackgroundJob& job = job_of(control, subject);
  const std::string_view verb = std::string_view(what).substr(what.find('-') + 1);
  if (verb == "status") return "";
  if (verb == "pause") return job.pause();
  if (verb == "resume") return job.resume();
  if (verb == "cancel" && job.traits().can_cancel) return job.cancel();
  if (verb == "rate" && job.traits().can_change_rate) return job.set_rate(rate);
  return unknown_text(what);
}

std::string change_spares(const JobControl& control, const std::string& what, const JsonValue& request) {
  const std::string& path = request["path"].text;
  if (what == "spare-list") return "";
  if (path.empty()) return "'path' names no device";
  if (what == "spare-add") return control.spares.add(path, request["force"].boolean);
  return what == "spare-remove" ? control.spares.remove(path) : unknown_text(what);
}

}  // namespace

bool is_job_request(const std::string& what) {
  return subject_of(what).has_value();
}

std::string answer_job(const JobControl& control, const std::string& what, const JsonValue& request) {
  const std::optional<Subject> subject = subject_of(what);
  if (!subject) return session::control_error(unknown_text(what));
  const bool is_for_writers = *subject == Subject::reshape || *subject == Subject::spares;
  if (control.read_only && is_for_writers) return session::control_error("the pool is mounted read-only");
  const std::string problem = *subject == Subject::spares ? change_spares(control, what, request)
                                                          : change_job(control, *subject, what, request);
  if (!problem.empty()) return session::control_error(problem);
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("ok", true);
  add_subject(json, control, *subject);
  json.end();
  std::string line = json.text();
  line.pop_back();
  return line;
}

void add_jobs(JsonWriter& json, const JobControl& control) {
  for (const Subject subject :
       {Subject::scrub, Subject::rebuild, Subject::relocation, Subject::reshape, Subject::spares}) {
    add_subject(json, control, subject);
  }
}

}  // namespace gpu4fs::server
