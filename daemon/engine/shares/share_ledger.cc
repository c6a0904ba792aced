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

// A guaranteed share of host or device memory is a quarter of what is not guaranteed to others, or
// a smaller part of host memory where several sessions have much of it in common. There it is at
// least the 12 slots that one step part may need at once (decision 18), and kMinSlots for each
// rank, which must lease two chunks at once where an access crosses a border. A segment aims at an
// eighth of its pool at most.
constexpr uint32_t kGuaranteedPart = 4, kLeastGuaranteed = 12, kSegmentsOfPool = 8;

uint64_t MinSlots(uint32_t ranks) { return uint64_t{kMinSlots} * std::max(uint32_t{1}, ranks); }

}  // namespace

ShareLedger::~ShareLedger() {
  MEMTIDE_CHECK(pools_.jobs().empty()) << "the shares of a job outlive the ledger that lent them";
}

bool ShareLedger::IsElastic(const OpenCall& open, Tier tier) const {
  if (!open.elastic || !SharePools::AskedOf(open, tier).IsZero()) return false;
  const bool has_ssd = !pools_.capacity({Tier::kSsd}).IsZero();
  if (tier != Tier::kDevice) return has_ssd;
  // Only memory that is lent slot by slot goes back while a job runs, and only chunks that have
  // their home below leave it.
  return open.device_memory.has_value() && IsBySlot(tier, *open.device_memory) &&
         (has_ssd || !pools_.capacity({Tier::kHost}).IsZero());
}

void ShareLedger::Count(const OpenCall& open, Pool pool, Opens* opens) const {
  const Tier tier = pool.tier;
  if (pools_.PoolFor(open, tier) != pool) return;
  opens->any = true;
  opens->elastic += IsElastic(open, tier);
  // Clients may request any size, so the sum is bounded.
  opens->requested =
      CheckedAdd(opens->requested, SharePools::AskedOf(open, tier)).value_or(Bytes(~uint64_t{0}));
}

Bytes ShareLedger::NeededToOpen(const OpenCall& open, Tier tier) const {
  const Pool pool = pools_.PoolFor(open, tier);
  if (pools_.capacity(pool).IsZero()) return Bytes(0);
  if (!IsElastic(open, tier)) return RoundDown(SharePools::AskedOf(open, tier), open.chunk_size);
  return std::min(RoundDown(pools_.Unguaranteed(pool), open.chunk_size),
                  open.chunk_size * LeastShare(tier, open.chunk_size, open.ranks));
}

absl::StatusOr<std::unique_ptr<JobShares>> ShareLedger::Lend(JobId job, const Owner& owner,
                                                             const OpenCall& open,
                                                             MemoryKind device_memory) {
  // An error below destroys the shares, which returns those that were lent already.
  std::unique_ptr<JobShares> shares(
      new JobShares(&pools_, job, open.chunk_size, pools_.DeviceFor(open)));
  shares->owner_ = owner;
  shares->may_linger_ = open.time_to_live > Duration(0);
  MEMTIDE_RETURN_IF_ERROR(quotas_.CheckJobQuotas(*shares, open));
  for (const Tier tier : kAllTiers) {
    Share& share = (*shares)[tier];
    MEMTIDE_RETURN_IF_ERROR(
        IsElastic(open, tier)
            ? LendElastic(share, open)
            : LendFixed(share, SharePools::AskedOf(open, tier), IsBySlot(tier, device_memory)));
  }
  MEMTIDE_RETURN_IF_ERROR(quotas_.CheckLingeringQuotas(*shares));
  return shares;
}

absl::StatusOr<std::unique_ptr<JobShares>> ShareLedger::LendForContents(JobId job,
                                                                        const Owner& owner,
                                                                        Bytes chunk_size) {
  std::unique_ptr<JobShares> shares(new JobShares(&pools_, job, chunk_size, {Tier::kDevice}));
  shares->owner_ = owner;
  shares->is_hidden_ = true;
  Share& share = (*shares)[Tier::kHost];
  MEMTIDE_RETURN_IF_ERROR(quotas_.CheckQuota(share, 1));
  const uint64_t most =
      std::min({pools_.Unguaranteed({Tier::kHost}) / chunk_size, uint64_t{pools_.limits().chunks},
                quotas_.MostSlots(share, Quotas::Counting::kGuaranteed)});
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
  const Bytes free = std::min(pools_.Free(pool), pools_.Unguaranteed(pool));
  return absl::ResourceExhaustedError(absl::StrCat(
      "the ", PoolName(pool), " pool has ", FormatBytes(free), " free of ",
      FormatBytes(pools_.capacity(pool)),
      "; requested: ", requested.IsZero() ? "all that is free" : FormatBytes(requested),
      ", at least ", least, " chunks of ", FormatBytes(share.chunk_size()), " are needed"));
}

absl::StatusOr<Bytes> ShareLedger::FixedShare(const Share& share, Bytes requested) const {
  const Pool pool = share.pool();
  if (pools_.capacity(pool).IsZero()) {
    if (requested.IsZero()) return Bytes(0);
    return absl::ResourceExhaustedError(absl::StrCat("requested ", FormatBytes(requested),
                                                     " of the ", std::string(TierName(pool.tier)),
                                                     " pool, but this node has none"));
  }
  const Bytes free = std::min(pools_.Free(pool), pools_.Unguaranteed(pool));
  const uint64_t permitted = quotas_.MostSlots(share, Quotas::Counting::kLent);
  const Bytes all = share.chunk_size() * std::min(free / share.chunk_size(), permitted);
  const Bytes bytes = requested.IsZero() ? all : RoundDown(requested, share.chunk_size());
  // Slots are counted in 32 bits.
  const Bytes bounded = std::min(bytes, share.chunk_size() * pools_.limits().chunks);
  if (permitted < std::max(uint64_t{kMinSlots}, bounded / share.chunk_size())) {
    return quotas_.RefusedByQuota(share,
                                  requested.IsZero() ? "all that is free" : FormatBytes(requested));
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
  const Pool device = pools_.capacity(recorded).IsZero() ? pools_.DeviceFor(OpenCall()) : recorded;
  std::unique_ptr<JobShares> shares(new JobShares(&pools_, record.job, record.chunk_size, device));
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
  const Bytes bytes = share.chunk_size() * target, free = pools_.Free(pool);
  if (bytes > free) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has ", FormatBytes(bytes), " of the ", PoolName(pool), " pool, which has ",
                     FormatBytes(free), " free of ", FormatBytes(pools_.capacity(pool))));
  }
  slots.Resize(target);
  share.target_ = target;
  share.bytes_ = bytes;
  return absl::OkStatus();
}

// A region is a descriptor of the daemon.
uint64_t ShareLedger::MostDeviceRegions(const Share& share) const {
  const JobShares& own = *pools_.jobs().at(share.job());
  uint64_t of_all = 0, of_uid = 0;
  for (const auto& [id, job] : pools_.jobs()) {
    if (job == &own) continue;
    of_all += job->device_regions();
    if (job->owner_.uid == own.owner_.uid) of_uid += job->device_regions();
  }
  // With `most` more, the user has no more than is left.
  const uint64_t node = pools_.limits().device_regions_per_node;
  const uint64_t most = (node - std::min(node, of_all + of_uid)) / 2;
  return std::min<uint64_t>(pools_.limits().device_regions, most);
}

absl::Status ShareLedger::CheckDeviceRegions(const Share& share, uint64_t slots) const {
  // Regions that sessions have not returned yet still exist.
  const uint64_t regions = slots + share.leaving().size(), most = MostDeviceRegions(share);
  if (regions <= most) return absl::OkStatus();
  if (regions <= pools_.limits().device_regions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("device_regions_per_node: a device share of ", slots, " chunks of ",
                     FormatBytes(share.chunk_size()), " would have ", regions,
                     " regions of one chunk each; beside its user's other jobs it can have ", most,
                     " of ", pools_.limits().device_regions_per_node,
                     ". Use larger chunks, end a job, or raise the daemon's LimitNOFILE"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "device_regions: a device share of ", slots, " chunks of ", FormatBytes(share.chunk_size()),
      " would have ", regions, " regions of one chunk each; the limit is ",
      pools_.limits().device_regions, " a job. Use larger chunks or a smaller share"));
}

void ShareLedger::Resize(Share& share, uint32_t slots) {
  uint32_t target = slots;
  if (share.is_elastic()) {
    share.limit_ = slots;
    share.guaranteed_ = std::min(share.guaranteed_, slots);
    const uint64_t reachable = share.target_ + pools_.Free(share.pool()) / share.chunk_size();
    const uint64_t permitted =
        std::max<uint64_t>(share.target_, quotas_.MostSlots(share, Quotas::Counting::kLent));
    target = static_cast<uint32_t>(std::min({uint64_t{slots}, reachable, permitted}));
  }
  share.target_ = target;
  share.slots_->Resize(target);
  pools_.Charge(share);
}

void ShareLedger::LoseSlot(Share& share) {
  if (share.is_elastic()) {
    share.limit_ -= 1;
    share.guaranteed_ = std::min(share.guaranteed_, share.limit_);
  }
  share.target_ -= 1;
  share.slots_->Resize(share.slots_->size() - 1);
  pools_.Charge(share);
}

uint32_t ShareLedger::GiveUpRegion(Share& share) {
  return GiveUpRegion(share, share.slots_->Take());
}

uint32_t ShareLedger::GiveUpRegion(Share& share, Slot slot) {
  const SlotNumber number = share.slots_->Unback(std::move(slot));
  share.slots_->Gone(number);
  pools_.Charge(share);
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

void ShareLedger::CheckInvariants() const {
  for (const Pool pool : pools_.Pools()) {
    // Memory that exists is not free, in whatever state its job is, or its region.
    Bytes charged;
    for (const auto& [id, job] : pools_.jobs()) {
      const Share* const share = job->In(pool);
      if (share == nullptr) continue;
      charged += share->bytes() + share->chunk_size() * share->leaving().size();
    }
    MEMTIDE_CHECK(charged <= pools_.capacity(pool) &&
                  pools_.Free(pool) == pools_.capacity(pool) - charged)
        << "the " << PoolName(pool) << " pool of " << pools_.capacity(pool) << " is charged "
        << charged;
  }
  for (const auto& [id, job] : pools_.jobs()) {
    for (const Share& share : job->shares_) {
      share.CheckInvariants();
      MEMTIDE_CHECK(!share.exists() || !pools_.capacity(share.pool()).IsZero());
    }
    const Share& host = (*job)[Tier::kHost];
    MEMTIDE_CHECK(host.balloon() == 0 || job->home() == Tier::kSsd);
    const Share& device = (*job)[Tier::kDevice];
    const size_t leaving = job->state() == JobState::kEnding ? 0 : device.leaving().size();
    MEMTIDE_CHECK(!device.by_slot() || device.target() + leaving <= pools_.limits().device_regions);
  }
}

// A small pool has small segments. Otherwise the first job would take all of it.
uint64_t ShareLedger::UsualSegment(Tier tier, Bytes chunk) const {
  const Bytes part(pools_.capacity({tier}).count() / kSegmentsOfPool);
  return SegmentSlots(std::min(Share::kSegmentSize, part), chunk);
}

// The slots that a job begins with, if the pool has so many that are not guaranteed to others.
uint64_t ShareLedger::LeastShare(Tier tier, Bytes chunk, uint32_t ranks) const {
  if (tier != Tier::kHost) return MinSlots(ranks);
  const uint64_t segment = UsualSegment(tier, chunk);
  const uint64_t least = std::max(uint64_t{kLeastGuaranteed}, MinSlots(ranks));
  return (least + segment - 1) / segment * segment;
}

absl::Status ShareLedger::LendElastic(Share& share, const OpenCall& open) {
  const uint32_t ranks = open.ranks;
  const Tier tier = share.tier();
  const Pool pool = share.pool();
  const Bytes chunk = share.chunk_size();
  // `most` becomes the limit of the share, and `free` is what it can have now.
  const bool by_slot = tier == Tier::kDevice;
  if (by_slot) MEMTIDE_RETURN_IF_ERROR(CheckDeviceRegions(share, MinSlots(ranks)));
  const uint64_t of_pool =
      std::min<uint64_t>(pools_.Unguaranteed(pool) / chunk,
                         by_slot ? MostDeviceRegions(share) : pools_.limits().chunks);
  const uint64_t most = std::min(of_pool, quotas_.MostSlots(share, Quotas::Counting::kGuaranteed));
  const uint64_t permitted = std::min(most, quotas_.MostSlots(share, Quotas::Counting::kLent));
  const uint64_t free = std::min<uint64_t>(pools_.Free(pool) / chunk, permitted);
  const uint64_t least = LeastShare(tier, chunk, ranks);
  if (permitted < std::min(of_pool, least)) {
    return quotas_.RefusedByQuota(
        share,
        absl::StrCat("all that is free, at least ", FormatBytes(chunk * std::min(of_pool, least))));
  }
  if (most < MinSlots(ranks) || free < std::min(most, least)) {
    return NotEnough(share, Bytes(0), least);
  }
  uint64_t each = by_slot ? 1 : std::min(UsualSegment(tier, chunk), free), guaranteed = each;
  if (by_slot) {
    guaranteed = std::max(MinSlots(ranks), std::min(most / kGuaranteedPart, permitted));
  } else if (tier == Tier::kHost) {
    const uint64_t part = most / (uint64_t{kGuaranteedPart} * std::max(1u, open.alike));
    guaranteed = std::min(permitted, std::max({uint64_t{kLeastGuaranteed}, MinSlots(ranks), part}));
    each = std::min(each, guaranteed / 2);
    // Memory is made in whole segments, so the guaranteed share is a multiple of one.
    guaranteed = std::min((guaranteed + each - 1) / each, permitted / each) * each;
  }
  share.by_slot_ = by_slot;
  share.limit_ = static_cast<uint32_t>(most);
  share.guaranteed_ = static_cast<uint32_t>(guaranteed);
  share.slots_per_segment_ = static_cast<uint32_t>(each);
  share.target_ = share.Reachable(free, /*up=*/false);
  share.slots_.emplace(share.target_);
  share.bytes_ = chunk * share.target_;
  return absl::OkStatus();
}

}  // namespace memtide
