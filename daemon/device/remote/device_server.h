// DeviceServer: a device in a process of its own, which serves the calls of the daemon's
// RemoteDevice (remote_device.h) by messages (messages.h).
//
// A call has a thread to itself, as in the daemon, so that copies overlap. The process ends when
// the daemon does, or closes the control socket.
#ifndef MEMTIDE_DAEMON_DEVICE_REMOTE_DEVICE_SERVER_H_
#define MEMTIDE_DAEMON_DEVICE_REMOTE_DEVICE_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace memtide {

// A device's reports besides its answers, from any thread.
struct DeviceReports {
  std::function<void(const std::string& line)> warn;
  // The device cannot be used any more, for the reason that the status gives: the process ends.
  std::function<void(const absl::Status& why)> lost;
};

using OpenDevice =
    std::function<absl::StatusOr<std::unique_ptr<Device>>(const DeviceReports& reports)>;

// Opens the device, and serves it on kHelperSocket until the process ends; never returns.
[[noreturn]] void ServeDevice(const OpenDevice& open);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_DEVICE_SERVER_H_
