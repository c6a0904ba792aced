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
  void On(const Restore& event);
  void On(const SnapshotSaved& event);
  absl::Status CheckDurable(const OpenCall& event) const;
  void SetDurable(Job& job, uint32_t every);
  void AnswerCommit(Job& job, const CommitCall& event);
  void SaveLastSteps(Job& job);
  void WriteForSnapshot(ChunkIndex index);
  void EndWaitForSnapshot(Job& job, SessionId session, const absl::Status& why);
  void ExpireWaitForSnapshot(Job& job);
  void EndSnapshots(Job& job);
  void On(const ChunkFreed& signal);
  void On(const WritesFail& signal);

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
              const absl::Status& why);
  void BeginSaving(Job& job);
  void SaveWhenWritten(Job& job);
  static std::string NotDurable(uint64_t step, const absl::Status& why);
  static void EndQuarantines(Job& job, const std::vector<SlotNumber>& slots);
  void DistrustStores(Job& job);
  static void AdoptSnapshot(Job& job, const Snapshot& snapshot);
  void RestoreFrom(const Snapshot& snapshot);
  void LeaveSnapshot(Job& job, ChunkIndex index);
  void RefuseCommits(Job& job, const absl::Status& why);

  Core& core_;
  Memory& memory_;
  Residency& residency_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_RECORDS_RECORDS_H_
