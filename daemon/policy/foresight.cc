#include "daemon/policy/foresight.h"

#include <algorithm>
#include <utility>

namespace memtide {

Foresight::Member& Foresight::Get(uint32_t member) {
  if (member >= members_.size()) members_.resize(member + 1);
  return members_[member];
}

uint64_t Foresight::NextUse(uint32_t member) const {
  if (member >= members_.size()) return kUnknown;
  return std::max(members_[member].next, now());
}

absl::optional<uint32_t> Foresight::EventAt(uint64_t time) const {
  if (!known() || time < base_) return absl::nullopt;
  const uint64_t place = time - base_;
  if (place < shape().uses.size()) return shape().uses[place];
  const Shape& following = shapes_[shape().successor];
  const uint64_t later = place - shape().uses.size();
  if (later < following.uses.size()) return following.uses[later];
  return absl::nullopt;
}

absl::optional<uint32_t> Foresight::At(uint64_t time) const {
  const absl::optional<uint32_t> event = EventAt(time);
  if (!event.has_value()) return absl::nullopt;
  return *event & 1 ? kNobody : MemberOf(*event);
}

bool Foresight::IsFreedNext(uint32_t member) const {
  return EventAt(NextUse(member)) == (member << 1 | 1);
}

std::vector<Plan::Event> Foresight::Events() const {
  using Kind = Plan::Event::Kind;
  std::vector<Plan::Event> events(shape().uses.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const uint32_t event = shape().uses[i];
    const Kind use = shape().writes[i] ? Kind::kWrite : Kind::kRead;
    events[i] = {MemberOf(event), event & 1 ? Kind::kFree : use};
  }
  return events;
}

absl::optional<uint32_t> Foresight::LastEvent(uint32_t member) const {
  if (member >= members_.size() || members_[member].events == 0) return absl::nullopt;
  return members_[member].events - 1;
}

Foresight::Changes Foresight::TakeChanges() { return std::exchange(changes_, Changes()); }

uint64_t Foresight::InLaterIteration(uint32_t member) const {
  uint64_t start = base_ + shape().uses.size();
  const Shape* following = &shapes_[shape().successor];
  for (int iteration = 0; iteration < 2; ++iteration) {
    if (member < following->first.size() && following->first[member] != kNone) {
      return start + following->first[member];
    }
    start += following->uses.size();
    following = &shapes_[following->successor];
  }
  return kUnknown;
}

uint64_t Foresight::AfterPlace(uint32_t place) const {
  const uint32_t next = shape().next[place];
  return next != kNone ? base_ + next : InLaterIteration(MemberOf(shape().uses[place]));
}

void Foresight::Expect(uint32_t member, uint64_t time) {
  Get(member).next = time;
  if (!changes_.all) changes_.members.push_back(member);
  if (changes_.members.size() <= 2 * members_.size() + kNear) return;
  // Nobody asked for so long that it is all of them.
  changes_ = Changes();
  changes_.all = true;
}

uint64_t Foresight::MicrosUntil(uint64_t time) const {
  const std::vector<uint32_t>& clock = shape().clock;
  const uint64_t place = time - base_;
  if (place < clock.size()) return clock[place] - std::min(clock[place], clock[at_]);
  const std::vector<uint32_t>& later = shapes_[shape().successor].clock;
  return clock.back() - clock[at_] + later[place - shape().uses.size()];
}

void Foresight::Use(uint32_t member, uint64_t clock, bool writes) {
  Record(member << 1, clock, writes);
  Member& used = members_[member];
  if (used.last != 0) {
    const uint64_t gap = std::max<uint64_t>(1, now() - std::min(now(), used.last));
    used.gap = static_cast<uint32_t>(std::min<uint64_t>(gap, UINT32_MAX));
  }
  used.last = std::max<uint64_t>(1, now());
}

void Foresight::Free(uint32_t member, uint64_t clock) {
  // Of what was never used, nothing is to be learnt.
  if (member < members_.size() && members_[member].last != 0) Record(member << 1 | 1, clock, false);
}

void Foresight::Record(uint32_t event, uint64_t clock, bool writes) {
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
  if (!known()) {
    ++base_;
  } else if (FindNear(event) || FindAnywhere(event)) {
    ++matched_;
  } else {
    ExpectUnforeseen(event);
  }
}

void Foresight::ArriveAt(uint32_t place) {
  const std::vector<uint32_t>& uses = shape().uses;
  for (; at_ <= place; ++at_) {
    const uint32_t member = MemberOf(uses[at_]);
    // Unless a use out of order has made it later already.
    if (members_[member].next <= base_ + at_) Expect(member, AfterPlace(at_));
  }
  guess_ = kNone;
}

bool Foresight::FindNear(uint32_t event) {
  const std::vector<uint32_t>& uses = shape().uses;
  const size_t end = std::min<size_t>(uses.size(), at_ + kNear);
  for (uint32_t place = at_; place < end; ++place) {
    if (uses[place] != event) continue;
    ArriveAt(place);
    return true;
  }
  return false;
}

// By two uses in a row. The first of them has left a guess.
bool Foresight::FindAnywhere(uint32_t event) {
  if (guess_ == kNone) return false;
  const std::vector<uint32_t>& uses = shapes_[guess_wraps_ ? shape().successor : shape_].uses;
  const size_t end = std::min<size_t>(uses.size(), guess_ + kNear);
  for (uint32_t place = guess_; place < end; ++place) {
    if (uses[place] != event) continue;
    // All members are looked at: not for a few uses each time.
    if (guess_wraps_ && record_.size() - passed_over_ < members_.size() / 16) return false;
    if (guess_wraps_) {
      passed_over_ = record_.size();
      // The iteration began anew, and nobody said so.
      base_ += shape().uses.size();
      shape_ = shape().successor;
      at_ = 0;
      ExpectAll();
    }
    ArriveAt(place);
    return true;
  }
  return false;
}

void Foresight::ExpectUnforeseen(uint32_t event) {
  guess_ = kNone;
  const uint32_t member = MemberOf(event);
  Member& used = members_[member];
  const uint64_t end = base_ + shape().uses.size();
  // It may be expected at a later place, because this is that place.
  if (used.next >= now() && EventAt(used.next) == event) {
    guess_wraps_ = used.next >= end;
    guess_ = static_cast<uint32_t>(used.next - (guess_wraps_ ? end : base_)) + 1;
    return;
  }
  // After as long as last time; or, seen for the first time, once an iteration.
  const uint64_t gap = used.last == 0 ? shape().uses.size() : now() - std::min(now(), used.last);
  Expect(member, now() + std::max<uint64_t>(1, gap));
}

uint64_t Foresight::Estimate(const Member& member) const {
  if (member.last == 0) return kUnknown;
  const uint64_t due = member.last + std::max<uint64_t>(member.gap, shape().uses.size());
  // Overdue: as long again as it has been waited for.
  return due >= now() ? due : now() + (now() - member.last);
}

// What is expected of every member, from here on.
void Foresight::ExpectAll() {
  changes_.all = true;
  changes_.members.clear();
  for (uint32_t m = 0; m < members_.size(); ++m) {
    const uint64_t later = InLaterIteration(m);
    members_[m].next = later < kUnknown ? later : Estimate(members_[m]);
  }
  const std::vector<uint32_t>& uses = shape().uses;
  for (size_t place = uses.size(); place > at_; --place) {
    members_[MemberOf(uses[place - 1])].next = base_ + place - 1;
  }
}

void Foresight::Fill(Shape* shape) const {
  const std::vector<uint32_t>& uses = shape->uses;
  shape->next.assign(uses.size(), kNone);
  shape->first.assign(members_.size(), kNone);
  for (size_t place = uses.size(); place > 0; --place) {
    uint32_t& first = shape->first[MemberOf(uses[place - 1])];
    shape->next[place - 1] = first;
    first = static_cast<uint32_t>(place - 1);
  }
}

// The shape that the recorded iteration has, which may be new; kNone: it is not to be learnt.
uint32_t Foresight::Learn() {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, by events.
  for (const uint32_t event : record_) hash = (hash ^ event) * 1099511628211u;
  for (uint32_t i = 0; i < shapes_.size(); ++i) {
    if (shapes_[i].hash == hash && shapes_[i].uses == record_) return i;
  }
  uint32_t chosen = kNone;
  if (known()) {
    const size_t expected = shape().uses.size();
    const bool cut = at_ == record_.size() && matched_ == at_ && at_ < expected / 2;
    if (cut) return kNone;
    if (matched_ >= std::max(expected, record_.size()) / 2) chosen = shape_;
  }
  if (chosen == kNone && shapes_.size() < kMaxShapes) {
    chosen = static_cast<uint32_t>(shapes_.size());
    shapes_.emplace_back();
    shapes_.back().successor = chosen;
  }
  if (chosen == kNone) {
    for (uint32_t i = 0; i < shapes_.size(); ++i) {
      if (chosen == kNone || shapes_[i].last_seen < shapes_[chosen].last_seen) chosen = i;
    }
    shapes_[chosen].successor = chosen;
  }
  shapes_[chosen].uses = std::exchange(record_, {});
  shapes_[chosen].clock = clocks_;
  shapes_[chosen].writes = writes_;
  shapes_[chosen].hash = hash;
  Fill(&shapes_[chosen]);
  return chosen;
}

void Foresight::EndIteration(uint64_t clock) {
  if (record_.empty()) return;
  clocks_.push_back(static_cast<uint32_t>(std::min<uint64_t>(clock - began_, UINT32_MAX)));
  const uint64_t length = known() ? shape().uses.size() : 0;
  const uint32_t followed = shape_;
  const bool same = known() && record_ == shape().uses;
  last_iteration_ = {last_iteration_.number + 1,
                     static_cast<uint32_t>(record_.size()),
                     static_cast<uint32_t>(length),
                     matched_,
                     !same,
                     same};
  const uint32_t was = same ? shape_ : too_long_ ? kNone : Learn();
  base_ = std::max(base_ + length, now());
  at_ = 0;
  if (was != kNone) {
    last_iteration_.remembered = true;
    if (same) shapes_[was].clock = clocks_;
    shapes_[was].last_seen = last_iteration_.number;
    if (previous_ != kNone) shapes_[previous_].successor = was;
    previous_ = was;
    shape_ = shapes_[was].successor;
  }
  if (same && shape_ == followed) {
    ExpectOthers();
  } else if (known()) {
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

// Those that the followed shapes do not have: the longer they are waited for, the later.
void Foresight::ExpectOthers() {
  for (uint32_t m = 0; m < members_.size(); ++m) {
    if (InLaterIteration(m) < kUnknown) continue;
    const uint64_t expected = Estimate(members_[m]);
    if (expected != members_[m].next) Expect(m, expected);
  }
}

}  // namespace memtide
