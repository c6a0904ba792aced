// RankSimulation: the engine, the fake node, and the ranks of one training, which share contents.
//
// The oracle knows nothing of sharing: each rank is to see what it would see alone. Only the
// commits are judged together. As in Simulation, all chance comes from the seed.
// Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_RANKS_RANK_SIMULATION_H_
#define MEMTIDE_TESTS_SIM_RANKS_RANK_SIMULATION_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "tests/sim/fakes/fake_node.h"
#include "tests/sim/oracle/verdict.h"
#include "tests/sim/probes.h"
#include "tests/sim/random.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

// The time to live of a job of kept ranks is longer than any run.
inline constexpr Duration kTimeToLive = std::chrono::hours(1);

// What the seeds must reach.
enum class RankProbe : uint8_t {
  kMade,          // A rank got the results of another one,
  kWaited,        // after it had waited for them.
  kMadeAnew,      // The next rank made what another one had not.
  kDigestsAsked,  // For chunks whose contents are not shared.
  kDiffers,
  kCopied,  // Before a rank wrote what it shared.
  kCommitted,
  kCommittedTogether,
  kCommitWaited,
  kFreedShared,
  kDiscardedShared,
  kDiedInPart,
  kHung,
  // Where ranks are kept:
  kAllCommitted,
  kRefusedWithoutARank,
  kTookPlace,
  kRestarted,
  kDiedInCommit,  // The daemon, after the record of a commit of all ranks.
};
inline constexpr int kRankProbes = 18, kFirstKeptProbe = 13;

struct RankConfig {
  uint64_t seed = 0;
  uint32_t ranks = 2, parameters = 1;
  uint32_t device_slots = 0, host_slots = 16, ssd_slots = 0;
  bool hostile = false;  // Ranks lie, and use each other's ids: what they read is not judged.
  bool keeps = false;    // Ranks are kept when their sessions end, and the daemon dies at times.
  uint32_t uncomputed_percent = 10, alike_percent = 80, steps = 400;
  Limits limits;
  // By the operations of RankSimulation::Step().
  std::vector<uint32_t> weights;
};
// Ranks of one job. The stream is its own, so that other simulations stay as they are.
RankConfig WithRanks(uint64_t seed);
// Ranks of a job that outlives them, and the daemon.
RankConfig WithKeptRanks(uint64_t seed);

struct RankOutcome {
  std::string broken, last;  // As in Outcome.
  uint64_t trace_hash = 0, events = 0;
  std::array<uint64_t, kRankProbes> hits{};
};

class RankSimulation {
 public:
  static RankOutcome Run(const RankConfig& config, std::ostream* echo = nullptr);

 private:
  struct Content {
    Stamp stamp = kZeros;
    bool defined = true;  // Otherwise it may read as anything.
    bool torn = false;
    uint64_t made = 0;  // The computation that several ranks may share; zero: none.
  };
  struct Rank {
    SessionId session;
    bool open = false, allocating = false, hung = false;
    bool has_shared = false;  // A content, ever: also one that is empty now.
    uint32_t number = 0;
    Instant renewed;
    // Gradient, parameter and shadow chunk of each parameter. Freed ones are no longer in
    // `contents`.
    std::vector<ChunkId> chunks;
    std::map<ChunkId, Content> contents;
    std::map<ChunkId, Lease> leases;
    uint64_t step = 0;
  };
  struct Waiting {
    Event event;
    uint64_t since = 0;  // The event that brought it.
    Instant called;
    std::vector<Stamp> read;  // What a part reads.
  };
  struct Held {
    std::vector<ChunkId> writes;
    std::vector<Stamp> read;
    uint64_t work = 0;
    bool shareable = false;
  };
  using Computation = std::pair<uint64_t, std::vector<Stamp>>;

  RankSimulation(const RankConfig& config, std::ostream* echo);

  // --- rank_clients.cc ---
  void Step();
  void StepRank(Rank* rank, uint32_t operation);
  void Connect();
  void Fetch(Rank* rank);
  void Write(Rank* rank);
  void Release(Rank* rank);
  void AskPart(Rank* rank);
  void EndPart(Rank* rank);
  void Commit(Rank* rank);
  void Move(Rank* rank, bool evict);
  void Free(Rank* rank);
  void Discard(Rank* rank);
  void Die(Rank* rank);
  void Hostile(Rank* rank);
  ChunkId AnyChunk(const Rank& rank);
  ChunkId AnyChunkOfOthers();
  bool IsBusy(const Rank& rank, ChunkId chunk) const;
  bool WaitsForPart(const Rank& rank) const;
  bool WaitsForCommit(SessionId session) const;
  bool WaitsForAll(SessionId session) const;
  std::optional<Event> GiveBack(Rank* rank, const std::vector<ChunkId>& chunks);
  void EndPart(Rank* rank, uint64_t number, bool computed);

  // --- rank_oracle.cc ---
  void Observe(const Effect& effect);
  void ObserveReply(const Reply& reply);
  void Accept(Rank* rank, const FetchCall& call, const FetchReply& reply);
  void Accept(Rank* rank, const Waiting& waiting, const StepCall& call, const PartReply& reply);
  void Accept(Rank* rank, const CommitCall& call);
  bool IsPermitted(const Waiting& waiting, absl::StatusCode code) const;
  void EndRank(SessionId session);
  void After();
  void CheckLeases();
  void CheckCommits();
  void NoteWaits();
  void CheckAllCommitted();
  void SetResult(Rank* rank, ChunkId chunk, Stamp stamp, uint64_t made);

  // --- rank_simulation.cc ---
  void Feed(Event event);
  void Ask(Event call);
  void PassTime(Duration time);
  void AnswerRevokes();
  void Restart();
  void Settle();
  void ReadAll();
  void EndAll();
  Rank* Find(SessionId session);
  void Hit(RankProbe probe) { ++outcome_.hits[static_cast<size_t>(probe)]; }

  const RankConfig config_;
  Verdict verdict_;
  Probes probes_;
  FakeNode node_;
  std::unique_ptr<Engine> engine_;
  Trace trace_;
  Random random_;
  Instant now_;
  RankOutcome outcome_;
  std::map<SessionId, Rank> ranks_;
  std::map<uint32_t, Rank> left_;  // What kept ranks have left, by their numbers.
  std::map<CallId, Waiting> calls_;
  std::map<PartKey, Held> held_;
  std::map<Computation, uint64_t> made_;  // The number of each in Content::made.
  std::vector<Revoke> revokes_;
  // The ranks that have committed in this event, the computations that they committed, and what
  // was freed.
  std::set<SessionId> committed_now_, committed_with_all_;
  std::set<SessionId> in_vain_;  // Ranks for which a commit has waited in vain.
  std::set<ChunkId> freed_now_;
  // Parts and their results, with the step that they are of.
  std::map<std::pair<uint64_t, Stamp>, uint64_t> committed_contents_;
  uint64_t next_call_ = 1, next_session_ = 1, next_request_ = 1, next_stamp_ = 1, next_made_ = 1;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_RANKS_RANK_SIMULATION_H_
