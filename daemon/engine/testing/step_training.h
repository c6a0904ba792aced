// StepTraining: one parameter and its two states on an EngineByteHarness, for tests of steps: the
// calls of a step and its commit, and the expected states after each.
#ifndef MEMTIDE_DAEMON_ENGINE_TESTING_STEP_TRAINING_H_
#define MEMTIDE_DAEMON_ENGINE_TESTING_STEP_TRAINING_H_

#include <memory>
#include <string>
#include <vector>

#include "daemon/engine/testing/engine_byte_harness.h"

namespace memtide {

inline constexpr size_t kTrainedElements = 8;
inline constexpr uint64_t kSteps = 3;
using Values = std::vector<float>;
using State = std::vector<Values>;  // The parameter and its states.

// Host memory holds hardly more than the chunks of one step, so that they go to SSD and come back.
inline EngineOptions SmallHost() {
  return {{}, EngineByteHarness::kChunk * 9, EngineByteHarness::kChunk * 64, Limits()};
}
inline EngineOptions WithDevice() {
  return {{EngineByteHarness::kChunk * 4},
          EngineByteHarness::kChunk * 9,
          EngineByteHarness::kChunk * 64,
          Limits()};
}

// Host memory for a few more chunks, and programs that want all of it.
inline EngineOptions Squeezed() {
  EngineOptions options{
      {}, EngineByteHarness::kChunk * 12, EngineByteHarness::kChunk * 64, Limits()};
  options.host_reserve = EngineByteHarness::kChunk * 8;
  return options;
}

// Reads chunks 0 (gradient), 1 (parameter), 2 and 3 (states), and writes 4, 5 and 6. New states
// depend on several steps: the parameter becomes the gradient, the first state the old parameter,
// and the second one half the first and half its own.
inline CopyWork StepWork() {
  constexpr uint64_t kAll = kTrainedElements * sizeof(float), kHalf = kAll / 2;
  return {{{{0, 0}, {4, 0}, kAll},
           {{1, 0}, {5, 0}, kAll},
           {{2, 0}, {6, 0}, kHalf},
           {{3, 0}, {6, kHalf}, kHalf}}};
}

inline Values GradientOf(uint64_t step) {
  Values gradient;
  for (size_t i = 0; i < kTrainedElements; ++i) {
    gradient.push_back(0.25f * static_cast<float>(step) - 0.1f * static_cast<float>(i));
  }
  return gradient;
}

// Commits a step of one parameter: `chunks` as StepWork() has them.
inline CommitCall CommitOf(CallId call, SessionId session, const std::vector<ChunkId>& chunks,
                           uint64_t step) {
  CommitCall commit{call, session, step};
  commit.chunks = {chunks[1], chunks[2], chunks[3]};
  commit.shadows = {chunks[4], chunks[5], chunks[6]};
  return commit;
}

// The chunks of one parameter, and the calls that train it.
class StepTraining {
 public:
  StepTraining(EngineByteHarness* node, SessionId session) : node_(node), session_(session) {
    chunks_ = node->Allocate(session, 13);
  }

  // A new session of the job continues.
  void GoOnIn(SessionId session) { session_ = session; }

  CallId StartStep(Duration deadline = Duration(0)) {
    StepCall call;
    call.call = node_->Call();
    call.session = session_;
    call.chunks = {chunks_.begin(), chunks_.begin() + 7};
    call.reads = 4;
    call.work = std::make_shared<const CopyWork>(StepWork());
    call.deadline = deadline;
    node_->Post(call);
    return call.call;
  }
  CallId Commit(uint64_t step, bool keep_old_content = false) {
    CommitCall call = CommitOf(node_->Call(), session_, chunks_, step);
    call.keep_old_content = keep_old_content;
    call.manifest = "step " + std::to_string(step);
    node_->Post(call);
    return call.call;
  }
  void FillGradient(uint64_t step) { node_->Fill(session_, chunks_[0], GradientOf(step)); }
  // Writes other chunks, so that those of the step leave host memory.
  void Displace() {
    for (size_t i = 7; i < 13; ++i) node_->Fill(session_, chunks_[i], {1});
  }
  // The whole step, with everything going well.
  void Step(uint64_t step) {
    FillGradient(step);
    Displace();
    const CallId made = StartStep();
    node_->FinishUntilAnswered(made);
    ASSERT_TRUE(node_->ReplyTo(made).status.ok()) << node_->ReplyTo(made).status;
    Displace();
    const CallId published = Commit(step);
    node_->FinishUntilAnswered(published);
    ASSERT_TRUE(node_->ReplyTo(published).status.ok()) << node_->ReplyTo(published).status;
  }
  State Read() {
    State state;
    for (size_t i = 1; i < 4; ++i) {
      state.push_back(node_->Read(session_, chunks_[i], kTrainedElements));
    }
    return state;
  }
  const std::vector<ChunkId>& chunks() const { return chunks_; }
  SessionId session() const { return session_; }

 private:
  EngineByteHarness* const node_;
  SessionId session_;
  std::vector<ChunkId> chunks_;
};

// The job's state after each step, from 0 on, with nothing going wrong.
inline std::vector<State> Expected(const EngineOptions& options) {
  EngineByteHarness node(options);
  StepTraining training(&node, node.Open("job", std::chrono::hours(1)));
  std::vector<State> states = {training.Read()};
  for (uint64_t step = 1; step <= kSteps; ++step) {
    training.Step(step);
    states.push_back(training.Read());
  }
  return states;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TESTING_STEP_TRAINING_H_
