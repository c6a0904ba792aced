#include "daemon/policy/access_predictor.h"

#include <algorithm>
#include <utility>

namespace memtide {

AccessPredictor::Member& AccessPredictor::Get(uint32_t member) {
  if (member >= members_.size()) members_.resize(member + 1);
  return members_[member];
}

absl::optional<uint32_t> AccessPredictor::EventAt(uint64_t time) const {
  if (!has_prediction() || time < base_) return absl::nullopt;
  const uint64_t place = time - base_;
  if (place < followed().uses.size()) return followed().uses[place];
  const RecordedIteration& following = iterations_[followed().successor];
  const uint64_t later = place - followed().uses.size();
  if (later < following.uses.size()) return following.uses[later];
  return absl::nullopt;
}

absl::optional<uint32_t> AccessPredictor::At(uint64_t time) const {
  const absl::optional<uint32_t> event = EventAt(time);
  if (!event.has_value()) return absl::nullopt;
  return *event & 1 ? kNobody : MemberOf(*event);
}

bool AccessPredictor::IsFreedNext(uint32_t member) const {
  return EventAt(NextUse(member)) == (member << 1 | 1);
}

std::vector<ResidencyPlan::Event> AccessPredictor::Events() const {
  using Kind = ResidencyPlan::Event::Kind;
  std::vector<ResidencyPlan::Event> events(followed().uses.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const uint32_t event = followed().uses[i];
    const Kind use = followed().writes[i] ? Kind::kWrite : Kind::kRead;
    events[i] = {MemberOf(event), event & 1 ? Kind::kFree : use};
  }
  return events;
}

absl::optional<uint32_t> AccessPredictor::LastEvent(uint32_t member) const {
  if (member >= members_.size() || members_[member].events == 0) return absl::nullopt;
  return members_[member].events - 1;
}

AccessPredictor::Changes AccessPredictor::TakeChanges() {
  return std::exchange(changes_, Changes());
}

uint64_t AccessPredictor::InLaterIteration(uint32_t member) const {
  uint64_t start = base_ + followed().uses.size();
  const RecordedIteration* following = &iterations_[followed().successor];
  for (int iteration = 0; iteration < 2; ++iteration) {
    if (member < following->first.size() && following->first[member] != kNone) {
      return start + following->first[member];
    }
    start += following->uses.size();
    following = &iterations_[following->successor];
  }
  return kUnknown;
}

uint64_t AccessPredictor::AfterPlace(uint32_t place) const {
  const uint32_t next = followed().next[place];
  return next != kNone ? base_ + next : InLaterIteration(MemberOf(followed().uses[place]));
}

void AccessPredictor::Expect(uint32_t member, uint64_t time) {
  Get(member).next = time;
  if (!changes_.all) changes_.members.push_back(member);
  if (changes_.members.size() <= 2 * members_.size() + kNear) return;
  // The caller has not taken the changes for so long that "all members" is shorter than a list.
  changes_ = Changes();
  changes_.all = true;
}

uint64_t AccessPredictor::MicrosUntil(uint64_t time) const {
  const std::vector<uint32_t>& clock = followed().clock;
  const uint64_t place = time - base_;
  if (place < clock.size()) return clock[place] - std::min(clock[place], clock[at_]);
  const std::vector<uint32_t>& later = iterations_[followed().successor].clock;
  return clock.back() - clock[at_] + later[place - followed().uses.size()];
}

void AccessPredictor::Use(uint32_t member, uint64_t clock, bool writes) {
  Record(member << 1, clock, writes);
  Member& used = members_[member];
  if (used.last != 0) {
    const uint64_t gap = std::max<uint64_t>(1, now() - std::min(now(), used.last));
    used.gap = static_cast<uint32_t>(std::min<uint64_t>(gap, UINT32_MAX));
  }
  used.last = std::max<uint64_t>(1, now());
}

void AccessPredictor::Free(uint32_t member, uint64_t clock) {
  // Freeing a member that was never used predicts nothing.
  if (member < members_.size() && members_[member].last != 0) Record(member << 1 | 1, clock, false);
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
  Member& member = Get(MemberOf(event));
  const auto iteration = static_cast<uint16_t>(last_iteration_.number + 1);
  if (member.iteration != iteration) member.events = 0;
  if (member.events < UINT16_MAX) ++member.events;
  member.iteration = iteration;
  if (!has_prediction()) {
    ++base_;
  } else if (FindNear(event) || FindAnywhere(event)) {
    ++matched_;
  } else {
    ExpectUnforeseen(event);
  }
}

void AccessPredictor::ArriveAt(uint32_t place) {
  const std::vector<uint32_t>& uses = followed().uses;
  for (; at_ <= place; ++at_) {
    const uint32_t member = MemberOf(uses[at_]);
    // A use out of order may have set a later prediction already: that one stays.
    if (members_[member].next <= base_ + at_) Expect(member, AfterPlace(at_));
  }
  guess_ = kNone;
}

bool AccessPredictor::FindNear(uint32_t event) {
  const std::vector<uint32_t>& uses = followed().uses;
  const size_t end = std::min<size_t>(uses.size(), at_ + kNear);
  for (uint32_t place = at_; place < end; ++place) {
    if (uses[place] != event) continue;
    ArriveAt(place);
    return true;
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
    if (guess_wraps_ && record_.size() - passed_over_ < members_.size() / 16) return false;
    if (guess_wraps_) {
      passed_over_ = record_.size();
      // A new iteration began and the script has not reported the end of the last one.
      base_ += followed().uses.size();
      followed_ = followed().successor;
      at_ = 0;
      ExpectAll();
    }
    ArriveAt(place);
    return true;
  }
  return false;
}

void AccessPredictor::ExpectUnforeseen(uint32_t event) {
  guess_ = kNone;
  const uint32_t member = MemberOf(event);
  Member& used = members_[member];
  const uint64_t end = base_ + followed().uses.size();
  // This may be the later place at which the member is predicted: guess so, and wait for the next
  // use to confirm it.
  if (used.next >= now() && EventAt(used.next) == event) {
    guess_wraps_ = used.next >= end;
    guess_ = static_cast<uint32_t>(used.next - (guess_wraps_ ? end : base_)) + 1;
    return;
  }
  // The member's last gap is the best estimate; for a first use, one iteration.
  const uint64_t gap = used.last == 0 ? followed().uses.size() : now() - std::min(now(), used.last);
  Expect(member, now() + std::max<uint64_t>(1, gap));
}

uint64_t AccessPredictor::Estimate(const Member& member) const {
  if (member.last == 0) return kUnknown;
  const uint64_t due = member.last + std::max<uint64_t>(member.gap, followed().uses.size());
  // An overdue member is predicted as far ahead as its last use lies behind: the longer it stays
  // unused, the better a victim it is.
  return due >= now() ? due : now() + (now() - member.last);
}

// Predicts the next event of every member anew, from at_ on.
void AccessPredictor::ExpectAll() {
  changes_.all = true;
  changes_.members.clear();
  for (uint32_t m = 0; m < members_.size(); ++m) {
    const uint64_t later = InLaterIteration(m);
    members_[m].next = later < kUnknown ? later : Estimate(members_[m]);
  }
  const std::vector<uint32_t>& uses = followed().uses;
  for (size_t place = uses.size(); place > at_; --place) {
    members_[MemberOf(uses[place - 1])].next = base_ + place - 1;
  }
}

void AccessPredictor::Fill(RecordedIteration* iteration) const {
  const std::vector<uint32_t>& uses = iteration->uses;
  iteration->next.assign(uses.size(), kNone);
  iteration->first.assign(members_.size(), kNone);
  for (size_t place = uses.size(); place > 0; --place) {
    uint32_t& first = iteration->first[MemberOf(uses[place - 1])];
    iteration->next[place - 1] = first;
    first = static_cast<uint32_t>(place - 1);
  }
}

// Index of the RecordedIteration that now holds record_; kNone if record_ is not worth keeping.
uint32_t AccessPredictor::Learn() {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, by events.
  for (const uint32_t event : record_) hash = (hash ^ event) * 1099511628211u;
  for (uint32_t i = 0; i < iterations_.size(); ++i) {
    if (iterations_[i].hash == hash && iterations_[i].uses == record_) return i;
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
  const bool same = has_prediction() && record_ == followed().uses;
  last_iteration_ = {last_iteration_.number + 1,
                     static_cast<uint32_t>(record_.size()),
                     static_cast<uint32_t>(length),
                     matched_,
                     !same,
                     same};
  const uint32_t was = same ? followed_ : too_long_ ? kNone : Learn();
  base_ = std::max(base_ + length, now());
  at_ = 0;
  if (was != kNone) {
    last_iteration_.remembered = true;
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
  for (uint32_t m = 0; m < members_.size(); ++m) {
    if (InLaterIteration(m) < kUnknown) continue;
    const uint64_t expected = Estimate(members_[m]);
    if (expected != members_[m].next) Expect(m, expected);
  }
}

}  // namespace memtide
