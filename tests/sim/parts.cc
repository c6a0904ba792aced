// The half of Simulation in which clients compute parts of steps.
#include <utility>

#include "tests/sim/simulation.h"

namespace memtide::sim {

std::vector<PartKey> Simulation::PartsOf(SessionId session) const {
  std::vector<PartKey> parts;
  for (const auto& [part, step] : model_.state().parts) {
    if (part.first == session) parts.push_back(part);
  }
  return parts;
}

void Simulation::ComputeSome(SessionId session, Random* random) {
  for (const PartKey& part : PartsOf(session)) {
    if (random->Percent(50)) node_.ComputePart(part);
  }
}

void Simulation::EndPart(PartKey part, bool computed, uint64_t non_finite_gradients) {
  // A client that says so has computed it.
  if (computed) node_.ComputePart(part);
  Ask(EndPartCall{CallId(), part.first, part.second, computed, non_finite_gradients});
}

void Simulation::StepEndPart(SessionId session, Random* random) {
  const std::vector<PartKey> parts = PartsOf(session);
  if (parts.empty()) return;
  const PartKey part = parts[random->Below(static_cast<uint32_t>(parts.size()))];
  // It goes on holding what it has computed.
  if (random->Percent(20)) return node_.ComputePart(part);
  const bool computed = !random->Percent(config_.faults.part);
  // Also one that has computed a part may have no use for it.
  if (random->Percent(20)) node_.ComputePart(part);
  EndPart(part, computed, random->Below(3));
  // A retry, which need not say the same.
  if (random->Percent(20) && verdict_.ok()) EndPart(part, random->Percent(70), 1);
}

}  // namespace memtide::sim
