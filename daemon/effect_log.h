// The log lines of effects that carry nothing out.
#ifndef MEMTIDE_DAEMON_EFFECT_LOG_H_
#define MEMTIDE_DAEMON_EFFECT_LOG_H_

#include <string>
#include <vector>

#include "daemon/engine/interface/effects.h"

namespace memtide {

// A job by its name: job "gpt".
std::string Named(const std::string& job);

void Log(const MachineShort& shortage);
void Log(const LentUnderProcess& lent);
void Log(const RegionsStayExposed& exposed);
void Log(const BadCopyFound& found);
void Log(const JobLost& lost);
void Log(const TransfersFail& failures);
void Log(const Misprediction& misprediction);
// `ssd_dirs`: by the number of the drive.
void Log(const WritesWait& wait, const std::vector<std::string>& ssd_dirs);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_EFFECT_LOG_H_
