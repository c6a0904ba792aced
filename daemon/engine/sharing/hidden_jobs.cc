// Common contents: bytes that chunks of several sessions of one user hold, in one place of host
// memory (tables/common_contents.h). Contents of one job's duplicates are in duplicates.cc.
//
// Each session keeps chunks of its own, so that fetches, steps and predictions concern one job
// each: such a chunk only has its copy elsewhere, as a reader of the content. The memory is that of
// a hidden job of the user, which has no sessions and no chunks, and ends with its last content.
// Nothing is ever written to a content that is whole. A session that writes gets a copy in its own
// job first (sharing/copy_on_write.cc).
#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/sharing/offers.h"

namespace memtide {

CommonContents& Offers::CommonsOf(const Session& session) {
  return core_.commons.try_emplace({session.uid, session.job->chunk_size}).first->second;
}

absl::Status Offers::MakeHiddenJob(const Session& session, CommonContents& contents) {
  auto job = std::make_unique<Job>();
  job->id = JobId(core_.next_job);
  job->uid = session.uid;
  job->groups = session.groups;
  job->made_at = core_.now;
  job->chunk_size = session.job->chunk_size;
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<JobShares> shares,
                           core_.ledger.LendForContents(job->id, job->owner(), job->chunk_size));
  memory_.TakeShares(*job, std::move(shares));
  ++core_.next_job;
  job->contents = &contents;
  contents.job = job.get();
  core_.jobs.emplace(job->id, std::move(job));
  return absl::OkStatus();
}

// The hidden job ends when there is no content, and none is about to be made. `contents` may be
// gone afterwards.
void Offers::MaybeEndHiddenJob(CommonContents& contents) {
  if (!contents.empty()) return;
  const bool is_awaited = std::any_of(offers_.begin(), offers_.end(), [&](const auto& offer) {
    return !offer->duplicate.has_value() &&
           &CommonsOf(*core_.sessions.Find(offer->session)) == &contents;
  });
  if (is_awaited) return;
  if (Job* const job = std::exchange(contents.job, nullptr)) {
    job->contents = nullptr;
    contents.lent_to.clear();
    core_.ledger.SetState(*job->shares, JobState::kEnding);
    memory_.MaybeDropMemory(*job);
  }
  if (!contents.is_unused()) return;
  const auto unused = std::find_if(core_.commons.begin(), core_.commons.end(),
                                   [&](const auto& entry) { return &entry.second == &contents; });
  core_.commons.erase(unused);
}

// The session gets all regions in which a chunk of it may be from now on.
void Offers::LendRegions(const Session& session, CommonContents& contents) {
  if (!contents.lent_to.insert(session.id).second) return;
  contents.job->shares->set_fair_shares(contents.lent_to.size());
  for (const uint32_t segment : contents.job->share(Tier::kHost).segments()) {
    core_.Emit(SendRegion{session.id, RegionId(segment)});
  }
}

// By one segment at a time, which the pool may have where it has no more.
bool Offers::MakeMemory(CommonContents& contents) {
  Job& job = *contents.job;
  Share& share = job.share(Tier::kHost);
  if (share.making() != kNoSegment) return true;
  if (!share.can_grow()) memory_.GrowShare(job, Tier::kHost, 1);
  memory_.Grow(job, Tier::kHost);
  // Other jobs may be giving memory back.
  return share.making() != kNoSegment || share.starved();
}

// A content that is to be made. nullptr: there is no memory for it.
CommonContent* Offers::MakeContent(const Session& session, CommonContents& contents,
                                   const Digest& digest) {
  if (contents.job == nullptr && !MakeHiddenJob(session, contents).ok()) return nullptr;
  Slot slot = contents.job->share(Tier::kHost).Take();
  return slot ? &contents.Add(digest, std::move(slot)) : nullptr;
}

// A new entry of the job for the content. No id names it yet.
ChunkIndex Offers::MakeReader(Job& job, ChunkIndex like, CommonContent& content) {
  NewChunk reader;
  reader.kind = core_.chunks[like].kind;
  reader.reads = &content;
  reader.is_unnamed = true;
  return residency_.MakeChunk(job, std::move(reader));
}

// Whether what the chunk holds can be exchanged now.
bool Offers::MayBecomeCommon(ChunkIndex index) const {
  const Chunk& chunk = core_.chunks[index];
  return chunk.common() == nullptr && calls_.IsUnused(index) &&
         (chunk.counterpart == kNoChunk || chunk.is_repeated());
}

void Offers::On(const ContentEnded& signal) {
  offers_due_ = true;  // One of them may wait for the content, or for its slot.
  Job* const job = core_.FindJob(signal.job);
  if (job != nullptr && job->contents != nullptr) {
    MaybeEndHiddenJob(*job->contents);
  }
}

void Offers::On(const NoMemoryForContents& signal) {
  for (const std::shared_ptr<Offer>& offer : offers_) {
    const Job* const job = CommonsOf(*core_.sessions.Find(offer->session)).job;
    if (job != nullptr && job->id == signal.job) offer->lacks_memory = true;
  }
}

// Offers take the room of a hidden job, which has no chunks that could wait for it.
void Offers::MakeRoom(Job& job, Tier tier) {
  offers_due_ = !offers_.empty();
  if (!offers_due_) core_.ledger.elastic().Satisfy(job.share(tier));
}

void Offers::CheckInvariants() const {
  for (const auto& [user, contents] : core_.commons) {
    contents.CheckInvariants();
    MEMTIDE_CHECK(contents.job == nullptr || contents.job->contents == &contents);
  }
}

}  // namespace memtide
