#include "daemon/engine/engine.h"

#include <utility>
#include <variant>

#include "base/check.h"
#include "daemon/engine/state.h"

namespace memtide {

Engine::Engine(const EngineOptions& options) : state_(std::make_unique<EngineState>(options)) {}
Engine::~Engine() = default;

void Engine::Handle(Instant now, const Event& event, std::vector<Effect>* effects) {
  state_->Handle(now, event, effects);
}

void Engine::CheckInvariants() const { state_->CheckInvariants(); }

EngineState::EngineState(const EngineOptions& options) : core_(options) {}

void EngineState::Handle(Instant now, const Event& event, std::vector<Effect>* effects) {
  MEMTIDE_CHECK(now >= core_.now) << "time went back";
  core_.now = now;
  core_.effects = effects;
  const size_t before = effects->size();
  ++core_.counters.events;
  // The handler answers what it can at once, and lists the rest for Settle().
  std::visit([this](const auto& e) { On(e); }, event);
  Settle();
  if (!exposed_.empty()) ReplaceExposed();
  if (!drain_calls_.empty()) AnswerDrained();
  // The record has the state after all work of the event.
  EmitRecord(before);
  core_.effects = nullptr;
  if (std::holds_alternative<Tick>(event)) Audit();
}

}  // namespace memtide
