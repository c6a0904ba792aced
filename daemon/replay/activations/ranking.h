// Ranking: candidates for the replay to judge, the most promising first.
//
// The candidates are the best patterns, what is near to them, and what is near to the best that the
// replay has judged so far: patterns with other numbers, and plans in which one block is treated in
// another way. Where these are all judged, plans follow in which two blocks are. Timeline ranks
// them; where the replay has judged a neighbor, its time corrects the estimate.
//
// Thread safety: thread-compatible. Deterministic.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_RANKING_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_RANKING_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/activations/candidate.h"
#include "daemon/replay/activations/pattern.h"
#include "daemon/replay/activations/timeline.h"
#include "daemon/replay/replay.h"

namespace memtide {

class Ranking {
 public:
  Ranking(const ActivationModel& model, const ReplayOptions& options,
          const TransferSlots& transfers = kEngineSlots);

  // The next candidate, each only once; nullopt: there is none left.
  absl::optional<Candidate> Next();
  // Adds a candidate to those that Next() returns, if the budget allows it.
  void Propose(const Candidate& candidate) { Add(candidate, absl::nullopt, 1); }
  // Notes the judged time of a candidate, which is not proposed any more.
  void Judged(const Candidate& candidate, Duration elapsed);

 private:
  struct Entry {
    Candidate candidate;
    absl::optional<Pattern> pattern;  // If the candidate is one.
    double estimate = 0;              // By Timeline, in seconds.
    bool is_done = false;             // It was proposed or judged.
  };

  // The candidate as a key of maps.
  static std::string KeyOf(const Candidate& candidate);
  double Estimate(const Candidate& candidate);
  // Adds the best of all judged plans with the treatment of two blocks changed.
  void AddPairs();
  void Add(const Candidate& candidate, const absl::optional<Pattern>& pattern, double correction);

  const ActivationModel& model_;
  Timeline timeline_;
  std::map<std::string, double> estimates_;
  std::map<std::string, Entry> entries_;
  std::set<std::pair<double, std::string>> queue_;  // Corrected estimate, key.
  double best_ = 0;  // Seconds of the best candidate that was judged; zero before the first.
  Candidate best_candidate_;
  double correction_ = 1;   // The best one's time over its estimate.
  bool has_pairs_ = false;  // The best one's pairs were added.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_RANKING_H_
