#include "daemon/engine/engine.h"

#include <utility>
#include <variant>

#include "base/check.h"
#include "daemon/engine/engine_parts.h"

namespace memtide {
namespace {

// The part that handles an event.
template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

Engine::Engine(const EngineOptions& options) : parts_(std::make_unique<EngineParts>(options)) {}
Engine::~Engine() = default;

void Engine::Handle(Instant now, const Event& event, std::vector<Effect>* effects) {
  parts_->Handle(now, event, effects);
}

void Engine::CheckInvariants() const { parts_->audit().CheckInvariants(); }

void EngineParts::Handle(Instant now, const Event& event, std::vector<Effect>* effects) {
  MEMTIDE_CHECK(now >= core_.now) << "time went back";
  core_.now = now;
  core_.effects = effects;
  const size_t before = effects->size();
  ++core_.counters.events;
  // The handler answers what it can at once, and lists the rest for Settle().
  Dispatch(event);
  Settle();
  if (memory_.has_exposed()) memory_.ReplaceExposed();
  if (jobs_.has_drain_calls()) jobs_.AnswerDrained();
  // The record has the state after all work of the event.
  if (!core_.record_log.empty()) records_.EmitRecord(before);
  core_.effects = nullptr;
  if (std::holds_alternative<Tick>(event)) audit_.Next();
}

void EngineParts::Dispatch(const Event& event) {
  std::visit(Overloaded{[this](const ClientConnected& e) { jobs_.On(e); },
                        [this](const ClientGone& e) { jobs_.On(e); },
                        [this](const OpenCall& e) { jobs_.On(e); },
                        [this](const RenewCall& e) { jobs_.On(e); },
                        [this](const CloseCall& e) { jobs_.On(e); },
                        [this](const AllocateCall& e) { calls_.On(e); },
                        [this](const FetchCall& e) { requests_.On(e); },
                        [this](const ReleaseCall& e) { requests_.On(e); },
                        [this](const EvictCall& e) { requests_.On(e); },
                        [this](const PrefetchCall& e) { residency_.On(e); },
                        [this](const FreeCall& e) { requests_.On(e); },
                        [this](const DescribeCall& e) { requests_.On(e); },
                        [this](const ReportCall& e) { residency_.On(e); },
                        [this](const ResizeCall& e) { memory_.On(e); },
                        [this](const ReturnRegionsCall& e) { memory_.On(e); },
                        [this](const InspectCall& e) { inspection_.On(e); },
                        [this](const TraceCall& e) { inspection_.On(e); },
                        [this](const DrainCall& e) { jobs_.On(e); },
                        [this](const TransferDone& e) { residency_.On(e); },
                        [this](const RegionMade& e) { memory_.On(e); },
                        [this](const RegionDropped& e) { memory_.On(e); },
                        [this](const StoreMade& e) { memory_.On(e); },
                        [this](const StoreDropped& e) { memory_.On(e); },
                        [this](const Tick& e) { jobs_.On(e); },
                        [this](const StepCall& e) { requests_.On(e); },
                        [this](const CommitCall& e) { commits_.On(e); },
                        [this](const StepDone& e) { requests_.On(e); },
                        [this](const Restore& e) { records_.On(e); },
                        [this](const HostMemory& e) { memory_.On(e); },
                        [this](const SlotReleased& e) { memory_.On(e); },
                        [this](const SlotPopulated& e) { memory_.On(e); },
                        [this](const ClientQuiet& e) { jobs_.On(e); },
                        [this](const DiscardCall& e) { requests_.On(e); },
                        [this](const EndPartCall& e) { requests_.On(e); },
                        [this](const OfferCall& e) { sharing_.On(e); },
                        [this](const DeviceState& e) { jobs_.On(e); },
                        [this](const EndJobCall& e) { jobs_.On(e); },
                        [this](const SetQuotasCall& e) { residency_.On(e); },
                        [this](const SnapshotSaved& e) { records_.On(e); },
                        [this](const DuplicateCall& e) { sharing_.On(e); }},
             event);
}

void EngineParts::Settle() {
  do {
    for (;;) {
      // Signals first, in their order. Then chunks take free slots, victims are chosen for those
      // that still wait, and prefetches come last, because they must not take the slots of either.
      if (core_.work.has_signals()) {
        HandOnSignals();
      } else if (const absl::optional<ChunkIndex> index = core_.work.TakeChunk()) {
        Advance(*index);
      } else if (const absl::optional<WorkList::RoomCheck> check = core_.work.TakeRoomCheck()) {
        MakeRoom(*check);
      } else if (!sharing_.RetryOffers() && !sharing_.StartOwnOffers() &&
                 !residency_.PrefetchOrWriteBack()) {
        break;
      }
    }
    if (!memory_.ServeFreed()) break;
    jobs_.OpenWaiting();
  } while (true);
}

void EngineParts::Advance(ChunkIndex index) {
  const Residency::Step step = residency_.BeginAdvance(index);
  if (step == Residency::Step::kNone) return;
  if (step == Residency::Step::kReached) calls_.ProceedWaiters(index);
  if (step == Residency::Step::kEvicted) calls_.FinishEvicts(index);
  residency_.Advance(index);
  records_.WriteForSnapshot(index);
  residency_.EndAdvance(index);
}

void EngineParts::MakeRoom(const WorkList::RoomCheck& check) {
  if (check.job->contents != nullptr) return sharing_.MakeRoom(*check.job, check.tier);
  if (check.job->is_replacing()) return;  // RegionCopied() lists a room check.
  // Admitted calls pin copies, which leave the eviction queue before victims are chosen from it.
  calls_.AdmitWaiting(*check.job, check.tier);
  residency_.MakeRoom(*check.job, check.tier);
}

void EngineParts::HandOnSignals() {
  for (const Signal& signal : core_.work.TakeSignals()) {
    std::visit(Overloaded{
                   [this](const JobMade& s) { jobs_.On(s); },
                   [this](const RegionsReplaced& s) { jobs_.On(s); },
                   [this](const WrittenUnseen& s) { jobs_.On(s); },
                   [this](const AllocationsPossible& s) { calls_.On(s); },
                   [this](const NoMemoryForChunks& s) { calls_.On(s); },
                   [this](const TierShrunk& s) { calls_.On(s); },
                   [this](const PromotionFailed& s) { calls_.On(s); },
                   [this](const EvictionFailed& s) { calls_.On(s); },
                   [this](const ChunkFreed& s) { records_.On(s); },
                   [this](const WritesFail& s) { records_.On(s); },
                   [this](const CommitsPossible& s) { commits_.On(s); },
                   [this](const ChunkUnpinned& s) { sharing_.On(s); },
                   [this](const ContentWritten& s) { sharing_.On(s); },
                   [this](const ContentEnded& s) { sharing_.On(s); },
                   [this](const NoMemoryForContents& s) { sharing_.On(s); },
                   [this](const PartFailed& s) { sharing_.On(s); },
                   [this](const FetchAgain& s) { requests_.On(s.call); },
                   [this](const StepAgain& s) { requests_.On(s.call); },
               },
               signal);
  }
}

}  // namespace memtide
