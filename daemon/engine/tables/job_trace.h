// JobTrace: the latest iterations that a job's sessions reported, and the movements of its chunks.
// For people and for replay; the engine bases no decision on it. Engine-internal.
//
// Stores 4 bytes a use and 48 a moment, and each name once. The limits below apply; the oldest
// entries are dropped first.
#ifndef MEMTIDE_DAEMON_ENGINE_TABLES_JOB_TRACE_H_
#define MEMTIDE_DAEMON_ENGINE_TABLES_JOB_TRACE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/interface/effects.h"

namespace memtide {

class JobTrace {
 public:
  static constexpr size_t kMaxIterations = 8;
  static constexpr size_t kMaxUses = 1 << 17;
  static constexpr size_t kMaxMoments = 1 << 13;  // Per iteration.
  static constexpr size_t kMaxMoves = 8192;
  static constexpr size_t kMaxStalls = 2048;
  static constexpr size_t kMaxNames = 4096;  // Later names are replaced by "other".

  void Begin(Instant now, const MomentReport& moment);
  // Adds a use to the current moment, also after its iteration has ended. Ignored before the first
  // moment.
  void Use(Member member, TracedOperation operation);
  void EndIteration();
  void Moved(const TracedMove& move);
  void Stalled(const TracedStall& stall);

  // The number of the current moment.
  uint64_t moment() const { return moments_; }
  // The number of moments until `events` more events, if the job goes on as in its last whole
  // iteration; nullopt without one.
  absl::optional<uint32_t> MomentsUntil(uint64_t events) const;

  // Moments, iteration_ends, start, first_moment, moves and stalls.
  void AddTo(TraceReply* reply) const;

 private:
  struct Moment {
    Phase phase = Phase::kOther;
    uint32_t name = 0;
    Bytes own_device, own_host;
    Instant time;
    uint32_t first_use = 0;    // Index in the iteration's uses.
    uint32_t first_event = 0;  // Number of predictable events before it.
  };
  struct Iteration {
    std::vector<Moment> moments;
    std::vector<uint32_t> uses;
    uint32_t events = 0;  // Uses without allocations, as AccessPredictor counts them.
  };
  uint32_t NumberOf(const std::string& name);
  void ForgetOldest();

  std::deque<Iteration> iterations_;  // The last one is still growing.
  uint64_t moments_ = 0;
  size_t uses_ = 0;
  std::map<std::string, uint32_t> numbers_;
  std::vector<std::string> names_;
  std::deque<TracedMove> moves_;
  std::deque<TracedStall> stalls_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TABLES_JOB_TRACE_H_
