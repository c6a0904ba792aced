#include "daemon/replay/activations/ranking.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace memtide {

namespace {

// Single blocks that change their treatment around one plan: more take longer than they gain.
constexpr size_t kMostFlipped = 16;
// Blocks of which two change their treatment at once: with more, it takes longer than it gains.
constexpr size_t kMostPaired = 8;

constexpr Choice kKeep = Choice::kKeep, kMove = Choice::kMove, kAgain = Choice::kRecompute;
constexpr BlockChoice kTreatments[] = {
    {kKeep, kKeep, kKeep},   {kMove, kKeep, kKeep},  {kMove, kMove, kKeep},  {kMove, kMove, kMove},
    {kKeep, kKeep, kMove},   {kMove, kKeep, kMove},  {kKeep, kMove, kKeep},  {kKeep, kMove, kMove},
    {kKeep, kKeep, kAgain},  {kMove, kKeep, kAgain}, {kMove, kMove, kAgain}, {kKeep, kMove, kAgain},
    {kKeep, kAgain, kAgain}, {kMove, kAgain, kAgain}};

}  // namespace

Ranking::Ranking(const ActivationModel& model, const ReplayOptions& options,
                 const TransferSlots& transfers)
    : model_(model), timeline_(model, options, transfers) {
  const auto seconds_of = [this](const Candidate& candidate) { return Estimate(candidate); };
  for (const Pattern& pattern : BestPatterns(model, seconds_of)) {
    Add(CandidateOf(model, pattern), pattern, 1);
  }
}

absl::optional<Candidate> Ranking::Next() {
  do {
    while (!queue_.empty()) {
      const std::string key = queue_.begin()->second;
      queue_.erase(queue_.begin());
      Entry& entry = entries_.at(key);
      if (std::exchange(entry.is_done, true)) continue;
      return entry.candidate;
    }
    if (best_ > 0 && !has_pairs_) AddPairs();
  } while (!queue_.empty());
  return absl::nullopt;
}

void Ranking::AddPairs() {
  has_pairs_ = true;
  const size_t paired = std::min(kMostPaired, model_.blocks.size());
  const auto block_at = [&](size_t i) { return i * model_.blocks.size() / paired; };
  for (size_t i = 0; i < paired; ++i) {
    for (const BlockChoice& one : kTreatments) {
      if (!IsAllowed(model_, block_at(i), one)) continue;
      Candidate next = best_candidate_;
      next.blocks[block_at(i)] = one;
      Candidate others = next;
      others.others = others.others == Choice::kKeep ? Choice::kMove : Choice::kKeep;
      if (!model_.others.empty()) Add(others, absl::nullopt, correction_);
      for (size_t j = i + 1; j < paired; ++j) {
        const BlockChoice before = next.blocks[block_at(j)];
        for (const BlockChoice& other : kTreatments) {
          if (!IsAllowed(model_, block_at(j), other)) continue;
          next.blocks[block_at(j)] = other;
          Add(next, absl::nullopt, correction_);
        }
        next.blocks[block_at(j)] = before;
      }
    }
  }
}

void Ranking::Judged(const Candidate& candidate, Duration elapsed) {
  const std::string key = KeyOf(candidate);
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const auto [at, is_new] = entries_.try_emplace(key);
  Entry& entry = at->second;
  if (is_new) {
    entry.candidate = candidate;
    entry.estimate = Estimate(candidate);
  }
  entry.is_done = true;
  if (best_ > 0 && seconds >= best_) return;
  best_ = seconds;
  best_candidate_ = candidate;
  has_pairs_ = false;
  const double correction = entry.estimate > 0 ? seconds / entry.estimate : 1;
  correction_ = correction;
  const absl::optional<Pattern> pattern = entry.pattern;
  if (pattern.has_value()) {
    const auto blocks = static_cast<uint32_t>(model_.blocks.size());
    for (uint32_t step = std::max(1u, blocks / 8); step > 0; step /= 2) {
      for (const Pattern& next : Neighbors(*pattern, step, blocks)) {
        Add(CandidateOf(model_, next), next, correction);
      }
    }
  }
  // Blocks at even distances change their treatment, one at a time.
  const size_t flipped = std::min(kMostFlipped, candidate.blocks.size());
  for (size_t i = 0; i < flipped; ++i) {
    const size_t block = i * candidate.blocks.size() / flipped;
    Candidate next = candidate;
    for (const BlockChoice& choice : kTreatments) {
      if (!IsAllowed(model_, block, choice)) continue;
      next.blocks[block] = choice;
      Add(next, absl::nullopt, correction);
    }
  }
}

std::string Ranking::KeyOf(const Candidate& candidate) {
  std::string key(1, static_cast<char>(candidate.others));
  for (const BlockChoice& choice : candidate.blocks) {
    key.push_back(static_cast<char>(static_cast<int>(choice.input) * 9 +
                                    static_cast<int>(choice.attention) * 3 +
                                    static_cast<int>(choice.rest)));
  }
  return key;
}

double Ranking::Estimate(const Candidate& candidate) {
  const auto [at, is_new] = estimates_.try_emplace(KeyOf(candidate), 0);
  if (is_new) at->second = timeline_.SecondsOf(candidate);
  return at->second;
}

void Ranking::Add(const Candidate& candidate, const absl::optional<Pattern>& pattern,
                  double correction) {
  const double estimate = Estimate(candidate);
  if (!std::isfinite(estimate)) return;
  const std::string key = KeyOf(candidate);
  const auto [at, is_new] = entries_.try_emplace(key);
  Entry& entry = at->second;
  if (is_new) {
    entry.candidate = candidate;
    entry.estimate = estimate;
  }
  if (pattern.has_value()) entry.pattern = pattern;
  if (!entry.is_done) queue_.insert({estimate * correction, key});
}

}  // namespace memtide
