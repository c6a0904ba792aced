#include "daemon/replay/activations/pattern.h"

#include <algorithm>

namespace memtide {

namespace {

// Whether the block at `at` of `all` is one of `some`, in this order.
bool IsAmong(uint32_t at, uint32_t some, uint32_t all, Pattern::Order order) {
  switch (order) {
    case Pattern::Order::kMovedFirst:
      return at < some;
    case Pattern::Order::kMovedLast:
      return at + some >= all;
    case Pattern::Order::kMovedSpread:
      break;
  }
  // The first of each group of all / some blocks.
  const uint64_t round_up = all - 1;
  return (uint64_t{at} * some + round_up) / all != (uint64_t{at + 1} * some + round_up) / all;
}

bool IsAttentionSaved(const ActivationModel& model) {
  return std::any_of(model.blocks.begin(), model.blocks.end(), [](const Block& block) {
    return !block.bytes[static_cast<size_t>(SavedPart::kAttention)].IsZero();
  });
}

Pattern Descend(const ActivationModel& model, Pattern pattern,
                const std::function<double(const Candidate&)>& seconds_of) {
  const auto blocks = static_cast<uint32_t>(model.blocks.size());
  double best = seconds_of(CandidateOf(model, pattern));
  for (uint32_t step = std::max(1u, blocks / 2); step > 0; step /= 2) {
    for (bool improved = true; improved;) {
      improved = false;
      for (const Pattern& next : Neighbors(pattern, step, blocks)) {
        const double seconds = seconds_of(CandidateOf(model, next));
        if (seconds >= best) continue;
        best = seconds;
        pattern = next;
        improved = true;
      }
    }
  }
  return pattern;
}

}  // namespace

Candidate CandidateOf(const ActivationModel& model, const Pattern& pattern) {
  const auto blocks = static_cast<uint32_t>(model.blocks.size());
  const uint32_t before = blocks - std::min(pattern.kept_blocks, blocks);
  const uint32_t inputs_from = before - std::min(pattern.kept_inputs, before);
  Candidate candidate;
  candidate.others = pattern.others;
  for (uint32_t i = 0; i < blocks; ++i) {
    BlockChoice choice;
    if (i >= before) {
      candidate.blocks.push_back(choice);
      continue;
    }
    choice.input = i >= inputs_from ? Choice::kKeep : Choice::kMove;
    const bool moves = IsAmong(i, std::min(pattern.moved_blocks, before), before, pattern.order);
    choice.rest = moves ? Choice::kMove : Choice::kRecompute;
    choice.attention = pattern.attention;
    if (moves || (choice.attention == Choice::kMove && choice.input == Choice::kKeep)) {
      choice.attention = choice.input;
    }
    if (!IsAllowed(model, i, choice)) {
      choice.rest = Choice::kMove;
      choice.attention = choice.input;
    }
    candidate.blocks.push_back(choice);
  }
  return candidate;
}

std::vector<Pattern> Neighbors(const Pattern& pattern, uint32_t step, uint32_t blocks) {
  std::vector<Pattern> neighbors;
  for (uint32_t Pattern::*const number :
       {&Pattern::kept_blocks, &Pattern::moved_blocks, &Pattern::kept_inputs}) {
    Pattern next = pattern;
    if (pattern.*number + step <= blocks) {
      next.*number = pattern.*number + step;
      neighbors.push_back(next);
    }
    if (pattern.*number >= step) {
      next.*number = pattern.*number - step;
      neighbors.push_back(next);
    }
  }
  // One more block is kept for one less that is moved, and the other way round.
  Pattern next = pattern;
  if (pattern.moved_blocks >= step && pattern.kept_blocks + step <= blocks) {
    next.moved_blocks = pattern.moved_blocks - step;
    next.kept_blocks = pattern.kept_blocks + step;
    neighbors.push_back(next);
  }
  if (pattern.kept_blocks >= step && pattern.moved_blocks + step <= blocks) {
    next = pattern;
    next.moved_blocks = pattern.moved_blocks + step;
    next.kept_blocks = pattern.kept_blocks - step;
    neighbors.push_back(next);
  }
  return neighbors;
}

std::vector<Pattern> BestPatterns(const ActivationModel& model,
                                  const std::function<double(const Candidate&)>& seconds_of) {
  const auto blocks = static_cast<uint32_t>(model.blocks.size());
  std::vector<Choice> attentions = {Choice::kKeep};
  if (IsAttentionSaved(model)) attentions = {Choice::kKeep, Choice::kMove, Choice::kRecompute};
  std::vector<Choice> others = {Choice::kKeep};
  if (!model.others.empty()) others.push_back(Choice::kMove);
  std::vector<Pattern> best;
  for (const Choice other : others) {
    for (const Choice attention : attentions) {
      for (const Pattern::Order order : {Pattern::Order::kMovedFirst, Pattern::Order::kMovedSpread,
                                         Pattern::Order::kMovedLast}) {
        // A descent begins where all is moved, which fits if anything does, or all recomputed.
        for (const uint32_t moved : {blocks, 0u}) {
          best.push_back(Descend(model, {0, moved, 0, order, attention, other}, seconds_of));
        }
      }
    }
  }
  return best;
}

}  // namespace memtide
