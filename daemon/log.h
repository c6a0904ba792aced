// Where log lines go: stderr, at one level, as systemd's journal or a person wants them.
#ifndef MEMTIDE_DAEMON_LOG_H_
#define MEMTIDE_DAEMON_LOG_H_

#include "daemon/config/config.h"

namespace memtide {

// Under systemd lines carry no time of their own: the journal has it.
void StartLogging(LogLevel level);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_LOG_H_
