// DurableNode: an EngineByteHarness whose stores forget what was not flushed, for tests of durable
// jobs.
#ifndef MEMTIDE_DAEMON_ENGINE_TESTING_DURABLE_NODE_H_
#define MEMTIDE_DAEMON_ENGINE_TESTING_DURABLE_NODE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "daemon/engine/testing/step_training.h"

namespace memtide {

struct DurableNode : EngineByteHarness {
  explicit DurableNode(const EngineOptions& options) : EngineByteHarness(options) {
    keeps_unflushed_ = true;
  }
  // As Advance(), on a drive that refuses all writes.
  void AdvanceRefused() {
    if (!WritesNow()) return Advance();
    refused_.push_back(now());
    FinishOne(absl::InternalError("EIO"));
  }
  // The most writes that were refused within a second, from the time on.
  size_t MostInASecond(Instant from) const {
    size_t most = 0;
    for (size_t i = 0, first = 0; i < refused_.size(); ++i) {
      while (refused_[first] <= refused_[i] - std::chrono::seconds(1)) ++first;
      if (refused_[first] >= from) most = std::max(most, i - first + 1);
    }
    return most;
  }

  std::vector<Instant> refused_;
};

// The power is cut, and the job is found at that step, with its state.
inline void ExpectAfterPowerCut(DurableNode& node, StepTraining& training, uint32_t torn,
                                uint64_t step) {
  EXPECT_TRUE(node.PowerCut(torn).empty());
  OpenReply opened;
  training.GoOnIn(node.OpenDurable("job", 1, &opened));
  EXPECT_EQ(opened.committed_step, step);
  EXPECT_EQ(training.Read(), Expected(SmallHost())[step]);
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TESTING_DURABLE_NODE_H_
