// RanksTest: three ranks of one training on an EngineByteHarness, for tests of what they share.
#ifndef MEMTIDE_DAEMON_ENGINE_TESTING_RANKS_HARNESS_H_
#define MEMTIDE_DAEMON_ENGINE_TESTING_RANKS_HARNESS_H_

#include <memory>
#include <string>
#include <vector>

#include "daemon/engine/testing/step_training.h"

namespace memtide {

inline constexpr uint32_t kRanks = 3;

// One rank's parameter and its states: gradient, parameter, momentum, variance, and the shadow
// chunks of the last three.
class Rank {
 public:
  Rank(EngineByteHarness* node, uint32_t rank, Duration time_to_live)
      : node_(node), rank_(rank), time_to_live_(time_to_live) {
    Open();
    chunks_ = node->Allocate(session_, 7);
    for (int i = 1; i < 4; ++i) node->Fill(session_, chunks_[i], Values(kTrainedElements, 0));
  }

  // A session of the rank, with the chunks of the one before.
  OpenReply Open() {
    OpenReply opened;
    session_ = node_->OpenRank("training", time_to_live_, rank_, kRanks, &opened);
    return opened;
  }
  SessionId session() const { return session_; }
  ChunkId chunk(size_t i) const { return chunks_[i]; }

  void FillGradient(uint64_t step) {
    gradient_ = step;
    node_->Fill(session_, chunks_[0], GradientOf(step));
  }
  // Digests of what the part reads: of the gradient, and with `all` also of the parameter and its
  // states, which all ranks have filled alike.
  CallId Start(uint64_t step, bool all, uint64_t part = 1) {
    StepCall call;
    call.call = node_->Call();
    call.session = session_;
    call.chunks = chunks_;
    call.reads = 4;
    call.part = part;
    call.contents = PartContents{{7, step}, {{1, gradient_}}};
    for (uint64_t i = 1; all && i < 4; ++i) call.contents->reads.push_back({2, i});
    node_->Post(call);
    return call.call;
  }
  PartReply Began(CallId call) { return node_->Finish<PartReply>(call); }
  // Computes the part where its chunks are, and ends it.
  void Make(const PartReply& part, uint64_t number = 1) {
    ASSERT_EQ(part.places.size(), 7u);
    std::vector<char*> places;
    for (const MemoryPlace& place : part.places) places.push_back(node_->At(place));
    RunAll(StepWork(), places);
    End(true, number);
  }
  void End(bool computed, uint64_t number = 1) {
    node_->Post(EndPartCall{node_->Call(), session_, number, computed, 0});
  }
  CallId Commit(uint64_t step) {
    CommitCall call = CommitOf(node_->Call(), session_, chunks_, step);
    call.with_all_ranks = true;
    call.manifest = "rank " + std::to_string(rank_) + " step " + std::to_string(step);
    node_->Post(call);
    return call.call;
  }
  State Read() {
    State state;
    for (size_t i = 1; i < 4; ++i) {
      state.push_back(node_->Read(session_, chunks_[i], kTrainedElements));
    }
    return state;
  }
  void Dies() { node_->Post(ClientGone{session_}); }

 private:
  EngineByteHarness* const node_;
  const uint32_t rank_;
  const Duration time_to_live_;
  SessionId session_;
  std::vector<ChunkId> chunks_;
  uint64_t gradient_ = 0;
};

class RanksTest : public testing::Test {
 protected:
  explicit RanksTest(Duration time_to_live = Duration(0), uint32_t durable_every = 0)
      : options_(Options()), node_(options_) {
    node_.durable_every_ = durable_every;
    node_.keeps_unflushed_ = durable_every > 0;
    for (uint32_t i = 0; i < kRanks; ++i) ranks_.emplace_back(&node_, i, time_to_live);
  }
  // All parts of a step, in which all ranks have the same gradient.
  void MakeParts(uint64_t step, bool all_digests) {
    for (Rank& rank : ranks_) {
      rank.FillGradient(step);
      const PartReply part = rank.Began(rank.Start(step, all_digests));
      if (!part.made) rank.Make(part);
    }
  }
  void Step(uint64_t step) { Step(step, step == 1); }
  void Step(uint64_t step, bool all_digests) {
    MakeParts(step, all_digests);
    Commit(step);
  }
  void Commit(uint64_t step) {
    std::vector<CallId> commits;
    for (Rank& rank : ranks_) commits.push_back(rank.Commit(step));
    for (const CallId commit : commits) {
      if (node_.durable_every_ > 0) node_.FinishUntilAnswered(commit);
      ASSERT_TRUE(node_.ReplyTo(commit).status.ok()) << node_.ReplyTo(commit).status;
    }
  }
  InspectReply Inspect() {
    InspectCall call;
    call.call = node_.Call();
    call.sessions = true;
    node_.Post(call);
    return std::get<InspectReply>(node_.ReplyTo(call.call).value);
  }

  static EngineOptions Options() {
    EngineOptions options{
        {}, EngineByteHarness::kChunk * 16, EngineByteHarness::kChunk * 64, Limits()};
    options.persistent_jobs = true;
    return options;
  }
  const EngineOptions options_;
  EngineByteHarness node_;
  std::vector<Rank> ranks_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_TESTING_RANKS_HARNESS_H_
