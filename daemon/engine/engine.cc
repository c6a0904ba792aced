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

EngineState::EngineState(const EngineOptions& options)
    : options_(options),
      sessions_(options.limits),
      ledger_({options.device_capacities, options.host_capacity, options.ssd_capacity},
              options.limits),
      writes_(options.ssd_drives, options.user_ssd_per_day) {
  MEMTIDE_CHECK(!options.device_capacities.empty() || !options.host_capacity.IsZero());
  MEMTIDE_CHECK(options.device_capacities.size() <= kMostDevices);
  MEMTIDE_CHECK(!options.device_kinds.empty());
  // Chunks pass through host memory between SSD and the device.
  MEMTIDE_CHECK(options.ssd_capacity.IsZero() || !options.host_capacity.IsZero());
  ledger_.SetQuotas(options.quotas);
  writes_.SetQuotas(options.quotas);
}

void EngineState::Handle(Instant now, const Event& event, std::vector<Effect>* effects) {
  MEMTIDE_CHECK(now >= now_) << "time went back";
  now_ = now;
  effects_ = effects;
  const size_t before = effects->size();
  ++counters_.events;
  // The handler answers what it can at once, and lists the rest for Settle().
  std::visit([this](const auto& e) { On(e); }, event);
  Settle();
  if (!exposed_.empty()) ReplaceExposed();
  if (!drain_calls_.empty()) AnswerDrained();
  // The record has the state after all work of the event.
  EmitRecord(before);
  effects_ = nullptr;
  if (std::holds_alternative<Tick>(event)) Audit();
}

void EngineState::Answer(CallId call, absl::Status status) {
  Reply reply;
  reply.call = call;
  reply.status = std::move(status);
  Emit(std::move(reply));
}

void EngineState::Refuse(CallId call, absl::Status status) {
  counters_.calls_refused += !status.GetPayload(kCallAgain).has_value();
  counters_.over_quota += IsByQuota(status);
  Answer(call, std::move(status));
}

}  // namespace memtide
