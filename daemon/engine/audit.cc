// Invariants: what holds between any two events.
//
// CheckInvariants() checks all of it, for tests. Next() does so in the daemon, in pieces of
// bounded size, one at each tick; the tables are one piece, linear in common contents and chunks. A
// violation ends the daemon, with the reason in the log, and not the job alone: to end a job is to
// free the slots that its books name, and these are wrong. A slot with two owners may have two
// tenants. The next daemon restores named jobs from the journal, and gives up those whose records
// contradict each other (records/record.cc).
#include "daemon/engine/audit.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace memtide {

namespace {

// A piece of an audit is this number of chunks, which takes 0.1 ms, or the sums of a job with at
// most this number of members, which takes a few milliseconds once in each pass.
constexpr uint32_t kAuditedChunks = 256;
constexpr size_t kAuditedMembers = 4096;

// The sums over the chunks of a job at one tier; compared with the counters of its TierQueues.
struct TierTally {
  uint32_t pinned_chunks = 0, evicting = 0, queued = 0, prefetches = 0;
  std::set<SlotNumber> numbers;

  void Add(const Chunk& chunk, Tier tier) {
    pinned_chunks += chunk.pinned_at(tier) && chunk.takes_room_at(tier);
    evicting += chunk.evict_from.has_value() && *chunk.evict_from == tier;
    prefetches += chunk.prefetch_to.has_value() && *chunk.prefetch_to == tier;
    queued += chunk.waits_for.has(tier);
    if (!chunk.slot(tier)) return;
    MEMTIDE_CHECK(numbers.insert(chunk.slot(tier).number()).second) << "a slot has two owners";
  }
};

// The sums over the chunks of a job.
struct JobTally {
  std::array<TierTally, kTiers> tiers;
  LinkClocks links;
  std::map<SessionId, uint32_t> leases;
  uint32_t live = 0, claims = 0, common = 0;

  void Add(const Chunk& chunk) {
    live += chunk.live();
    claims += bool(chunk.copies().claim);
    common += chunk.common() != nullptr && chunk.live();
    const Flight* const flight = chunk.copies().flight.get();
    if (flight != nullptr && flight->from.has_value()) links.Start({*flight->from, flight->to});
    for (const Tier tier : kAllTiers) tiers[static_cast<int>(tier)].Add(chunk, tier);
    for (const Pin& pin : chunk.uses().pins) leases[pin.session] += pin.granted();
  }
};

}  // namespace

// A share cannot compare itself with the engine's chunks, sessions and segments. `used`: the slots
// of chunks.
void Audit::CheckShare(const Job& job, Tier tier, const std::set<SlotNumber>& used) const {
  const Share& share = job.share(tier);
  const SlotPool& slots = share.slots();
  MEMTIDE_CHECK(slots.used_slots() == used.size());
  const bool waits = job.state() == JobState::kEnding || job.is_replacing();
  // A surplus slot goes to the machine or the ledger as soon as it is free. An ending job gives all
  // of its memory back at once.
  MEMTIDE_CHECK(waits || slots.surplus_slots() == 0 || slots.free_slots() == 0)
      << "a free slot is kept that is not wanted";
  for (const SlotNumber slot : used) {
    MEMTIDE_CHECK(share.PlaceOf(slot).region != RegionId(kNoSegment)) << "no memory " << slot;
  }
  for (const auto& [region, holders] : share.leaving()) {
    const auto found = core_.segments.find(region);
    MEMTIDE_CHECK(found != core_.segments.end() && found->second == &job);
    for (const SessionId holder : holders) {
      MEMTIDE_CHECK(std::count(job.sessions.begin(), job.sessions.end(), holder) == 1)
          << "a session that ended has region " << region;
    }
  }
}

void Audit::CheckChunk(ChunkIndex index) const {
  const Chunk& chunk = core_.chunks[index];
  if (chunk.job == nullptr) return;
  MEMTIDE_CHECK(chunk.job->members[chunk.member] == index);
  core_.chunks.CheckChunk(index);
  // Decision 3: the home slot is what makes a write-back always possible.
  const bool above = chunk.home() != chunk.job->home;
  MEMTIDE_CHECK(above || chunk.has_slot(chunk.home())) << "chunk " << index << " has no home";
  MEMTIDE_CHECK(!above || (chunk.home() == Tier::kHost && !chunk.slot(Tier::kSsd)))
      << "chunk " << index << " is below its home";
  const bool is_common = chunk.common() != nullptr;
  MEMTIDE_CHECK(bool(chunk.copies().claim) == (above && chunk.live() && !is_common));
  MEMTIDE_CHECK(!is_common || chunk.common()->of->job->uid == chunk.job->uid)
      << "users share a content";
  for (const Tier tier : kAllTiers) {
    const TierQueues& queues = chunk.job->tier(tier);
    // Victims::Update() runs wherever one of the conditions of may_leave() changes.
    MEMTIDE_CHECK(queues.victims.Contains(chunk.member) == chunk.may_leave(tier));
    MEMTIDE_CHECK(queues.pinned_queue.Contains(chunk.member) == chunk.is_pinned_in_room(tier));
  }
}

// A waiter has home slots for chunks that are about to leave a common content.
void Audit::AddHomes(const Job& job, std::set<SlotNumber>* used) const {
  for (const SlotNumber slot : calls_.HomesOf(job)) MEMTIDE_CHECK(used->insert(slot).second);
}

void Audit::AddDuplicated(const Job& job, std::set<SlotNumber>* used) {
  for (const SlotNumber slot : job.duplicated.slots()) {
    MEMTIDE_CHECK(used->insert(slot).second) << "a content has the slot of a chunk";
  }
}

void Audit::CheckJob(const Job& job) const {
  JobTally tally;
  for (const ChunkIndex index : job.members.chunks()) {
    tally.Add(core_.chunks[index]);
  }
  job.names.CheckInvariants();
  job.members.CheckInvariants();
  MEMTIDE_CHECK(job.members.live() == tally.live);
  MEMTIDE_CHECK(job.home == job.shares->home());
  MEMTIDE_CHECK(job.share(Tier::kHost).claims() == tally.claims + job.claims_of_duplicated());
  job.duplicated.CheckInvariants();
  MEMTIDE_CHECK(job.duplicated.empty() || job.duplicated.job == &job);
  MEMTIDE_CHECK(job.duplicated.empty() || (job.name.empty() && job.contents == nullptr));
  MEMTIDE_CHECK(job.common.value() == tally.common);
  for (const auto& [id, session] : core_.sessions) {
    if (session.job != &job) continue;
    MEMTIDE_CHECK(session.leases.value() == tally.leases[id]) << "session " << id;
  }
  for (const Link link : kLinks) {
    MEMTIDE_CHECK(job.forecast.links().in_flight(link) == tally.links.in_flight(link));
  }
  for (const Tier tier : kAllTiers) {
    const Share& share = job.share(tier);
    if (!share.exists()) continue;
    const TierQueues& queues = job.tier(tier);
    const TierTally& at_tier = tally.tiers[static_cast<int>(tier)];
    MEMTIDE_CHECK(queues.pinned_chunks() == at_tier.pinned_chunks);
    // A share that shrinks has more pins than slots until clients release their leases.
    MEMTIDE_CHECK(queues.pinned_chunks() <=
                  std::max(share.most_slots(), share.slots().backed_slots()));
    MEMTIDE_CHECK(queues.evicting.value() == at_tier.evicting);
    MEMTIDE_CHECK(queues.prefetches.value() == at_tier.prefetches);
    const bool on_ssd = tier == Tier::kSsd;
    MEMTIDE_CHECK(at_tier.queued ==
                  (on_ssd ? core_.writes.WaitingOf(job.id) : queues.slot_queue.size()));
    std::set<SlotNumber> used = job.contents == nullptr ? at_tier.numbers : job.contents->slots();
    if (tier == Tier::kHost) AddDuplicated(job, &used);
    if (tier == job.home) AddHomes(job, &used);
    CheckShare(job, tier, used);
  }
  const JobSnapshots& snapshots = job.snapshots;
  MEMTIDE_CHECK(job.is_durable() || (snapshots.slots.empty() && !snapshots.saving.has_value()));
  MEMTIDE_CHECK(snapshots.commits.empty() || snapshots.saving.has_value())
      << "a commit waits for no snapshot";
  MEMTIDE_CHECK(!snapshots.saving.has_value() || snapshots.saving->is_started ||
                !snapshots.saving->unwritten.empty())
      << "a snapshot waits for nothing";
  for (const SlotNumber slot : snapshots.NamedSlots()) {
    MEMTIDE_CHECK(job.share(Tier::kSsd).slots().in_quarantine(slot)) << "a named slot is lent";
  }
  const Share& device = job.share(Tier::kDevice);
  MEMTIDE_CHECK(!job.resize.has_value() || device.surplus_regions() > 0 ||
                !device.leaving().empty())
      << "a resize waits for nothing";
}

// These checks need no sums over chunks.
void Audit::CheckTables() const {
  core_.ledger.CheckInvariants();
  core_.record_log.CheckInvariants();
  core_.writes.CheckInvariants();
  // Handle() makes the record at the end of each event.
  MEMTIDE_CHECK(core_.record_log.empty()) << "a change has not been recorded";
  core_.work.CheckInvariants();
  MEMTIDE_CHECK(core_.work.empty()) << "an event left work behind";
  core_.sessions.CheckInvariants();
  jobs_.CheckInvariants();
  Bytes manifests;
  for (const auto& [id, job] : core_.jobs) {
    manifests += Bytes(job->manifest.text().size());
    for (const KeptRank& rank : job->kept_ranks) manifests += Bytes(rank.manifest.text().size());
  }
  MEMTIDE_CHECK(core_.manifest_bytes.all() == manifests) << manifests << " are there";
  offers_.CheckInvariants();
  calls_.CheckSteps();
}

void Audit::CheckInvariants() const {
  CheckTables();
  core_.chunks.CheckInvariants();
  std::map<const CommonContent*, uint32_t> readers;
  for (uint32_t i = 0; i < core_.chunks.size(); ++i) {
    CheckChunk(ChunkIndex(i));
    const Chunk& chunk = core_.chunks[ChunkIndex(i)];
    if (chunk.job != nullptr && chunk.common() != nullptr) ++readers[chunk.common()];
  }
  for (const auto& [content, count] : readers) MEMTIDE_CHECK(content->readers.value() == count);
  calls_.CheckInvariants();
  for (const auto& [id, job] : core_.jobs) CheckJob(*job);
}

void Audit::Next() {
  if (audited_chunks_ == 0) CheckTables();
  if (audited_chunks_ < core_.chunks.size()) {
    const uint32_t end = std::min(core_.chunks.size(), audited_chunks_ + kAuditedChunks);
    while (audited_chunks_ < end) CheckChunk(ChunkIndex(audited_chunks_++));
    return;
  }
  const auto next = core_.jobs.upper_bound(audited_job_);
  if (next != core_.jobs.end()) {
    audited_job_ = next->first;
    if (next->second->members.size() <= kAuditedMembers) CheckJob(*next->second);
    return;
  }
  audited_chunks_ = 0;
  audited_job_ = JobId();
  ++audits_;
}

}  // namespace memtide
