// Traces for tests, written as text: BuildTrace({"a+ aw bw", "ar | br a-"}), and what is played of
// them.
//
// Each string is one iteration. A word is a chunk (a letter) and an operation on it: r reads,
// w writes, + allocates, - frees. A bar begins the next moment. Moments are 1 ms apart.
#ifndef MEMTIDE_DAEMON_REPLAY_TESTING_TRACE_BUILDER_H_
#define MEMTIDE_DAEMON_REPLAY_TESTING_TRACE_BUILDER_H_

#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "daemon/replay/access_sequence.h"
#include "memtide/v1/trace.pb.h"

namespace memtide {

inline v1::Trace BuildTrace(const std::vector<std::string>& iterations) {
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

inline AccessSequence BuildSequence(const std::vector<std::string>& iterations) {
  absl::StatusOr<AccessSequence> sequence = ToAccessSequence(BuildTrace(iterations));
  MEMTIDE_CHECK(sequence.ok()) << sequence.status().ToString();
  return *std::move(sequence);
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_TESTING_TRACE_BUILDER_H_
