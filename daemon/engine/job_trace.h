// JobTrace: the latest iterations of a job, as its sessions told of them, and what was done about
// its chunks. For people and for replay; the engine decides nothing by it. Engine-internal.
//
// 4 bytes a use and 48 a moment; at most kMaxUses uses, kMaxIterations iterations, kMaxMoves moves
// and kMaxStalls stalls are kept, the latest ones. Names are kept once each.
#ifndef MEMTIDE_DAEMON_ENGINE_JOB_TRACE_H_
#define MEMTIDE_DAEMON_ENGINE_JOB_TRACE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/effects.h"

namespace memtide {

class JobTrace {
 public:
  static constexpr size_t kMaxIterations = 8;
  static constexpr size_t kMaxUses = 1 << 17;
  static constexpr size_t kMaxMoments = 1 << 13;  // Of an iteration.
  static constexpr size_t kMaxMoves = 8192;
  static constexpr size_t kMaxStalls = 2048;
  static constexpr size_t kMaxNames = 4096;  // What comes later is called "other".
  static constexpr size_t kMaxNameBytes = 64;

  void Begin(Instant now, const MomentReport& moment);
  // In the current moment. Before the first one: forgotten.
  void Use(uint32_t member, TracedOperation operation);
  void EndIteration();
  void Moved(const TracedMove& move);
  void Stalled(const TracedStall& stall);

  // The number of the current moment.
  uint64_t moment() const { return moments_; }
  // How many moments it takes until so many events more have passed, as the last whole iteration
  // went; nullopt: there was none.
  absl::optional<uint32_t> MomentsUntil(uint64_t events) const;

  // Moments, iteration_ends, start, first_moment, moves and stalls.
  void AddTo(TraceReply* reply) const;

 private:
  struct Moment {
    Phase phase = Phase::kOther;
    uint32_t name = 0;
    Bytes own_device, own_host;
    Instant time;
    uint32_t first_use = 0;    // In the iteration's uses.
    uint32_t first_event = 0;  // Of those that are foreseen.
  };
  struct Iteration {
    std::vector<Moment> moments;
    std::vector<uint32_t> uses;
    uint32_t events = 0;  // Of the uses: all but allocations, as Foresight counts them.
  };
  uint32_t NumberOf(const std::string& name);
  void ForgetOldest();

  std::deque<Iteration> iterations_;  // The last one goes on.
  uint64_t moments_ = 0;
  size_t uses_ = 0;
  std::map<std::string, uint32_t> numbers_;
  std::vector<std::string> names_;
  std::deque<TracedMove> moves_;
  std::deque<TracedStall> stalls_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_JOB_TRACE_H_
