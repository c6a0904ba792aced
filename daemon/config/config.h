// Config: the daemon's settings, complete and checked.
//
// Validate makes it from a NodeConfig (file and flags merged) and the machine: it fills in
// defaults, rounds sizes down to kPoolAlignment, and refuses settings that contradict each other or
// the machine before anything is started. Every message names field, value, limit and remedy.
#ifndef MEMTIDE_DAEMON_CONFIG_CONFIG_H_
#define MEMTIDE_DAEMON_CONFIG_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/config/machine.h"
#include "daemon/engine/interface/quota.h"
#include "memtide/v1/config.pb.h"
#include "proto/protocol.h"

namespace memtide {

inline constexpr Bytes kPoolAlignment = kChunkAlignment;

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct EmulatedDeviceConfig {
  uint32_t count = 1;      // How many such devices there are.
  Bytes capacity;          // The size of each.
  Bytes bytes_per_second;  // Zero: no limit but that of the memory.
  Duration latency{0};
};

struct CudaDeviceConfig {
  std::string uuid;
  Bytes pool;
};

struct Config {
  std::string socket_dir;
  // At most one of the two is set. Devices are numbered in this order.
  absl::optional<EmulatedDeviceConfig> emulated_device;
  std::vector<CudaDeviceConfig> cuda_devices;
  // The settings name the GPUs: the daemon does not start without one of them.
  bool cuda_devices_are_named = false;
  std::vector<std::string> other_gpus;  // The machine's GPUs that this daemon does not use.
  Bytes host_pool;
  Bytes host_reserve;                 // Zero: no balloon, even if the machine is short of memory.
  Bytes memory_limit;                 // For this daemon and its parent process. Zero: none.
  std::vector<std::string> ssd_dirs;  // Absolute. Empty: no SSD pool.
  Bytes ssd_pool;
  // By directory; zero: no budget, and not known.
  std::vector<Bytes> ssd_written_per_day, ssd_endurance;
  Bytes user_ssd_written_per_day;  // Zero: no budget.
  v1::Verify verify = v1::VERIFY_KEPT;
  std::string metrics_address;  // host:port; port 0: any free one. Empty: no port is opened.
  LogLevel log_level = LogLevel::kInfo;
  absl::optional<int> lifeline_fd;
  Duration session_lease{0};
  std::vector<Quota> quotas;             // One for each subject.
  absl::optional<uint32_t> admin_group;  // None: root alone administers.
  std::string settings_dir;              // Empty: what administrators set is not kept.
  std::vector<std::string> warnings;     // For the log: settings that had to be reduced or ignored.

  // The size of the pools of all devices. Zero: no device.
  Bytes DevicePools() const;
};

// Parses the text format. INVALID_ARGUMENT: one line "name:line:column: message" for each error.
absl::StatusOr<v1::NodeConfig> ParseConfigText(const std::string& text, absl::string_view name);
// Reads a file and parses it. NOT_FOUND if it cannot be read.
absl::StatusOr<v1::NodeConfig> ReadConfigFile(const std::string& path);

// INVALID_ARGUMENT: a value is impossible. FAILED_PRECONDITION: the machine has less than a setting
// requires. UNAVAILABLE: the GPU that a setting names cannot be used now.
absl::StatusOr<Config> Validate(const v1::NodeConfig& proto, const Machine& machine);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_CONFIG_CONFIG_H_
