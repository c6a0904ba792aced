// Duplicates: new chunks that hold the content of others, of which no byte is copied before one of
// them is written. Engine-internal.
//
// A DuplicateCall stands in an Offer, as its step part and its waiting are those of an offer.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARING_DUPLICATES_H_
#define MEMTIDE_DAEMON_ENGINE_SHARING_DUPLICATES_H_

#include <memory>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/calls/calls.h"
#include "daemon/engine/core.h"
#include "daemon/engine/memory/memory.h"
#include "daemon/engine/residency/residency.h"
#include "daemon/engine/sharing/offers.h"

namespace memtide {

class Duplicates {
 public:
  Duplicates(Core& core, Memory& memory, Residency& residency, Calls& calls, Offers& offers)
      : core_(core), memory_(memory), residency_(residency), calls_(calls), offers_(offers) {}

  void On(const DuplicateCall& event);
  // Makes the duplicates of a call whose part has ended, lets it wait for room, or answers it with
  // the part's error. REQUIRES: the offer is a duplicate.
  void EndPart(const std::shared_ptr<Offer>& offer, const absl::Status& ended);
  // Tries offers and duplicates that wait again, the oldest first. False: none is due.
  bool RetryWaiting();

 private:
  absl::Status CheckDuplicate(const Session& session, const DuplicateCall& event,
                              const std::vector<ChunkIndex>& indices) const;
  // nullopt: the call waits for memory.
  absl::optional<absl::Status> TryDuplicate(const Job& job, const DuplicateCall& event,
                                            const std::vector<ChunkIndex>& indices) const;
  void Start(const std::shared_ptr<Offer>& offer);
  void WaitForRoom(Session& session, const std::shared_ptr<Offer>& offer);
  void Duplicate(Session& session, const DuplicateCall& event,
                 const std::vector<ChunkIndex>& indices);

  Core& core_;
  Memory& memory_;
  Residency& residency_;
  Calls& calls_;
  Offers& offers_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARING_DUPLICATES_H_
