#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "daemon/engine/tables/share_ledger.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr Bytes kChunk = MiB(2);

// What jobs, the machine and sessions may do in any order. CheckInvariants() after each operation
// compares the sums.
class AnyOperations : public testing::TestWithParam<uint32_t> {
 protected:
  struct TestJob {
    std::unique_ptr<JobShares> shares;
    std::vector<Slot> slots;
  };

  uint32_t Below(uint32_t end) { return random_() % end; }
  void Open() {
    OpenCall open;
    open.chunk_size = kChunk;
    open.device_share = kChunk * 4;
    open.elastic = Below(2) == 0;
    open.host_share = kChunk * (open.elastic ? 0 : 4 + Below(20));
    open.ssd_share = kChunk * (open.elastic ? 0 : 8 + Below(60));
    const MemoryKind kinds[] = {MemoryKind::kSharedMemory, MemoryKind::kCudaDescriptor};
    absl::StatusOr<std::unique_ptr<JobShares>> shares =
        ledger_.Lend(JobId(next_job_++), open, kinds[Below(2)]);
    if (shares.ok()) jobs_.push_back({*std::move(shares), {}});
  }
  void Change(TestJob& job) {
    const Tier tier = kAllTiers[Below(kTiers)];
    Share& share = (*job.shares)[tier];
    const bool grows = share.can_grow() && share.making() == kNoSegment;
    switch (Below(8)) {
      case 0:
      case 1:
        if (share.making() != kNoSegment) return Finish(job, share);
        if (grows && !Populate(share)) ledger_.MakeSegment(share, next_segment_++);
        return;
      case 2:
        if (share.slots().spare_slots() > 0) job.slots.push_back(share.Take());
        return;
      case 3:
        if (!job.slots.empty()) job.slots.erase(job.slots.begin() + Below(job.slots.size()));
        return;
      case 4:
        return share.by_slot() ? Shrink(job, share) : Release((*job.shares)[Tier::kHost]);
      case 5: {
        const auto growth = ledger_.PlanGrowth(share, 1 + Below(20), {});
        if (!growth.has_value()) return;
        if (growth->reclaim.has_value()) ledger_.ReclaimFromOthers(*growth->reclaim, {});
        ledger_.Grow(share, *growth, {});
        return;
      }
      case 6:
        ledger_.RetrySegments(*job.shares);
        return ledger_.SetState(*job.shares, JobState(Below(3)));
      default:
        ledger_.BalanceBalloons(kChunk * Below(60), kChunk * 20, {{share.job(), kChunk * 4}});
    }
  }
  void Finish(TestJob& job, Share& share) {
    const uint32_t segment = share.making();
    if (Below(20) == 0) {
      ledger_.SegmentFailed(*job.shares, share, segment);
      return;
    }
    if (!ledger_.SegmentMade(share, segment)) Drop(job, share, segment);
  }
  void Drop(TestJob& job, Share& share, uint32_t region) {
    ledger_.Leave(share, region, {});
    if (Below(2) == 0) ledger_.SegmentDropped(*job.shares, region);
  }
  // True: a released slot is populated instead of a segment.
  bool Populate(Share& share) {
    if (share.tier() != Tier::kHost) return false;
    const absl::optional<SlotNumber> slot = ledger_.PopulateSlot(share);
    if (!slot.has_value()) return false;
    if (Below(4) == 0) {
      ledger_.PopulateFailed(share, *slot);
    } else {
      ledger_.SlotPopulated(share, *slot);
    }
    return true;
  }
  void Release(Share& share) {
    while (share.slots().surplus_slots() > 0 && share.slots().free_slots() > 0) {
      ledger_.SlotReleased(share, ledger_.ReleaseSlot(share));
    }
  }
  void Shrink(TestJob& job, Share& share) {
    ledger_.Resize(share, 1 + Below(share.target()));
    while (share.slots().surplus_slots() > 0 && share.slots().free_slots() > 0) {
      Drop(job, share, ledger_.GiveUpRegion(share));
    }
  }

  std::mt19937 random_{GetParam()};
  ShareLedger ledger_{{kChunk * 16, kChunk * 64, kChunk * 256}, Limits()};
  uint64_t next_job_ = 1;
  uint32_t next_segment_ = 1;
  std::vector<TestJob> jobs_;
};

TEST_P(AnyOperations, KeepTheSums) {
  for (int i = 0; i < 400; ++i) {
    if (jobs_.empty() || Below(40) == 0) {
      Open();
    } else if (Below(150) == 0) {
      const auto job = jobs_.begin() + Below(jobs_.size());
      job->slots.clear();
      jobs_.erase(job);
    } else {
      Change(jobs_[Below(jobs_.size())]);
    }
    ledger_.CheckInvariants();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyOperations, testing::Range(1u, 101u));

}  // namespace
}  // namespace memtide
