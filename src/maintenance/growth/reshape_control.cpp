#include "maintenance/growth/reshape_control.hpp"

#include <fmt/format.h>

#include "maintenance/job_pace.hpp"
#include "pool/pool_error.hpp"
#include "session/control_socket.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr double reshape_rate_max = 1e15;  // bytes/s

std::string change_reshape(const ReshapeControl& control, const std::string& what, const JsonValue& request, u64 rate) {
  if (what == "device-remove") {
    try {
      return control.reshaper.start_removal(control.exchange.find_device(request["device"].text), rate);
    } catch (const pool::PoolError& error) {
      return error.what();
    }
  }
  if (what == "balance") return control.reshaper.start_balance(rate);
  if (what == "reshape-pause") return control.reshaper.pause();
  if (what == "reshape-resume") return control.reshaper.resume();
  if (what == "reshape-cancel") return control.reshaper.cancel();
  if (what == "reshape-rate") return control.reshaper.set_rate(rate);
  return what == "reshape-status" ? "" : fmt::format("unknown request '{}'", what.substr(0, 64));
}

std::string change_spares(const ReshapeControl& control, const std::string& what, const JsonValue& request) {
  const std::string& path = request["path"].text;
  if (what == "spare-list") return "";
  if (path.empty()) return "'path' names no device";
  if (what == "spare-add") return control.spares.add(path, request["force"].boolean);
  return what == "spare-remove" ? control.spares.remove(path) : fmt::format("unknown request '{}'", what.substr(0, 64));
}

}  // namespace

bool is_reshape_request(const std::string& what) {
  return what == "device-remove" || what == "balance" || what.starts_with("reshape-") || what.starts_with("spare-");
}

std::string answer_reshape(const ReshapeControl& control, const std::string& what, const JsonValue& request) {
  if (control.read_only) return session::control_error("the pool is mounted read-only");
  const JsonValue& rate = request["rate"];
  const bool is_number = rate.kind == JsonValue::Kind::number;
  if (rate.kind != JsonValue::Kind::null && !is_number) return session::control_error("'rate' is no number");
  if (is_number && !(rate.number >= 0 && rate.number <= reshape_rate_max)) return session::control_error("'rate' is out of range");
  const bool is_spare = what.starts_with("spare-");
  const std::string problem = is_spare ? change_spares(control, what, request)
                                       : change_reshape(control, what, request, is_number ? static_cast<u64>(rate.number) : 0);
  if (!problem.empty()) return session::control_error(problem);
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("ok", true);
  if (is_spare) {
    add_spares(json, control.spares);
  } else {
    add_reshape(json, control.reshaper.report());
  }
  json.end();
  std::string line = json.text();
  line.pop_back();
  return line;
}

void add_reshape(JsonWriter& json, const ReshapeReport& report) {
  json.begin_object("reshape");
  json.add("state", reshape_state_name(report.state));
  json.add("kind", reshape_kind_name(report.kind));
  if (report.kind == ReshapeKind::removal) {
    json.add("device", report.device);
    json.add("path", report.path);
  }
  json.add("chunks_total", report.chunk_total);
  json.add("chunks_done", report.chunk_count);
  json.add("pages_total", report.page_total);
  json.add("pages_done", report.page_count);
  json.add("pages_stayed", report.stayed_count);
  json.add("rate_limit", report.rate_limit);
  add_pace(json, report);
  json.end();
}

void add_spares(JsonWriter& json, const SpareDevices& spares) {
  json.begin_array("spares");
  for (const SpareReport& spare : spares.list()) {
    json.begin_object();
    json.add("path", spare.path);
    json.add("size_bytes", spare.size_bytes);
    json.add("state", spare_state_name(spare.state));
    json.end();
  }
  json.end();
}

}  // namespace gpu4fs::maintenance
