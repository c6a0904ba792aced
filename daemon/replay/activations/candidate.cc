#include "daemon/replay/activations/candidate.h"

#include <algorithm>

namespace memtide {

namespace {

class Keeping {
 public:
  explicit Keeping(size_t moments) : changes_(moments + 1, 0) {}

  void Add(uint32_t from, uint32_t to, Bytes size) {
    changes_[from] += static_cast<int64_t>(size.count());
    changes_[to + 1] -= static_cast<int64_t>(size.count());
  }

  Bytes Most() const {
    int64_t now = 0, most = 0;
    for (const int64_t change : changes_) most = std::max(most, now += change);
    return Bytes(static_cast<uint64_t>(most));
  }

 private:
  std::vector<int64_t> changes_;  // By moment.
};

}  // namespace

Choice BlockChoice::of(SavedPart part) const {
  switch (part) {
    case SavedPart::kInput:
      return input;
    case SavedPart::kAttention:
      return attention;
    case SavedPart::kRest:
      break;
  }
  return rest;
}

bool IsAllowed(const ActivationModel& model, size_t block, const BlockChoice& choice) {
  if (choice.input == Choice::kRecompute) return false;
  if (choice.rest != Choice::kRecompute) return choice.attention != Choice::kRecompute;
  return model.blocks[block].recomputable && block + 1 < model.blocks.size();
}

uint32_t RecomputedFrom(const BlockCall& call, const BlockChoice& choice) {
  return choice.attention == Choice::kRecompute ? call.attention_needed : call.rest_needed;
}

Duration RecomputeTime(const Block& block, const BlockChoice& choice) {
  if (choice.rest != Choice::kRecompute) return Duration(0);
  const bool all = choice.attention == Choice::kRecompute;
  return (all ? block.forward : block.forward_without_attention) *
         static_cast<int64_t>(block.calls.size());
}

Duration RecomputeTime(const ActivationModel& model, const Candidate& candidate) {
  Duration sum{0};
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    sum += RecomputeTime(model.blocks[i], candidate.blocks[i]);
  }
  return sum;
}

Bytes MostKept(const ActivationModel& model, const Candidate& candidate) {
  Keeping keeping(model.moments());
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const Block& block = model.blocks[i];
    const BlockChoice& choice = candidate.blocks[i];
    for (const Saved& saved : block.saved) {
      switch (choice.of(saved.part)) {
        case Choice::kKeep:
          keeping.Add(saved.packed, saved.last_unpacked, saved.size);
          break;
        case Choice::kRecompute:
          keeping.Add(
              std::min(saved.last_unpacked, RecomputedFrom(block.calls[saved.call], choice)),
              saved.last_unpacked, saved.size);
          break;
        case Choice::kMove:
          break;
      }
    }
  }
  if (candidate.others == Choice::kKeep) {
    for (const Saved& saved : model.others) {
      keeping.Add(saved.packed, saved.last_unpacked, saved.size);
    }
  }
  return keeping.Most();
}

absl::optional<Division> Divide(const ActivationModel& model, Bytes most_kept) {
  Division division;
  if (most_kept > model.budget) return absl::nullopt;
  const uint64_t room = (model.budget - most_kept) / model.states.chunk_size;
  division.slots = static_cast<uint32_t>(std::min<uint64_t>(room, Limits().chunks));
  if (model.fixed_slots > 0) {
    if (division.slots < model.fixed_slots) return absl::nullopt;
    division.slots = model.fixed_slots;
  }
  if (division.slots < model.least_slots) return absl::nullopt;
  division.allowance = model.budget - model.states.chunk_size * division.slots;
  return division;
}

}  // namespace memtide
