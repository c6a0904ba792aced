// CommonSimulation: the engine, the fake node, and scripts of two users, each with a job of its
// own, which offer chunks that they have in common.
//
// The oracle knows nothing of sharing: each script is to see what it would see alone. Besides, no
// place is lent to two users, and none that several scripts read is ever lent for writing. As in
// Simulation, all chance comes from the seed. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_COMMON_COMMON_SIMULATION_H_
#define MEMTIDE_TESTS_SIM_COMMON_COMMON_SIMULATION_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "tests/sim/fakes/fake_node.h"
#include "tests/sim/oracle/verdict.h"
#include "tests/sim/probes.h"
#include "tests/sim/random.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

// What the seeds must reach.
enum class CommonProbe : uint8_t {
  kShared,
  kLeased,      // A chunk was not shared, since it was in use.
  kCollided,    // Digests were equal, and bytes were not.
  kReadShared,  // A lease of what is common,
  kTwoReaders,  // which another script leases, too.
  kCopied,      // Before a script wrote what it shared,
  kLeftBehind,  // and still had leased for reading.
  kWrittenByPart,
  kCommittedShared,
  kFreedShared,
  kDiscardedShared,
  kDiedInOffer,
  kNoMemory,  // A region for common contents could not be made.
  kHung,
};
inline constexpr int kCommonProbes = 14;

struct CommonConfig {
  uint64_t seed = 0;
  uint32_t scripts = 3, chunks = 4, contents = 3;
  uint32_t host_slots = 48, ssd_slots = 0;
  uint64_t stamps_of_digest = 1;
  bool elastic = false, hostile = false;
  uint32_t fail_region_percent = 0, other_user_percent = 30, steps = 400;
  Limits limits;
  // By the operations of CommonSimulation::Step().
  std::vector<uint32_t> weights;
};
CommonConfig WithCommonContents(uint64_t seed);

struct CommonOutcome {
  std::string broken, last;  // As in Outcome.
  uint64_t trace_hash = 0, events = 0;
  std::array<uint64_t, kCommonProbes> hits{};
};

class CommonSimulation {
 public:
  static CommonOutcome Run(const CommonConfig& config, std::ostream* echo = nullptr);

 private:
  struct Content {
    Stamp stamp = kZeros;
    bool defined = true;  // Otherwise it may read as anything.
    bool shared = false;  // An offer of it was answered so.
  };
  struct Script {
    SessionId session;
    uint32_t uid = 0;
    bool open = false, allocating = false, hung = false;
    Instant renewed;
    std::vector<ChunkId> chunks;
    std::map<ChunkId, Content> contents;  // Without those that were freed.
    std::map<ChunkId, Lease> leases;
    uint64_t step = 0;
  };
  struct Held {
    std::vector<ChunkId> writes;
    std::vector<Stamp> read;
    uint64_t work = 0;
  };

  CommonSimulation(const CommonConfig& config, std::ostream* echo);

  // --- common_scripts.cc ---
  void Step();
  void StepScript(Script* script, uint32_t operation);
  void Connect();
  void Complete();
  void Fetch(Script* script);
  void Write(Script* script);
  void Release(Script* script);
  void Offer(Script* script);
  void StartPart(Script* script);
  void EndPart(Script* script);
  void EndPart(PartKey key, bool computed);
  void Commit(Script* script);
  void Move(Script* script, bool evict);
  void Free(Script* script);
  void Discard(Script* script);
  void Die(Script* script);
  void Hostile(Script* script);
  ChunkId AnyChunk(const Script& script);
  // A call that waits or a part that runs of the script names the chunk.
  bool IsBusy(const Script& script, ChunkId chunk) const;
  std::optional<Event> GiveBack(Script* script, const std::vector<ChunkId>& chunks);

  // --- common_oracle.cc ---
  void Observe(const Effect& effect);
  void ObserveReply(const Reply& reply);
  void Accept(Script* script, const FetchCall& call, const FetchReply& reply);
  void Accept(Script* script, const StepCall& call, const PartReply& reply);
  void Accept(Script* script, const OfferCall& call, const OfferReply& reply);
  void Accept(Script* script, const CommitCall& call);
  bool IsPermitted(const Event& event, absl::StatusCode code) const;
  void EndScript(SessionId session);
  void CheckLeases();
  bool IsCommon(const MemoryPlace& place) const;

  // --- common_simulation.cc ---
  void Feed(Event event);
  void Ask(Event call);
  void PassTime(Duration time);
  void AnswerRevokes();
  void Settle();
  void ReadAll();
  void EndAll();
  Script* Find(SessionId session);
  void Hit(CommonProbe probe) { ++outcome_.hits[static_cast<size_t>(probe)]; }

  const CommonConfig config_;
  Verdict verdict_;
  Probes probes_;
  FakeNode node_;
  Engine engine_;
  Trace trace_;
  Random random_;
  Instant now_;
  CommonOutcome outcome_;
  std::map<SessionId, Script> scripts_;
  std::map<CallId, Event> calls_;
  std::map<PartKey, Held> held_;
  std::vector<Revoke> revokes_;
  std::set<std::pair<SessionId, RegionId>> sent_;
  uint64_t next_call_ = 1, next_session_ = 1, next_request_ = 1, next_stamp_ = 1;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_COMMON_COMMON_SIMULATION_H_
