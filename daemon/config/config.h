// Config: the daemon's settings, complete and checked.
//
// Made from the textproto NodeConfig (file and flags merged) and the machine's facts: defaults are
// filled in, sizes rounded down to kPoolAlignment, and what cannot work together is refused here,
// before anything is started. Every message names field, value, limit and remedy.
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
#include "memtide/v1/config.pb.h"

namespace memtide {

inline constexpr Bytes kPoolAlignment = MiB(2);

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct EmulatedDeviceConfig {
  Bytes capacity;
  Bytes bytes_per_second;  // Zero: as fast as memory.
  Duration latency{0};
};

struct CudaDeviceConfig {
  std::string uuid;
  Bytes pool;
  std::vector<std::string> others;  // GPUs that were not asked for and are not used.
};

struct MetricsConfig {
  std::string address;  // host:port; port 0: any free one.
  // The address was not asked for: where it is taken, the daemon does without metrics.
  bool is_default = false;
};

struct Config {
  std::string socket_dir;
  // One of them at most.
  absl::optional<EmulatedDeviceConfig> emulated_device;
  absl::optional<CudaDeviceConfig> cuda_device;
  Bytes host_pool;
  Bytes host_reserve;  // Zero: the pool is what it is, however short of memory the machine is.
  std::vector<std::string> ssd_dirs;  // Absolute. Empty: no SSD pool.
  Bytes ssd_pool;
  absl::optional<MetricsConfig> metrics;
  LogLevel log_level = LogLevel::kInfo;
  absl::optional<int> lifeline_fd;
  Duration session_lease{0};
  std::vector<std::string> warnings;  // What works less well than it could, for people.

  // Zero: no device.
  Bytes DevicePool() const;
};

// Parses the text format. INVALID_ARGUMENT: "name:line:column: what is wrong", each on a line.
absl::StatusOr<v1::NodeConfig> ParseConfigText(const std::string& text, absl::string_view name);
// The same for a file. NOT_FOUND when it cannot be read.
absl::StatusOr<v1::NodeConfig> ReadConfigFile(const std::string& path);

// INVALID_ARGUMENT: a value that cannot be meant. FAILED_PRECONDITION: the machine has less than
// was asked for. UNAVAILABLE: the GPU that was asked for cannot be used now.
absl::StatusOr<Config> Validate(const v1::NodeConfig& proto, const Machine& machine);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_CONFIG_CONFIG_H_
