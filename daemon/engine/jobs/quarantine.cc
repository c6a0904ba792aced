// Quarantine: slots at the device that the work of a process which died may still write to.
//
// The sockets of a killed process close before its driver's files do, and only then do its kernels
// end. Until ClientQuiet, no slot that a session had leased at its end is lent to another chunk.
// A copy in such a slot is of one of three kinds:
//
// - torn: the session wrote it. The copy goes at once, so that who makes the chunk whole writes
//   elsewhere; at the home tier, where slots stay, that waits.
// - another copy is valid, on a tier below: the copy goes at once, and the other one serves.
// - the only copy, which the session leased for reading: it stays and is served, because kernels of
//   that session only read it.
#include <set>
#include <utility>

#include "base/check.h"
#include "daemon/engine/jobs/jobs.h"

namespace memtide {

void Jobs::On(const ClientQuiet& event) {
  const auto found = quarantines_.find(event.session);
  if (found == quarantines_.end()) return;
  Job& job = *found->second.job;
  const std::vector<SlotNumber> slots = std::move(found->second.slots);
  quarantines_.erase(found);
  if (event.process_lives) {
    core_.Emit(LentUnderProcess{event.session, static_cast<uint32_t>(slots.size())});
  }
  Share& share = job.share(Tier::kDevice);
  for (const SlotNumber slot : slots) share.EndQuarantine(slot);
  if (job.state() == JobState::kEnding) return memory_.MaybeDropMemory(job);
  // Chunks that waited in their slots, and those that wait for one.
  const std::set<SlotNumber> ended(slots.begin(), slots.end());
  for (const ChunkIndex index : job.members.chunks()) {
    if (!core_.chunks[index].slot(Tier::kDevice)) continue;
    if (ended.count(core_.chunks[index].slot(Tier::kDevice).number()) > 0)
      core_.ScheduleChunk(index);
  }
  core_.ScheduleRoomCheck(job, Tier::kDevice);
  calls_.AllocateWaiting(job);
}

void Jobs::CheckInvariants() const {
  for (const WaitingOpen& open : core_.opens) {
    const Session* const session = core_.sessions.Find(open.call.session);
    MEMTIDE_CHECK(session != nullptr && session->opening);
  }
  for (const auto& [id, quarantined] : quarantines_) {
    MEMTIDE_CHECK(core_.sessions.Find(id) == nullptr);
    MEMTIDE_CHECK(core_.jobs.count(quarantined.job->id) == 1);
    for (const SlotNumber slot : quarantined.slots) {
      MEMTIDE_CHECK(quarantined.job->share(Tier::kDevice).slots().in_quarantine(slot));
    }
  }
}

}  // namespace memtide
