// What the control socket answers about devices that leave, balances and spares. Requests:
//
//   device-remove  "device": index, path or UUID; "rate": bytes a second, 0 or absent: as fast as it goes
//   balance        "rate"
//   reshape-pause, reshape-resume, reshape-cancel, reshape-rate ("rate"), reshape-status
//   spare-add      "path", "force"
//   spare-remove   "path"
//   spare-list
//
// All answer with a member "reshape" or "spares". Host only.
#pragma once

#include <string>

#include "base/host/json.hpp"
#include "base/host/json_value.hpp"
#include "maintenance/device_exchange.hpp"
#include "maintenance/growth/reshaper.hpp"
#include "maintenance/spare_devices.hpp"

namespace gpu4fs::maintenance {

struct ReshapeControl {
  Reshaper& reshaper;
  SpareDevices& spares;
  DeviceExchange& exchange;
  bool read_only;
};

bool is_reshape_request(const std::string& what);
// One line of JSON without its end. Any thread.
std::string answer_reshape(const ReshapeControl& control, const std::string& what, const JsonValue& request);
// Members of the answer to `status`.
void add_reshape(JsonWriter& json, const ReshapeReport& report);
void add_spares(JsonWriter& json, const SpareDevices& spares);

}  // namespace gpu4fs::maintenance
