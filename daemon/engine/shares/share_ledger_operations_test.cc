#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/shares/share_ledger.h"
#include "daemon/engine/shares/testing/open_calls.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

// In fewer, hardly any device share has a surplus to give back.
constexpr int kOperations = 3000;

// The operations of jobs, the machine and sessions, which may come in any order, from one seed.
// After each operation the invariants are checked, and that the usage of each pool sums up to its
// capacity.
class Operations {
 public:
  explicit Operations(uint32_t seed) : random_(seed) {}

  void Run(int operations) {
    for (int i = 0; i < operations; ++i) {
      restores_ = false;
      if (Below(100) == 0) {
        SetQuotas();
      } else if (jobs_.empty() || Below(40) == 0) {
        Open();
      } else {
        ChangeJob(Below(jobs_.size()));
      }
      Check();
    }
  }
  // The operations of the ledger that had an effect, by name.
  const std::set<std::string>& ran() const { return ran_; }

 private:
  struct TestJob {
    JobId id;
    std::unique_ptr<JobShares> shares;
    std::vector<Slot> slots;
    std::vector<uint32_t> dropping;  // Segments that are being dropped.
    bool drops_all = false;          // DropSegments() was called.

    Share& share(Tier tier) { return (*shares)[tier]; }
  };

  void Check() {
    ledger_.CheckInvariants();
    for (const Pool pool : ledger_.pools().Pools()) {
      const PoolUsage usage = ledger_.pools().Usage(pool);
      EXPECT_EQ(usage.used + usage.reserved + usage.balloon + usage.scrubbing + usage.free,
                ledger_.pools().capacity(pool));
    }
    CheckQuotas();
  }
  // Jobs under a quota grow up to it, and not beyond. A restored job has what it had.
  void CheckQuotas() {
    std::map<std::pair<Quota::Kind, uint32_t>, QuotaUse> uses;
    for (const QuotaUse& use : ledger_.quotas().QuotaUses(absl::nullopt)) {
      if (use.quota.kind == Quota::Kind::kDefault && !use.uid) continue;
      const std::pair<Quota::Kind, uint32_t> key(use.quota.kind, use.uid.value_or(use.quota.id));
      const auto before = uses_.find(key);
      for (int tier = 0; tier < kTiers && before != uses_.end() && !restores_; ++tier) {
        const Bytes most =
            std::max(use.quota.most.bytes[tier].value_or(GiB(1000)), before->second.bytes[tier]);
        EXPECT_LE(use.bytes[tier], most) << use.quota.name << " at tier " << tier;
      }
      uses.emplace(key, use);
    }
    uses_ = std::move(uses);
  }
  void SetQuotas() {
    std::vector<Quota> quotas;
    const auto add = [&](Quota::Kind kind, uint32_t id, std::string name) {
      if (Below(3) == 0) return;
      Quota quota;
      quota.kind = kind;
      quota.id = id;
      quota.name = std::move(name);
      if (Below(2) == 0) quota.most.bytes[0] = kChunk * Below(30);
      if (Below(2) == 0) quota.most.bytes[1] = kChunk * Below(70);
      if (Below(2) == 0) quota.most.bytes[2] = kChunk * Below(280);
      quotas.push_back(std::move(quota));
    };
    add(Quota::Kind::kUser, 0, "user:0");
    add(Quota::Kind::kGroup, 9, "group:9");
    add(Quota::Kind::kDefault, 0, "default");
    ledger_.quotas().SetQuotas(quotas);
    for (const ShareLedger::Reclaim& reclaim : ledger_.quotas().OverQuota()) {
      if (!ledger_.elastic().ReclaimFromOthers(reclaim, {}).empty()) ran_.insert("OverQuota");
    }
  }
  uint32_t Below(uint32_t end) { return random_() % end; }
  MemoryKind AnyKind() {
    return Below(2) == 0 ? MemoryKind::kSharedMemory : MemoryKind::kCudaDescriptor;
  }
  void Open() {
    OpenCall open;
    open.chunk_size = kChunk;
    open.device_share = kChunk * (kMinSlots + Below(4));
    if (Below(2) == 0) open.device = Below(2);
    open.elastic = Below(2) == 0;
    open.host_share = kChunk * (open.elastic ? 0 : 4 + Below(20));
    open.ssd_share = kChunk * (open.elastic ? 0 : 8 + Below(60));
    const JobId id(next_job_++);
    absl::StatusOr<std::unique_ptr<JobShares>> shares =
        ledger_.Lend(id, Owner{Below(3), {Below(2) + 8}}, open, AnyKind());
    if (IsByQuota(shares.status())) ran_.insert("a quota forbids it");
    if (!shares.ok()) return;
    const uint32_t device = (**shares)[Tier::kDevice].pool().device;
    EXPECT_EQ(device, open.device.value_or(device));
    if (device > 0) ran_.insert(open.device.has_value() ? "a named device" : "the emptiest device");
    jobs_.push_back({id, *std::move(shares), {}, {}});
  }
  void ChangeJob(uint32_t number) {
    TestJob& job = jobs_[number];
    if (job.shares->state() == JobState::kEnding) return GoOnEnding(number);
    if (Below(150) == 0) return Restart(number);
    if (Below(150) == 0) return End(job);
    Change(job, job.share(kAllTiers[Below(kTiers)]));
  }
  void Change(TestJob& job, Share& share) {
    Share& host = job.share(Tier::kHost);
    switch (Below(10)) {
      case 0:
      case 1:
        return share.making() != kNoSegment ? Finish(job, share) : Make(share);
      case 2:
        if (share.slots().spare_slots() > 0) job.slots.push_back(share.Take());
        return;
      case 3:
        if (!job.slots.empty()) job.slots.erase(job.slots.begin() + Below(job.slots.size()));
        return;
      case 4:
        return share.by_slot() ? Resize(job, share) : Release(host);
      case 5:
        return Grow(share);
      case 6:
        ledger_.RetrySegments(*job.shares);
        return ledger_.SetState(*job.shares, JobState(Below(3)));
      case 7:
        return Return(job, job.share(Tier::kDevice));
      case 8:
        if (ledger_.balloons().DeflateFor(host, 1 + Below(20), Below(4))) ran_.insert("DeflateFor");
        return;
      default:
        ledger_.balloons().BalanceBalloons(kChunk * Below(60), kChunk * 20,
                                           {{share.job(), kChunk * 4}});
        if (!job.dropping.empty()) DropOne(job);
    }
  }

  // --- Segments and slots ---
  void Make(Share& share) {
    if (!share.can_grow() || Populate(share)) return;
    ledger_.MakeSegment(share, next_segment_++);
  }
  void Finish(TestJob& job, Share& share) {
    const uint32_t segment = share.making();
    if (Below(20) == 0) {
      ran_.insert("SegmentFailed");
      ledger_.SegmentFailed(*job.shares, share, segment);
      // A job whose first memory cannot be made does not begin.
      if (job.shares->state() == JobState::kMaking) End(job);
      return;
    }
    // No session has mapped a region that came too late.
    if (!ledger_.SegmentMade(share, segment)) LetGo(job, share, segment, {});
  }
  // True: a released slot is populated instead of a segment.
  bool Populate(Share& share) {
    if (share.tier() != Tier::kHost) return false;
    const absl::optional<SlotNumber> slot = ledger_.balloons().PopulateSlot(share);
    if (!slot.has_value()) return false;
    if (Below(4) == 0) {
      ran_.insert("PopulateFailed");
      ledger_.balloons().PopulateFailed(share, *slot);
    } else {
      ran_.insert("SlotPopulated");
      ledger_.balloons().SlotPopulated(share, *slot);
    }
    return true;
  }
  void Release(Share& share) {
    while (share.slots().surplus_slots() > 0 && share.slots().free_slots() > 0) {
      ran_.insert("SlotReleased");
      ledger_.balloons().SlotReleased(share, ledger_.balloons().ReleaseSlot(share));
    }
  }
  void Grow(Share& share) {
    const auto growth = ledger_.elastic().PlanGrowth(share, 1 + Below(20), {});
    if (!growth.has_value()) return;
    if (growth->reclaim.has_value() &&
        !ledger_.elastic().ReclaimFromOthers(*growth->reclaim, {}).empty()) {
      ran_.insert("ReclaimFromOthers");
    }
    for (const ShareLedger::Reclaim& within : growth->within_quotas) {
      if (!ledger_.elastic().ReclaimFromOthers(within, {}).empty()) ran_.insert("within a quota");
    }
    if (ledger_.elastic().Grow(share, *growth, {}).has_value()) ran_.insert("Grow");
  }

  // --- Shares that change slot by slot ---
  void Resize(TestJob& job, Share& share) {
    const uint64_t most = (share.bytes() + ledger_.pools().Free(share.pool())) / kChunk;
    const uint32_t slots = kMinSlots + Below(most - kMinSlots + 1);
    if (!share.is_elastic() && slots > share.target() &&
        !ledger_.quotas().CheckQuota(share, slots).ok()) {
      return;
    }
    ledger_.Resize(share, slots);
    while (share.slots().surplus_slots() > 0 && share.slots().free_slots() > 0) {
      std::vector<SessionId> holders;
      for (uint64_t session = 1; session <= 2; ++session) {
        if (Below(2) == 0) holders.push_back(SessionId(session));
      }
      if (!holders.empty()) ran_.insert("Leave with holders");
      LetGo(job, share, ledger_.GiveUpRegion(share), std::move(holders));
    }
  }
  void LetGo(TestJob& job, Share& share, uint32_t region, std::vector<SessionId> holders) {
    const bool unused = holders.empty();
    EXPECT_EQ(ledger_.Leave(share, region, std::move(holders)), unused);
    if (unused) job.dropping.push_back(region);
  }
  // Clients may return a region twice, or one that they never had.
  void Return(TestJob& job, Share& share) {
    if (share.leaving().empty()) return;
    const auto left = std::next(share.leaving().begin(), Below(share.leaving().size()));
    ReturnFrom(job, share, left->first, SessionId(1 + Below(3)));
  }
  void ReturnFrom(TestJob& job, Share& share, uint32_t region, SessionId session) {
    const std::vector<SessionId>& holders = share.leaving().at(region);
    const bool last = holders == std::vector<SessionId>{session};
    EXPECT_EQ(ledger_.Return(share, region, session), last);
    if (!last) return;
    ran_.insert("Return");
    job.dropping.push_back(region);
  }

  // --- The end of jobs ---
  void End(TestJob& job) {
    job.slots.clear();
    // Its sessions end first, and with them all of their mappings.
    Share& device = job.share(Tier::kDevice);
    for (const auto& [region, holders] : device.leaving()) {
      const std::vector<SessionId> sessions = holders;
      for (const SessionId session : sessions) ReturnFrom(job, device, region, session);
    }
    ledger_.SetState(*job.shares, JobState::kEnding);
  }
  // An ending job waits for what is being made and dropped. Then it drops all that is left.
  void GoOnEnding(uint32_t number) {
    TestJob& job = jobs_[number];
    for (const Tier tier : kAllTiers) {
      if (job.share(tier).making() != kNoSegment) return Finish(job, job.share(tier));
    }
    if (!job.dropping.empty()) return DropOne(job);
    EXPECT_EQ(job.shares->pending(), 0u);
    if (job.drops_all) {
      ran_.insert("an ending job goes");
      jobs_.erase(jobs_.begin() + number);
      return;
    }
    job.drops_all = true;
    for (const Tier tier : kAllTiers) {
      for (const uint32_t segment : ledger_.DropSegments(job.share(tier))) {
        ran_.insert("DropSegments");
        job.dropping.push_back(segment);
      }
    }
  }
  void DropOne(TestJob& job) {
    const auto segment = job.dropping.begin() + Below(job.dropping.size());
    // Before DropSegments() only regions that have left are dropped.
    EXPECT_EQ(ledger_.SegmentDropped(*job.shares, *segment), !job.drops_all);
    job.dropping.erase(segment);
  }

  // --- The next daemon ---
  static JobRecord RecordOf(TestJob& job) {
    JobRecord record;
    record.job = job.id;
    record.chunk_size = kChunk;
    record.device = job.share(Tier::kDevice).pool().device;
    for (const Tier tier : kAllTiers) {
      const Share& share = job.share(tier);
      record.shares[static_cast<int>(tier)] =
          kChunk * (share.is_elastic() ? share.limit() : share.target());
      record.guaranteed[static_cast<int>(tier)] = share.guaranteed();
    }
    const Share &host = job.share(Tier::kHost), &ssd = job.share(Tier::kSsd);
    for (const uint32_t region : host.segments()) record.regions.push_back(RegionId(region));
    for (const uint32_t store : ssd.segments()) record.stores.push_back(StoreId(store));
    record.slots_per_region = host.slots_per_segment();
    record.slots_per_store = ssd.slots_per_segment();
    return record;
  }
  // The job goes, and comes back as a daemon restores it from its record.
  void Restart(uint32_t number) {
    restores_ = true;
    const JobRecord record = RecordOf(jobs_[number]);
    jobs_[number].slots.clear();
    jobs_.erase(jobs_.begin() + number);
    Check();
    absl::StatusOr<std::unique_ptr<JobShares>> shares = ledger_.Restore(record, AnyKind());
    if (!shares.ok()) return ExpectExhausted(shares.status());
    TestJob job{record.job, *std::move(shares), {}, {}};
    ran_.insert("Restore");
    for (const RegionId region : record.regions) Back(job, Tier::kHost, region.value());
    for (const StoreId store : record.stores) Back(job, Tier::kSsd, store.value());
    for (const Tier tier : {Tier::kHost, Tier::kSsd}) {
      Share& share = job.share(tier);
      TakeSome(job, share);
      if (!share.is_elastic()) continue;
      const absl::Status status = ledger_.RestoreTarget(share);
      if (!status.ok()) return ExpectExhausted(status);
      ran_.insert("RestoreTarget");
    }
    ledger_.SetState(*job.shares, JobState::kLingering);
    jobs_.push_back(std::move(job));
  }
  void Back(TestJob& job, Tier tier, uint32_t segment) {
    ledger_.BackSegment(job.share(tier), segment);
  }
  // The slots that the records of chunks name.
  void TakeSome(TestJob& job, Share& share) {
    std::vector<SlotNumber> numbers;
    for (uint32_t number = 0; number < share.slots().numbers(); ++number) {
      if (Below(2) == 0) numbers.push_back(SlotNumber(number));
    }
    absl::optional<std::vector<Slot>> slots = share.TakeNumbers(numbers);
    ASSERT_TRUE(slots.has_value());
    std::move(slots->begin(), slots->end(), std::back_inserter(job.slots));
  }
  // Ending jobs may have more memory than was guaranteed to them.
  static void ExpectExhausted(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }

  std::mt19937 random_;
  ShareLedger ledger_{{{kChunk * 16, kChunk * 12}, kChunk * 64, kChunk * 256}, Limits()};
  uint64_t next_job_ = 1;
  uint32_t next_segment_ = 1;
  std::vector<TestJob> jobs_;
  std::set<std::string> ran_;
  std::map<std::pair<Quota::Kind, uint32_t>, QuotaUse> uses_;  // After the last operation.
  bool restores_ = false;
};

class AnyOperations : public testing::TestWithParam<uint32_t> {};

TEST_P(AnyOperations, KeepTheSums) { Operations(GetParam()).Run(kOperations); }

INSTANTIATE_TEST_SUITE_P(Seeds, AnyOperations, testing::Range(1u, 101u));

TEST(OperationsTest, EachRuns) {
  std::set<std::string> ran;
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    Operations operations(seed);
    operations.Run(kOperations);
    ran.insert(operations.ran().begin(), operations.ran().end());
  }
  for (const char* name :
       {"SegmentFailed", "SlotReleased", "SlotPopulated", "PopulateFailed", "DeflateFor", "Grow",
        "ReclaimFromOthers", "Leave with holders", "Return", "DropSegments", "an ending job goes",
        "Restore", "RestoreTarget", "a named device", "the emptiest device", "OverQuota",
        "a quota forbids it", "within a quota"}) {
    EXPECT_EQ(ran.count(name), 1u) << name << " did not run";
  }
}

}  // namespace
}  // namespace memtide
