// Prefetcher: learns which chunks sessions use, and while links are idle moves those that are used
// next up and writes the next victims back. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_RESIDENCY_PREFETCHER_H_
#define MEMTIDE_DAEMON_ENGINE_RESIDENCY_PREFETCHER_H_

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/core.h"
#include "daemon/engine/residency/residency.h"
#include "daemon/engine/residency/victims.h"

namespace memtide {

class Prefetcher {
 public:
  Prefetcher(Core& core, Victims& victims, Residency& residency)
      : core_(core), victims_(victims), residency_(residency) {}

  void On(const ReportCall& event);
  // `by`: parts of steps use chunks beside the script, in any order.
  enum class UsedBy { kScript, kPart };
  void Learn(const Session& session, const std::vector<MomentReport>& moments,
             UsedBy by = UsedBy::kScript);
  // The leases of the session whose chunks are expected last.
  void AddEvictionHints(const Session& session, FetchReply* reply) const;
  // The chunks that the session may lease ahead of their uses.
  void AddAhead(const Session& session, ChunksAhead* ahead) const;
  // Starts one movement. False: none is worth its time now, but a signal may have been sent for the
  // room of one.
  bool PrefetchOrWriteBack();

 private:
  void EndIteration(Job& job, uint64_t clock);
  absl::optional<ResidencyPlan::Slots> SlotsToPlan(const Job& job) const;
  ChunkIndex IndexWanted(const Job& job, Member member, VirtualTime time) const;
  bool MayLeaseAhead(const Chunk& chunk, SessionId session, bool writes) const;
  bool Prefetch(Job& job, Tier tier);
  JobForecast::Prefetch TryPrefetch(Job& job, Tier tier, Member member, VirtualTime time);
  bool HasRoomUntil(Job& job, Tier tier, VirtualTime time);
  bool IsClear(Job& job, Tier tier, Member member, VirtualTime time);
  void RevokeFarthest(Job& job, VirtualTime time);
  bool WriteBackEarly(Job& job, Tier tier);
  bool IsWorthASlot(const Job& job, Tier tier, VirtualTime time) const;

  Core& core_;
  Victims& victims_;
  Residency& residency_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_RESIDENCY_PREFETCHER_H_
