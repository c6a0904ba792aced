#include "daemon/policy/access_predictor.h"

#include <algorithm>
#include <utility>

namespace memtide {

AccessPredictor::History& AccessPredictor::Get(Member member) {
  if (member.value() >= histories_.size()) histories_.resize(member.value() + 1);
  return histories_[member.value()];
}

absl::optional<uint32_t> AccessPredictor::EventAt(VirtualTime time) const {
  if (!has_prediction() || time < base_) return absl::nullopt;
  const uint64_t place = time - base_;
  if (place < followed().uses.size()) return followed().uses[place];
  // A place beyond the followed iteration is in the one that followed it last time.
  const RecordedIteration& following = iterations_[followed().successor];
  const uint64_t later = place - followed().uses.size();
  if (later < following.uses.size()) return following.uses[later];
  return absl::nullopt;
}

absl::optional<Member> AccessPredictor::At(VirtualTime time) const {
  const absl::optional<uint32_t> event = EventAt(time);
  if (!event.has_value()) return absl::nullopt;
  return KindOf(*event) == kFree ? kNobody : MemberOf(*event);
}

bool AccessPredictor::WritesAt(VirtualTime time) const {
  const uint64_t place = time - base_, length = followed().uses.size();
  if (place < length) return followed().writes[place];
  return iterations_[followed().successor].writes[place - length];
}

bool AccessPredictor::IsFreedNext(Member member) const {
  return EventAt(NextUse(member)) == EventOf(member, kFree);
}

std::vector<ResidencyPlan::Event> AccessPredictor::Events() const {
  using EventKind = ResidencyPlan::Event::Kind;
  std::vector<ResidencyPlan::Event> events(followed().uses.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const uint32_t event = followed().uses[i];
    const EventKind use = followed().writes[i] ? EventKind::kWrite : EventKind::kRead;
    const std::vector<uint32_t>& clock = followed().clock;
    events[i] = {MemberOf(event), KindOf(event) == kFree ? EventKind::kFree : use,
                 clock[i + 1] - clock[i]};
  }
  return events;
}

absl::optional<uint32_t> AccessPredictor::LastEvent(Member member) const {
  const uint32_t number = member.value();
  if (number >= histories_.size() || histories_[number].events == 0) return absl::nullopt;
  return histories_[number].events - 1;
}

AccessPredictor::Changes AccessPredictor::TakeChanges() {
  return std::exchange(changes_, Changes());
}

// Two iterations cover a job in which two kinds alternate, such as training and evaluation.
VirtualTime AccessPredictor::InLaterIteration(Member member) const {
  VirtualTime start = base_ + followed().uses.size();
  const RecordedIteration* following = &iterations_[followed().successor];
  for (int iteration = 0; iteration < 2; ++iteration) {
    const std::vector<uint32_t>& first = following->first;
    if (member.value() < first.size() && first[member.value()] != kNone) {
      return start + first[member.value()];
    }
    start += following->uses.size();
    following = &iterations_[following->successor];
  }
  return kUnknown;
}

// The next event of the member that the followed iteration has at `place`.
VirtualTime AccessPredictor::AfterPlace(uint32_t place) const {
  const uint32_t next = followed().next[place];
  return next != kNone ? base_ + next : InLaterIteration(MemberOf(followed().uses[place]));
}

// Notes each change of a prediction, so that the engine ranks only the members that changed.
void AccessPredictor::Expect(Member member, VirtualTime time) {
  Get(member).next = time;
  if (!changes_.all) changes_.members.push_back(member);
  if (changes_.members.size() <= 2 * histories_.size() + kNear) return;
  // The caller has not taken the changes for so long that "all members" is shorter than a list.
  changes_ = Changes();
  changes_.all = true;
}

uint64_t AccessPredictor::MicrosUntil(VirtualTime time) const {
  const std::vector<uint32_t>& clock = followed().clock;
  const uint64_t place = time - base_;
  if (place < clock.size()) return clock[place] - std::min(clock[place], clock[at_]);
  const std::vector<uint32_t>& later = iterations_[followed().successor].clock;
  return clock.back() - clock[at_] + later[place - followed().uses.size()];
}

void AccessPredictor::Use(Member member, uint64_t clock, bool writes) {
  NoteUse(member, kUse, clock, writes);
}

void AccessPredictor::UseByPart(Member member, uint64_t clock, bool writes) {
  NoteUse(member, kUseByPart, clock, writes);
}

void AccessPredictor::NoteUse(Member member, Kind kind, uint64_t clock, bool writes) {
  Record(EventOf(member, kind), clock, writes);
  History& used = histories_[member.value()];
  if (used.last != VirtualTime()) {
    const uint64_t gap = std::max<uint64_t>(1, now() - std::min(now(), used.last));
    // Virtual time may stand still between two uses that were not predicted, so a gap is 1 at
    // least.
    used.gap = static_cast<uint32_t>(std::min<uint64_t>(gap, UINT32_MAX));
  }
  // 0 means that the member was never used.
  used.last = std::max(VirtualTime(1), now());
}

void AccessPredictor::Free(Member member, uint64_t clock) {
  // Freeing a member that was never used predicts nothing.
  const uint32_t number = member.value();
  if (number >= histories_.size() || histories_[number].last == VirtualTime()) return;
  Record(EventOf(member, kFree), clock, /*writes=*/false);
}

void AccessPredictor::Record(uint32_t event, uint64_t clock, bool writes) {
  if (record_.size() < kMaxUses) {
    if (record_.empty()) began_ = clock;
    record_.push_back(event);
    writes_.push_back(writes);
    clocks_.push_back(static_cast<uint32_t>(std::min<uint64_t>(clock - began_, UINT32_MAX)));
  } else {
    too_long_ = true;
  }
  History& history = Get(MemberOf(event));
  const auto iteration = static_cast<uint16_t>(last_iteration_.number + 1);
  if (history.iteration != iteration) history.events = 0;
  if (history.events < UINT16_MAX) ++history.events;
  history.iteration = iteration;
  // Without a prediction each event advances the time by one.
  if (!has_prediction()) {
    ++base_;
  } else if (IsByPart(event)) {
    if (FindByPart(event)) {
      ++matched_;
    } else {
      ExpectAfterGap(event);
    }
  } else if (FindNear(event) || FindAnywhere(event)) {
    ++matched_;
  } else {
    ExpectUnforeseen(event);
  }
}

// The job has passed all places up to this one, so the next event of their members lies after them.
void AccessPredictor::ArriveAt(uint32_t place) {
  const std::vector<uint32_t>& uses = followed().uses;
  for (; at_ <= place; ++at_) {
    if (IsAwaited(at_)) continue;  // It may come at any time.
    const Member member = MemberOf(uses[at_]);
    // A use out of order may have set a later prediction already: that one stays.
    if (histories_[member.value()].next <= base_ + at_) Expect(member, AfterPlace(at_));
  }
  guess_ = kNone;
}

bool AccessPredictor::IsAwaited(uint32_t place) const {
  return IsByPart(followed().uses[place]) && (place >= seen_.size() || !seen_[place]);
}

bool AccessPredictor::FindByPart(uint32_t event) {
  const RecordedIteration& iteration = followed();
  const Member member = MemberOf(event);
  if (member.value() >= iteration.first.size()) return false;
  uint32_t place = iteration.first[member.value()];
  while (place != kNone && (iteration.uses[place] != event || !IsAwaited(place))) {
    place = iteration.next[place];
  }
  if (place == kNone) return false;
  if (place >= seen_.size()) seen_.resize(place + 1);
  seen_[place] = true;
  if (histories_[member.value()].next <= base_ + place) Expect(member, AfterPlace(place));
  // The script may go on with what is behind the parts.
  while (at_ < iteration.uses.size() && IsByPart(iteration.uses[at_]) && !IsAwaited(at_)) ++at_;
  return true;
}

// A use a few places ahead means that the uses in between were left out, which needs no
// confirmation.
bool AccessPredictor::FindNear(uint32_t event) {
  const std::vector<uint32_t>& uses = followed().uses;
  const size_t end = std::min<size_t>(uses.size(), at_ + kFar);
  uint32_t passed = 0;  // The script's events between.
  for (uint32_t place = at_; place < end && passed < kNear; ++place) {
    if (uses[place] == event) {
      ArriveAt(place);
      return true;
    }
    passed += !IsByPart(uses[place]);
  }
  return false;
}

// One use says little: most members are used several times an iteration. Two uses in a row that
// agree are a place; the first of them left guess_.
bool AccessPredictor::FindAnywhere(uint32_t event) {
  if (guess_ == kNone) return false;
  const std::vector<uint32_t>& uses =
      iterations_[guess_wraps_ ? followed().successor : followed_].uses;
  const size_t end = std::min<size_t>(uses.size(), guess_ + kNear);
  for (uint32_t place = guess_; place < end; ++place) {
    if (uses[place] != event) continue;
    // ExpectAll is a pass over all members: only after enough uses to pay for it.
    if (guess_wraps_ && record_.size() - passed_over_ < histories_.size() / 16) return false;
    if (guess_wraps_) {
      passed_over_ = record_.size();
      // A new iteration began and the script has not reported the end of the last one.
      base_ += followed().uses.size();
      followed_ = followed().successor;
      at_ = 0;
      seen_.clear();
      ExpectAll();
    }
    ArriveAt(place);
    return true;
  }
  return false;
}

void AccessPredictor::ExpectUnforeseen(uint32_t event) {
  guess_ = kNone;
  const Member member = MemberOf(event);
  const History& used = histories_[member.value()];
  const VirtualTime end = base_ + followed().uses.size();
  // This may be the later place at which the member is predicted: guess so, and wait for the next
  // use to confirm it.
  if (used.next >= now() && EventAt(used.next) == event) {
    guess_wraps_ = used.next >= end;
    // The guess is the place after this use, where the next one is looked for.
    guess_ = static_cast<uint32_t>(used.next - (guess_wraps_ ? end : base_)) + 1;
    return;
  }
  ExpectAfterGap(event);
}

// The member's last gap is the best estimate; for a first use, one iteration.
void AccessPredictor::ExpectAfterGap(uint32_t event) {
  const Member member = MemberOf(event);
  const History& used = histories_[member.value()];
  const uint64_t gap =
      used.last == VirtualTime() ? followed().uses.size() : now() - std::min(now(), used.last);
  Expect(member, now() + std::max<uint64_t>(1, gap));
}

VirtualTime AccessPredictor::Estimate(const History& history) const {
  if (history.last == VirtualTime()) return kUnknown;
  const VirtualTime due = history.last + std::max<uint64_t>(history.gap, followed().uses.size());
  // An overdue member is predicted as far ahead as its last use lies behind: the longer it stays
  // unused, the better a victim it is.
  return due >= now() ? due : now() + (now() - history.last);
}

// Predicts the next event of every member anew, from at_ on.
void AccessPredictor::ExpectAll() {
  changes_.all = true;
  changes_.members.clear();
  for (uint32_t m = 0; m < histories_.size(); ++m) {
    const VirtualTime later = InLaterIteration(Member(m));
    histories_[m].next = later < kUnknown ? later : Estimate(histories_[m]);
  }
  const std::vector<uint32_t>& uses = followed().uses;
  for (size_t place = uses.size(); place > at_; --place) {
    // The loop runs backwards, so the earliest place of each member is written last.
    histories_[MemberOf(uses[place - 1]).value()].next = base_ + (place - 1);
  }
}

void AccessPredictor::Fill(RecordedIteration* iteration) const {
  const std::vector<uint32_t>& uses = iteration->uses;
  iteration->next.assign(uses.size(), kNone);
  iteration->first.assign(histories_.size(), kNone);
  for (size_t place = uses.size(); place > 0; --place) {
    uint32_t& first = iteration->first[MemberOf(uses[place - 1]).value()];
    iteration->next[place - 1] = first;
    first = static_cast<uint32_t>(place - 1);
  }
}

uint64_t AccessPredictor::HashOf(const std::vector<uint32_t>& events) {
  constexpr uint64_t kPrime = 1099511628211u;
  uint64_t script = 14695981039346656037u, parts = 0;  // FNV-1a, by events.
  for (const uint32_t event : events) {
    if (IsByPart(event)) {
      parts += (event + 1) * kPrime;
    } else {
      script = (script ^ event) * kPrime;
    }
  }
  return script ^ parts;
}

bool AccessPredictor::AreAlike(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  if (a == b) return true;
  if (a.size() != b.size()) return false;
  // Events of the script in their order, and behind them events of parts in the order of members.
  const auto sorted = [](std::vector<uint32_t> events) {
    const auto parts = std::stable_partition(events.begin(), events.end(),
                                             [](uint32_t event) { return !IsByPart(event); });
    std::sort(parts, events.end());
    return events;
  };
  return sorted(a) == sorted(b);
}

// Index of the RecordedIteration that now holds record_; kNone if record_ is not worth keeping.
uint32_t AccessPredictor::Learn() {
  const uint64_t hash = HashOf(record_);
  for (uint32_t i = 0; i < iterations_.size(); ++i) {
    // Equal hashes are compared in full: a collision would predict another iteration.
    if (iterations_[i].hash == hash && AreAlike(iterations_[i].uses, record_)) return i;
  }
  uint32_t chosen = kNone;
  if (has_prediction()) {
    const size_t expected = followed().uses.size();
    // An iteration that followed the prediction and ended in its first half was cut short (an
    // exception, the last batch): recording it would evict a good prediction.
    const bool cut = at_ == record_.size() && matched_ == at_ && at_ < expected / 2;
    if (cut) return kNone;
    // Half of the events agree: the same iteration in a new form, as with a mixture of experts.
    if (matched_ >= std::max(expected, record_.size()) / 2) chosen = followed_;
  }
  if (chosen == kNone && iterations_.size() < kMaxRecordedIterations) {
    chosen = static_cast<uint32_t>(iterations_.size());
    iterations_.emplace_back();
    // Until another iteration follows it, an iteration is predicted to repeat.
    iterations_.back().successor = chosen;
  }
  if (chosen == kNone) {
    for (uint32_t i = 0; i < iterations_.size(); ++i) {
      if (chosen == kNone || iterations_[i].last_seen < iterations_[chosen].last_seen) chosen = i;
    }
    iterations_[chosen].successor = chosen;
  }
  iterations_[chosen].uses = std::exchange(record_, {});
  iterations_[chosen].clock = clocks_;
  iterations_[chosen].writes = writes_;
  iterations_[chosen].hash = hash;
  Fill(&iterations_[chosen]);
  return chosen;
}

void AccessPredictor::EndIteration(uint64_t clock) {
  if (record_.empty()) return;
  clocks_.push_back(static_cast<uint32_t>(std::min<uint64_t>(clock - began_, UINT32_MAX)));
  const uint64_t length = has_prediction() ? followed().uses.size() : 0;
  const uint32_t last_followed = followed_;
  const bool same = has_prediction() && AreAlike(record_, followed().uses);
  last_iteration_ = {last_iteration_.number + 1,
                     static_cast<uint32_t>(record_.size()),
                     static_cast<uint32_t>(length),
                     matched_,
                     !same,
                     same};
  const uint32_t was = same ? followed_ : too_long_ ? kNone : Learn();
  // The next iteration begins where this one was predicted to end, so that predictions beyond its
  // end still hold.
  base_ = std::max(base_ + length, now());
  at_ = 0;
  seen_.clear();
  if (was != kNone) {
    last_iteration_.remembered = true;
    // The newest times of the uses replace older ones, because the speed of a job may change.
    if (same) iterations_[was].clock = clocks_;
    iterations_[was].last_seen = last_iteration_.number;
    if (previous_ != kNone) iterations_[previous_].successor = was;
    previous_ = was;
    followed_ = iterations_[was].successor;
  }
  if (same && followed_ == last_followed) {
    ExpectOthers();
  } else if (has_prediction()) {
    ExpectAll();
  }
  record_.clear();
  clocks_.clear();
  writes_.clear();
  too_long_ = false;
  matched_ = 0;
  passed_over_ = 0;
  guess_ = kNone;
}

// Members without an event in the next two iterations: their estimate moves on while they stay
// unused. The others' predictions are exact already, so that a repeated iteration costs no
// ExpectAll.
void AccessPredictor::ExpectOthers() {
  for (uint32_t m = 0; m < histories_.size(); ++m) {
    if (InLaterIteration(Member(m)) < kUnknown) continue;
    const VirtualTime expected = Estimate(histories_[m]);
    if (expected != histories_[m].next) Expect(Member(m), expected);
  }
}

}  // namespace memtide
