// FaultInjector: plants one fault between the engine and the fake node, to show that the checks
// bite.
//
// A simulation with a fault injector must break its verdict. Faults that change effects do so
// before the fake node and the model see them, as if the engine had been wrong. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_FAKES_FAULT_INJECTOR_H_
#define MEMTIDE_TESTS_SIM_FAKES_FAULT_INJECTOR_H_

#include <vector>

#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "tests/sim/fakes/fake_node.h"
#include "tests/sim/random.h"

namespace memtide::sim {

enum class Fault : uint8_t {
  kNone,
  kReplyLost,
  kReplyTwice,
  kReplyWithError,
  kReplyOkInstead,  // OK where the engine answered an error.
  kLeaseInOtherSlot,
  kLeaseOfOtherChunk,
  kLeaseStronger,  // Write where read was asked.
  kLeaseOlderVersion,
  kTransferLost,  // Reported done, nothing copied.
  kTransferFailureHidden,
  kTransferNeverStarted,
  kTransferToOtherSlot,
  kTransferFromOtherSlot,
  kRegionToOtherSession,
  kRegionNotSent,
  kRegionDroppedEarly,
  kRegionNeverDropped,
  kSessionClosedForNothing,
  kClientDeathUnheard,  // The engine gets no ClientGone.
  kPoolMiscounted,
  kChunkIdAgain,  // An allocation returns an id that is in use.
  kRegionGoneUnsaid,
  kRegionDroppedUnreturned,
  kSlotEmptiedInUse,
  kStepNeverStarted,
  kStepLost,  // Reported done, nothing computed.
  kStepFromOtherSlot,
  kPublishedStepMiscounted,
  kRecordLost,
  kRecordHidesTorn,
  kRecordCopyInOtherSlot,
  kRegionOnOtherDevice,
  kStepTwice,
  kStepInOtherSlot,
  kStepReadsInOtherOrder,
  kStepFailureHidden,
  kCommitNotDone,  // Answered, and the engine never gets the call.
  kRecordOfOlderStep,
  kRecordOfOtherManifest,
  kRecordWithoutChunk,
  kRecordKeepsFreedChunk,
  kRecordCallsStaleCopyValid,
  kRestoredWithoutChunk,
  kDiskWriteMisdirected,
  kDiskReadMisdirected,
  kDiskWriteForgotten,  // The place holds its old bytes.
  kStoreNeverDropped,
  kStoreDroppedEarly,
  // From here on: only with parts that clients compute.
  kPartFromOtherSlot,
  kPartInOtherSlot,
  kPartEndUnheard,  // Answered, and the engine never gets the call.
};
inline constexpr int kFaults = 52;

const char* FaultName(Fault fault);

class FaultInjector {
 public:
  // Strikes about once in `one_in` opportunities. REQUIRES: one_in is not zero.
  FaultInjector(Fault fault, uint64_t seed, uint32_t one_in)
      : fault_(fault), one_in_(one_in), random_(seed) {}

  // The effects become those that the fake node and the model are shown instead.
  void Spoil(std::vector<Effect>* effects, const FakeNode& node);
  // The fault of the fake node in the piece of work that it completes next.
  InjectedFault OnComplete(const Work& work);
  // Whether the engine is to be kept from hearing the event. Adds what the edge does instead.
  bool Withhold(const Event& event, std::vector<Effect>* effects);
  // The restore becomes the one that the next daemon finds instead.
  void Spoil(Restore* restore);

 private:
  bool Strikes() { return random_.Below(one_in_) == 0; }
  // Whether the effect is to be taken away.
  bool Removes(const Effect& effect);
  void SpoilStep(StartStep* step, std::vector<Effect>* more);
  void SpoilOne(Effect* effect, const FakeNode& node, std::vector<Effect>* more);
  bool SpoilReply(Reply* reply, std::vector<Effect>* more);
  void SpoilLease(Lease* lease);
  void SpoilRecord(Record* record);
  void SpoilTransfer(StartTransfer* transfer, const FakeNode& node, std::vector<Effect>* more);

  const Fault fault_;
  const uint32_t one_in_;
  Random random_;
  std::vector<ChunkId> chunks_;      // Seen in allocations.
  std::vector<SessionId> sessions_;  // Seen in effects.
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_FAKES_FAULT_INJECTOR_H_
