// The control socket's answers about the jobs of a mounted pool and about spare devices. Requests:
//
//   scrub-start     "rate": bytes a second, 0 or absent: as fast as possible
//   device-replace  "device": index, path or UUID; "path": of the new one; "force"; "rate"
//   device-rebuild  "device", or "": the only one that is stale; "rate"
//   relocate-start  "kind": convert or defragment; "inode": a file or a directory; "recursive"; "rate"
//   device-remove   "device"; "rate"
//   balance         "rate"
//   scrub-, rebuild-, relocate-, reshape- with pause, resume, cancel (not of a rebuild), rate ("rate"; not of a scrub),
//   status
//   spare-add       "path", "force"
//   spare-remove    "path"
//   spare-list
//
// They answer with a member "scrub", "rebuild" (device-replace and -rebuild too), "relocation", "reshape"
// (device-remove and balance too), or "spares". Host only.
#pragma once

#include <string>

#include "base/host/json.hpp"
#include "base/host/json_value.hpp"
#include "maintenance/device_exchange.hpp"
#include "maintenance/growth/reshaper.hpp"
#include "maintenance/rebuilder.hpp"
#include "maintenance/relocator.hpp"
#include "maintenance/scrubber.hpp"
#include "maintenance/spare_devices.hpp"

namespace gpu4fs::server {

struct JobControl {
  maintenance::Scrubber& scrubber;
  maintenance::Rebuilder& rebuilder;
  maintenance::DeviceExchange& exchange;
  maintenance::Relocator& relocator;
  maintenance::Reshaper& reshaper;
  maintenance::SpareDevices& spares;
  bool read_only;
};

bool is_job_request(const std::string& what);
// One line of JSON without its end. Any thread.
std::string answer_job(const JobControl& control, const std::string& what, const JsonValue& request);
// All jobs, as members of the answer to `status`.
void add_jobs(JsonWriter& json, const JobControl& control);

}  // namespace gpu4fs::server
