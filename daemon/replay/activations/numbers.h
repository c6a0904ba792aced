// Times and amounts of memory as numbers to compute with.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_NUMBERS_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_NUMBERS_H_

#include <chrono>

#include "base/bytes.h"
#include "base/clock.h"

namespace memtide {

inline double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
inline double Number(Bytes bytes) { return static_cast<double>(bytes.count()); }

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_NUMBERS_H_
