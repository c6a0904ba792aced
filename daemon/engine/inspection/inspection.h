// Inspection: what operators, metrics and traces see. It changes nothing. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_INSPECTION_INSPECTION_H_
#define MEMTIDE_DAEMON_ENGINE_INSPECTION_INSPECTION_H_

#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/calls/calls.h"
#include "daemon/engine/core.h"
#include "daemon/engine/sharing/offers.h"

namespace memtide {

class Inspection {
 public:
  Inspection(Core& core, const Calls& calls, const Offers& offers)
      : core_(core), calls_(calls), offers_(offers) {}

  void On(const InspectCall& event);
  void On(const TraceCall& event);

 private:
  // Sums over all chunks take a walk over the chunk table.
  struct ChunkSums {
    Instant at;
    std::vector<KindUsage> all;
    std::map<JobId, std::vector<KindUsage>> of_jobs;
    std::map<SessionId, RankUse> of_ranks;
  };
  ChunkSums SumChunks() const;
  void ListSession(const Session& session, InspectReply* seen) const;
  void ListJobs(const InspectCall& event, InspectReply* seen) const;
  void ListChunks(const InspectCall& event, InspectReply* seen) const;

  Core& core_;
  const Calls& calls_;
  const Offers& offers_;
  absl::optional<ChunkSums> chunk_sums_;  // A large table is not walked for each InspectCall.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_INSPECTION_INSPECTION_H_
