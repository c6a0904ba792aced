// FakeNode: carries out the engine's effects on fakes that lose no chance to show a mistake.
//
// Memory is one 64-bit stamp per slot instead of its bytes. Work (transfers, making and dropping
// memory, hanging up) is queued until the simulation completes it, in any order. From its start to
// its end a transfer's target holds poison; it keeps it when the transfer fails; and when the
// source changed under way, what arrives is poison. So does a slot from when it is emptied until it
// is filled. So does, in the end, what the kernels of a killed client write. Poison is never a
// legal content, so that any lease of it is a broken promise. Fresh memory is zero; a fresh store
// is poison. A disk may lie: what it says it has written is elsewhere, forgotten, torn, or has
// another bit, and what it reads has, at times (fake_node_lies.cc). Slots that a client is to write
// in a part of a step that it computes hold poison until then.
//
// Breaks the verdict for what no edge could carry out: transfers out of bounds, from or to memory
// that is not there, two at once into one slot. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_FAKES_FAKE_NODE_H_
#define MEMTIDE_TESTS_SIM_FAKES_FAKE_NODE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "tests/sim/oracle/verdict.h"
#include "tests/sim/probes.h"
#include "tests/sim/random.h"

namespace memtide::sim {

using Stamp = uint64_t;
inline constexpr Stamp kZeros = 0;

struct Region {
  Pool pool;
  uint32_t uid = 0;
  Bytes size;
  bool made = false;
  bool dropping = false;
  bool persistent = false;
  bool read_only = false;
  MemoryKind memory = MemoryKind::kSharedMemory;
  std::optional<RegionId> copy_of;
};
struct Store {
  Bytes size;
  bool made = false;
  bool dropping = false;
  bool persistent = false;
};

// Something that the fake node has begun and not finished.
struct Work {
  enum class Kind : uint8_t {
    kMakeRegion,
    kDropRegion,
    kMakeStore,
    kDropStore,
    kTransfer,
    kHangUp,
    kEmptySlot,
    kFillSlot,
    kStep,
    kKernels
  };
  Kind kind = Kind::kTransfer;
  RegionId region;
  StoreId store;
  SessionId session;
  MemoryPlace place;
  StartTransfer transfer;
  Stamp source = kZeros;  // The content of the transfer's source when it started.
  Stamp before = kZeros;  // The content of a store's place before it is written.
  StartStep step;
  std::vector<Stamp> read;           // By the step, when it started.
  std::vector<MemoryPlace> written;  // By the kernels that a killed client left.
};

// A part of a step that a client computes: its session, and the number that it gave the part.
using PartKey = std::pair<SessionId, uint64_t>;
struct HeldPart {
  std::vector<MemoryPlace> places;
  std::vector<Stamp> holds;  // The stamps that are to be found there.
  size_t reads = 0;          // How many places the client reads; it writes the others.
  uint64_t number = 0;       // See StepResult().
};

// The effect of a planted fault on the fake node itself: work is finished in name only.
enum class InjectedFault : uint8_t {
  kNone,
  kLoseTransfer,
  kKeepOldContent,
  kHideFailure,
  kLoseStep
};

class FakeNode {
 public:
  FakeNode(Verdict* verdict, Probes* probes) : verdict_(*verdict), probes_(*probes) {}

  void Carry(const Effect& effect);

  // How many stamps have one digest: with more than one, digests collide.
  void SetStampsOfDigest(uint64_t stamps) { stamps_of_digest_ = stamps; }

  // From now on the disk lies in `percent` of its transfers.
  void SetLies(uint32_t percent, uint64_t seed) {
    lies_ = std::make_unique<Random>(seed);
    lie_percent_ = percent;
  }

  const std::vector<Work>& work() const { return work_; }
  // Finishes a piece of work and returns what the engine hears. A drop waits for its make, whose
  // turn it then is. REQUIRES: index is below work().size().
  Event Complete(size_t index, absl::Status status, InjectedFault injected = InjectedFault::kNone);

  // The daemon dies. Some of the work in flight is done, and the rest leaves poison; memory that no
  // record names is gone. Returns what is recorded.
  Restore Restart(Random* random);
  const std::map<JobId, JobRecord>& job_records() const { return job_records_; }

  // A client was let into these places of chunks of that size, which stay as they are until
  // EndPart.
  void BeginPart(PartKey part, std::vector<MemoryPlace> places, size_t reads, Bytes size,
                 uint64_t number);
  // The client writes the part's results. No such part: nothing.
  void ComputePart(PartKey part);
  // From now on the client leaves the places alone. REQUIRES: the part was begun.
  void EndPart(PartKey part);
  // Breaks the verdict when anybody else has changed what a client computes with.
  void CheckParts();
  const std::map<PartKey, HeldPart>& parts() const { return parts_; }

  const std::map<RegionId, Region>& regions() const { return regions_; }
  const std::map<StoreId, Store>& stores() const { return stores_; }
  // A client was killed. Its kernels write poison to these places when the work is completed.
  void LeaveKernels(SessionId session, std::vector<MemoryPlace> written);
  Stamp Read(MemoryPlace place) const;
  // A client writes. REQUIRES: the region is there.
  void Write(MemoryPlace place, Stamp stamp);
  Stamp NewPoison() { return kPoison | ++poisons_; }
  static bool IsPoison(Stamp stamp) { return (stamp & kPoison) != 0; }
  // Whether a transfer, step or part that is under way writes to, or reads from, the slot.
  bool IsTarget(MemoryPlace place) const;
  bool IsSource(MemoryPlace place) const;
  // Whether the machine has the slot's memory, or is about to.
  bool IsEmpty(MemoryPlace place) const { return empty_.count(KeyOf(place)) != 0; }
  // Whether a transfer, step or part reads from or writes to the region.
  bool IsInTransfer(RegionId region) const;
  // Whether a copy of the region is being made.
  bool IsBeingCopied(RegionId region) const;
  size_t transfers() const;
  // Bytes of a pool that exist or are being made or dropped, but for slots that were emptied. A
  // region and its copy count as one.
  Bytes Held(Pool pool) const;

 private:
  static constexpr Stamp kPoison = Stamp{1} << 63;
  using Key = std::pair<uint32_t, uint64_t>;
  static Key KeyOf(MemoryPlace place) { return {place.region.value(), place.offset.count()}; }
  static Key KeyOf(StorePlace place) { return {place.store.value(), place.offset.count()}; }

  void Begin(const MakeRegion& effect);
  void Begin(const DropRegion& effect);
  void Begin(const ReleaseSlot& effect);
  void Begin(const PopulateSlot& effect);
  void Begin(const MakeStore& effect);
  void Begin(const DropStore& effect);
  void Begin(const StartTransfer& effect);
  void Begin(const AwaitTransfer& effect);
  void Begin(const CloseSession& effect);
  void Begin(const StartStep& effect);
  void Keep(const Record& record);
  Event FinishStep(const Work& work, absl::Status status, InjectedFault injected);
  // `same`: what the part reads has not changed meanwhile.
  Event FinishContents(const Work& work, absl::Status status, bool same);
  void KeepMemory(const JobRecord& job);

  // A slot of host memory that a step or part may use; `what` uses it.
  void CheckStepped(MemoryPlace place, Bytes size, const std::string& what);
  void CheckMemory(const StartTransfer& transfer, MemoryPlace place, Tier tier, const char* end);
  // A slot of host memory that nothing uses.
  void CheckSlot(MemoryPlace place, Bytes size, const std::string& what);
  void CheckStore(const StartTransfer& transfer);
  void CheckCopied(const MakeRegion& effect);
  void CheckAlone(const StartTransfer& transfer);
  Stamp SourceOf(const StartTransfer& transfer) const;
  // The place of a store that the transfer uses, from its beginning, and what is there.
  Key SlotOf(const StartTransfer& transfer) const;
  Stamp OnDisk(const StartTransfer& transfer) const;
  // --- fake_node_lies.cc ---
  // What is in the place when the disk says that it has written `stamp` there.
  Stamp StoredStamp(const Work& work, Stamp stamp);
  // The stamp that arrives of `stamp`; compares it with the sums.
  Stamp LoadedStamp(const StartTransfer& transfer, Stamp stamp, TransferDone* done);
  bool Lies() { return lie_percent_ != 0 && lies_->Percent(lie_percent_); }
  void SetTarget(const StartTransfer& transfer, Stamp stamp);
  Event FinishTransfer(const Work& work, absl::Status status, InjectedFault injected);
  bool MakePending(const Work& drop) const;
  void CopyRegion(RegionId from, RegionId to);

  Verdict& verdict_;
  Probes& probes_;
  uint64_t stamps_of_digest_ = 1;
  std::vector<Work> work_;
  std::map<PartKey, HeldPart> parts_;
  std::map<RegionId, Region> regions_;
  std::map<StoreId, Store> stores_;
  std::map<Key, Stamp> memory_, disk_;
  std::set<Key> failed_writes_;
  std::unique_ptr<Random> lies_;  // Null: the disk is honest.
  uint32_t lie_percent_ = 0;
  std::map<Key, Stamp> meant_;  // The stamps that the disk says it has written, if it may lie.
  std::map<Key, Bytes> empty_;  // And their sizes.
  uint64_t poisons_ = 0;
  std::map<JobId, JobRecord> job_records_;
  std::map<uint32_t, ChunkRecord> chunk_records_;  // By place.
};

// How many of a step's places are read; the others are written.
size_t ReadsOf(const StartStep& step);
// The number of a step that the simulation makes: the bytes of each of its copies.
uint64_t NumberOf(const CopyWork& work);
// The stamp that a step writes as its output number `output`.
Stamp StepResult(const std::vector<Stamp>& read, uint64_t number, size_t output);

// Which ends of a transfer are memory, and whether it reads a store.
bool ReadsMemory(const StartTransfer& transfer);
bool ReadsSsd(const StartTransfer& transfer);
bool WritesMemory(const StartTransfer& transfer);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_FAKES_FAKE_NODE_H_
