// Messages to systemd (sd_notify), and the period of its watchdog. Without systemd nothing happens.
#ifndef MEMTIDE_DAEMON_SYSTEMD_H_
#define MEMTIDE_DAEMON_SYSTEMD_H_

#include <string>

#include "absl/types/optional.h"
#include "base/clock.h"

namespace memtide {

// `state`: lines such as "READY=1\nSTATUS=...", see sd_notify(3).
void NotifySystemd(const std::string& state);
// How often systemd wants to hear WATCHDOG=1; nullopt: not at all.
absl::optional<Duration> WatchdogPeriod();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SYSTEMD_H_
