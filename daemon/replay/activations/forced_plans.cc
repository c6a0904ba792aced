#include <utility>

#include "daemon/replay/activations/search.h"

namespace memtide {

namespace {

// The choice for each block that allows it; the others, such as the last, keep all.
Candidate Uniform(const ActivationModel& model, const BlockChoice& choice, Choice others) {
  Candidate candidate;
  candidate.others = others;
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    candidate.blocks.push_back(IsAllowed(model, i, choice) ? choice : BlockChoice());
  }
  return candidate;
}

}  // namespace

std::vector<Forced> ForcedPlans(const ActivationModel& model) {
  constexpr Choice kKeep = Choice::kKeep, kMove = Choice::kMove, kAgain = Choice::kRecompute;
  const std::pair<const char*, Candidate> plans[] = {
      {"all kept", Uniform(model, {kKeep, kKeep, kKeep}, kKeep)},
      {"all recomputed", Uniform(model, {kKeep, kAgain, kAgain}, kKeep)},
      {"inputs moved", Uniform(model, {kMove, kAgain, kAgain}, kKeep)},
      {"all moved", Uniform(model, {kMove, kMove, kMove}, kMove)},
  };
  std::vector<Forced> forced;
  for (const auto& [name, candidate] : plans) {
    forced.push_back({name, candidate, absl::nullopt});
    Candidate& plan = forced.back().candidate;
    // Tensors saved outside of blocks are moved where they do not fit. All kept stays all kept.
    if (forced.size() == 1 || Divide(model, MostKept(model, plan)).has_value()) continue;
    plan.others = kMove;
  }
  return forced;
}

Candidate ForcedTo(const ActivationModel& model, Choice choice) {
  switch (choice) {
    case Choice::kKeep:
      return Uniform(model, {}, Choice::kKeep);
    case Choice::kMove:
      return Uniform(model, {choice, choice, choice}, choice);
    case Choice::kRecompute:
      break;
  }
  return Uniform(model, {Choice::kKeep, choice, choice}, Choice::kKeep);
}

}  // namespace memtide
