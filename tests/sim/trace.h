// Trace: what happened in a run, as text for people and as one hash for comparing runs.
// Keeps the last lines only. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_TRACE_H_
#define MEMTIDE_TESTS_SIM_TRACE_H_

#include <cstdint>
#include <deque>
#include <ostream>
#include <string>

#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"

namespace memtide::sim {

// "Fetch call 7 session 2 device write [3 4] releases [1]"
std::string ToText(const Event& event);
std::string ToText(const Effect& effect);

class Trace {
 public:
  // Each line also goes to `echo` at once, unless that is null: a run that aborts shows its last.
  Trace(size_t lines_kept, std::ostream* echo) : lines_kept_(lines_kept), echo_(echo) {}

  void Add(Instant now, const Event& event);
  void Add(const Effect& effect);

  // FNV-1a over every line so far.
  uint64_t hash() const { return hash_; }
  std::string Last() const;

 private:
  // `words` are shown and not hashed.
  void AddLine(std::string line, const std::string& words = "");

  const size_t lines_kept_;
  std::ostream* const echo_;
  uint64_t hash_ = 0xcbf29ce484222325;
  uint64_t events_ = 0;
  std::deque<std::string> lines_;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_TRACE_H_
