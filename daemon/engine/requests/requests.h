// Requests: the calls of clients about chunks, checked and carried out whole or not at all.
// Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_REQUESTS_REQUESTS_H_
#define MEMTIDE_DAEMON_ENGINE_REQUESTS_REQUESTS_H_

#include <cstdint>
#include <vector>

#include "daemon/engine/calls/calls.h"
#include "daemon/engine/core.h"
#include "daemon/engine/residency/prefetcher.h"
#include "daemon/engine/residency/residency.h"
#include "daemon/engine/sharing/duplicates.h"
#include "daemon/engine/sharing/offers.h"
#include "daemon/engine/sharing/rank_contents.h"

namespace memtide {

class Requests {
 public:
  Requests(Core& core, Residency& residency, Prefetcher& prefetcher, Calls& calls, Offers& offers,
           Duplicates& duplicates, RankContents& contents)
      : core_(core),
        residency_(residency),
        prefetcher_(prefetcher),
        calls_(calls),
        offers_(offers),
        duplicates_(duplicates),
        rank_contents_(contents) {}

  void On(const FreeCall& event);
  void On(const DescribeCall& event);
  void On(const FetchCall& event);
  void On(const FetchAgain& signal);
  void On(const ReleaseCall& event);
  void On(const StepCall& event);
  void On(const StepAgain& signal);
  void On(const StepDone& event);
  void On(const EndPartCall& event);
  void On(const DiscardCall& event);
  void On(const EvictCall& event);

 private:
  // Fails the calls of the session that wait for one of the chunks.
  void FailWaiting(const Session& session, const std::vector<ChunkIndex>& indices);
  absl::Status CheckFetch(const Session& session, const FetchCall& event,
                          const std::vector<ChunkIndex>& indices) const;
  absl::Status CheckStep(const Session& session, const StepCall& event,
                         const std::vector<ChunkIndex>& indices) const;
  absl::Status CheckPart(const Session& session, uint64_t part) const;
  // Whether the access predictor has learned the uses of a call, which is then made again.
  enum class Moment : uint8_t { kNew, kLearned };
  void Begin(Session& session, const FetchCall& event);
  void Begin(Session& session, const StepCall& event, Moment moment);
  void LearnStep(const Session& session, const StepCall& event);
  absl::Status CheckDiscard(const Session& session, ChunkIndex index) const;

  Core& core_;
  Residency& residency_;
  Prefetcher& prefetcher_;
  Calls& calls_;
  Offers& offers_;
  Duplicates& duplicates_;
  RankContents& rank_contents_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_REQUESTS_REQUESTS_H_
