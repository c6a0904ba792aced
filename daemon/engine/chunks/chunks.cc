// Chunks: freeing, describing, and finding them by id.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/inspection/info.h"
#include "daemon/engine/requests.h"

namespace memtide {

namespace {

constexpr size_t kFreeKind = 10;  // Index in Event.
static_assert(std::is_same_v<std::variant_alternative_t<kFreeKind, Event>, FreeCall>);

}  // namespace

// All checks precede the first change: a refused call frees nothing.
void Requests::On(const FreeCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (core_.AnswerAgain(*session, event.call, event.request_id, kFreeKind)) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (!indices.ok()) return core_.Refuse(event.call, indices.status());
  for (const ChunkIndex index : *indices) {
    // The others go on with what they share.
    if (core_.ids.IsShared(index)) continue;
    for (const Pin& pin : core_.chunks[index].pins) {
      if (pin.session == session->id) continue;
      return core_.Refuse(event.call,
                          absl::FailedPreconditionError(absl::StrCat(
                              "chunk ", core_.IdOf(index).value(),
                              IsStep(pin.session) ? " is in use by a step that has not ended"
                                                  : " is leased by another session")));
    }
  }
  // Fetches of this session may still wait for the chunks. Those that are not admitted are found by
  // FailNaming().
  FailAdmitted(*session, *indices);
  for (size_t i = 0; i < indices->size(); ++i) {
    const ChunkIndex index = (*indices)[i];
    sharing_.ReleaseLeftBehind(*session, event.chunks[i]);
    sharing_.WithdrawOffer(*session, event.chunks[i]);
    if (core_.ids.IsShared(index)) {
      sharing_.FreeId(*session, event.chunks[i], index);
      continue;
    }
    state_.FailNaming(index, /*only_readers=*/false, Freed(core_.chunks, index));
    state_.FreeChunk(index);
  }
  Reply reply;
  reply.call = event.call;
  core_.sessions.Remember(*session, event.request_id, kFreeKind, reply);
  core_.Emit(std::move(reply));
  Job& job = *session->job;
  if (!job.commits.empty()) core_.work.Send(CommitsPossible{job.id});
}

void Requests::FailAdmitted(const Session& session, const std::vector<ChunkIndex>& indices) {
  // An admitted fetch pins each of its chunks, even those that have arrived.
  const bool some = std::any_of(indices.begin(), indices.end(), [&](ChunkIndex index) {
    const Pin* pin = core_.chunks[index].FindPin(session.id);
    return pin != nullptr && pin->pending > 0;
  });
  if (!some) return;
  const uint64_t batch = core_.ids.Mark(indices);
  for (Waiter* waiter : std::vector<Waiter*>(session.waiters)) {
    const auto named =
        std::find_if(waiter->chunks.begin(), waiter->chunks.end(),
                     [&](ChunkIndex index) { return core_.chunks[index].batch_mark == batch; });
    if (waiter->admitted && named != waiter->chunks.end())
      sharing_.Fail(*waiter, Freed(core_.chunks, *named));
  }
}

// Ends everything that is pending for the chunk. Its slots stay as long as a transfer or a step
// uses them.
void EngineState::FreeChunk(ChunkIndex index) {
  FinishEvicts(index, Freed(core_.chunks, index));
  Chunk& chunk = core_.chunks[index];
  Job& job = *chunk.job;
  core_.MarkDirty(index);
  while (!chunk.pins.empty()) UnpinChunk(index, chunk.pins.size() - 1);
  StopPrefetch(chunk);
  CancelEviction(chunk);
  for (const Tier tier : kMemoryTiers) StopWaitingForSlot(index, tier);
  StopWaitingForWrite(index);
  UnlinkShadow(index);
  job.parts.ForgetWriter(index);
  job.names.Forget(index);
  core_.chunks.Free(index);
  if (job.snapshots.saving.has_value()) core_.work.Send(ChunkFreed{job.id, index});
  // A slot that a transfer still uses will be free without the chunk's doing.
  chunk.claim.End();
  chunk.of_common.End();
  job.members.Free(chunk.member);
  job.trace.Use(chunk.member, TracedOperation::kFree);
  job.forecast.Free(chunk.member, ClockOf(job));
  for (const Tier tier : kMemoryTiers) UpdateVictim(index, tier);
  if (ForgetChunk(index)) AllocateWaiting(job);
}

void EngineState::FreeTransient(Job& job, absl::optional<SessionId> owner) {
  // FreeChunk() changes the members, so that the loop is over a copy.
  for (const ChunkIndex index : std::vector<ChunkIndex>(job.members.begin(), job.members.end())) {
    if (index == kNoChunk || !core_.chunks[index].live() || !core_.chunks[index].transient)
      continue;
    if (!owner.has_value() || core_.chunks[index].owner == *owner) FreeChunk(index);
  }
}

bool EngineState::ForgetChunk(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  // On(TransferDone) or On(StepDone) calls again.
  if (chunk.copies.flight || chunk.in_step()) return false;
  Job& job = *chunk.job;
  for (const Tier tier : kAllTiers) {
    if (!chunk.slot(tier)) continue;
    chunk.slot(tier).Free();
    if (tier != Tier::kSsd) core_.ScheduleRoomCheck(job, tier);
  }
  job.members.Remove(chunk.member);
  // The next chunk with this index has no failed write-back.
  job.retry_after_tick.erase(
      std::remove(job.retry_after_tick.begin(), job.retry_after_tick.end(), index),
      job.retry_after_tick.end());
  CommonContent* const common = chunk.common;
  core_.chunks.Release(index);
  if (common != nullptr) LeaveContent(*common);
  // Memory of the job, or slots at its home tier, may have become free.
  if (job.state() != JobState::kEnding) return !job.allocating.empty();
  MaybeDropMemory(job);
  return false;
}

void Requests::On(const DescribeCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (!indices.ok()) return core_.Refuse(event.call, indices.status());
  DescribeReply described;
  described.chunks.reserve(indices->size());
  for (size_t i = 0; i < indices->size(); ++i) {
    described.chunks.push_back(InfoOf(core_, (*indices)[i]));
    described.chunks.back().chunk = event.chunks[i];
  }
  Reply reply;
  reply.call = event.call;
  reply.value = std::move(described);
  core_.Emit(std::move(reply));
}

}  // namespace memtide
