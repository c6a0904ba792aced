// Parts of optimizer steps that ranks make once: the first rank that asks makes the part, and the
// ids of the others come to name its results.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/sharing/rank_contents.h"

namespace memtide {

namespace {

PartDifference DifferenceOf(const PartKey& key, const SharedParts::Map::value_type& other) {
  PartDifference difference;
  difference.rank = other.second.rank;
  difference.work = other.first.work != key.work || other.first.writes != key.writes ||
                    other.first.reads.size() != key.reads.size();
  for (uint32_t i = 0; !difference.work && i < key.reads.size(); ++i) {
    if (key.reads[i] != other.first.reads[i]) difference.reads.push_back(i);
  }
  return difference;
}

// `unknown_reads`: gets the numbers of the chunks whose contents nothing identifies.
PartKey KeyOf(const Core& core, const StepCall& event, const std::vector<ChunkIndex>& indices,
              std::vector<uint32_t>* unknown_reads) {
  const std::vector<Digest>& digests = event.contents->reads;
  PartKey key{event.contents->work, {}, indices.size() - event.reads};
  for (uint32_t i = 0; i < event.reads; ++i) {
    const ChunkIndex index = indices[i];
    if (core.chunks[index].holds_shared_result()) {
      key.reads.push_back({Digest(), {core.IdOf(index), core.chunks[index].version}});
      continue;
    }
    const Digest digest = i < digests.size() ? digests[i] : Digest();
    if (!digest.is_set()) unknown_reads->push_back(i);
    key.reads.push_back({digest, {ChunkId(), Version()}});
  }
  return key;
}

// Whether these entries hold these results, and no call is about to write them.
bool AreThere(const Core& core, const std::vector<ChunkIndex>& entries,
              const std::vector<std::pair<ChunkId, Version>>& results) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const ChunkIndex index = entries[i];
    const Chunk& chunk = core.chunks[index];
    if (!chunk.live() || core.IdOf(index) != results[i].first ||
        chunk.version != results[i].second || chunk.copies().torn || chunk.uses().overwrite) {
      return false;
    }
    for (const Pin& pin : chunk.uses().pins) {
      if (pin.pending > 0 && pin.pending_access == Access::kWrite) return false;
    }
    uint64_t age = 0;
    while (const AdmissionQueue::Naming* const naming = chunk.job->waiting.NextNaming(index, age)) {
      if (naming->access == Access::kWrite) return false;
      age = naming->waiter->waiting.age();
    }
  }
  return true;
}

}  // namespace

bool RankContents::SharePart(Session& session, const StepCall& event,
                             std::vector<ChunkIndex>* indices,
                             absl::optional<PartDifference>* difference) {
  Job& job = *session.job;
  PartReply lacking;
  PartKey key = KeyOf(core_, event, *indices, &lacking.unknown_reads);
  if (!lacking.unknown_reads.empty()) {
    core_.AnswerWith(event.call, std::move(lacking));
    return true;
  }
  SharedPart* part = job.parts.Find(key);
  if (part != nullptr && part->is_done() && !AreThere(core_, part->writes, part->results)) {
    job.parts.Forget(key);
    part = nullptr;
  }
  if (part != nullptr) {
    AnswerOrWait(session, event, *part, indices->size());
    return true;
  }
  const uint64_t step = session.committed_step + 1;
  if (const auto* const other = job.parts.SameElements(key, session.id, step)) {
    *difference = DifferenceOf(key, *other);
  }
  bool is_anew = false;
  std::vector<bool> to_own(indices->size());
  for (size_t i = event.reads; i < indices->size(); ++i) {
    const ChunkIndex index = (*indices)[i];
    const SharedParts::Map::value_type* const writer = job.parts.WriterOf(index);
    // An empty content that no rank has written in this step is written for all.
    to_own[i] =
        core_.ids.IsShared(index) && (writer != nullptr || core_.chunks[index].has_content());
    if (writer == nullptr || to_own[i]) continue;
    // The session makes its own part anew: parts that wait for each other are not shared.
    if (!writer->second.is_done()) {
      is_anew = true;
    } else {
      job.parts.ForgetWriter(index);
    }
  }
  const absl::Status status =
      GiveOwnEntries(session, event.chunks, to_own, /*may_be_leased=*/false, indices);
  if (!status.ok()) {
    core_.Refuse(event.call, status);
    return true;
  }
  if (is_anew) return false;
  SharedPart begun;
  begun.maker = session.id;
  begun.rank = session.rank;
  begun.number = event.part;
  begun.step = step;
  begun.writes.assign(indices->begin() + event.reads, indices->end());
  job.parts.Begin(std::move(key), std::move(begun));
  return false;
}

void RankContents::AnswerOrWait(Session& session, const StepCall& event, SharedPart& part,
                                size_t count) {
  if (part.is_done()) {
    AnswerMade(event, std::vector<ChunkIndex>(part.writes));
  } else if (part.maker == session.id) {
    core_.Refuse(event.call, absl::AbortedError("the session makes this part already"));
  } else {
    const uint32_t chunks = static_cast<uint32_t>(count);
    part.waiting.push_back({event, core_.DeadlineIn(event.deadline), session.waiting_calls.Take(),
                            session.job->waiting_chunks.Take(chunks),
                            session.user->waiting_chunks.Take(chunks)});
  }
}

// The ids of the written chunks name the results, which others have made.
absl::Status RankContents::TakeResults(Job& job, const StepCall& event,
                                       const std::vector<ChunkIndex>& results) {
  const Session& session = *core_.sessions.Find(event.session);
  std::vector<ChunkIndex> present;
  const std::set<ChunkIndex> awaited = Calls::Awaited(session);
  for (size_t i = 0; i < results.size(); ++i) {
    const ChunkId id = event.chunks[event.reads + i];
    const absl::optional<ChunkIndex> index = core_.ids.Find(job, id);
    if (!index.has_value()) {
      return absl::NotFoundError(absl::StrCat("there is no chunk ", id.value()));
    }
    present.push_back(*index);
    if (*index == results[i]) continue;
    Chunk& chunk = core_.chunks[*index];
    const Pin* const own = chunk.uses().FindPin(event.session);
    const SharedParts::Map::value_type* const writer = job.parts.WriterOf(*index);
    const bool is_being_made = writer != nullptr && !writer->second.is_done();
    if (own != nullptr || awaited.count(*index) > 0 || calls_.IsInPart(session, *index) ||
        !chunk.uses().evicts.empty() ||
        ((chunk.pinned() || is_being_made || job.waiting.NextNaming(*index, 0) != nullptr) &&
         !core_.ids.IsShared(*index))) {
      return absl::AbortedError(absl::StrCat("chunk ", id.value(),
                                             " is in use, and is to hold the result of another "
                                             "rank; release it and try again"));
    }
    // A lease that the session left behind would be one with the lease of the id that comes.
    if (core_.chunks[results[i]].uses().FindPin(event.session) != nullptr) {
      return absl::AbortedError(
          absl::StrCat("chunk ", id.value(),
                       " is to hold a result that the session still has "
                       "leased by another chunk; release that and try again"));
    }
    const bool is_result = std::count(results.begin(), results.end(), *index) != 0;
    if (is_result ||
        job.names.HasNameOf(results[i], event.session, core_.ids.OwnName(results[i]))) {
      return absl::FailedPreconditionError(absl::StrCat(
          "chunk ", id.value(), " is to hold a result that another chunk of the session holds"));
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (present[i] != results[i]) {
      MoveId(job, event.chunks[event.reads + i], present[i], results[i]);
    }
  }
  return absl::OkStatus();
}

void RankContents::AnswerMade(const StepCall& event, const std::vector<ChunkIndex>& results) {
  Session* const session = core_.sessions.Find(event.session);
  const absl::Status status = TakeResults(*session->job, event, results);
  if (!status.ok()) return core_.Refuse(event.call, status);
  ++core_.counters.parts_shared;
  PartReply part;
  part.made = true;
  core_.AnswerWith(event.call, std::move(part));
}

// After a commit: what ranks have made and written over since is of no use to those that are late.
void RankContents::ForgetLostResults(Job& job) {
  job.parts.ForgetUnless(
      [this](const SharedPart& part) { return AreThere(core_, part.writes, part.results); });
}

void RankContents::PartEnded(Job& job, SessionId maker, uint64_t number, bool computed) {
  if (number == 0) return;
  SharedParts::Ended ended = job.parts.End(maker, number, computed);
  std::vector<ChunkIndex> writes;
  std::vector<std::pair<ChunkId, Version>> results;
  if (ended.part != nullptr) {
    writes = ended.part->writes;
    for (const ChunkIndex index : writes) {
      core_.chunks[index].shared_result = core_.chunks[index].version;
      results.emplace_back(core_.IdOf(index), core_.chunks[index].version);
    }
    ended.part->results = results;
  }
  for (WaitingPart& waiting : ended.waiting) {
    waiting.of_session.End();
    waiting.chunks_of_job.End();
    waiting.chunks_of_user.End();
    if (computed && AreThere(core_, writes, results)) {
      AnswerMade(waiting.call, writes);
    } else {
      waiting.call.deadline = core_.LeftUntil(waiting.deadline);
      // The first of them makes the part.
      core_.work.Send(StepAgain{std::move(waiting.call)});
    }
  }
}

void RankContents::EndWaitingParts(Session& session, const absl::Status& why) {
  if (session.job == nullptr) return;
  for (const WaitingPart& waiting : session.job->parts.TakeWaiting(session.id)) {
    core_.Refuse(waiting.call.call, why);
  }
}

// A content that was written since is no result.
void RankContents::ResultMoved(ChunkIndex from, ChunkIndex to) {
  SharedParts& parts = core_.chunks[to].job->parts;
  parts.ForgetWriter(to);
  if (core_.chunks[to].holds_shared_result()) {
    parts.Move(from, to, core_.IdOf(to), core_.chunks[to].version);
  } else {
    parts.ForgetWriter(from);
  }
}

void RankContents::On(const PartFailed& signal) {
  if (const auto* unsharing = std::get_if<std::shared_ptr<const Unsharing>>(&signal.purpose)) {
    DropCopies(**unsharing);
  } else if (const auto* offer = std::get_if<std::shared_ptr<Offer>>(&signal.purpose)) {
    offers_.LeavePart(**offer);
  } else if (Job* const job = core_.FindJob(signal.job)) {
    PartEnded(*job, signal.owner, NumberOf(signal.purpose), /*computed=*/false);
  }
}

void RankContents::Fail(Waiter& waiter, const absl::Status& status) {
  On(calls_.Cancel(waiter, status));
}

}  // namespace memtide
