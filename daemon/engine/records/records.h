// Records: what outlives the daemon and the machine: records of named jobs, snapshots of durable
// ones, and their restoring. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_RECORDS_RECORDS_H_
#define MEMTIDE_DAEMON_ENGINE_RECORDS_RECORDS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "daemon/engine/core.h"
#include "daemon/engine/memory/memory.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

class Records {
 public:
  Records(Core& core, Memory& memory, Residency& residency)
      : core_(core), memory_(memory), residency_(residency) {}

  // Inserts the record before the other effects of the event, which start at `before`.
  // REQUIRES: something has changed (Core::record_log).
  void EmitRecord(size_t before);
  // Restores the jobs of the last daemon from records and snapshots, and gives those up whose
  // records contradict each other. REQUIRES: no event came before.
  void On(const Restore& event);
  // Answers the commits that waited for the snapshot, and begins the next one if some wait for it.
  void On(const SnapshotSaved& event);
  // Returns why the job of the call cannot be durable. REQUIRES: event.durable_every > 0.
  absl::Status CheckDurable(const OpenCall& event) const;
  // Each step whose number is a multiple of `every` is durable from now on. REQUIRES: the job has
  // room for it (Job::HomeSlotsFor).
  void SetDurable(Job& job, uint32_t every);
  // Answers a commit that was carried out: now, or, if the step is to be durable, when a snapshot
  // with it is on stable storage.
  void AnswerCommit(Job& job, const CommitCall& event);
  // Saves a snapshot again that may be there: until it is known, its slots are withheld.
  void SaveAgain(Job& job);
  // Saves the steps of a durable job after its last durable one. REQUIRES: it has no session.
  void SaveLastSteps(Job& job);
  // Begins the next transfer of a chunk for which a snapshot waits, on its way to SSD. Does nothing
  // for others. REQUIRES: it is live.
  void WriteForSnapshot(ChunkIndex index);
  // Answers the session's commit that waits for a snapshot with the error, if there is one.
  void EndWaitForSnapshot(Job& job, SessionId session, const absl::Status& why);
  // The same for commits whose deadline has passed.
  void ExpireWaitForSnapshot(Job& job);
  // Drops the snapshots of a job that ends, and the slots that they name.
  void EndSnapshots(Job& job);
  // A snapshot waits for the chunk no more.
  void On(const ChunkFreed& signal);
  // Refuses the commits of the job that wait for a snapshot. Its writes are tried on.
  void On(const WritesFail& signal);
  void On(const SnapshotFails& signal);

 private:
  absl::Status CheckNames(const JobRecord& record, const std::vector<const ChunkRecord*>& chunks);
  void RestoreNames(Job& job, const std::vector<const ChunkRecord*>& chunks);
  bool IsRecorded(ChunkIndex index) const;
  JobRecord RecordOf(const Job& job) const;
  ChunkRecord RecordOf(ChunkIndex index) const;
  void KeepNumbersOf(const JobRecord& record);
  absl::Status RestoreJob(const JobRecord& record, const std::vector<const ChunkRecord*>& chunks);
  absl::Status RestoreMemory(Job& job, const JobRecord& record);
  absl::StatusOr<std::vector<Slot>> TakeRecorded(Job& job, Tier tier,
                                                 const std::vector<const ChunkRecord*>& chunks);
  NewChunk RestoredFrom(const ChunkRecord& record);
  void GiveUp(const JobRecord& record, const std::vector<const ChunkRecord*>& chunks,
              const std::vector<StoreId>& saved);
  void BeginSaving(Job& job);
  bool MayRead(ChunkIndex index);
  void SaveWhenWritten(Job& job);
  static std::string NotDurable(uint64_t step, const absl::Status& why);
  static void EndQuarantines(Job& job, const std::vector<SlotNumber>& slots);
  void DistrustStores(Job& job);
  static void AdoptSnapshot(Job& job, const Snapshot& snapshot);
  absl::Status RestoreFrom(const Snapshot& snapshot);
  void LeaveSnapshot(Job& job, ChunkIndex index);
  void RefuseCommits(Job& job, const absl::Status& why);

  Core& core_;
  Memory& memory_;
  Residency& residency_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_RECORDS_RECORDS_H_
