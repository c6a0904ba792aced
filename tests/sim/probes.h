// Probes: rare states that the simulation must reach, or it proves little. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_PROBES_H_
#define MEMTIDE_TESTS_SIM_PROBES_H_

#include <array>
#include <cstdint>
#include <string>

namespace memtide::sim {

enum class Probe : uint8_t {
  kWriteBackWhileFetchWaits,
  kPassageNarrow,  // Every host slot but one leased, and chunks pass through host memory.
  kTransferFailed,
  kDiskWriteFailedThenDone,  // The same place of a store.
  kDiskReadFailedFetch,      // DATA_LOSS that is not a torn chunk.
  kRegionNotMade,
  kRegionReplaced,
  kStoreNotMade,
  kTornByDeath,
  kTornReadRefused,
  kTornRewritten,
  kRevokeSent,
  kDeadlinePassed,
  kNoWaitRefused,
  kNoWaitExcluded,
  kWaitingCallsFull,
  kSharedReadLease,
  kUpgraded,
  kGoneWhileWaiting,
  kGoneWhileOpening,
  kClientHung,
  kEndedWithAnother,
  kSessionRefused,
  kJobRejoinedAfterLastSession,
  kJobEndedByTimeToLive,
  kDroppedClean,
  kFreedWhileMoving,
  kFreedWhileWaitedFor,
  kEvictWaited,
  kPrefetchMoved,
  kLeaseLeaves,
  kNamedAhead,
  kReplayedReply,
  kPoolExhausted,
  kChunksExhausted,
  kBatchLargerThanTier,
  kSeveralRegions,
  kDrained,
  kForeignChunk,
  kShareShrank,
  kResizedAtOnce,
  kResizeReplaced,
  kResizeLate,
  kResizeTooLarge,
  kLeasesAboveShare,
  kFetchRefusedByResize,
  kGoneWithRegions,
  kJoinedWhileShrinking,
  kShrankLingering,
  kRegionAfterGivingBack,
  kUndefinedLeased,
  kSlotEmptied,
  kSlotFilled,
  kSlotNotFilled,
  kShareCeded,
  kStepDone,
  kStepFailed,
  kPublished,
  kPublishKept,
  kPublishRepeated,
  kDiscarded,
  kRestarted,
  kRestartInStep,
  kRestartInPublish,
  kRestartUnpublished,
  kRestartPublishedOnSsd,
  // From here on: only with activations.
  kDiscardedByClient,
  kDiscardedWhileMoving,
  kHostHomeRefused,
  kTransientEnded,
  kTransientRestarted,
  // From here on: only with parts that clients compute.
  kPartComputed,
  kPartNotComputed,
  kPartEndedWithSession,
  kPartEndedByHang,
  kPartEndedTwice,  // Or never begun.
  kPartRefused,
  kPartFailed,
  kPartWaited,
  kPartAwaited,  // By another call that names one of its chunks.
  kPartPublished,
  kRestartInPart,
  // From here on: only with a disk that lies.
  kDiskFlipped,
  kDiskTore,
  kDiskMisdirected,
  kDiskForgot,
  kReadFoundWrongBytes,
  kScrubFoundWrongBytes,
  kBadCopyReplaced,  // By another one, which was valid.
  kBadCopyLost,
};
inline constexpr int kProbes = 90, kProbesOfActivations = 5, kProbesOfParts = 11, kProbesOfLies = 8;
static_assert(kProbes == static_cast<int>(Probe::kBadCopyLost) + 1);

const char* ProbeName(Probe probe);

class Probes {
 public:
  void Hit(Probe probe) { ++hits_[static_cast<size_t>(probe)]; }
  uint64_t hits(Probe probe) const { return hits_[static_cast<size_t>(probe)]; }
  void Add(const Probes& other);
  // One line per probe.
  std::string Report() const;

 private:
  std::array<uint64_t, kProbes> hits_{};
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_PROBES_H_
