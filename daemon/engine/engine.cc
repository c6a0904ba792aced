#include "daemon/engine/engine.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "daemon/engine/dispatcher.h"

namespace memtide {
namespace {

template <typename Part, typename OneEvent, typename = void>
struct Handles : std::false_type {};
template <typename Part, typename OneEvent>
struct Handles<Part, OneEvent,
               std::void_t<decltype(std::declval<Part&>().On(std::declval<const OneEvent&>()))>>
    : std::true_type {};

// Hands an event or a signal to the one class that has a handler for it.
template <typename OneEvent, typename... Classes>
void HandOn(const OneEvent& event, Classes&... classes) {
  static_assert((Handles<Classes, OneEvent>::value + ...) == 1);
  const auto try_one = [&event](auto& one) {
    if constexpr (Handles<std::decay_t<decltype(one)>, OneEvent>::value) one.On(event);
  };
  (try_one(classes), ...);
}

}  // namespace

Engine::Engine(const EngineOptions& options) : dispatcher_(std::make_unique<Dispatcher>(options)) {}
Engine::~Engine() = default;

void Engine::Handle(Instant now, const Event& event, std::vector<Effect>* effects) {
  dispatcher_->Handle(now, event, effects);
}

void Engine::CheckInvariants() const { dispatcher_->audit().CheckInvariants(); }

template <typename OneEvent>
void Dispatcher::Dispatch(const OneEvent& event) {
  HandOn(event, memory_, residency_, prefetcher_, scrubber_, calls_, offers_, duplicates_,
         rank_contents_, requests_, records_, commits_, jobs_, inspection_);
}

void Dispatcher::Handle(Instant now, const Event& event, std::vector<Effect>* effects) {
  MEMTIDE_CHECK(now >= core_.now) << "time went back";
  core_.now = now;
  core_.effects = effects;
  const size_t before = effects->size();
  ++core_.counters.events;
  // The handler answers what it can at once, and lists the rest for Settle().
  std::visit([this](const auto& one) { Dispatch(one); }, event);
  Settle();
  if (memory_.has_exposed()) memory_.ReplaceExposed();
  if (jobs_.has_drain_calls()) jobs_.AnswerDrained();
  // The record has the state after all work of the event.
  if (!core_.record_log.empty()) records_.EmitRecord(before);
  core_.effects = nullptr;
  if (std::holds_alternative<Tick>(event)) audit_.Next();
}

void Dispatcher::Settle() {
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
      } else if (!duplicates_.RetryWaiting() && !offers_.StartOwnOffers() &&
                 !prefetcher_.PrefetchOrWriteBack() && core_.work.empty()) {
        break;
      }
    }
    if (!memory_.ServeFreed()) break;
    jobs_.OpenWaiting();
  } while (true);
}

void Dispatcher::Advance(ChunkIndex index) {
  const Residency::Progress progress = residency_.BeginAdvance(index);
  if (progress == Residency::Progress::kNone) return;
  if (progress == Residency::Progress::kReached) calls_.ProceedWaiters(index);
  if (progress == Residency::Progress::kEvicted) calls_.FinishEvicts(index);
  residency_.Advance(index);
  records_.WriteForSnapshot(index);
  residency_.EndAdvance(index);
}

void Dispatcher::MakeRoom(const WorkList::RoomCheck& check) {
  if (check.job->contents != nullptr) return offers_.MakeRoom(*check.job, check.tier);
  if (check.job->is_replacing()) return;  // RegionCopied() lists a room check.
  // Admitted calls pin copies, which leave the eviction queue before victims are chosen from it.
  calls_.AdmitWaiting(*check.job, check.tier);
  residency_.MakeRoom(*check.job, check.tier);
}

void Dispatcher::HandOnSignals() {
  for (const Signal& signal : core_.work.TakeSignals()) {
    std::visit([this](const auto& one) { Dispatch(one); }, signal);
  }
}

}  // namespace memtide
