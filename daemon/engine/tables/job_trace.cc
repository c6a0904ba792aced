#include "daemon/engine/tables/job_trace.h"

#include <algorithm>
#include <utility>

#include "proto/protocol.h"

namespace memtide {
namespace {

// At most kMaxMomentNameBytes of `name`. A character is never cut, as the name would not be UTF-8
// then, and no reader could parse the trace.
std::string Cut(const std::string& name) {
  const auto continues = [&name](size_t i) { return (name[i] & 0xC0) == 0x80; };
  size_t size = std::min(name.size(), kMaxMomentNameBytes);
  while (size > 0 && size < name.size() && continues(size)) --size;
  return name.substr(0, size);
}

}  // namespace

// Names come from clients, so that their length and number are limited.
uint32_t JobTrace::NumberOf(const std::string& name) {
  const std::string cut = Cut(name);
  const auto found = numbers_.find(cut);
  if (found != numbers_.end()) return found->second;
  if (names_.size() >= kMaxNames) return NumberOf("other");
  // The first is for those that find no room.
  if (names_.empty()) {
    names_.push_back("other");
    numbers_.emplace("other", 0);
    if (cut == "other") return 0;
  }
  const uint32_t number = static_cast<uint32_t>(names_.size());
  numbers_.emplace(cut, number);
  names_.push_back(cut);
  return number;
}

void JobTrace::Begin(Instant now, const MomentReport& moment) {
  if (iterations_.empty()) iterations_.emplace_back();
  Iteration& iteration = iterations_.back();
  // The uses of a moment that finds no room are added to the last moment of the iteration.
  if (iteration.moments.size() >= kMaxMoments) return;
  Moment begun;
  begun.phase = moment.phase;
  begun.name = NumberOf(moment.name);
  begun.own_device = moment.own_device;
  begun.own_host = moment.own_host;
  begun.time = now;
  begun.first_use = static_cast<uint32_t>(iteration.uses.size());
  begun.first_event = iteration.events;
  iteration.moments.push_back(begun);
  ++moments_;
}

void JobTrace::Use(Member member, TracedOperation operation) {
  if (moments_ == 0) return;
  // Until its first moment, an iteration has no uses: they belong to the one that ended.
  const bool has_begun = !iterations_.back().moments.empty() || iterations_.size() == 1;
  Iteration& iteration = has_begun ? iterations_.back() : iterations_[iterations_.size() - 2];
  if (iteration.moments.empty() || iteration.uses.size() >= kMaxUses) return;
  iteration.uses.push_back(member.value() << 2 | static_cast<uint32_t>(operation));
  iteration.events += operation != TracedOperation::kAllocate;
  ++uses_;
  // The limit is for all iterations together; the current one is never forgotten.
  while (uses_ > kMaxUses && iterations_.size() > 1) ForgetOldest();
}

void JobTrace::EndIteration() {
  if (iterations_.empty() || iterations_.back().moments.empty()) return;
  iterations_.emplace_back();
  // The iteration that begins now is not counted.
  while (iterations_.size() > kMaxIterations + 1) ForgetOldest();
}

void JobTrace::ForgetOldest() {
  uses_ -= iterations_.front().uses.size();
  iterations_.pop_front();
}

void JobTrace::Moved(const TracedMove& move) {
  if (moves_.size() >= kMaxMoves) moves_.pop_front();
  moves_.push_back(move);
}

void JobTrace::Stalled(const TracedStall& stall) {
  if (stalls_.size() >= kMaxStalls) stalls_.pop_front();
  stalls_.push_back(stall);
}

absl::optional<uint32_t> JobTrace::MomentsUntil(uint64_t events) const {
  if (iterations_.size() < 2) return absl::nullopt;
  const Iteration& last = iterations_[iterations_.size() - 2];
  const Iteration& now = iterations_.back();
  if (last.events == 0) return absl::nullopt;
  const auto moment_at = [&last](uint64_t event) {
    const auto after = std::upper_bound(
        last.moments.begin(), last.moments.end(), event,
        [](uint64_t wanted, const Moment& moment) { return wanted < moment.first_event; });
    return static_cast<uint64_t>(after - last.moments.begin());
  };
  // The job is taken to repeat its last iteration, from the event that it has reached in this one.
  const uint64_t from = std::min<uint64_t>(now.events, last.events);
  const uint64_t to = from + events;
  const uint64_t moments = moment_at(to % last.events) + to / last.events * last.moments.size();
  // The moment that goes on is that of the last event.
  const uint64_t current = from == 0 ? 0 : moment_at(from - 1);
  const uint64_t ahead = moments - std::min(moments, current);
  return static_cast<uint32_t>(std::min<uint64_t>(ahead, UINT32_MAX));
}

void JobTrace::AddTo(TraceReply* reply) const {
  uint64_t stored = 0;
  for (const Iteration& iteration : iterations_) stored += iteration.moments.size();
  reply->first_moment = moments_ - stored;
  for (const Iteration& iteration : iterations_) {
    for (size_t i = 0; i < iteration.moments.size(); ++i) {
      const Moment& moment = iteration.moments[i];
      if (reply->moments.empty()) reply->start = moment.time;
      TracedMoment traced;
      traced.phase = moment.phase;
      traced.name = names_[moment.name];
      traced.own_device = moment.own_device;
      traced.own_host = moment.own_host;
      traced.time = moment.time - reply->start;
      const size_t end = i + 1 < iteration.moments.size() ? iteration.moments[i + 1].first_use
                                                          : iteration.uses.size();
      traced.uses.assign(iteration.uses.begin() + moment.first_use, iteration.uses.begin() + end);
      reply->moments.push_back(std::move(traced));
    }
    if (&iteration != &iterations_.back()) {
      reply->iteration_ends.push_back(static_cast<uint32_t>(reply->moments.size()));
    }
  }
  for (const TracedMove& move : moves_) {
    // Moves are retained by their number, and may be older than the oldest moment.
    if (!reply->moments.empty() && move.start >= reply->start) reply->moves.push_back(move);
  }
  for (const TracedStall& stall : stalls_) {
    if (!reply->moments.empty() && stall.start >= reply->start) reply->stalls.push_back(stall);
  }
}

}  // namespace memtide
