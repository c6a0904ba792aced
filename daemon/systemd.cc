#include "daemon/systemd.h"

#ifdef HAVE_LIBSYSTEMD
#include <systemd/sd-daemon.h>
#endif

namespace memtide {

#ifdef HAVE_LIBSYSTEMD

// Has no effect where systemd did not start the daemon: then NOTIFY_SOCKET is not set.
void NotifySystemd(const std::string& state) { sd_notify(/*unset_environment=*/0, state.c_str()); }

absl::optional<Duration> WatchdogPeriod() {
  uint64_t period_us = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &period_us) <= 0) return absl::nullopt;
  return std::chrono::microseconds(period_us);
}

#else

void NotifySystemd(const std::string& state) {}

absl::optional<Duration> WatchdogPeriod() { return absl::nullopt; }

#endif

}  // namespace memtide
