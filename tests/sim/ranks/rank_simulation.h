// RankSimulation: clients that are the ranks of one training, and share contents. Only the commits
// of the ranks are judged together. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_RANKS_RANK_SIMULATION_H_
#define MEMTIDE_TESTS_SIM_RANKS_RANK_SIMULATION_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <utility>
#include <vector>

#include "tests/sim/clients/client_simulation.h"

namespace memtide::sim {

// Ranks of one job. The stream is its own, so that other simulations stay as they are. Hostile
// ranks use each other's ids: what they read is not judged.
ClientConfig WithRanks(uint64_t seed);
// Ranks of a job that outlives them, and the daemon.
ClientConfig WithKeptRanks(uint64_t seed);

class RankSimulation : public ClientSimulation {
 public:
  static ClientOutcome Run(const ClientConfig& config, std::ostream* echo = nullptr);

 private:
  using Rank = Client;  // Its chunks: gradient, parameter and shadow of each parameter.
  using Computation = std::pair<uint64_t, std::vector<Stamp>>;

  RankSimulation(const ClientConfig& config, std::ostream* echo);

  // --- rank_clients.cc ---
  void Connect() override;
  void StartPart(Rank* rank) override;
  void Commit(Rank* rank) override;
  void Hostile(Rank* rank) override;
  Stamp AlikeStamp(const Rank& rank, ChunkId chunk) override;
  bool MayDiscard(const Rank& rank, ChunkId chunk) const override;
  void ReadAll() override;

  // --- rank_oracle.cc ---
  void Before(const Event& event) override;
  void After() override;
  void CheckIdle() override;
  void EndClient(SessionId session) override;
  void OnRefusal(Rank* rank, const Waiting& waiting, absl::StatusCode code) override;
  void OnOpen(Rank* rank, const OpenReply& reply) override;
  void OnFetch(Rank* rank, const FetchCall& call, const FetchReply& reply) override;
  void OnPart(Rank* rank, const Waiting& waiting, const PartReply& reply) override;
  void OnCommit(Rank* rank, const CommitCall& call) override;
  void TakeResults(Rank* rank, const Held& held) override;
  void CheckCommits();
  void CheckAllCommitted();
  void NoteWaits();
  void SetResult(Rank* rank, ChunkId chunk, Stamp stamp, uint64_t made);

  std::map<uint32_t, Rank> left_;         // Kept ranks as they have left, by their numbers.
  std::map<Computation, uint64_t> made_;  // The number of each in Content::shared.
  uint64_t next_made_ = 1;
  // The ranks that have committed in this event, and the computations that they committed: parts
  // and their results, with the step that they are of.
  std::set<SessionId> committed_now_, committed_with_all_;
  std::map<std::pair<uint64_t, Stamp>, uint64_t> committed_contents_;
  std::set<SessionId> in_vain_;  // Ranks for which a commit has waited in vain.
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_RANKS_RANK_SIMULATION_H_
