// Chunks: freeing, describing, and finding them by id.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr size_t kFreeKind = 10;  // Index in Event.
static_assert(std::is_same_v<std::variant_alternative_t<kFreeKind, Event>, FreeCall>);

}  // namespace

absl::optional<ChunkIndex> EngineState::Find(const Job& job, ChunkId chunk) const {
  absl::optional<ChunkIndex> index = job.names.Find(chunk);
  if (index == kNoChunk) return absl::nullopt;
  if (!index.has_value()) index = chunks_.Find(chunk);
  return index.has_value() && chunks_[*index].job == &job ? index : absl::nullopt;
}

absl::optional<ChunkIndex> EngineState::Find(const Session& session, ChunkId chunk) const {
  const Job& job = *session.job;
  const absl::optional<ChunkIndex> index = Find(job, chunk);
  if (!index.has_value() || !job.shares_contents()) return index;
  return NameOf(job, chunk, *index).owner == session.id ? index : absl::nullopt;
}

absl::StatusOr<std::vector<ChunkIndex>> EngineState::Resolve(const Session& session,
                                                             const std::vector<ChunkId>& chunks,
                                                             absl::optional<size_t> limit) {
  const size_t most = limit.value_or(options_.limits.chunks_per_call);
  if (chunks.empty()) return absl::InvalidArgumentError("the batch names no chunk");
  if (chunks.size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch names ", chunks.size(), " chunks; at most ", most));
  }
  const uint64_t batch = next_batch_++;
  // The marks of a batch that is refused stay, and mean nothing to the next batch, which has
  // another number.
  std::vector<ChunkIndex> indices;
  indices.reserve(chunks.size());
  for (const ChunkId chunk : chunks) {
    const absl::optional<ChunkIndex> index = Find(session, chunk);
    if (!index.has_value()) {
      return absl::NotFoundError(absl::StrCat("there is no chunk ", chunk.value()));
    }
    if (chunks_[*index].batch_mark == batch) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.value(), " is named twice in the batch"));
    }
    chunks_[*index].batch_mark = batch;
    indices.push_back(*index);
  }
  return indices;
}

// All checks precede the first change: a refused call frees nothing.
void EngineState::On(const FreeCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (AnswerAgain(*session, event.call, event.request_id, kFreeKind)) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = Resolve(*session, event.chunks);
  if (!indices.ok()) return Refuse(event.call, indices.status());
  for (const ChunkIndex index : *indices) {
    // The others go on with what they share.
    if (IsShared(index)) continue;
    for (const Pin& pin : chunks_[index].pins) {
      if (pin.session == session->id) continue;
      return Refuse(event.call, absl::FailedPreconditionError(absl::StrCat(
                                    "chunk ", IdOf(index).value(),
                                    IsStep(pin.session) ? " is in use by a step that has not ended"
                                                        : " is leased by another session")));
    }
  }
  // Fetches of this session may still wait for the chunks. Those that are not admitted are found by
  // FailNaming().
  FailAdmitted(*session, *indices);
  for (size_t i = 0; i < indices->size(); ++i) {
    const ChunkIndex index = (*indices)[i];
    ReleaseLeftBehind(*session, event.chunks[i]);
    WithdrawOffer(*session, event.chunks[i]);
    if (IsShared(index)) {
      FreeId(*session, event.chunks[i], index);
      continue;
    }
    FailNaming(index, /*only_readers=*/false, Freed(index));
    FreeChunk(index);
  }
  Reply reply;
  reply.call = event.call;
  sessions_.Remember(*session, event.request_id, kFreeKind, reply);
  Emit(std::move(reply));
  TryCommitTogether(*session->job);
}

absl::Status EngineState::Freed(ChunkIndex index) const {
  return absl::NotFoundError(absl::StrCat("chunk ", IdOf(index).value(), " was freed"));
}

void EngineState::FailAdmitted(const Session& session, const std::vector<ChunkIndex>& indices) {
  // An admitted fetch pins each of its chunks, even those that have arrived.
  const bool some = std::any_of(indices.begin(), indices.end(), [&](ChunkIndex index) {
    const Pin* pin = chunks_[index].FindPin(session.id);
    return pin != nullptr && pin->pending > 0;
  });
  if (!some) return;
  const uint64_t batch = next_batch_++;
  for (const ChunkIndex index : indices) chunks_[index].batch_mark = batch;
  for (Waiter* waiter : std::vector<Waiter*>(session.waiters)) {
    const auto named =
        std::find_if(waiter->chunks.begin(), waiter->chunks.end(),
                     [&](ChunkIndex index) { return chunks_[index].batch_mark == batch; });
    if (waiter->admitted && named != waiter->chunks.end()) Fail(*waiter, Freed(*named));
  }
}

// Ends everything that is pending for the chunk. Its slots stay as long as a transfer or a step
// uses them.
void EngineState::FreeChunk(ChunkIndex index) {
  FinishEvicts(index, Freed(index));
  Chunk& chunk = chunks_[index];
  Job& job = *chunk.job;
  MarkDirty(index);
  while (!chunk.pins.empty()) UnpinChunk(index, chunk.pins.size() - 1);
  StopPrefetch(chunk);
  CancelEviction(chunk);
  for (const Tier tier : kMemoryTiers) StopWaitingForSlot(index, tier);
  StopWaitingForWrite(index);
  UnlinkShadow(index);
  job.parts.ForgetWriter(index);
  job.names.Forget(index);
  chunks_.Free(index);
  LeaveSnapshot(index);
  // A slot that a transfer still uses will be free without the chunk's doing.
  chunk.claim.End();
  chunk.of_common.End();
  job.members.Free(chunk.member);
  job.trace.Use(chunk.member, TracedOperation::kFree);
  job.forecast.Free(chunk.member, ClockOf(job));
  for (const Tier tier : kMemoryTiers) UpdateVictim(index, tier);
  ForgetChunk(index);
}

void EngineState::FreeTransient(Job& job, absl::optional<SessionId> owner) {
  // FreeChunk() changes the members, so that the loop is over a copy.
  for (const ChunkIndex index : std::vector<ChunkIndex>(job.members.begin(), job.members.end())) {
    if (index == kNoChunk || !chunks_[index].live() || !chunks_[index].transient) continue;
    if (!owner.has_value() || chunks_[index].owner == *owner) FreeChunk(index);
  }
}

void EngineState::ForgetChunk(ChunkIndex index) {
  Chunk& chunk = chunks_[index];
  // On(TransferDone) or On(StepDone) calls again.
  if (chunk.copies.flight || chunk.in_step()) return;
  Job& job = *chunk.job;
  for (const Tier tier : kAllTiers) {
    if (!chunk.slot(tier)) continue;
    chunk.slot(tier).Free();
    if (tier != Tier::kSsd) ScheduleRoomCheck(job, tier);
  }
  job.members.Remove(chunk.member);
  // The next chunk with this index has no failed write-back.
  job.retry_after_tick.erase(
      std::remove(job.retry_after_tick.begin(), job.retry_after_tick.end(), index),
      job.retry_after_tick.end());
  CommonContent* const common = chunk.common;
  chunks_.Release(index);
  if (common != nullptr) LeaveContent(*common);
  // Memory of the job, or slots at its home tier, may have become free.
  if (job.state() == JobState::kEnding) {
    MaybeDropMemory(job);
  } else if (!job.allocating.empty()) {
    AllocateWaiting(job);
  }
}

void EngineState::On(const DescribeCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = Resolve(*session, event.chunks);
  if (!indices.ok()) return Refuse(event.call, indices.status());
  DescribeReply described;
  described.chunks.reserve(indices->size());
  for (size_t i = 0; i < indices->size(); ++i) {
    described.chunks.push_back(InfoOf((*indices)[i]));
    described.chunks.back().chunk = event.chunks[i];
  }
  Reply reply;
  reply.call = event.call;
  reply.value = std::move(described);
  Emit(std::move(reply));
}

ChunkInfo EngineState::InfoOf(ChunkIndex index) const {
  const Chunk& chunk = chunks_[index];
  ChunkInfo info;
  info.chunk = IdOf(index);
  info.job = chunk.job->id;
  info.kind = chunk.kind;
  info.version = chunk.version;
  info.on_device = chunk.valid_at(Tier::kDevice);
  info.on_host = chunk.valid_at(Tier::kHost);
  info.on_ssd = chunk.valid_at(Tier::kSsd);
  info.moving = chunk.copies.flight != nullptr;
  for (const Pin& pin : chunk.pins) info.leases += pin.granted();
  info.torn = chunk.copies.torn;
  if (chunk.job->shares_contents()) info.names = RankNames(index);
  return info;
}

}  // namespace memtide
