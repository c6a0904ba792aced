#include "daemon/engine/shares/share_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide {

namespace {

bool IsBySlot(Tier tier, MemoryKind device_memory) {
  return tier == Tier::kDevice && device_memory == MemoryKind::kCudaDescriptor;
}

}  // namespace

JobShares::JobShares(ShareLedger* ledger, JobId job, Bytes chunk_size, Pool device)
    : ledger_(ledger),
      job_(job),
      shares_{{Share(job, device, chunk_size), Share(job, {Tier::kHost}, chunk_size),
               Share(job, {Tier::kSsd}, chunk_size)}} {
  MEMTIDE_CHECK(ledger_->jobs_.emplace(job, this).second) << "job " << job << " has shares";
}

// The memory of the job is free again, because the ledger sums up the shares that it knows.
JobShares::~JobShares() { ledger_->jobs_.erase(job_); }

Tier JobShares::home() const {
  for (const Tier tier : {Tier::kSsd, Tier::kHost}) {
    if ((*this)[tier].exists()) return tier;
  }
  return Tier::kDevice;
}

size_t JobShares::pending() const {
  size_t pending = 0;
  for (const Share& share : shares_) pending += share.pending();
  return pending;
}

ShareLedger::ShareLedger(const Capacities& capacities, const Limits& limits)
    : capacities_(capacities), limits_(limits), states_(capacities.devices.size()) {
  for (const Bytes device : capacities.devices) MEMTIDE_CHECK(!device.IsZero());
}

ShareLedger::~ShareLedger() {
  MEMTIDE_CHECK(jobs_.empty()) << "the shares of a job outlive the ledger that lent them";
}

Bytes ShareLedger::AskedOf(const OpenCall& open, Tier tier) {
  return tier == Tier::kDevice ? open.device_share
         : tier == Tier::kHost ? open.host_share
                               : open.ssd_share;
}

bool ShareLedger::IsElastic(const OpenCall& open, Tier tier) const {
  if (!open.elastic || !AskedOf(open, tier).IsZero()) return false;
  const bool has_ssd = !capacity({Tier::kSsd}).IsZero();
  if (tier != Tier::kDevice) return has_ssd;
  // Only memory that is lent slot by slot goes back while a job runs, and only chunks that have
  // their home below leave it.
  return open.device_memory.has_value() && IsBySlot(tier, *open.device_memory) &&
         (has_ssd || !capacity({Tier::kHost}).IsZero());
}

Pool ShareLedger::PoolFor(const OpenCall& open, Tier tier) const {
  return tier == Tier::kDevice ? DeviceFor(open) : Pool{tier};
}

void ShareLedger::Count(const OpenCall& open, Pool pool, Opens* opens) const {
  const Tier tier = pool.tier;
  if (PoolFor(open, tier) != pool) return;
  opens->any = true;
  opens->elastic += IsElastic(open, tier);
  // Clients may request any size, so the sum is bounded.
  opens->requested =
      CheckedAdd(opens->requested, AskedOf(open, tier)).value_or(Bytes(~uint64_t{0}));
}

Bytes ShareLedger::NeededToOpen(const OpenCall& open, Tier tier) const {
  const Pool pool = PoolFor(open, tier);
  if (capacity(pool).IsZero()) return Bytes(0);
  if (!IsElastic(open, tier)) return RoundDown(AskedOf(open, tier), open.chunk_size);
  return std::min(RoundDown(Unguaranteed(pool), open.chunk_size),
                  open.chunk_size * LeastShare(tier, open.chunk_size, open.ranks));
}

absl::StatusOr<std::unique_ptr<JobShares>> ShareLedger::Lend(JobId job, const Owner& owner,
                                                             const OpenCall& open,
                                                             MemoryKind device_memory) {
  // An error below destroys the shares, which returns those that were lent already.
  std::unique_ptr<JobShares> shares(new JobShares(this, job, open.chunk_size, DeviceFor(open)));
  shares->owner_ = owner;
  shares->may_linger_ = open.time_to_live > Duration(0);
  MEMTIDE_RETURN_IF_ERROR(CheckJobQuotas(*shares, open));
  for (const Tier tier : kAllTiers) {
    Share& share = (*shares)[tier];
    MEMTIDE_RETURN_IF_ERROR(IsElastic(open, tier) ? LendElastic(share, open)
                                                  : LendFixed(share, AskedOf(open, tier),
                                                              IsBySlot(tier, device_memory)));
  }
  MEMTIDE_RETURN_IF_ERROR(CheckLingeringQuotas(*shares));
  return shares;
}

absl::StatusOr<std::unique_ptr<JobShares>> ShareLedger::LendForContents(JobId job,
                                                                        const Owner& owner,
                                                                        Bytes chunk_size) {
  std::unique_ptr<JobShares> shares(new JobShares(this, job, chunk_size, {Tier::kDevice}));
  shares->owner_ = owner;
  shares->is_hidden_ = true;
  Share& share = (*shares)[Tier::kHost];
  MEMTIDE_RETURN_IF_ERROR(CheckQuota(share, 1));
  const uint64_t most =
      std::min({Unguaranteed({Tier::kHost}) / chunk_size, uint64_t{limits_.chunks},
                MostSlots(share, Counting::kGuaranteed)});
  if (most == 0) return NotEnough(share, Bytes(0), 1);
  share.keeps_all_ = true;
  share.limit_ = static_cast<uint32_t>(most);
  share.guaranteed_ = 1;
  share.slots_per_segment_ =
      static_cast<uint32_t>(std::min(UsualSegment(Tier::kHost, chunk_size), most));
  share.slots_.emplace(0);
  shares->state_ = JobState::kRunning;
  return shares;
}

absl::Status ShareLedger::NotEnough(const Share& share, Bytes requested, uint64_t least) const {
  const Pool pool = share.pool();
  const Bytes free = std::min(Free(pool), Unguaranteed(pool));
  return absl::ResourceExhaustedError(absl::StrCat(
      "the ", PoolName(pool), " pool has ", FormatBytes(free), " free of ",
      FormatBytes(capacity(pool)),
      "; requested: ", requested.IsZero() ? "all that is free" : FormatBytes(requested),
      ", at least ", least, " chunks of ", FormatBytes(share.chunk_size()), " are needed"));
}

absl::StatusOr<Bytes> ShareLedger::FixedShare(const Share& share, Bytes requested) const {
  const Pool pool = share.pool();
  if (capacity(pool).IsZero()) {
    if (requested.IsZero()) return Bytes(0);
    return absl::ResourceExhaustedError(absl::StrCat("requested ", FormatBytes(requested),
                                                     " of the ", std::string(TierName(pool.tier)),
                                                     " pool, but this node has none"));
  }
  const Bytes free = std::min(Free(pool), Unguaranteed(pool));
  const uint64_t permitted = MostSlots(share, Counting::kLent);
  const Bytes all = share.chunk_size() * std::min(free / share.chunk_size(), permitted);
  const Bytes bytes = requested.IsZero() ? all : RoundDown(requested, share.chunk_size());
  // Slots are counted in 32 bits.
  const Bytes bounded = std::min(bytes, share.chunk_size() * limits_.chunks);
  if (permitted < std::max(uint64_t{kMinSlots}, bounded / share.chunk_size())) {
    return RefusedByQuota(share, requested.IsZero() ? "all that is free" : FormatBytes(requested));
  }
  if (bytes > free || bounded / share.chunk_size() < kMinSlots) {
    return NotEnough(share, requested, kMinSlots);
  }
  return bounded;
}

uint64_t ShareLedger::SegmentSlots(Bytes size, Bytes chunk) {
  return std::min(std::max<uint64_t>(kMinSlots, size / chunk),
                  std::max<uint64_t>(1, kMaxRegionSize / chunk));
}

absl::Status ShareLedger::LendFixed(Share& share, Bytes requested, bool by_slot) {
  MEMTIDE_ASSIGN_OR_RETURN(const Bytes bytes, FixedShare(share, requested));
  if (bytes.IsZero()) return absl::OkStatus();
  const uint64_t slots = bytes / share.chunk_size();
  if (by_slot) MEMTIDE_RETURN_IF_ERROR(CheckDeviceRegions(share, slots));
  share.bytes_ = bytes;
  share.by_slot_ = by_slot;
  share.target_ = share.limit_ = static_cast<uint32_t>(slots);
  share.slots_.emplace(share.target_);
  const uint64_t usual = SegmentSlots(Share::kSegmentSize, share.chunk_size());
  share.slots_per_segment_ = by_slot ? 1 : static_cast<uint32_t>(std::min(slots, usual));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobShares>> ShareLedger::Restore(const JobRecord& record,
                                                                MemoryKind device_memory) {
  // The node may have fewer devices than before. No device memory is restored, so any serves.
  const Pool recorded{Tier::kDevice, record.device};
  const Pool device = capacity(recorded).IsZero() ? DeviceFor(OpenCall()) : recorded;
  std::unique_ptr<JobShares> shares(new JobShares(this, record.job, record.chunk_size, device));
  shares->owner_ = {record.uid, record.groups};
  shares->may_linger_ = true;
  Share& host = (*shares)[Tier::kHost];
  Share& ssd = (*shares)[Tier::kSsd];
  for (const Tier tier : kAllTiers) {
    const Bytes bytes = record.shares[static_cast<int>(tier)];
    if (bytes.IsZero()) continue;
    Share& share = (*shares)[tier];
    share.by_slot_ = IsBySlot(tier, device_memory);
    // The node may have another device than before, whose memory is not lent slot by slot.
    const bool may_be_elastic = tier != Tier::kDevice || share.by_slot_;
    if (may_be_elastic) share.guaranteed_ = record.guaranteed[static_cast<int>(tier)];
    if (!share.is_elastic()) {
      MEMTIDE_RETURN_IF_ERROR(LendFixed(share, bytes, share.by_slot_));
      continue;
    }
    share.slots_per_segment_ = tier == Tier::kDevice ? 1
                               : tier == Tier::kHost ? record.slots_per_region
                                                     : record.slots_per_store;
    share.limit_ = static_cast<uint32_t>(bytes / record.chunk_size);
    if (share.slots_per_segment_ == 0 || share.guaranteed_ > share.limit_) {
      return absl::DataLossError("its record names an impossible share");
    }
    share.slots_.emplace(share.limit_);
  }
  // The recorded slot numbers count slots of segments of that size.
  if (record.slots_per_region != host.slots_per_segment_ ||
      record.slots_per_store != ssd.slots_per_segment_) {
    return absl::FailedPreconditionError(
        "its segments have the size of another version of memtided");
  }
  const auto most = [](const Share& share) -> size_t {
    const uint32_t each = share.slots_per_segment_;
    return share.exists() ? (share.limit_ + each - 1) / each : 0;
  };
  if (record.regions.size() > most(host) || record.stores.size() > most(ssd)) {
    return absl::DataLossError("its record names more memory than its shares");
  }
  return shares;
}

// Host slots without content have lost their pages (recovery/restore.cc).
absl::Status ShareLedger::RestoreTarget(Share& share) {
  const Tier tier = share.tier();
  const Pool pool = share.pool();
  SlotPool& slots = *share.slots_;
  while (tier == Tier::kHost && slots.free_slots() > 0) slots.Gone(slots.Unback(slots.Take()));
  uint32_t target = std::max(share.made_slots(), std::min(share.guaranteed_, kMinSlots));
  if (slots.numbers() < target) {
    // Memory is made in whole segments: a share that ends within its next segment could never grow.
    target = std::max(target, slots.numbers() + share.next_segment_slots());
  }
  const Bytes bytes = share.chunk_size() * target, free = Free(pool);
  if (bytes > free) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has ", FormatBytes(bytes), " of the ", PoolName(pool), " pool, which has ",
                     FormatBytes(free), " free of ", FormatBytes(capacity(pool))));
  }
  slots.Resize(target);
  share.target_ = target;
  share.bytes_ = bytes;
  return absl::OkStatus();
}

uint64_t JobShares::device_regions() const {
  const Share& device = (*this)[Tier::kDevice];
  // Regions that sessions have not returned yet still exist.
  return device.by_slot() ? device.limit() + device.leaving().size() : 0;
}

// A region is a descriptor of the daemon.
uint64_t ShareLedger::MostDeviceRegions(const Share& share) const {
  const JobShares& own = *jobs_.at(share.job());
  uint64_t of_all = 0, of_uid = 0;
  for (const auto& [id, job] : jobs_) {
    if (job == &own) continue;
    of_all += job->device_regions();
    if (job->owner_.uid == own.owner_.uid) of_uid += job->device_regions();
  }
  // With `most` more, the user has no more than is left.
  const uint64_t node = limits_.device_regions_per_node;
  const uint64_t most = (node - std::min(node, of_all + of_uid)) / 2;
  return std::min<uint64_t>(limits_.device_regions, most);
}

absl::Status ShareLedger::CheckDeviceRegions(const Share& share, uint64_t slots) const {
  // Regions that sessions have not returned yet still exist.
  const uint64_t regions = slots + share.leaving().size(), most = MostDeviceRegions(share);
  if (regions <= most) return absl::OkStatus();
  if (regions <= limits_.device_regions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("device_regions_per_node: a device share of ", slots, " chunks of ",
                     FormatBytes(share.chunk_size()), " would have ", regions,
                     " regions of one chunk each; beside its user's other jobs it can have ", most,
                     " of ", limits_.device_regions_per_node,
                     ". Use larger chunks, end a job, or raise the daemon's LimitNOFILE"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "device_regions: a device share of ", slots, " chunks of ", FormatBytes(share.chunk_size()),
      " would have ", regions, " regions of one chunk each; the limit is ", limits_.device_regions,
      " a job. Use larger chunks or a smaller share"));
}

void ShareLedger::Resize(Share& share, uint32_t slots) {
  uint32_t target = slots;
  if (share.is_elastic()) {
    share.limit_ = slots;
    share.guaranteed_ = std::min(share.guaranteed_, slots);
    const uint64_t reachable = share.target_ + Free(share.pool()) / share.chunk_size();
    const uint64_t permitted = std::max<uint64_t>(share.target_, MostSlots(share, Counting::kLent));
    target = static_cast<uint32_t>(std::min({uint64_t{slots}, reachable, permitted}));
  }
  share.target_ = target;
  share.slots_->Resize(target);
  Charge(share);
}

void ShareLedger::LoseSlot(Share& share) {
  if (share.is_elastic()) {
    share.limit_ -= 1;
    share.guaranteed_ = std::min(share.guaranteed_, share.limit_);
  }
  share.target_ -= 1;
  share.slots_->Resize(share.slots_->size() - 1);
  Charge(share);
}

uint32_t ShareLedger::GiveUpRegion(Share& share) {
  return GiveUpRegion(share, share.slots_->Take());
}

uint32_t ShareLedger::GiveUpRegion(Share& share, Slot slot) {
  const SlotNumber number = share.slots_->Unback(std::move(slot));
  share.slots_->Gone(number);
  Charge(share);
  return std::exchange(share.segments_[number.value()], kNoSegment);
}

bool ShareLedger::Leave(Share& share, uint32_t region, std::vector<SessionId> holders) {
  const bool unused = holders.empty();
  if (unused) share.dropping_.insert(region);
  share.leaving_.emplace(region, std::move(holders));
  return unused;
}

bool ShareLedger::Return(Share& share, uint32_t region, SessionId session) {
  const auto found = share.leaving_.find(region);
  if (found == share.leaving_.end()) return false;
  std::vector<SessionId>& holders = found->second;
  const auto holder = std::find(holders.begin(), holders.end(), session);
  // A client may return a region twice, or one that it never had.
  if (holder == holders.end()) return false;
  holders.erase(holder);
  if (holders.empty()) share.dropping_.insert(region);
  return holders.empty();
}

// A share of fixed size is charged for all of it, unless it changes slot by slot.
void ShareLedger::Charge(Share& share) {
  if (!share.by_slot() && !share.is_elastic()) return;
  const Bytes bytes = share.chunk_size() * std::max(share.target_, share.made_slots());
  // ServeFreed() offers the memory to starved jobs and waiting Opens.
  freed_ = freed_ || bytes < share.bytes_;
  share.bytes_ = bytes;
}

void ShareLedger::CheckInvariants() const {
  for (const Pool pool : Pools()) {
    // Memory that exists is not free, in whatever state its job is, or its region.
    Bytes charged;
    for (const auto& [id, job] : jobs_) {
      const Share* const share = job->In(pool);
      if (share == nullptr) continue;
      charged += share->bytes() + share->chunk_size() * share->leaving().size();
    }
    MEMTIDE_CHECK(charged <= capacity(pool) && Free(pool) == capacity(pool) - charged)
        << "the " << PoolName(pool) << " pool of " << capacity(pool) << " is charged " << charged;
  }
  for (const auto& [id, job] : jobs_) {
    for (const Share& share : job->shares_) {
      share.CheckInvariants();
      MEMTIDE_CHECK(!share.exists() || !capacity(share.pool()).IsZero());
    }
    const Share& host = (*job)[Tier::kHost];
    MEMTIDE_CHECK(host.balloon() == 0 || job->home() == Tier::kSsd);
    const Share& device = (*job)[Tier::kDevice];
    const size_t leaving = job->state() == JobState::kEnding ? 0 : device.leaving().size();
    MEMTIDE_CHECK(!device.by_slot() || device.target() + leaving <= limits_.device_regions);
  }
}

}  // namespace memtide
