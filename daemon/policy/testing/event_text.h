// EventsOf: the events of an iteration as a text, for tests of plans.
#ifndef MEMTIDE_DAEMON_POLICY_TESTING_EVENT_TEXT_H_
#define MEMTIDE_DAEMON_POLICY_TESTING_EVENT_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/policy/residency_plan.h"

namespace memtide {

// "ar bw a-": a is read, b written to, a given up. Each takes a millisecond.
inline std::vector<ResidencyPlan::Event> EventsOf(const std::string& text) {
  using Kind = ResidencyPlan::Event::Kind;
  std::vector<ResidencyPlan::Event> events;
  for (size_t i = 0; i + 1 < text.size(); i += 3) {
    const Kind kind = text[i + 1] == 'r'   ? Kind::kRead
                      : text[i + 1] == 'w' ? Kind::kWrite
                                           : Kind::kFree;
    events.push_back({Member(static_cast<uint32_t>(text[i] - 'a')), kind, 1000});
  }
  return events;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_TESTING_EVENT_TEXT_H_
