// VictimPolicy: which chunk leaves a tier next.
//
// The engine tells the policy which chunks of a job may leave one tier (unleased, not moving, not
// at home there) and asks for the next victim. Members are small numbers, dense per job. A policy
// knows numbers and order only: no bytes, no I/O, no clock. Pure, deterministic, thread-compatible.
#ifndef MEMTIDE_DAEMON_POLICY_VICTIM_POLICY_H_
#define MEMTIDE_DAEMON_POLICY_VICTIM_POLICY_H_

#include <cstdint>

#include "absl/types/optional.h"

namespace memtide {

// What losing the copy would cost.
enum class CopyValue : uint8_t {
  kOnly,       // The only fast copy.
  kDuplicate,  // A faster tier has the same bytes: nothing is lost.
};

class VictimPolicy {
 public:
  virtual ~VictimPolicy() = default;

  // `member` was just used, or just came, and may leave from now on. REQUIRES: not in the policy.
  virtual void Add(uint32_t member, CopyValue value) = 0;
  // `member` may not leave any more. REQUIRES: in the policy.
  virtual void Remove(uint32_t member) = 0;
  virtual bool Contains(uint32_t member) const = 0;
  // Who should leave first; nullopt: nobody may.
  virtual absl::optional<uint32_t> Next() const = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_VICTIM_POLICY_H_
