// PipelineSimulation: clients that are the stages of PipeDream-2BW pipelines, beside scripts that
// have nothing to do with these. Thread-compatible.
//
// Each weight of a stage is a chunk in two versions, with a chunk for each: version k is in room
// k % 2. A micro-batch of batch t is a reader of version max(t - 1, 0), from its forward to the end
// of its backward; it has leases only while one of these runs. When all backwards of batch t have
// ended, the step makes version t + 1 of version t, in the room of version t - 1.
//
// The oracle computes what each version holds from its number and its chunk alone.
#ifndef MEMTIDE_TESTS_SIM_PIPELINES_PIPELINE_SIMULATION_H_
#define MEMTIDE_TESTS_SIM_PIPELINES_PIPELINE_SIMULATION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/sim/common/common_simulation.h"

namespace memtide::sim {

// How the stages of a pipeline are jobs: each has an unnamed one; they are the ranks of one job; or
// each has a named one, and they are a group.
enum class StageJobs : uint8_t { kUnnamed, kRanks, kGroup };

// How a step makes a version. In the last two ways it is committed.
enum class StepWay : uint8_t {
  kInPlace,       // The client writes into the room.
  kIntoRoom,      // A step part writes into the room.
  kIntoShadow,    // A step part writes into a shadow chunk: until the commit there is a third
                  // content, so that the version before the newest one outlives any death.
  kAfterDiscard,  // The same, when what the room held has been discarded.
};

// One pipeline.
struct PipelinePlan {
  StageJobs jobs = StageJobs::kUnnamed;
  StepWay way = StepWay::kInPlace;
  uint32_t stages = 2, weights = 1, micro_batches = 2;
  bool on_device = false;   // Its leases are.
  bool leases_all = false;  // A pass leases all weights; otherwise one after the other.

  bool keeps() const { return jobs != StageJobs::kUnnamed; }
  bool commits() const { return way == StepWay::kIntoShadow || way == StepWay::kAfterDiscard; }
};

struct PipelineConfig {
  ClientConfig node;
  std::vector<PipelinePlan> pipelines;
  uint32_t scripts = 0;
};

PipelineConfig WithPipelines(uint64_t seed);

class PipelineSimulation : public CommonSimulation {
 public:
  static ClientOutcome Run(const PipelineConfig& config, std::ostream* echo = nullptr);

 private:
  using Key = std::pair<size_t, uint32_t>;  // The number of a pipeline, and of a stage in it.
  enum class PassKind : uint8_t { kFill, kForward, kBackward, kStep };
  struct Use {
    ChunkId chunk;
    Access access = Access::kRead;
    uint32_t weight = 0;
  };
  // One way through the weights of a stage: what it uses, in this order.
  struct Pass {
    PassKind kind = PassKind::kForward;
    uint64_t micro_batch = 0;
    std::vector<Use> uses;
    size_t next = 0;
    std::set<ChunkId> held;
    std::optional<CallId> fetch;  // A waiting call.
  };
  struct Stage {
    Key key;
    bool resumes = false;    // It has yet to discard what the session before left.
    uint64_t version = 0;    // The newest.
    bool is_filled = false;  // Version 0 is there.
    // Micro-batches whose forward, and whose backward, has ended.
    uint64_t forwards = 0, backwards = 0;
    std::vector<Pass> passes;  // One of each kind at most.
    bool steps = false;        // A step has begun, and has not ended.
    bool has_discarded = false;
    std::set<uint32_t> made;  // The weights whose new version a part has made.
  };

  PipelineSimulation(const PipelineConfig& config, std::ostream* echo);

  // --- pipeline_clients.cc ---
  void Connect() override;
  void ConnectStage(Key key);
  void StepClient(Client* client, ClientOp operation) override;
  void Train(Client* client, Stage* stage);
  bool CanForward(const Stage& stage) const;
  bool CanBackward(const Stage& stage) const;
  bool CanStep(const Stage& stage) const;
  void BeginPass(Client* client, Stage* stage, PassKind kind);
  // Leases the next use, or ends the pass.
  void Advance(Client* client, Stage* stage, PassKind kind);
  void AdvanceStep(Client* client, Stage* stage);
  void EndPass(Client* client, Stage* stage, PassKind kind);
  void GiveUp(Client* client, Stage* stage, std::vector<ChunkId> chunks);
  bool GiveBack(Client* client, const std::vector<ChunkId>& chunks) override;
  bool SettleClient(Client* client) override;
  void ReadAll() override;

  // --- pipeline_oracle.cc ---
  Stage* FindStage(SessionId session);
  const Stage* Neighbour(const Stage& stage, uint32_t number) const;
  static Pass* FindPass(Stage* stage, PassKind kind);
  const PipelinePlan& PlanOf(const Stage& stage) const { return plans_[stage.key.first]; }
  // The chunks of a weight: two rooms, the gradient and the shadow chunk.
  ChunkId Room(const Client& client, uint32_t weight, uint64_t version) const;
  ChunkId Gradient(const Client& client, uint32_t weight) const;
  ChunkId Shadow(const Client& client, uint32_t weight) const;
  // The version that a micro-batch reads.
  uint64_t VersionFor(const Stage& stage, uint64_t micro_batch) const;
  // The stamp of version `version` of the weight, and of the gradient of batch `batch` after some
  // micro-batches.
  Stamp VersionStamp(Key key, uint32_t weight, uint64_t version);
  Stamp GradientStamp(Key key, uint32_t weight, uint64_t batch, uint64_t micro_batches) const;
  // The use has its lease: the pass reads, or writes.
  void Compute(Client* client, Stage* stage, const Pass& pass, const Use& use);
  void CheckReaders(const Client& client, const Stage& stage);
  void CheckContents();
  void CheckSteps();
  void SetVersion(Client* client, Stage* stage, uint64_t version);

  uint64_t WorkOf(const StepCall& call) const override;
  void Before(const Event& event) override;
  void After() override;
  void EndClient(SessionId session) override;
  void OnRefusal(Client* client, const Waiting& waiting, absl::StatusCode code) override;
  void OnOpen(Client* client, const OpenReply& reply) override;
  void OnFetch(Client* client, const FetchCall& call, const FetchReply& reply) override;
  void OnCommit(Client* client, const CommitCall& call) override;
  void TakeResults(Client* client, const Held& held) override;

  const std::vector<PipelinePlan> plans_;
  const uint32_t scripts_;
  std::map<SessionId, Stage> stages_;
  std::map<Key, SessionId> sessions_;  // The sessions of stages that have one.
  std::set<size_t> broken_;            // Pipelines of which a stage has ended, and others have not.
  std::map<Key, Client> left_;         // The clients that stages of named jobs have left.
  bool reads_all_ = false;             // Chunks that hold nothing are filled with zeros to be read.
  uint64_t readers_lost_ = 0;          // Micro-batches of sessions that ended in this event.
  std::map<std::tuple<size_t, uint32_t, uint32_t>, std::vector<Stamp>> versions_;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_PIPELINES_PIPELINE_SIMULATION_H_
