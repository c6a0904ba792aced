// Commit: a whole optimizer step becomes the state of the job in one event.
//
// A step creates the new content of a chunk in its shadow chunk. The commit exchanges the contents
// of the two (slots, copies, the transfer in flight), while ids, later leases and predictions stay
// with the ids. Because it is one event of the engine, no session ever sees half a step.
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/engine/commits/commits.h"

namespace memtide {

namespace {

// The number of the chunk that is paired with this one, where chunks precede their shadows.
size_t Other(const std::vector<ChunkIndex>& indices, size_t i) {
  return (i + indices.size() / 2) % indices.size();
}

}  // namespace

// Ranks that share nothing commit each for itself.
uint64_t Commits::LastStep(const Session& session) {
  const Job& job = *session.job;
  return job.shares_contents() ? session.committed_step : job.committed_step;
}

absl::Status Commits::CheckCommit(const Session& session, const CommitCall& event,
                                  Bytes* grown) const {
  const Limits& limits = core_.options.limits;
  const uint64_t last = LastStep(session);
  // Step N+1 follows step N. A process that lost track of the job cannot commit a step twice or
  // leave one out.
  if (event.step != last + 1) {
    return absl::FailedPreconditionError(absl::StrCat("cannot commit step ", event.step,
                                                      ": the last one of the job is ", last,
                                                      ", so that ", last + 1, " comes next"));
  }
  if (event.chunks.size() != event.shadows.size()) {
    return absl::InvalidArgumentError(absl::StrCat(event.chunks.size(), " chunks, but ",
                                                   event.shadows.size(), " with new content"));
  }
  if (!event.versions.empty() && event.versions.size() != event.chunks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(event.versions.size(), " versions of ", event.chunks.size(), " chunks"));
  }
  if (event.manifest.size() > limits.manifest_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("step_manifest: ", event.manifest.size(),
                                                   " bytes; at most ", limits.manifest_bytes));
  }
  return CheckManifest(session, event, grown);
}

// The journal has the manifests of all jobs, and must have room for those of every user. `grown`:
// the bytes that earlier commits of the same event add, to which this one's are added.
absl::Status Commits::CheckManifest(const Session& session, const CommitCall& event,
                                    Bytes* grown) const {
  const Job& job = *session.job;
  const Manifest& replaced =
      job.keeps_ranks() ? job.kept_ranks[session.rank].manifest : job.manifest;
  const Bytes before(replaced.text().size()), size(event.manifest.size());
  if (size <= before) return absl::OkStatus();
  *grown += size - before;
  const auto check = [&](Bytes all, Bytes limit, const std::string& whose) -> absl::Status {
    const Bytes then = all + *grown;
    if (then <= limit) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "step_manifest: the manifests of ", whose, " would have ", FormatBytes(then), "; at most ",
        FormatBytes(limit),
        ". Use fewer jobs with a name, or a shorter time to live, or end jobs that linger"));
  };
  const Limits& limits = core_.options.limits;
  MEMTIDE_RETURN_IF_ERROR(check(core_.manifest_bytes.Of(job.uid), limits.manifest_bytes_per_uid,
                                absl::StrCat("the jobs of uid ", job.uid)));
  return check(core_.manifest_bytes.all(), limits.manifest_bytes_per_node, "all jobs of the node");
}

absl::Status Commits::CheckUnwritten(const CommitCall& event, size_t i, const Chunk& chunk) {
  if (event.versions.empty() || event.versions[i] == chunk.version) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("chunk ", event.chunks[i].value(), " was written since ",
                                         "it had version ", event.versions[i].value(),
                                         "; read its version and compute the step again"));
}

// Returns the chunks and then their shadow chunks, if what they hold can change now. `together`:
// ranks of one job share it.
absl::StatusOr<std::vector<ChunkIndex>> Commits::ResolveCommitted(const Session& session,
                                                                  const CommitCall& event,
                                                                  bool together) {
  const Job& job = *session.job;
  std::vector<ChunkIndex> indices;
  absl::Status status;
  if (!event.chunks.empty()) {
    std::vector<ChunkId> all = event.chunks;
    all.insert(all.end(), event.shadows.begin(), event.shadows.end());
    MEMTIDE_ASSIGN_OR_RETURN(
        indices, core_.ids.Resolve(session, all, 2 * core_.options.limits.chunks_per_call));
  }
  for (size_t i = 0; status.ok() && i < indices.size(); ++i) {
    Chunk& chunk = core_.chunks[indices[i]];
    if (chunk.transient) {
      status = absl::InvalidArgumentError(absl::StrCat(
          "chunk ", core_.IdOf(indices[i]).value(),
          " is of kind ACTIVATION: it ends with the job's last session, and is no part "
          "of what a step commits"));
      continue;
    }
    // The bytes under a lease would change for its holder, and an EvictOperation waits for the
    // copies that the chunk has now.
    bool pinned = together ? chunk.uses().FindPin(session.id) != nullptr : chunk.pinned();
    // A pair with a common content exchanges what its ids name, which calls that wait know already.
    const bool exchanges = core_.ids.MustCopyToWrite(indices[i]) ||
                           core_.ids.MustCopyToWrite(indices[Other(indices, i)]);
    if (i < event.chunks.size()) status = CheckUnwritten(event, i, chunk);
    pinned = pinned || (!together && exchanges && job.waiting.NextNaming(indices[i], 0) != nullptr);
    if (!status.ok() || (!pinned && chunk.uses().evicts.empty())) continue;
    status = absl::AbortedError(absl::StrCat(
        "chunk ", core_.IdOf(indices[i]).value(), pinned ? " is leased" : " is being evicted",
        ", so that what it holds cannot change now; release it and try again"));
  }
  if (!status.ok()) return status;
  return indices;
}

void Commits::On(const CommitCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  // The reply was lost, and the client repeats the call.
  if (event.step != 0 && event.step == LastStep(*session)) return records_.AnswerCommit(job, event);
  Bytes grown;
  absl::Status status = CheckCommit(*session, event, &grown);
  const bool in_group = event.with_all_ranks && !session->group.empty();
  const bool with_all_ranks = event.with_all_ranks && (job.keeps_ranks() || in_group);
  if (status.ok() && with_all_ranks && session->lost_rank.has_value()) {
    status = RankEnded(in_group ? session->group : job.name, *session->lost_rank);
  }
  const bool together = !in_group && (with_all_ranks || job.names.Shares(session->id));
  absl::StatusOr<std::vector<ChunkIndex>> indices = std::vector<ChunkIndex>();
  if (status.ok()) {
    indices = ResolveCommitted(*session, event, together);
    status = indices.status();
  }
  if (!status.ok()) return core_.Refuse(event.call, status);
  RefuseCommit(job, session->id, absl::AbortedError("the session has called again"));
  if (together || in_group) {
    CommitCall call = event;
    call.with_all_ranks = with_all_ranks;
    return in_group ? CommitWithGroup(*session, call) : CommitWithRanks(job, call);
  }
  CarryOut(*session, event, *indices);
  rank_contents_.ForgetLostResults(job);
  records_.AnswerCommit(job, event);
}

// REQUIRES: ResolveCommitted().
void Commits::CarryOut(Session& session, const CommitCall& event,
                       const std::vector<ChunkIndex>& indices) {
  Job& job = *session.job;
  const size_t count = event.chunks.size();
  for (size_t i = 0; i < count; ++i) {
    const ChunkIndex chunk = indices[i], shadow = indices[count + i];
    const bool is_common = core_.ids.MustCopyToWrite(chunk) || core_.ids.MustCopyToWrite(shadow);
    if (is_common && !rank_contents_.TakeFromShadow(job, chunk, shadow, event.keep_old_content)) {
      rank_contents_.ExchangeNames(job, event, i, chunk, shadow);
      continue;
    }
    offers_.WithdrawOffer(session, event.chunks[i]);
    offers_.OfferAgain(chunk);
    if (!is_common) residency_.SwapContents(chunk, shadow);
    rank_contents_.ResultMoved(shadow, chunk);
    residency_.UnlinkShadow(chunk);
    residency_.UnlinkShadow(shadow);
    // The shadow chunks are a checkpoint: they keep the old content, and are shadows no more.
    if (event.keep_old_content) continue;
    // The next step is expected to write the same pair, so predictions regard the two as a pair
    // (decision 10).
    residency_.LinkShadow(chunk, shadow);
    residency_.Discard(shadow);
  }
  // The record of this event has the contents, the step and its manifest, so that a restart finds
  // all or none of them.
  NoteCommit(job, session, event);
}

void Commits::NoteCommit(Job& job, Session& session, const CommitCall& call) {
  session.committed_step = call.step;
  job.committed_step = std::max(job.committed_step, call.step);
  Manifest manifest(&core_.manifest_bytes, job.uid, call.manifest);
  if (job.keeps_ranks()) {
    job.kept_ranks[session.rank] = {session.id, call.step, std::move(manifest)};
  } else {
    job.manifest = std::move(manifest);
  }
  core_.MarkDirty(job);
  ++core_.counters.steps_committed;
}

}  // namespace memtide
