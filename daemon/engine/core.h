// Core: what all classes of the engine see: options, the time of the event, tables, and the work
// and effects that an event lists. Engine-internal.
//
// Core decides nothing. A table that one class alone uses is a private field of that class,
// but for `commons`, which has its place in the order of ownership.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_DAEMON_ENGINE_CORE_H_
#define MEMTIDE_DAEMON_ENGINE_CORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/ids.h"
#include "daemon/engine/job.h"
#include "daemon/engine/shares/share_ledger.h"
#include "daemon/engine/tables/chunk_table.h"
#include "daemon/engine/tables/manifest.h"
#include "daemon/engine/tables/record_log.h"
#include "daemon/engine/tables/session_table.h"
#include "daemon/engine/tables/work_list.h"
#include "daemon/engine/writes/ssd_writes.h"

namespace memtide {

// Time between two revokes of the same lease.
inline constexpr Duration kRevokePeriod = std::chrono::milliseconds(100);

struct Core {
  explicit Core(const EngineOptions& given);

  const EngineOptions options;

  Instant now;
  std::vector<Effect>* effects = nullptr;  // The event being handled adds to them.
  Counters counters;
  bool draining = false;
  bool refuses_sessions = false;  // And goes on otherwise.

  // In the order of ownership: a table that is declared later has tokens of those before it, such
  // as the slots of the chunks, which point into the pools of the jobs.
  SessionTable sessions;
  ShareLedger ledger;
  SsdWrites writes;
  ManifestBytes manifest_bytes;  // The bytes of the jobs' manifests.
  std::map<JobId, std::unique_ptr<Job>> jobs;
  // By uid and chunk size. Offers alone uses them. They have slots of jobs and lend tokens to
  // chunks, so that they are destroyed between these two.
  std::map<std::pair<uint32_t, Bytes>, CommonContents> commons;
  ChunkTable chunks;
  Ids ids{options.limits.chunks_per_call, chunks, sessions};
  std::map<TransferId, ChunkIndex> transfers;  // The chunk of each transfer.
  // The job of each segment. Regions and stores share one sequence of numbers.
  std::map<uint32_t, Job*> segments;

  // One for each session. Memory reads what they need, and Jobs owns what becomes of them.
  std::deque<WaitingOpen> opens;

  RecordLog record_log;
  WorkList work;  // Empty between two events.

  uint64_t next_job = 1;
  uint32_t next_segment = 1;
  uint64_t insertions = 0;  // Copies that were made at the device and in host memory.

  // When a call ends that may wait so long; zero: the limit max_wait.
  Instant DeadlineIn(Duration wait) const {
    return now + (wait == Duration(0) ? options.limits.max_wait : wait);
  }
  // The deadline of a call that is made again: what is left of that which it had.
  Duration LeftUntil(Instant deadline) const { return std::max(deadline - now, Duration(1)); }
  // nullptr: the job has ended.
  Job* FindJob(JobId id) const {
    const auto found = jobs.find(id);
    return found == jobs.end() ? nullptr : found->second.get();
  }
  ChunkId IdOf(ChunkIndex index) const { return chunks.IdOf(index); }

  template <typename T>
  void Emit(T effect) {
    effects->emplace_back(std::move(effect));
  }
  void Answer(CallId call, absl::Status status = absl::OkStatus());
  template <typename Value>
  void AnswerWith(CallId call, Value value) {
    Emit(Reply{call, absl::OkStatus(), std::move(value)});
  }
  // Answers a call that may come again, and then gets the same reply (AnswerAgain()).
  template <typename Call, typename Value = std::monostate>
  void AnswerOnce(Session& session, const Call& call, Value value = {}) {
    Reply reply{call.call, absl::OkStatus(), std::move(value)};
    sessions.Remember(session, call.request_id, kKindOf<Call>, reply);
    Emit(std::move(reply));
  }
  // Answers with an error and counts it in calls_refused.
  void Refuse(CallId call, absl::Status status);
  // The session, if it may make calls about chunks. Otherwise answers the call and returns nullptr.
  Session* CallingSession(CallId call, SessionId id);
  // True: the request was answered before, and the call gets the same reply again.
  bool AnswerAgain(const Session& session, CallId call, uint64_t request_id, size_t event_kind);

  // Adds the chunk or job to the record of this event, if the job outlives the daemon.
  void MarkDirty(ChunkIndex index) {
    const Chunk& chunk = chunks[index];
    if (chunk.job->persistent && !chunk.transient) record_log.Mark(index);
  }
  void MarkDirty(const Job& job) {
    if (job.persistent) record_log.Mark(job.id);
  }
  // How many more chunks the node may have. Copies of shared contents may be beyond the limit.
  uint32_t ChunksLeft() const {
    return options.limits.chunks - std::min(options.limits.chunks, chunks.live());
  }
  void ScheduleChunk(ChunkIndex index) { work.AddChunk(index); }
  // Slots of the job's home tier are free again, for which allocations may wait.
  void HomesFreed(Job& job) {
    ScheduleRoomCheck(job, job.home);
    if (!job.allocating.empty()) work.Send(AllocationsPossible{job.id});
  }
  // The tier's slot queue and the calls that wait to be admitted will be examined.
  void ScheduleRoomCheck(Job& job, Tier tier) {
    if (job.share(tier).exists() && tier != Tier::kSsd) work.AddRoomCheck(job.listed_work, tier);
  }
  // Calls that watch the chunk are tried again when the event has been handled.
  void PinsChanged(ChunkIndex index) {
    Job& job = *chunks[index].job;
    if (!job.waiting.NoteChange(index)) return;
    for (const Tier tier : kMemoryTiers) ScheduleRoomCheck(job, tier);
  }
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_CORE_H_
