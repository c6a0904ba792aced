#include "client/testing/fake_daemon_session.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide::client {

FakeDaemonSession::FakeDaemonSession(const Options& options)
    : options_(options), slots_(options.slots) {
  const Bytes size = options.chunk_size * options.slots;
  fd_ = memfd_create("memtide-fake", MFD_CLOEXEC);
  MEMTIDE_CHECK(fd_ >= 0 && ftruncate(fd_, static_cast<off_t>(size.count())) == 0);
  void* memory = mmap(nullptr, size.count(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  MEMTIDE_CHECK(memory != MAP_FAILED);
  memory_ = static_cast<char*>(memory);
}

FakeDaemonSession::~FakeDaemonSession() {
  munmap(memory_, (options_.chunk_size * options_.slots).count());
  close(fd_);
}

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
  for (uint32_t i = 0; i < count; ++i) {
    made.push_back(ChunkId(next_chunk_++));
    chunks_[made.back()].initial_content = initial_content;
  }
  return made;
}

absl::Status FakeDaemonSession::Free(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  for (const ChunkId id : chunks) {
    const auto found = chunks_.find(id);
    if (found == chunks_.end()) return absl::NotFoundError("no such chunk");
    counts_.leases -= found->second.leased ? 1 : 0;
    if (found->second.slot.has_value()) {
      memset(Slot(*found->second.slot), kScramble, options_.chunk_size.count());
      slots_[*found->second.slot].reset();
    }
    chunks_.erase(found);
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status FakeDaemonSession::Discard(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  ++counts_.discards;
  for (const ChunkId id : chunks) {
    const auto found = chunks_.find(id);
    if (found == chunks_.end()) return absl::NotFoundError("no such chunk");
    Chunk& chunk = found->second;
    counts_.leases -= chunk.leased ? 1 : 0;
    if (chunk.slot.has_value()) {
      memset(Slot(*chunk.slot), kScramble, options_.chunk_size.count());
      slots_[*chunk.slot].reset();
    }
    const uint64_t version = chunk.version + 1;
    chunk = Chunk();
    chunk.version = version;
    chunk.initial_content = InitialContent::kUndefined;
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<OfferResult> FakeDaemonSession::Offer(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  OfferResult result;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto found = chunks_.find(chunks[i]);
    if (found == chunks_.end()) return absl::NotFoundError("no such chunk");
    (found->second.leased ? result.leased : result.shared).push_back(i);
  }
  return result;
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
  ++counts_.fetches;
  moments_.insert(moments_.end(), options.moments.begin(), options.moments.end());
  for (const ChunkId id : options.releases) {
    const auto found = chunks_.find(id);
    if (found == chunks_.end() || !found->second.leased) continue;
    EndLease(&found->second);
  }
  changed_.SignalAll();
  if (!fail_next_fetch_.ok()) {
    const absl::Status failure = fail_next_fetch_;
    fail_next_fetch_ = absl::OkStatus();
    return failure;
  }
  while (!MakeResident(options.chunks)) {
    if (options.wait_policy == WaitPolicy::kNoWait) return absl::UnavailableError("not there now");
    const Duration left = until - Now();
    if (left <= Duration::zero()) return absl::DeadlineExceededError("no room in time");
    changed_.WaitFor(&mutex_, left);
    MEMTIDE_RETURN_IF_ERROR(ended_);
  }
  FetchResult fetched;
  fetched.eviction_hints = eviction_hints_;
  for (const ChunkId id : options.chunks) {
    Chunk& chunk = chunks_.at(id);
    counts_.leases += chunk.leased ? 0 : 1;
    chunk.leased = true;
    chunk.version += options.access == Access::kWrite;
    fetched.leases.push_back({id, RegionId(0), options_.chunk_size * *chunk.slot});
  }
  changed_.SignalAll();
  return fetched;
}

absl::Status FakeDaemonSession::Report(const std::vector<Moment>& moments) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  moments_.insert(moments_.end(), moments.begin(), moments.end());
  return absl::OkStatus();
}

std::vector<Moment> FakeDaemonSession::moments() const {
  const MutexLock lock(&mutex_);
  return moments_;
}

void FakeDaemonSession::SetEvictionHints(std::vector<ChunkId> eviction_hints) {
  const MutexLock lock(&mutex_);
  eviction_hints_ = std::move(eviction_hints);
}

// Gives all chunks a slot, or returns false. Chunks that got a slot keep it then, without a lease.
bool FakeDaemonSession::MakeResident(const std::vector<ChunkId>& chunks) {
  std::vector<Chunk*> wanted;
  for (const ChunkId id : chunks) wanted.push_back(&chunks_.at(id));
  bool complete = true;
  // Lease the requested chunks meanwhile, so that none of them is evicted for another.
  std::vector<bool> leased;
  for (Chunk* chunk : wanted) {
    leased.push_back(chunk->leased);
    chunk->leased = true;
  }
  for (size_t i = 0; i < wanted.size() && complete; ++i) {
    if (wanted[i]->slot.has_value()) continue;
    wanted[i]->slot = FindSlot();
    complete = wanted[i]->slot.has_value();
    if (!complete) break;
    slots_[*wanted[i]->slot] = chunks[i];
    char* slot = Slot(*wanted[i]->slot);
    if (wanted[i]->buffer.empty()) {
      const bool zeros = wanted[i]->initial_content == InitialContent::kZeros;
      memset(slot, zeros ? 0 : kScramble, options_.chunk_size.count());
    } else {
      memcpy(slot, wanted[i]->buffer.data(), options_.chunk_size.count());
    }
  }
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i]->leased = leased[i];
  return complete;
}

absl::optional<uint32_t> FakeDaemonSession::FindSlot() {
  absl::optional<uint32_t> oldest;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].has_value()) return slot;
    const Chunk& chunk = chunks_.at(*slots_[slot]);
    if (chunk.leased) continue;
    if (!oldest.has_value() || chunk.released_at < chunks_.at(*slots_[*oldest]).released_at) {
      oldest = slot;
    }
  }
  if (oldest.has_value()) EvictChunk(&chunks_.at(*slots_[*oldest]));
  return oldest;
}

void FakeDaemonSession::EvictChunk(Chunk* chunk) {
  char* slot = Slot(*chunk->slot);
  chunk->buffer.assign(slot, slot + options_.chunk_size.count());
  memset(slot, kScramble, options_.chunk_size.count());
  slots_[*chunk->slot].reset();
  chunk->slot.reset();
  ++counts_.evictions;
}

absl::Status FakeDaemonSession::Release(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  for (const ChunkId id : chunks) {
    const auto found = chunks_.find(id);
    if (found == chunks_.end() || !found->second.leased) {
      return absl::FailedPreconditionError("not leased");
    }
  }
  for (const ChunkId id : chunks) {
    EndLease(&chunks_.at(id));
    ++counts_.releases;
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

void FakeDaemonSession::EndLease(Chunk* chunk) {
  chunk->leased = false;
  chunk->released_at = ++calls_;
  --counts_.leases;
}

absl::Status FakeDaemonSession::Evict(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  for (const ChunkId id : chunks) {
    if (chunks_.at(id).leased) EndLease(&chunks_.at(id));
    if (chunks_.at(id).slot.has_value()) EvictChunk(&chunks_.at(id));
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status FakeDaemonSession::Prefetch(absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  MakeResident({chunks.begin(), chunks.end()});
  return absl::OkStatus();
}

absl::StatusOr<DeviceShare> FakeDaemonSession::Resize(Bytes device_share, Duration deadline) {
  return absl::FailedPreconditionError("the fake session has no device");
}

char* FakeDaemonSession::BytesOf(ChunkId id) {
  Chunk& chunk = chunks_[id];
  if (chunk.slot.has_value()) return Slot(*chunk.slot);
  chunk.buffer.resize(options_.chunk_size.count());
  return chunk.buffer.data();
}

absl::StatusOr<uint64_t> FakeDaemonSession::Step(const StepPart& part,
                                                 absl::Span<const ChunkId> chunks,
                                                 const std::vector<Moment>& moments) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  moments_.insert(moments_.end(), moments.begin(), moments.end());
  for (const v1::CopyPiece& copy : part.request.copies()) {
    memcpy(BytesOf(chunks[copy.to().chunk()]) + copy.to().offset_bytes(),
           BytesOf(chunks[copy.from().chunk()]) + copy.from().offset_bytes(), copy.size_bytes());
  }
  return 0;
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
    if (lent.outcome.state == PartState::kMade) MakeContent(chunks.subspan(part.reads));
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

// In other memory than before: a mapping that outlives its lease sees kScramble.
void FakeDaemonSession::MakeContent(absl::Span<const ChunkId> chunks) {
  for (const ChunkId id : chunks) {
    Chunk& chunk = chunks_.at(id);
    if (chunk.slot.has_value()) EvictChunk(&chunk);
    chunk.buffer.assign(options_.chunk_size.count(), static_cast<char>(kMade));
  }
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
    if (!chunks_[chunk].leased) continue;
    commit_aborted_ = true;
    changed_.SignalAll();
    return absl::AbortedError("a chunk is leased");
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    char* const a = BytesOf(chunks[i]);
    std::swap_ranges(a, a + options_.chunk_size.count(), BytesOf(shadows[i]));
    ++chunks_[chunks[i]].version;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> FakeDaemonSession::Versions(
    absl::Span<const ChunkId> chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(ended_);
  std::vector<uint64_t> versions;
  for (const ChunkId chunk : chunks) versions.push_back(chunks_.at(chunk).version);
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
  region.size = options_.chunk_size * options_.slots;
  region.memory = Descriptor(fcntl(fd_, F_DUPFD_CLOEXEC, 0));
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
  return counts_;
}

void FakeDaemonSession::WaitForLeases(uint32_t leases) {
  const MutexLock lock(&mutex_);
  while (counts_.leases != leases) changed_.Wait(&mutex_);
}

}  // namespace memtide::client
