// LruPolicy: duplicates leave first, then whoever was used longest ago.
//
// A doubly linked list in an array: every call is O(1); 8 bytes per member number ever seen.
#ifndef MEMTIDE_DAEMON_POLICY_LRU_H_
#define MEMTIDE_DAEMON_POLICY_LRU_H_

#include <cstdint>
#include <vector>

#include "daemon/policy/victim_policy.h"

namespace memtide {

class LruPolicy final : public VictimPolicy {
 public:
  LruPolicy();
  void Add(uint32_t member, CopyValue value) override;
  void Remove(uint32_t member) override;
  bool Contains(uint32_t member) const override;
  absl::optional<uint32_t> Next() const override;

 private:
  // Node 0 is the ends' sentinel; member m is node m + 1. next == kAbsent: not in the list.
  static constexpr uint32_t kAbsent = ~uint32_t{0};
  struct Node {
    uint32_t previous = kAbsent, next = kAbsent;
  };
  void InsertBefore(uint32_t node, uint32_t position);

  std::vector<Node> nodes_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_LRU_H_
