// Sharing: bytes that are in memory once for several chunks: contents that ranks share by name,
// contents that sessions of a user hold in common, and duplicates. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARING_SHARING_H_
#define MEMTIDE_DAEMON_ENGINE_SHARING_SHARING_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "daemon/engine/calls/calls.h"
#include "daemon/engine/core.h"
#include "daemon/engine/memory/memory.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

// How long an offer waits for contents that other sessions are making, and for memory.
inline constexpr Duration kOfferPatience = std::chrono::seconds(2);

// Whether a fetch or a step part of the session names the entry and is not granted.
bool HasCallFor(const Session& session, ChunkIndex index);
// Whether a part that runs or a call that waits of the session is of the entry.
bool IsInCall(const Core& core, const Session& session, ChunkIndex index);
// Whether the bytes of the chunk may become a common content.
bool IsOfferable(const Chunk& chunk);
// The chunk was offered. After many offers in vain it is offered no more.
void CountOffer(Chunk& chunk);

class Sharing {
 public:
  Sharing(Core& core, Memory& memory, Residency& residency, Calls& calls)
      : core_(core), memory_(memory), residency_(residency), calls_(calls) {}

  absl::Status GiveOwnEntries(Session& session, const std::vector<ChunkId>& ids,
                              const std::vector<bool>& wanted, bool may_be_leased,
                              std::vector<ChunkIndex>* indices);
  void Unshare(Session& session, const FetchCall& event, const std::vector<ChunkIndex>& indices);
  void EndUnsharing(const RunningStep& step, const absl::Status& status);
  void ReleaseLeftBehind(Session& session, ChunkId id);
  void FreeId(Session& session, ChunkId id, ChunkIndex index);
  void FreeOrphans(Job& job);
  bool SharePart(Session& session, const StepCall& event, std::vector<ChunkIndex>* indices,
                 absl::optional<PartDifference>* difference);
  void ForgetLostResults(Job& job);
  // A part of the session has ended, or never began. Calls that wait for it are made again
  // (StepAgain).
  void PartEnded(Job& job, SessionId maker, uint64_t number, bool computed);
  void EndWaitingParts(Session& session, const absl::Status& why);
  void ResultMoved(ChunkIndex from, ChunkIndex to);
  bool TakeFromShadow(Job& job, ChunkIndex chunk, ChunkIndex shadow, bool keep_old);
  absl::StatusOr<std::vector<Home>> TakeHomes(Job& job, const std::vector<ChunkIndex>& indices);
  void ExchangeNames(Job& job, const CommitCall& event, size_t nth, ChunkIndex chunk,
                     ChunkIndex shadow);
  void On(const DuplicateCall& event);
  void On(const OfferCall& event);
  void EndOfferPart(const RunningStep& step, const StepDone& event);
  void EndOffers(Session& session, const absl::Status& why);
  void WithdrawOffer(Session& session, ChunkId id);
  void WithdrawOffers(Session& session);
  void TickOffers();
  // False: none is due.
  bool RetryOffers();
  bool StartOwnOffers();
  size_t waiting_offers() const { return offers_.size(); }
  // Ends a call that waits, and with it its part.
  void Fail(Waiter& waiter, const absl::Status& status);
  void MakeRoom(Job& job, Tier tier);

  void On(const ChunkUnpinned& signal);
  void On(const ContentWritten& signal);
  void On(const ContentEnded& signal);
  void On(const NoMemoryForContents& signal);
  void On(const PartFailed& signal);

  void CheckInvariants() const;

 private:
  void MoveId(Job& job, ChunkId id, ChunkIndex from, ChunkIndex to);
  absl::StatusOr<Home> TakeHome(Job& job, ChunkIndex shared);
  absl::StatusOr<ChunkIndex> MakeEntry(Job& job, ChunkIndex like);
  bool IsOrphan(ChunkIndex index) const;
  absl::Status TakeResults(Job& job, const StepCall& event, const std::vector<ChunkIndex>& results);
  // The part is made, or another session makes it. `count`: the chunks of the call.
  void AnswerOrWait(Session& session, const StepCall& event, SharedPart& part, size_t count);
  void AnswerMade(const StepCall& event, const std::vector<ChunkIndex>& results);
  absl::Status MakeHiddenJob(const Session& session, CommonContents& contents);
  void MaybeEndHiddenJob(CommonContents& contents);
  void LendRegions(const Session& session, CommonContents& contents);
  // Whether memory for more contents is on its way.
  bool MakeMemory(CommonContents& contents);
  CommonContent* MakeContent(const Session& session, CommonContents& contents,
                             const Digest& digest);
  ChunkIndex MakeReader(Job& job, ChunkIndex like, CommonContent& content);
  // Nothing uses what the chunk holds, or waits for it.
  bool IsUnused(ChunkIndex index) const;
  bool MayBecomeCommon(ChunkIndex index) const;
  absl::Status CheckDuplicate(const Session& session, const DuplicateCall& event,
                              const std::vector<ChunkIndex>& indices) const;
  // nullopt: the call waits for memory.
  absl::optional<absl::Status> TryDuplicate(const Job& job, const DuplicateCall& event,
                                            const std::vector<ChunkIndex>& indices) const;
  void StartDuplicating(const std::shared_ptr<Offer>& offer);
  void EndDuplicating(Session& session, const std::shared_ptr<Offer>& offer);
  void WaitToDuplicate(Session& session, const std::shared_ptr<Offer>& offer);
  void Duplicate(Session& session, const DuplicateCall& event,
                 const std::vector<ChunkIndex>& indices);
  absl::Status CheckOffer(const Session& session, const OfferCall& event) const;
  void GoOn(const std::shared_ptr<Offer>& offer);
  bool StartHashing(Session& session, const std::shared_ptr<Offer>& offer);
  bool StartSharing(Session& session, const std::shared_ptr<Offer>& offer);
  uint32_t MostInPart(const Job& job) const;
  void StartPart(Session& session, const std::shared_ptr<Offer>& offer, ContentWork work,
                 std::vector<ChunkIndex> chunks, size_t first_written);
  void NoteDigests(Session& session, Offer& offer, const ContentResult& result);
  void EndSharing(Session& session, Offer& offer, const ContentResult& result);
  void AnswerOffer(Offer& offer);
  void EndOffer(Offer& offer, const absl::Status& why);
  void RepeatOffer(Session& session, const std::vector<ChunkIndex>& indices);
  void OfferLater(Session& session, ChunkIndex index);
  void RevokeForOffers(Session& session);
  bool IsWorthOffering(const Session& session, ChunkId id, const Chunk& chunk);
  void StartOwnOffer(Session& session);
  void PutOff(Session& session, const std::vector<Offer::Item>& items);
  void OfferAlike(const Session& session, const Digest& digest);
  void DropCopies(const Unsharing& unsharing);
  void DropReaders(Offer& offer);
  void EndOwnOffer(SessionId id);
  // The common contents of the session's user, of its chunk size.
  CommonContents& CommonsOf(const Session& session);

  Core& core_;
  Memory& memory_;
  Residency& residency_;
  Calls& calls_;

  // Offers that wait for contents that others make, or for memory.
  std::deque<std::shared_ptr<Offer>> offers_;
  bool offers_due_ = false;          // They are to be tried again,
  bool await_transfers_ = false;     // also when a transfer has ended, or memory was made.
  std::set<SessionId> repeats_due_;  // Sessions whose chunks may be offered again now.

  uint64_t next_own_call_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARING_SHARING_H_
