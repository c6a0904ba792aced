// Traces for tests, written as text: HandMade({"a+ aw bw", "ar | br a-"}).
//
// One string is one iteration. A word is a chunk (a letter) and what is done to it: r read, w
// written, + allocated, - freed. A bar begins the next moment. Moments are 1 ms apart.
#ifndef MEMTIDE_DAEMON_PLANNER_HAND_MADE_H_
#define MEMTIDE_DAEMON_PLANNER_HAND_MADE_H_

#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "memtide/v1/trace.pb.h"

namespace memtide {

inline v1::Trace HandMade(const std::vector<std::string>& iterations) {
  constexpr int64_t kMillisecond = 1000000;
  v1::Trace trace;
  trace.set_chunk_size_bytes(2 << 20);
  const auto add_moment = [&trace] {
    v1::TracedMoment* moment = trace.add_moments();
    moment->set_phase(v1::PHASE_FORWARD);
    moment->set_time_ns((trace.moments_size() - 1) * kMillisecond);
    return moment;
  };
  for (const std::string& iteration : iterations) {
    v1::TracedMoment* moment = add_moment();
    std::istringstream words(iteration);
    for (std::string word; words >> word;) {
      if (word == "|") {
        moment = add_moment();
        continue;
      }
      const size_t operation = std::string("rw+-").find(word.back());
      MEMTIDE_CHECK(word.size() == 2 && operation != std::string::npos) << word;
      moment->add_uses((word.front() - 'a') * 4 + static_cast<uint32_t>(operation));
    }
    trace.add_iteration_ends(trace.moments_size());
  }
  return trace;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_PLANNER_HAND_MADE_H_
