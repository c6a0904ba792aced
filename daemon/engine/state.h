// EngineState: the tables and the operations on them. Engine-internal; engine.h has the contract.
//
// One file per group of operations: sessions.cc (connect, renew, end), jobs.cc (open, end),
// memory.cc (shares and the parts they are made of), resize.cc, host_budget.cc, chunks.cc
// (allocate, free, describe), fetch.cc (admission, grant, release), steps.cc, publish.cc,
// movement.cc (bring, push, room, transfers), foresee.cc (order of victims), move_ahead.cc,
// trace.cc, evict.cc, inspect.cc, record.cc (for the next daemon), invariants.cc. Handlers change
// the tables and put chunks on the ready list; Settle() then lets every ready chunk take its next
// step until nothing moves.
#ifndef MEMTIDE_DAEMON_ENGINE_STATE_H_
#define MEMTIDE_DAEMON_ENGINE_STATE_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/chunk.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/job.h"

namespace memtide {

// Fewer chunks than this at a tier leave no room to bring one while others are in use.
inline constexpr uint32_t kMinSlots = 4;
// How often leases that are waited for are asked for again.
inline constexpr Duration kRevokePeriod = std::chrono::milliseconds(100);

class EngineState {
 public:
  explicit EngineState(const EngineOptions& options);
  ~EngineState();

  void Handle(Instant now, const Event& event, std::vector<Effect>* effects);
  void CheckInvariants() const;

 private:
  // --- sessions.cc ---
  void On(const ClientConnected& event);
  void On(const ClientGone& event);
  void On(const RenewCall& event);
  void On(const CloseCall& event);
  void On(const Tick& event);
  void EndSession(Session& session, const absl::Status& why);
  void ExpireFetches();
  Session* FindSession(SessionId id);
  // The session when it may make calls about chunks; otherwise answers the call.
  Session* CallingSession(CallId call, SessionId id);
  // Answers from memory when the request was answered before. True: answered.
  bool AnswerAgain(Session& session, CallId call, uint64_t request_id, size_t event_kind);
  void Remember(Session& session, uint64_t request_id, size_t event_kind, const Reply& reply);

  // --- jobs.cc ---
  void On(const OpenCall& event);
  absl::Status CheckOpen(const OpenCall& event) const;
  Job* FindJobToJoin(const OpenCall& event, uint32_t uid);
  // Joins or makes the job; or, while jobs that end have the memory for it, waits for that.
  void OpenNowOrLater(Session& session, const OpenCall& event, Instant deadline);
  // Tries again what waits to be opened.
  void OpenWaiting();
  absl::Status MakeJob(const OpenCall& event, uint32_t uid);
  void FinishOpening(Job& job);
  void AnswerOpen(Job& job, const OpenCall& event);
  void LeaveJob(Session& session);
  void EndJob(Job& job);

  // --- memory.cc ---
  void On(const RegionMade& event);
  void On(const RegionDropped& event);
  void On(const StoreMade& event);
  void On(const StoreDropped& event);
  absl::StatusOr<MemoryKind> DeviceMemory(const OpenCall& event) const;
  absl::StatusOr<Bytes> Share(Tier tier, Bytes asked, Bytes chunk_size) const;
  absl::Status CheckDeviceRegions(const Job& job, uint64_t slots) const;
  absl::Status LendTier(Job& job, Tier tier, Bytes asked, bool elastic);
  absl::Status NotEnough(Tier tier, Bytes asked, Bytes chunk_size, uint64_t least) const;
  // Asks for the tier's next part, unless one is being made or the share is used up.
  void Grow(Job& job, Tier tier);
  void PartMade(Tier tier, uint32_t part, const absl::Status& status);
  void BackPart(Job& job, Tier tier, uint32_t part);
  void PartDropped(uint32_t part);
  void RefuseWhatNoLongerFits(Job& job, Tier tier, const absl::Status& status);
  void MaybeDropMemory(Job& job);
  Bytes Lent(Tier tier) const;
  Bytes Scrubbing(Tier tier) const;

  // --- resize.cc ---
  void On(const ResizeCall& event);
  void On(const ReturnRegionsCall& event);
  absl::Status CheckResize(const Job& job, const ResizeCall& event) const;
  // Sets a share that changes to what it is worth: never below what exists.
  void Charge(Job& job, Tier tier);
  // Gives up free slots that the job's share is too small for, and asks for leases above it.
  void GiveSurplusBack(Job& job);
  // A region is no slot any more: dropped when `holders`, who must hear of it, have let go of it.
  void LetGo(Job& job, uint32_t region, std::vector<SessionId> holders);
  void DropLeaving(Job& job, uint32_t region);
  void RegionReturned(Job& job, uint32_t region, SessionId session);
  // The session ends, and with it whatever it had mapped.
  void LeaveRegions(Job& job, SessionId session);
  // Answers the resize that waits, if nothing more is to be given back.
  void FinishResize(Job& job);
  void EndResize(Job& job, const absl::Status& status);
  void ExpireResizes();

  // --- shares.cc ---
  Bytes Free(Tier tier) const;
  Bytes Unclaimed(Tier tier) const;
  Bytes FairShare(Tier tier) const;
  bool IsElastic(const OpenCall& open, Tier tier) const;
  uint64_t UsualPart(Tier tier, Bytes chunk) const;
  uint64_t LeastShare(Tier tier, Bytes chunk) const;
  absl::Status LendElastic(Job& job, Tier tier);
  void SetTarget(Job& job, Tier tier, uint32_t target);
  // The job lacks so many slots: its share becomes larger if it may, now or when others have ceded.
  void Raise(Job& job, Tier tier, uint32_t lacking);
  enum class Need : uint8_t { kClaim, kMore };
  uint32_t Floor(const Job& job, Tier tier, Need need, bool only_unused) const;
  Bytes FreeSoon(Tier tier) const;
  // Lets other jobs cede, until `needed` is free or on its way to be.
  void AskOthers(Tier tier, Bytes needed, Need need, const Job* asking);
  // Whether memory is on its way to it.
  bool AskForOpen(const OpenCall& open);
  // Serves who waits for memory that jobs gave back. False: none did.
  bool ServeFreed();

  // --- host_budget.cc ---
  void On(const HostMemory& event);
  void On(const SlotEmptied& event);
  void On(const SlotFilled& event);
  void SpareTogether(Bytes* available);
  void SpareOrReturn(Job& job, Bytes* available);
  // Slots that the job can spare.
  uint32_t Spareable(const Job& job) const;
  // Makes the job's host pool smaller by that many slots, or larger, up to what it may have.
  void Withhold(Job& job, uint32_t slots);
  void Return(Job& job, uint32_t slots);
  // Gives free slots that are withheld, or ceded, to the machine.
  void EmptyWithheld(Job& job, Tier tier);
  // Nothing can leave for chunks that wait for slots: what is withheld comes back for them.
  void TakeWithheld(Job& job, Tier tier);
  // Begins to bring the memory of one slot back.
  void FillSlotOf(Job& job);
  MemoryPlace PlaceOfSlot(const Job& job, Tier tier, uint32_t number) const;
  uint32_t NumberOf(const Job& job, const MemoryPlace& place) const;
  void SendBudgets(const Job& job);
  void SendBudget(const Job& job, SessionId session);

  // --- chunks.cc ---
  void On(const AllocateCall& event);
  // Serves the job's waiting allocations as far as the home tier is backed.
  void AllocateWaiting(Job& job);
  void Allocate(Session& session, Job& job, const AllocateCall& event);
  void On(const FreeCall& event);
  void On(const DescribeCall& event);
  // The chunks' places, or why not: empty, too many, unknown, foreign, named twice.
  absl::StatusOr<std::vector<uint32_t>> Resolve(const Job& job, const std::vector<ChunkId>& chunks);
  absl::StatusOr<std::vector<uint32_t>> Resolve(const Job& job, const std::vector<ChunkId>& chunks,
                                                size_t most);
  // The place of a chunk of this job; nullopt when there is none.
  absl::optional<uint32_t> Find(const Job& job, ChunkId chunk) const;
  ChunkId IdOf(uint32_t place) const;
  ChunkInfo InfoOf(uint32_t place) const;
  void FreeChunk(uint32_t place);
  // Ends what is left of a freed chunk, once nothing uses its memory.
  void ForgetChunk(uint32_t place);

  // --- fetch.cc ---
  void On(const FetchCall& event);
  void On(const ReleaseCall& event);
  absl::Status CheckFetch(const Session& session, const FetchCall& event,
                          const std::vector<uint32_t>& places) const;
  absl::Status CheckDeadline(Duration deadline) const;
  // Why a torn chunk cannot be read.
  absl::Status Lost(uint32_t place) const;
  enum class Admission : uint8_t { kAdmitted, kNoRoom, kConflict };
  Admission TryAdmit(FetchOperation& fetch);
  void AdmitWaiting(Job& job, Tier tier);
  void AskLeasesBack(FetchOperation& fetch, Admission why);
  bool Conflicts(const Chunk& chunk, const FetchOperation& fetch, Access access) const;
  uint32_t NewPins(const FetchOperation& fetch) const;
  void Pin(FetchOperation& fetch, uint32_t place, Access access);
  void Unpin(uint32_t place, size_t hold_index);
  void Grant(FetchOperation& fetch);
  void Fail(FetchOperation& fetch, const absl::Status& status);
  void Forget(FetchOperation& fetch);
  void ReleaseLease(Session& session, uint32_t place);
  void MakeNewVersion(uint32_t place);

  // --- steps.cc ---
  void On(const StepCall& event);
  void On(const StepDone& event);
  absl::Status CheckStep(const Session& session, const StepCall& event,
                         const std::vector<uint32_t>& places) const;
  void LearnStep(Job& job, const StepCall& event);
  void StartStepOf(FetchOperation& fetch);
  // What the chunk holds is not wanted any more: it holds nothing. REQUIRES: it is not pinned.
  void Discard(uint32_t place);

  // --- publish.cc ---
  void On(const PublishCall& event);
  absl::Status CheckPublish(const Job& job, const PublishCall& event) const;
  void SwapContents(uint32_t a, uint32_t b);
  void Pair(uint32_t place, uint32_t twin);
  void Unpair(uint32_t place);
  bool IsSuperseded(const Chunk& chunk) const;
  uint64_t NextUseOfContent(const Chunk& chunk) const;
  uint32_t PlaceWanted(const Job& job, uint32_t member, uint64_t time) const;
  void ForgetWishes(uint32_t place);

  // --- movement.cc ---
  void On(const EvictCall& event);
  void On(const PrefetchCall& event);
  void On(const TransferDone& event);
  void Ready(uint32_t place);
  void LookAtRoom(Job& job, Tier tier);
  void Settle();
  void Advance(uint32_t place);
  // True when the chunk has a valid copy at `tier` now; otherwise the next step was begun.
  bool Bring(uint32_t place, Tier tier);
  // Takes the chunk's copy away from `tier`, by way of the next lower one where it is the only
  // one. True when it is gone.
  bool Push(uint32_t place, Tier tier);
  void StopPush(Chunk& chunk);
  bool TakeSlot(uint32_t place, Tier tier);
  void StopWaitingForSlot(uint32_t place, Tier tier);
  void DropCopy(uint32_t place, Tier tier);
  void MakeRoom(Job& job, Tier tier);
  void Start(uint32_t place, absl::optional<Tier> from, Tier to);
  void TransferFailed(uint32_t place, const Flight& flight, const absl::Status& status);
  // Begins to write the copy at `tier` to the next lower one, where it is the only one. True: there
  // is nothing (more) to be written.
  bool Clean(uint32_t place, Tier tier);
  // Without the copy there, the content would be lost, or would be with the daemon's end.
  bool IsOnlyCopy(const Chunk& chunk, Tier tier) const;
  void FreeUnusedSlots(uint32_t place);
  void AnswerFetches(uint32_t place);
  void StopPrefetch(Chunk& chunk);
  void FinishEvicts(uint32_t place, const absl::Status& status);
  void EndEvict(EvictOperation& evict, const absl::Status& status);
  MemoryPlace PlaceOf(const Chunk& chunk, Tier tier) const;

  // --- foresee.cc ---
  void On(const ReportCall& event);
  absl::Status CheckMoments(const std::vector<MomentReport>& moments) const;
  void Learn(Job& job, const std::vector<MomentReport>& moments);
  void EndIteration(Job& job, uint64_t clock);
  absl::optional<Plan::Slots> SlotsToPlan(const Job& job) const;
  void PlanIteration(Job& job);
  bool WorkOnPlan(Job& job, const std::vector<MomentReport>& moments);
  absl::optional<bool> PlannedToStay(const Chunk& chunk, Tier tier) const;
  // Microseconds of the job's own time: it stands while its fetches wait.
  uint64_t ClockOf(const Job& job) const;
  uint64_t NextUse(const Chunk& chunk, Tier tier);
  void Rank(uint32_t place);
  // The chunk is leased at the tier, or about to be.
  bool IsHeld(const Chunk& chunk, Tier tier) const;
  // Its copy there may be chosen as victim.
  bool MayLeave(const Chunk& chunk, Tier tier) const;
  void UpdateVictim(uint32_t place, Tier tier);
  CopyValue ValueOf(const Chunk& chunk, Tier tier) const;
  void AddFarthest(const Session& session, FetchReply* reply) const;

  // --- move_ahead.cc ---
  void LookAhead(Job& job);
  bool MoveAhead();
  bool BringAhead(Job& job, Tier tier);
  uint64_t MicrosToBring(const Chunk& chunk, Tier tier) const;
  uint64_t NeededUntil(const Job& job, Tier tier) const;
  void NoteLink(Job& job, StartTransfer::Kind kind, Instant start);
  absl::optional<Candidate> VictimAfter(const Job& job, Tier tier, uint64_t time) const;
  bool HasRoomUntil(Job& job, Tier tier, uint64_t time);
  void AskFarthestBack(Job& job, uint64_t time);
  bool CleanAhead(Job& job, Tier tier);
  bool IsWorthASlot(const Job& job, Tier tier, uint64_t time) const;

  // --- trace.cc ---
  void On(const TraceCall& event);
  absl::optional<uint32_t> MomentsUntilUse(const Chunk& chunk) const;
  TracedMove Trace(const Chunk& chunk, absl::optional<Tier> from, absl::optional<Tier> to) const;

  // --- inspect.cc ---
  void On(const InspectCall& event);
  void On(const DrainCall& event);
  PoolUsage Usage(Tier tier) const;
  std::vector<KindUsage> Kinds(const Job* job) const;
  void AnswerDrained();

  // --- record.cc ---
  // To be recorded when the event has been handled, if the job outlives the daemon.
  void Touch(uint32_t place);
  void Touch(const Job& job);
  // Puts what was touched before the effects that the event had.
  void EmitRecord(size_t before);
  JobRecord RecordOf(const Job& job) const;
  ChunkRecord RecordOf(uint32_t place) const;
  void On(const Restore& event);
  absl::Status RestoreJob(const JobRecord& record, const std::vector<const ChunkRecord*>& chunks);
  absl::Status RestoreMemory(Job& job, const JobRecord& record);
  absl::Status RestoreElastic(Job& job, Tier tier);
  absl::StatusOr<std::vector<Slot>> TakeRecorded(Job& job, Tier tier,
                                                 const std::vector<const ChunkRecord*>& chunks);
  void RestoreChunk(Job& job, const ChunkRecord& record);
  void GiveUp(const JobRecord& record, const std::vector<const ChunkRecord*>& chunks,
              const absl::Status& why);

  // --- invariants.cc ---
  void CheckSlotRegions(const Job& job, const std::set<uint32_t>& used) const;
  void CheckWithheld(const Job& job, Tier tier) const;

  // --- Effects ---
  template <typename T>
  void Emit(T effect) {
    effects_->emplace_back(std::move(effect));
  }
  void Answer(CallId call, absl::Status status = absl::OkStatus());
  // Answers with RESOURCE_EXHAUSTED and the like, counted.
  void Refuse(CallId call, absl::Status status);

  const EngineOptions options_;
  std::array<Bytes, kTiers> capacity_;

  Instant now_, last_tick_;
  std::vector<Effect>* effects_ = nullptr;
  Counters counters_;
  bool draining_ = false;
  bool machine_short_ = false;  // Something is withheld.
  std::vector<CallId> drain_calls_;

  std::map<SessionId, Session> sessions_;
  std::map<JobId, std::unique_ptr<Job>> jobs_;
  std::vector<Chunk> chunks_;
  std::vector<uint32_t> free_places_;
  uint32_t live_chunks_ = 0;
  std::map<CallId, std::unique_ptr<FetchOperation>> fetches_;
  std::map<CallId, std::unique_ptr<EvictOperation>> evicts_;
  std::map<StepId, RunningStep> steps_;
  std::map<TransferId, uint32_t> transfers_;  // The chunk each belongs to.
  // The job of each region and store, by its number; the tiers' numbers do not overlap.
  std::map<uint32_t, Job*> parts_;

  struct WaitingOpen {
    OpenCall call;
    Instant deadline;
  };
  std::deque<WaitingOpen> opens_;  // Wait for memory that is being given back. One a session.
  bool freed_ = false;             // Jobs gave memory back.

  std::vector<uint32_t> touched_;  // Chunks, and jobs, to be recorded.
  std::set<JobId> touched_jobs_;
  std::vector<JobId> ended_;  // Nothing of them is left: erased when all has settled.
  std::vector<uint32_t> ready_;
  // Tiers (bits) for whose slots the chunk that is advancing queued up.
  uint8_t queued_for_ = 0;
  // (job, tier) pairs whose slot queue or admission queue should be looked at.
  std::vector<std::pair<Job*, Tier>> rooms_;
  std::vector<Job*> looking_ahead_;

  uint64_t next_job_ = 1, next_transfer_ = 1, next_batch_ = 1, next_step_ = 1;
  uint64_t turns_ = 0, arrivals_ = 0;
  uint32_t next_part_ = 1;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_STATE_H_
