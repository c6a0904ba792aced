#include "client/testing/fake_daemon_session.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace memtide::client {

FakeDaemonSession::FakeDaemonSession(const Options& options)
    : options_(options), chunks_(options.chunk_size, options.slots) {}

absl::StatusOr<Job> FakeDaemonSession::Open(const v1::OpenRequest& request,
                                            DaemonSessionEvents* events) {
  events_ = events;
  LendRegion(RegionId(0));
  Job job;
  job.chunk_size = options_.chunk_size;
  job.host_slots = options_.slots;
  job.max_chunks = options_.max_chunks;
  job.lease_budget = options_.lease_budget;
  job.limits = options_.limits;
  return job;
}

void FakeDaemonSession::Close() {
  const MutexLock lock(&mutex_);
  if (ended_.ok()) ended_ = absl::UnavailableError("closed");
  changed_.SignalAll();
}

absl::StatusOr<std::vector<ChunkId>> FakeDaemonSession::Allocate(uint32_t count, ChunkKind kind,
                                                                 InitialContent initial_content,
                                                                 HomeTier home) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  if (chunks_.size() + count > options_.max_chunks) {
    return absl::ResourceExhaustedError(absl::StrCat("max_chunks is ", options_.max_chunks));
  }
  std::vector<ChunkId> made;
  for (uint32_t i = 0; i < count; ++i) made.push_back(chunks_.Add(initial_content));
  return made;
}

absl::Status FakeDaemonSession::Free(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  for (const ChunkId id : chunks) {
    if (!chunks_.Has(id)) return absl::NotFoundError("no such chunk");
    chunks_.Remove(id);
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status FakeDaemonSession::Discard(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  ++discards_;
  for (const ChunkId id : chunks) {
    if (!chunks_.Has(id)) return absl::NotFoundError("no such chunk");
    chunks_.Discard(id);
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<OfferResult> FakeDaemonSession::Offer(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  OfferResult result;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!chunks_.Has(chunks[i])) return absl::NotFoundError("no such chunk");
    (chunks_.is_leased(chunks[i]) ? result.leased : result.shared).push_back(i);
  }
  return result;
}

absl::Status FakeDaemonSession::OfferWhenWritten(absl::Span<const ChunkId> chunks) {
  return Offer(chunks).status();
}

absl::StatusOr<std::vector<ChunkId>> FakeDaemonSession::Duplicate(absl::Span<const ChunkId> chunks,
                                                                  uint32_t copies) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  if (chunks_.size() + chunks.size() * copies > options_.max_chunks) {
    return absl::ResourceExhaustedError(absl::StrCat("max_chunks is ", options_.max_chunks));
  }
  for (const ChunkId chunk : chunks) {
    if (chunks_.is_leased(chunk)) return absl::AbortedError("a chunk is leased");
  }
  std::vector<ChunkId> made;
  for (uint32_t copy = 0; copy < copies; ++copy) {
    for (const ChunkId chunk : chunks) {
      made.push_back(chunks_.Add(InitialContent::kUndefined));
      if (!chunks_.MakeResident({chunk, made.back()})) {
        return absl::ResourceExhaustedError("all slots are leased");
      }
      duplicated_.insert({chunk, made.back()});
      memcpy(chunks_.BytesOf(made.back()), chunks_.BytesOf(chunk), options_.chunk_size.count());
    }
  }
  return made;
}

absl::StatusOr<FetchResult> FakeDaemonSession::Fetch(const FetchOptions& options) {
  const Instant until =
      Now() + (options.deadline > Duration::zero() ? options.deadline : std::chrono::minutes(1));
  const MutexLock lock(&mutex_);
  const Instant begin = Now() + fetch_delay_;
  for (Instant now = Now(); now < begin && ended_.ok(); now = Now()) {
    changed_.WaitFor(&mutex_, begin - now);
  }
  MEMTIDE_RETURN_IF_ERROR(ended_);
  ++fetches_;
  moments_.insert(moments_.end(), options.moments.begin(), options.moments.end());
  for (const ChunkId id : options.releases) {
    if (chunks_.Has(id) && chunks_.is_leased(id)) chunks_.EndLease(id);
  }
  changed_.SignalAll();
  if (!fail_next_fetch_.ok()) {
    const absl::Status failure = fail_next_fetch_;
    fail_next_fetch_ = absl::OkStatus();
    return failure;
  }
  for (const ChunkId id : options.chunks) {
    if (options.access == Access::kWrite && duplicated_.erase(id) > 0) chunks_.Move(id);
  }
  while (!chunks_.MakeResident(options.chunks)) {
    if (options.wait_policy == WaitPolicy::kNoWait) return absl::UnavailableError("not there now");
    const Duration left = until - Now();
    if (left <= Duration::zero()) return absl::DeadlineExceededError("no room in time");
    changed_.WaitFor(&mutex_, left);
    MEMTIDE_RETURN_IF_ERROR(ended_);
  }
  FetchResult fetched;
  fetched.eviction_hints = eviction_hints_;
  fetched.ahead = ahead_;
  for (const ChunkId id : options.chunks) {
    fetched.leases.push_back({id, RegionId(0), chunks_.Lend(id, options.access)});
  }
  changed_.SignalAll();
  return fetched;
}

absl::StatusOr<ChunksAhead> FakeDaemonSession::Report(const std::vector<Moment>& moments) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  moments_.insert(moments_.end(), moments.begin(), moments.end());
  changed_.SignalAll();
  return ahead_;
}

std::vector<Moment> FakeDaemonSession::moments() const {
  const MutexLock lock(&mutex_);
  return moments_;
}

void FakeDaemonSession::SetAhead(ChunksAhead ahead) {
  const MutexLock lock(&mutex_);
  ahead_ = std::move(ahead);
}

void FakeDaemonSession::AwaitMoments(size_t count) {
  const MutexLock lock(&mutex_);
  while (moments_.size() < count) changed_.Wait(&mutex_);
}

void FakeDaemonSession::SetEvictionHints(std::vector<ChunkId> eviction_hints) {
  const MutexLock lock(&mutex_);
  eviction_hints_ = std::move(eviction_hints);
}

absl::Status FakeDaemonSession::Release(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  for (const ChunkId id : chunks) {
    if (!chunks_.Has(id) || !chunks_.is_leased(id)) {
      return absl::FailedPreconditionError("not leased");
    }
  }
  for (const ChunkId id : chunks) {
    chunks_.EndLease(id);
    ++releases_;
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status FakeDaemonSession::Evict(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  for (const ChunkId id : chunks) {
    if (chunks_.is_leased(id)) chunks_.EndLease(id);
    chunks_.Evict(id);
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<DeviceShare> FakeDaemonSession::Resize(Bytes device_share, Duration deadline) {
  return absl::FailedPreconditionError("the fake session has no device");
}

absl::StatusOr<LentPart> FakeDaemonSession::StartPart(const OwnPart& part,
                                                      absl::Span<const ChunkId> chunks,
                                                      const std::vector<Moment>& moments) {
  LentPart lent;
  bool lost = false;
  {
    const MutexLock lock(&mutex_);
    lent.outcome = std::exchange(next_part_, PartOutcome());
    lost = std::exchange(lose_part_reply_, false);
    part_contents_ = part.contents;
    if (lent.outcome.state == PartState::kMade) {
      for (const ChunkId id : chunks.subspan(part.reads)) chunks_.Fill(id, kMade);
    }
  }
  if (lent.outcome.state == PartState::kComputing) {
    FetchOptions options;
    options.chunks.assign(chunks.begin(), chunks.end());
    options.moments = moments;
    MEMTIDE_ASSIGN_OR_RETURN(FetchResult fetched, Fetch(options));
    lent.leases = std::move(fetched.leases);
    const MutexLock lock(&mutex_);
    parts_[part.id] = std::move(options.chunks);
  }
  if (lost) return absl::UnavailableError("the reply was lost");
  return lent;
}

void FakeDaemonSession::AnswerNextPart(PartOutcome outcome) {
  const MutexLock lock(&mutex_);
  next_part_ = std::move(outcome);
}

void FakeDaemonSession::LoseNextPartReply() {
  const MutexLock lock(&mutex_);
  lose_part_reply_ = true;
}

absl::optional<PartContents> FakeDaemonSession::part_contents() const {
  const MutexLock lock(&mutex_);
  return part_contents_;
}

absl::Status FakeDaemonSession::EndPart(uint64_t id, const PartResult& result) {
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    const auto found = parts_.find(id);
    if (found == parts_.end()) return absl::OkStatus();
    chunks = std::move(found->second);
    parts_.erase(found);
    computed_parts_ += result.computed ? 1 : 0;
  }
  return Release(chunks);
}

uint32_t FakeDaemonSession::computed_parts() const {
  const MutexLock lock(&mutex_);
  return computed_parts_;
}

absl::Status FakeDaemonSession::Commit(const CommitRequest& commit,
                                       absl::Span<const ChunkId> chunks,
                                       absl::Span<const ChunkId> shadows) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  for (const ChunkId chunk : chunks) {
    if (!chunks_.is_leased(chunk)) continue;
    commit_aborted_ = true;
    changed_.SignalAll();
    return absl::AbortedError("a chunk is leased");
  }
  for (size_t i = 0; i < commit.unwritten.size(); ++i) {
    if (commit.unwritten[i].version == chunks_.version(chunks[i])) continue;
    return absl::AbortedError("a chunk was written");
  }
  for (size_t i = 0; i < chunks.size(); ++i) chunks_.Commit(chunks[i], shadows[i]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> FakeDaemonSession::Versions(
    absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  std::vector<uint64_t> versions;
  for (const ChunkId chunk : chunks) versions.push_back(chunks_.version(chunk));
  return versions;
}

absl::Status FakeDaemonSession::ReturnRegions(const std::vector<RegionId>& regions) {
  const MutexLock lock(&mutex_);
  returned_.insert(returned_.end(), regions.begin(), regions.end());
  changed_.SignalAll();
  return ended_;
}

void FakeDaemonSession::LendRegion(RegionId id) {
  Region region;
  {
    const MutexLock lock(&mutex_);
    region = chunks_.region();
  }
  events_->RegionArrived(id, std::move(region));
}

void FakeDaemonSession::EndRegion(RegionId id, const DeviceShare& share) {
  events_->RegionGone(id, share);
}
void FakeDaemonSession::ChangeLeaseBudget(const LeaseBudget& budget) {
  events_->LeaseBudgetChanged(budget);
}

void FakeDaemonSession::WaitForAbortedCommit() {
  const MutexLock lock(&mutex_);
  while (!commit_aborted_) changed_.Wait(&mutex_);
}

void FakeDaemonSession::WaitForReturn(RegionId id) {
  const MutexLock lock(&mutex_);
  while (std::count(returned_.begin(), returned_.end(), id) == 0) changed_.Wait(&mutex_);
}

void FakeDaemonSession::DelayFetches(Duration delay) {
  const MutexLock lock(&mutex_);
  fetch_delay_ = delay;
}

void FakeDaemonSession::FailNextFetch(absl::Status status) {
  const MutexLock lock(&mutex_);
  fail_next_fetch_ = status;
}

void FakeDaemonSession::Revoke(const Revocation& revocation) {
  events_->RevokeRequested(revocation);
}

void FakeDaemonSession::EndSession(absl::Status reason) {
  {
    const MutexLock lock(&mutex_);
    ended_ = reason;
    changed_.SignalAll();
  }
  events_->Lost(reason);
}

FakeDaemonSession::Counts FakeDaemonSession::counts() const {
  const MutexLock lock(&mutex_);
  Counts counts;
  counts.fetches = fetches_;
  counts.releases = releases_;
  counts.evictions = chunks_.evictions();
  counts.discards = discards_;
  counts.leases = chunks_.leases();
  return counts;
}

void FakeDaemonSession::WaitForLeases(uint32_t leases) {
  const MutexLock lock(&mutex_);
  while (chunks_.leases() != leases) changed_.Wait(&mutex_);
}

}  // namespace memtide::client
