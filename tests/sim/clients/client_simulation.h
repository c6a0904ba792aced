// ClientSimulation: the engine, the fake node, and clients that share contents. Its subclasses say
// how they share: RankSimulation has the ranks of one training, CommonSimulation the jobs of
// several users.
//
// The oracle knows nothing of sharing: each client is to see what it would see alone. Besides, no
// place is lent to two users, and none that several clients read is lent for writing. As in
// Simulation, all chance comes from the seed. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_CLIENTS_CLIENT_SIMULATION_H_
#define MEMTIDE_TESTS_SIM_CLIENTS_CLIENT_SIMULATION_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "tests/sim/clients/client_config.h"
#include "tests/sim/fakes/fake_node.h"
#include "tests/sim/oracle/verdict.h"
#include "tests/sim/probes.h"
#include "tests/sim/random.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

// The situations that the seeds must reach.
enum class ClientProbe : uint8_t {
  // Where ranks are kept:
  kAllCommitted,
  kRefusedWithoutARank,
  kTookPlace,
  kRestarted,
  kDiedInCommit,  // The daemon, after the record of a commit of all ranks.
  // Where ranks share:
  kMade,          // A rank got the results of another one,
  kWaited,        // after it had waited for them.
  kMadeAnew,      // The next rank made what another one had not.
  kDigestsAsked,  // For chunks whose contents are not shared.
  kDiffers,
  kCommitted,
  kCommittedTogether,
  kCommitWaited,
  kDiedInPart,
  // Everywhere:
  kCopied,  // Before a client wrote what it shared.
  kFreedShared,
  kDiscardedShared,
  kHung,
  // With common contents:
  kShared,
  kLeased,      // A chunk was not shared, since it was in use.
  kCollided,    // Digests were equal, and bytes were not.
  kReadShared,  // A lease of what is common,
  kTwoReaders,  // which another client leases, too.
  kReadSharedOnDevice,
  kWroteSharedOnDevice,  // While it had it leased there.
  kLeftBehind,           // A client that writes what it shared still had it leased for reading.
  kWrittenByPart,
  kCommittedShared,
  kDiedInOffer,
  kSharedByItself,  // The engine has repeated an offer, and made or met a common content.
  kDuplicated,
  kNoRoomToDuplicate,
  kNoRoomToWrite,  // A chunk that has its content in common with others.
  kNoMemory,       // A region for common contents could not be made.
  // With quotas:
  kOverQuota,    // A quota was set below what was in use,
  kBackInQuota,  // and then shrank to it.
  kRefusedByQuota,
  kGrewToQuota,  // To its limit, or within a chunk of it.
  kEndedJob,
  kEndedNoForeignJob,
  // With pipelines:
  kFullPipeline,      // A stage had as many micro-batches in flight as it may.
  kBackwardWaited,    // A chunk that a backward reads again had left, or others had its room.
  kReadWhileStepped,  // A forward read the version that a step reads, too.
  kSteppedInPlace,    // The ways of a step (StepWay).
  kSteppedIntoRoom,
  kSteppedIntoShadow,
  kSteppedAfterDiscard,
  kTwoContents,  // Contents of one weight chunk that there were at once.
  kThreeContents,
  kDiedWithReaders,  // A stage, between forwards and their backwards,
  kDaemonDiedWithReaders,
  kResumed,  // and all stages of a job went on from their last step.
  kDiskFailed,
};
inline constexpr int kClientProbes = 53;

struct ClientOutcome {
  std::string broken, last;  // As in Outcome.
  uint64_t trace_hash = 0, events = 0;
  std::array<uint64_t, kClientProbes> hits{};
};

class ClientSimulation {
 public:
  virtual ~ClientSimulation() = default;

 protected:
  struct Content {
    Stamp stamp = kZeros;
    bool defined = true;  // Otherwise it may read as anything.
    bool torn = false;
    uint64_t shared = 0;  // Not zero: others may have it, too. With ranks: the computation.
  };
  struct Client {
    SessionId session;
    uint32_t uid = 1000;
    std::vector<uint32_t> groups;
    bool open = false, allocating = false, hung = false;
    Instant renewed;
    std::vector<ChunkId> chunks;
    std::map<ChunkId, Content> contents;  // Without those that were freed.
    std::map<ChunkId, Lease> leases;
    std::map<ChunkId, Stamp> shown;  // The stamp that each lease showed when it was granted.
    uint64_t step = 0;
    std::set<ChunkId> repeated;  // Offered whenever they were written.
    // Only with ranks:
    uint32_t number = 0;
    bool has_shared = false;  // A content, ever: also one that is empty now.
  };
  struct Waiting {
    Event event;
    uint64_t since = 0;  // The event that brought it.
    Instant called;
    std::vector<Stamp> read;  // The stamps that a part reads.
  };
  // A part that a client computes.
  struct Held {
    std::vector<ChunkId> writes;
    std::vector<Stamp> read;
    uint64_t work = 0;
    bool shareable = false;
  };

  ClientSimulation(const ClientConfig& config, uint64_t stream, std::ostream* echo);
  ClientOutcome RunAll();

  // --- What the subclasses add ---
  virtual void Connect() = 0;
  virtual void Offer(Client* client) {}
  virtual void Duplicate(Client* client) {}
  virtual void StartPart(Client* client) = 0;
  virtual void Commit(Client* client) = 0;
  virtual void Hostile(Client* client) = 0;
  // The stamp that the client writes into the chunk, as others do.
  virtual Stamp AlikeStamp(const Client& client, ChunkId chunk) = 0;
  // Whether what the chunk holds must stay, as a call of the client waits for it.
  virtual bool IsBusy(const Client& client, ChunkId chunk) const;
  virtual bool MayDiscard(const Client& client, ChunkId chunk) const {
    return !IsBusy(client, chunk);
  }
  virtual void Before(const Event& event) {}
  virtual void After();
  virtual void CheckIdle() {}
  virtual void ReadAll();
  virtual void EndClient(SessionId session);
  // The meaning of the reply to a call.
  virtual void OnRefusal(Client* client, const Waiting& waiting, absl::StatusCode code) {}
  virtual void OnOpen(Client* client, const OpenReply& reply) {}
  virtual void OnFetch(Client* client, const FetchCall& call, const FetchReply& reply);
  virtual void OnPart(Client* client, const Waiting& waiting, const PartReply& reply);
  virtual void OnOffer(Client* client, const OfferCall& call, const OfferReply& reply) {}
  virtual void OnDuplicate(Client* client, const DuplicateCall& call, const AllocateReply& reply) {}
  virtual void OnCommit(Client* client, const CommitCall& call);
  // The client has computed the part.
  virtual void TakeResults(Client* client, const Held& held) = 0;
  virtual void StepClient(Client* client, ClientOp operation);
  // Gives back those of the chunks that are leased; no chunks: all that are. Returns whether there
  // were any.
  virtual bool GiveBack(Client* client, const std::vector<ChunkId>& chunks);
  // Nothing new begins. Gives back what is leased, and returns whether anything was.
  virtual bool SettleClient(Client* client) { return GiveBack(client, {}); }

  // --- client_operations.cc: what clients do ---
  // The client connects and asks to open.
  void ConnectAs(Client client, OpenCall open);
  void FetchToHost(SessionId session, Access access, std::vector<ChunkId> chunks);
  void CommitOne(const Client& client, ChunkId chunk, ChunkId shadow);
  void EndPart(PartKey key, bool computed);
  void Die(Client* client);
  ChunkId AnyChunkOfAll();
  template <typename Value>
  const Value& Pick(const std::vector<Value>& values) {
    return values[random_.Below(static_cast<uint32_t>(values.size()))];
  }

  // --- client_oracle.cc: what each client must see ---
  // Whether a call of the session waits for which `is` holds.
  template <typename Call, typename Predicate>
  bool Waits(SessionId session, Predicate is) const {
    return std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
      const auto* const call = std::get_if<Call>(&entry.second.event);
      return call != nullptr && call->session == session && is(*call);
    });
  }
  template <typename Call>
  bool Waits(SessionId session) const {
    return Waits<Call>(session, [](const Call&) { return true; });
  }
  static bool Names(const std::vector<ChunkId>& chunks, ChunkId chunk) {
    return std::find(chunks.begin(), chunks.end(), chunk) != chunks.end();
  }
  bool IsCommon(const MemoryPlace& place) const;
  // The key of what the part computes: the same for all ranks.
  virtual uint64_t WorkOf(const StepCall& call) const;
  // From now on the chunks may read as anything.
  static void Undefine(Client* client, const std::vector<ChunkId>& chunks);

  // --- client_simulation.cc ---
  void Feed(Event event);
  void Ask(Event call);
  void Settle();
  Client* Find(SessionId session);
  void Hit(ClientProbe probe) { ++outcome_.hits[static_cast<size_t>(probe)]; }

  const ClientConfig config_;
  Verdict verdict_;
  Probes probes_;
  FakeNode node_;
  std::unique_ptr<Engine> engine_;
  Trace trace_;
  Random random_;
  Instant now_;
  ClientOutcome outcome_;
  std::map<SessionId, Client> clients_;
  std::map<CallId, Waiting> calls_;
  std::map<PartKey, Held> held_;
  bool dies_ = false;  // In this event, of which the daemon carries out only the record.
  uint64_t next_call_ = 1, next_session_ = 1, next_request_ = 1, next_stamp_ = 1;

 private:
  void Step();
  void Complete();
  void Fetch(Client* client);
  void Write(Client* client);
  void Release(Client* client);
  // --- client_quotas.cc: administrators, beside the clients ---
  void SetQuotas();
  void EndAnyJob();
  // No event lends what a quota does not permit.
  void CheckQuotas();

  void EndPart(Client* client);
  void Evict(Client* client);
  void Discard(Client* client);

  void Observe(const Effect& effect);
  void ObserveReply(const Reply& reply);
  bool IsPermitted(const Waiting& waiting, absl::StatusCode code);
  void CheckLeases();

  void PassTime(Duration time);
  void AnswerRevokes();
  void Restart();
  void EndAll();
  std::vector<SessionId> Sessions() const;
  // The client dies: it leaves poison where it could write.
  void Spoil(const Client& client);

  struct QuotaKey {
    Quota::Kind kind;
    uint32_t id, uid;
    bool operator<(const QuotaKey& other) const {
      return std::tie(kind, id, uid) < std::tie(other.kind, other.id, other.uid);
    }
  };
  std::map<QuotaKey, QuotaUse> quota_uses_;  // After the last event.
  uint64_t next_quotas_ = 1;

  std::vector<Revoke> revokes_;
  std::vector<ChunkId> freed_now_;  // In this event.
  std::set<std::pair<SessionId, RegionId>> sent_;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_CLIENTS_CLIENT_SIMULATION_H_
