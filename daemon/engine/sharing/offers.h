// Offers: contents that sessions of one user hold in common: chunks that a session has offered, and
// the hidden jobs that have the memory of what is equal. Engine-internal.
//
// An offer is a call of a client, or the engine's own, which repeats one for a chunk that was
// written since. Its step parts run as those of Calls, one after the other. Between two of them it
// may wait for contents that other sessions are making, and for memory. DuplicateCalls wait in the
// same order (sharing/duplicates.h).
#ifndef MEMTIDE_DAEMON_ENGINE_SHARING_OFFERS_H_
#define MEMTIDE_DAEMON_ENGINE_SHARING_OFFERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "daemon/engine/calls/calls.h"
#include "daemon/engine/core.h"
#include "daemon/engine/memory/memory.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

// How long an offer waits for contents that other sessions are making, and for memory.
inline constexpr Duration kOfferPatience = std::chrono::seconds(2);

class Offers {
 public:
  Offers(Core& core, Memory& memory, Residency& residency, Calls& calls)
      : core_(core), memory_(memory), residency_(residency), calls_(calls) {}

  void On(const OfferCall& event);
  // Starts the next part of the offer, lets it wait, or answers its call. REQUIRES: its session has
  // a job, and it has no part and does not wait.
  void GoOn(const std::shared_ptr<Offer>& offer);
  // The step part waits for its chunks, of which those from `first_written` on are written, and
  // does `work`. An own offer for which there is no room now is put off instead.
  void StartPart(Session& session, const std::shared_ptr<Offer>& offer, ContentWork work,
                 std::vector<ChunkIndex> chunks, size_t first_written);
  // Goes on with the offer whose part has ended, or ends it with the part's error.
  // REQUIRES: it is no duplicate.
  void EndPart(const std::shared_ptr<Offer>& ended, const StepDone& event);
  // Gives up the contents that the offer's part was to make, and answers its call with the error.
  void EndOffer(Offer& offer, const absl::Status& why);
  // The same for a part that never ran, whose call is answered already.
  void LeavePart(Offer& offer);
  // Ends the offers of the session that wait. Parts that wait or run end with their calls.
  void EndOffers(Session& session, const absl::Status& why);

  // The offer is the youngest of those that wait. REQUIRES: it does not wait.
  void Wait(Session& session, const std::shared_ptr<Offer>& offer);
  // The offers that wait are tried again when a transfer has ended or memory was made, too.
  void AwaitTransfers() { await_transfers_ = true; }
  // Returns the oldest offers that wait, if they are to be tried again: few, because one event must
  // not examine all that wait. The next Tick goes on with the others.
  std::vector<std::shared_ptr<Offer>> TakeDue();
  // REQUIRES: the offer is the oldest of those that wait.
  void StopWaiting(Offer& offer);
  // Returns how many offers and duplicates wait.
  size_t waiting() const { return offers_.size(); }

  // Forgets the digest of the session's chunk, which is freed or holds something else.
  void WithdrawOffer(Session& session, ChunkId id);
  // Forgets all digests of a session that ends.
  void WithdrawOffers(Session& session);
  // The engine offers the chunk again soon, if its offers are repeated and it is not common.
  void OfferAgain(ChunkIndex index);
  // Revokes the leases that keep chunks from being offered, and lists the offers that are due.
  void Tick();
  // Begins the own offers that are due. False: there are none.
  bool StartOwnOffers();
  // Handles a room check of a hidden job: offers are tried again where it has room.
  void MakeRoom(Job& job, Tier tier);

  void On(const ChunkUnpinned& signal);
  void On(const ContentWritten& signal);
  void On(const ContentEnded& signal);
  void On(const NoMemoryForContents& signal);

  void CheckInvariants() const;

 private:
  // The common contents of the session's user, of its chunk size.
  CommonContents& CommonsOf(const Session& session);
  absl::Status MakeHiddenJob(const Session& session, CommonContents& contents);
  void MaybeEndHiddenJob(CommonContents& contents);
  void LendRegions(const Session& session, CommonContents& contents);
  // Whether memory for more contents is on its way.
  bool MakeMemory(CommonContents& contents);
  CommonContent* MakeContent(const Session& session, CommonContents& contents,
                             const Digest& digest);
  ChunkIndex MakeReader(Job& job, ChunkIndex like, CommonContent& content);
  bool MayBecomeCommon(ChunkIndex index) const;
  // Whether the bytes of the chunk may become a common content.
  static bool IsOfferable(const Chunk& chunk);
  // The chunk was offered. After many offers in vain it is offered no more.
  static void CountOffer(Chunk& chunk);
  absl::Status CheckOffer(const Session& session, const OfferCall& event) const;
  bool StartHashing(Session& session, const std::shared_ptr<Offer>& offer);
  bool StartSharing(Session& session, const std::shared_ptr<Offer>& offer);
  static uint32_t MostInPart(const Job& job);
  void NoteDigests(Session& session, Offer& offer, const ContentResult& result);
  void EndSharing(Session& session, Offer& offer, const ContentResult& result);
  void AnswerOffer(Offer& offer);
  void RepeatOffer(Session& session, const std::vector<ChunkIndex>& indices);
  void OfferLater(Session& session, ChunkIndex index);
  void RevokeForOffers(Session& session);
  bool IsWorthOffering(const Session& session, ChunkId id, const Chunk& chunk);
  void StartOwnOffer(Session& session);
  void PutOff(Session& session, const std::vector<Offer::Item>& items);
  void OfferAlike(const Session& session, const Digest& digest);
  void DropReaders(Offer& offer);
  void EndOwnOffer(SessionId id);

  Core& core_;
  Memory& memory_;
  Residency& residency_;
  Calls& calls_;

  // Offers and duplicates that wait for contents that others make, or for memory, oldest first.
  std::deque<std::shared_ptr<Offer>> offers_;
  bool offers_due_ = false;          // They are to be tried again,
  bool await_transfers_ = false;     // also when a transfer has ended, or memory was made.
  std::set<SessionId> repeats_due_;  // Sessions whose chunks may be offered again now.

  uint64_t next_own_call_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARING_OFFERS_H_
