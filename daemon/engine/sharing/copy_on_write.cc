// Contents that ranks share: which entry of the chunk table an id names (tables/name_table.h), and
// the copy that a rank gets before it writes.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/sharing/rank_contents.h"

namespace memtide {

// REQUIRES: if it is the only id of `from`, that entry is not pinned, but for a lease that the
// session leaves behind.
void RankContents::MoveId(Job& job, ChunkId id, ChunkIndex from, ChunkIndex to) {
  const Name name = core_.ids.NameOf(job, id, from);
  Session* const owner = core_.sessions.Find(name.owner);
  if (owner != nullptr)
    offers_.WithdrawOffer(*owner, id);  // Its digest was that of the other entry.
  const bool is_last =
      job.names.Move(name, from, core_.ids.OwnName(from), to, core_.ids.OwnName(to));
  core_.MarkDirty(from);
  core_.MarkDirty(to);
  IdsChanged(job);
  if (!is_last) return;
  // A lease that was left behind keeps the entry.
  if (owner != nullptr && owner->left_behind.EntryOf(id) == from) return;
  calls_.FinishEvicts(from, absl::AbortedError(absl::StrCat("chunk ", id.value(),
                                                            " was written before it was evicted")));
  calls_.FreeChunk(from);
}

void RankContents::IdsChanged(Job& job) {
  if (job.commits.empty() || std::exchange(job.tries_commits, true)) return;
  core_.work.Send(CommitsPossible{job.id});
}

// RESOURCE_EXHAUSTED: the home tier has no free slot. UNAVAILABLE and to be called again: memory
// with more of them is being made.
absl::StatusOr<Home> RankContents::TakeHome(Job& job, ChunkIndex shared) {
  if (Memory::HasHomes(job, 1)) return Memory::TakeHome(job, job.home);
  memory_.GrowForHomes(job, job.home, 1);
  memory_.Grow(job, job.home);
  if (job.share(job.home).making() != kNoSegment) {
    return CallAgain(
        absl::StrCat("memory for a copy of chunk ", core_.IdOf(shared).value(), " is being made"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("chunk ", core_.IdOf(shared).value(),
                   " has its content in common with others, and the job's ", TierName(job.home),
                   " share has no slot for a copy of it; enlarge that pool"));
}

// A new entry for a content of the same kind. No id names it yet. The error is TakeHome()'s.
absl::StatusOr<ChunkIndex> RankContents::MakeEntry(Job& job, ChunkIndex like) {
  NewChunk entry;
  MEMTIDE_ASSIGN_OR_RETURN(entry.home, TakeHome(job, like));
  const Chunk& model = core_.chunks[like];
  // A copy begins at the version of what it replaces: a commit compares versions
  // (CommitCall::versions).
  entry.version = model.version;
  entry.kind = model.kind;
  entry.undefined = model.undefined;
  entry.repeats_offer = model.repeats_offer;
  entry.is_unnamed = true;
  return residency_.MakeChunk(job, std::move(entry));
}

absl::Status RankContents::GiveOwnEntries(Session& session, const std::vector<ChunkId>& ids,
                                          const std::vector<bool>& wanted, bool may_be_leased,
                                          std::vector<ChunkIndex>* indices) {
  Job& job = *session.job;
  std::vector<std::pair<size_t, ChunkIndex>> made;
  if (std::count(wanted.begin(), wanted.end(), true) == 0) return absl::OkStatus();
  const std::set<ChunkIndex> awaited = Calls::Awaited(session);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!wanted[i]) continue;
    // A lease, and a fetch that waits, are of the entry.
    const ChunkIndex old = (*indices)[i];
    const bool is_leased =
        !may_be_leased && core_.chunks[old].uses().FindPin(session.id) != nullptr;
    absl::StatusOr<ChunkIndex> entry = absl::AbortedError(
        absl::StrCat("chunk ", ids[i].value(),
                     " is in use by the session that writes it; release it and try again"));
    const bool is_used = awaited.count(old) > 0 || calls_.IsInPart(session, old);
    if (!is_leased && !is_used) entry = MakeEntry(job, old);
    if (!entry.ok()) {
      for (const auto& [at, index] : made) calls_.FreeChunk(index);
      return entry.status();
    }
    made.emplace_back(i, *entry);
  }
  for (const auto& [i, entry] : made) {
    MoveId(job, ids[i], (*indices)[i], entry);
    (*indices)[i] = entry;
  }
  return absl::OkStatus();
}

void RankContents::Unshare(Session& session, const FetchCall& event,
                           const std::vector<ChunkIndex>& indices) {
  Job& job = *session.job;
  auto unsharing = std::make_shared<Unsharing>();
  unsharing->call = event;
  unsharing->deadline = core_.DeadlineIn(event.deadline);
  std::vector<ChunkIndex> copies;
  absl::Status status;
  if (!job.share(Tier::kHost).exists()) {
    status = absl::FailedPreconditionError(
        "the content is shared, and this node has no host pool in which it could be copied");
  } else if (!event.wait) {
    status = absl::UnavailableError("the content is shared; a copy has to be made first");
  }
  for (size_t i = 0; status.ok() && i < indices.size(); ++i) {
    if (!core_.ids.MustCopyToWrite(indices[i])) continue;
    if (core_.chunks[indices[i]].copies().torn) {
      status = TornChunkError(core_.chunks, indices[i]);
      continue;
    }
    const absl::StatusOr<ChunkIndex> copy = MakeEntry(job, indices[i]);
    status = copy.status();
    if (!copy.ok()) continue;
    unsharing->ids.push_back(event.chunks[i]);
    unsharing->shared.push_back(indices[i]);
    unsharing->copies.push_back(core_.IdOf(*copy));
    copies.push_back(*copy);
  }
  const uint32_t count = static_cast<uint32_t>(unsharing->ids.size());
  const uint32_t limit = job.LeaseLimit(Tier::kHost);
  if (status.ok() && 2 * count > limit) {
    status = absl::ResourceExhaustedError(absl::StrCat(
        count, " chunks whose content is shared are to be written at once; the job's host share ",
        "can hold ", limit, " with their copies; write fewer at a time"));
  }
  if (!status.ok()) {
    DropCopies(*unsharing);
    return core_.Refuse(event.call, status);
  }
  auto work = std::make_shared<CopyWork>();
  for (uint32_t i = 0; i < count; ++i) {
    work->copies.push_back({{i, 0}, {count + i, 0}, job.chunk_size.count()});
  }
  std::vector<ChunkIndex> chunks = unsharing->shared;
  chunks.insert(chunks.end(), copies.begin(), copies.end());
  RunStep run;
  run.work = std::move(work);
  run.purpose = std::move(unsharing);
  calls_.Wait(session, event.call, std::move(chunks), count, std::move(run), event.deadline);
}

void RankContents::EndUnsharing(const Unsharing& unsharing, const absl::Status& status) {
  Session* const session = core_.sessions.Find(unsharing.call.session);
  if (!status.ok() || session == nullptr || session->job == nullptr) {
    DropCopies(unsharing);
    return core_.Refuse(unsharing.call.call,
                        status.ok() ? absl::UnavailableError("the session ended") : status);
  }
  Job& job = *session->job;
  // A fetch or part of the session that waits for the shared entry would get that, and other ranks
  // may have written it by then.
  const std::set<ChunkIndex> awaited = Calls::Awaited(*session);
  for (const ChunkIndex shared : unsharing.shared) {
    if (awaited.count(shared) == 0) continue;
    DropCopies(unsharing);
    return core_.Refuse(unsharing.call.call,
                        absl::AbortedError("another call of the session waits for a chunk "
                                           "that this one writes; try again"));
  }
  FetchCall again = unsharing.call;
  again.deadline = core_.LeftUntil(unsharing.deadline);
  core_.work.Send(FetchAgain{std::move(again)});
  for (size_t i = 0; i < unsharing.ids.size(); ++i) {
    const ChunkId id = unsharing.ids[i];
    const ChunkIndex shared = unsharing.shared[i];
    const absl::optional<ChunkIndex> copy = core_.chunks.Find(unsharing.copies[i]);
    if (!copy.has_value()) continue;
    // The id was freed meanwhile, or names another entry: this copy is of no use.
    if (core_.ids.Find(job, id) != shared || !core_.ids.MustCopyToWrite(shared)) {
      calls_.FreeChunk(*copy);
      continue;
    }
    // The client has the old place mapped until it gets the new one.
    const Pin* const pin = core_.chunks[shared].uses().FindPin(session->id);
    if (pin != nullptr && pin->granted()) session->left_behind.Add(id, shared);
    MoveId(job, id, shared, *copy);
  }
}

void RankContents::DropCopies(const Unsharing& unsharing) {
  for (const ChunkId id : unsharing.copies) {
    if (const auto copy = core_.chunks.Find(id)) calls_.FreeChunk(*copy);
  }
}

void RankContents::ReleaseLeftBehind(Session& session, ChunkId id) {
  const absl::optional<ChunkIndex> found = session.left_behind.EntryOf(id);
  if (!found.has_value()) return;
  const ChunkIndex index = *found;
  session.left_behind.Remove(id);
  calls_.ReleaseLease(session, index);
  // No id names a common content any more that the session has left.
  const Chunk& chunk = core_.chunks[index];
  const bool is_left = chunk.live() && chunk.common() != nullptr && !chunk.pinned();
  if (is_left && session.job->names.NamesOf(index).empty()) calls_.FreeChunk(index);
}

void RankContents::FreeId(Session& session, ChunkId id, ChunkIndex index) {
  calls_.ReleaseLease(session, index);
  core_.chunks[index].job->names.Remove(id, index);
  core_.MarkDirty(index);
}

// Whether only sessions that have ended named the entry, so that no call can reach it any more.
bool RankContents::IsOrphan(ChunkIndex index) const {
  const Chunk& chunk = core_.chunks[index];
  const Job& job = *chunk.job;
  const auto is_there = [&job](SessionId session) {
    return std::count(job.sessions.begin(), job.sessions.end(), session) != 0;
  };
  const std::vector<Name>& names = job.names.NamesOf(index);
  if (names.empty()) {
    // The copy that is being made for a rank has no name yet.
    const bool has_own_name = !job.names.Find(core_.IdOf(index)).has_value();
    return has_own_name && !is_there(chunk.owner);
  }
  return std::none_of(names.begin(), names.end(),
                      [&is_there](const Name& name) { return is_there(name.owner); });
}

void RankContents::FreeOrphans(Job& job) {
  job.orphans_remain = false;
  for (const ChunkIndex index : job.members.chunks()) {
    if (!core_.chunks[index].live() || !IsOrphan(index)) continue;
    if (calls_.IsUnused(index)) {
      calls_.FreeChunk(index);
    } else {
      job.orphans_remain = true;
    }
  }
}

}  // namespace memtide
