#include "absl/strings/str_cat.h"
#include "daemon/engine/inspection/inspection.h"
#include "daemon/engine/residency/copies.h"

namespace memtide {

// A call without a job id means the only job of the viewer that runs. It is refused where several
// do.
void Inspection::On(const TraceCall& event) {
  const Job* found = nullptr;
  for (const auto& [id, job] : core_.jobs) {
    if (job->contents != nullptr) continue;  // It has no chunks.
    if (event.viewer.value_or(job->uid) != job->uid) continue;
    if (event.job.value() != 0 ? id != event.job : job->state() != JobState::kRunning) continue;
    if (found != nullptr) {
      return core_.Refuse(
          event.call,
          absl::InvalidArgumentError("job_id: several jobs are open; name one (see InspectNode)"));
    }
    found = job.get();
  }
  if (found == nullptr) {
    return core_.Refuse(
        event.call, absl::NotFoundError(event.job.value() == 0
                                            ? "no job is open"
                                            : absl::StrCat("there is no job ", event.job.value())));
  }
  const Job& job = *found;
  TraceReply traced;
  traced.job = job.id;
  traced.chunk_size = job.chunk_size;
  const auto slots = [&job](Tier tier) {
    return job.share(tier).exists() ? job.share(tier).slots().size() : 0;
  };
  traced.device_slots = slots(Tier::kDevice);
  traced.host_slots = slots(Tier::kHost);
  traced.ssd_slots = slots(Tier::kSsd);
  for (uint32_t member = 0; member < job.members.size(); ++member) {
    const ChunkIndex index = job.members[Member(member)];
    // The reply lists live chunks only, but its moments may have numbers of freed ones.
    if (index == kNoChunk || !core_.chunks[index].live()) continue;
    const Chunk& chunk = core_.chunks[index];
    traced.chunks.push_back(
        {member, core_.IdOf(index), chunk.kind, MomentsUntilUse(core_.chunks, chunk)});
  }
  job.trace.AddTo(&traced);
  core_.AnswerWith(event.call, std::move(traced));
}

}  // namespace memtide
