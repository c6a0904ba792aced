// Model: the naive oracle beside the engine. It sees every event before the engine does and every
// effect after the fake node began it, and breaks the verdict when a promise of the protocol is
// broken. The one that matters most: what a lease shows is what was last written into that chunk.
//
// The model reads the fake node's memory and never asks the engine anything. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_ORACLE_MODEL_H_
#define MEMTIDE_TESTS_SIM_ORACLE_MODEL_H_

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tests/sim/fakes/fake_node.h"
#include "tests/sim/oracle/state.h"
#include "tests/sim/oracle/verdict.h"
#include "tests/sim/probes.h"

namespace memtide::sim {

class Model {
 public:
  Model(const Config& config, FakeNode* node, Verdict* verdict, Probes* probes)
      : state_(config), node_(*node), verdict_(*verdict), probes_(*probes) {}

  // In this order, for each event: Before, the engine, Observe for each effect, After.
  void Before(Instant now, const Event& event);
  void Observe(const Effect& effect);
  void After(const Event& event);

  // The client of a session writes into a chunk that it holds for writing.
  void Write(SessionId session, ChunkId chunk, Stamp stamp);
  void SetHung(SessionId session);

  const State& state() const { return state_; }
  // Whether every job has as little device memory as its share permits, given up or wanted back.
  bool SharesAreReached() const;

 private:
  void BeforeCall(const Event& event);
  void BeforeMakeFailed();
  // Takes from the model what a call that will succeed ends at once.
  void ApplyEnds(const Event& event);
  void EndSession(SessionId session, Whole written);
  void EndJob(JobId job);
  void EndLateJobs();
  void EndChunk(ChunkId chunk);
  void EndTransient(JobId job);

  void ObserveReply(const Reply& reply);
  bool IsPermitted(const Call& call, const Reply& reply) const;
  bool MayFailLate(const Call& call, absl::StatusCode code) const;
  void CheckValueKind(const Call& call, const Reply& reply);
  void Remember(const Call& call, const Reply& reply);
  // The success that the call's request id had before; null when it is new.
  const Remembered* FindRemembered(const Call& call) const;
  bool IsOldReply(const Call& call, const Reply& reply) const;
  void CheckNotFound(const Call& call, const Reply& reply);
  void CheckRepeated(const Call& call, const Reply& reply);

  void Accept(const Call& call, const OpenCall& open, const OpenReply& reply);
  void CheckRegions(const JobState& job, const OpenReply& reply);
  void Accept(const Call& call, const AllocateCall& allocate, const AllocateReply& reply);
  void Accept(const Call& call, const FetchCall& fetch, const FetchReply& reply);
  void Accept(const Call& call, const ResizeCall& resize, const ResizeReply& reply);
  void Accept(const Call& call, const DescribeCall& describe, const DescribeReply& reply);
  void Accept(const Call& call, const InspectCall& inspect, const InspectReply& reply);
  void CheckPools(const InspectReply& reply);
  void CheckKinds(const InspectReply& reply);

  // One lease of a reply: `at` the place of the batch.
  void Grant(const FetchCall& fetch, size_t at, const Lease& lease);
  void CheckKept(const FetchCall& fetch, const Lease& held, const Lease& lease);
  void CheckPlace(SessionId session, const Lease& lease);
  void CheckContent(const FetchCall& fetch, const Lease& lease, bool is_held);

  void ObserveRegion(const SendRegion& effect);
  void ObserveRegionGone(const SendRegionGone& effect);
  // A process that is no session any more may write to the region.
  void Expose(RegionId id);
  void ApplyResize(const ResizeCall& resize);
  // Device regions of the job, without those that leave it.
  size_t KeptRegions(const JobState& job) const;
  void ObserveDrop(const DropRegion& effect);
  bool MayStillWrite(SessionId id) const;
  void ObserveClose(const CloseSession& effect);
  void ObserveTransfer(const StartTransfer& effect);
  void ObserveEmpty(const ReleaseSlot& effect);
  void ObserveBudget(const SendLeaseBudget& effect);

  void ObserveStep(const StartStep& effect);
  void BeforeStepDone(const StepDone& event);
  // The step that the call asked for, without its number, which begins in these places. Nothing if
  // it must not.
  std::optional<RunningStep> BeginStep(const std::string& what, const StepCall& call,
                                       const std::vector<MemoryPlace>& places);
  // `computed`: all that it writes is there; otherwise none of it.
  void EndStep(const RunningStep& step, bool computed);
  void Accept(const Call& call, const StepCall& step, const PartReply& reply);
  void EndPart(const EndPartCall& call);
  void EndPart(PartKey part, bool computed);
  void EndPartsOf(SessionId session);
  void HitPartProbes(const Call& call, const Reply& reply);
  // As never written.
  void DiscardChunk(ChunkState* chunk);
  void Accept(const Call& call, const CommitCall& publish);
  void Publish(JobState* job, const CommitCall& publish);
  void BeforeRestart(const Restore& event);
  void AdoptJob(const JobRecord& record);
  bool IsWithoutHome(const JobRecord& record) const;
  void RestoreJob(JobId id, const JobRecord& record, const Restore& event);

  void CheckLeases();
  void CheckCalls(const Event& event);
  void CheckLiveness(const Event& event);
  void HitCallProbes(const Call& call, const Reply& reply);
  void HitResizeProbes(const Call& call, absl::StatusCode code);

  void Broken(std::string promise) { verdict_.Broken(std::move(promise)); }

  State state_;
  FakeNode& node_;
  Verdict& verdict_;
  Probes& probes_;
  // The chunks and sessions that the event that is being handled asks to end.
  std::set<ChunkId> freeing_;
  std::set<SessionId> closed_now_;
  // The job as it was before the resize that is being handled.
  std::optional<std::pair<JobId, JobState>> unresized_;
  // The words of NOT_FOUND without their numbers, by the kind of call.
  std::map<size_t, std::string> not_found_;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_ORACLE_MODEL_H_
