#include "daemon/recovery/restore.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/io/stripes.h"

namespace memtide {
namespace {

// Moves the descriptor out of `stored`: no two jobs can have the same memory, whatever the records
// say.
absl::StatusOr<OwnedFd> Take(StoredFds* stored, const std::string& name) {
  const auto found = stored->find(name);
  if (found == stored->end()) {
    return absl::DataLossError(
        absl::StrCat("the descriptor store of the service manager lacks ", name,
                     "; FileDescriptorStoreMax= in the unit may be too small"));
  }
  OwnedFd fd = std::move(found->second);
  stored->erase(found);
  return fd;
}

absl::StatusOr<std::vector<OwnedFd>> TakeFiles(StoredFds* stored, StoreId store) {
  // The journal does not hold the number of files: their names in the store count them.
  std::vector<OwnedFd> files;
  do {
    MEMTIDE_ASSIGN_OR_RETURN(OwnedFd file, Take(stored, StoreFileName(store, files.size())));
    files.push_back(std::move(file));
  } while (stored->count(StoreFileName(store, files.size())) > 0);
  return files;
}

// Host slots of an elastic share, by number, that hold no copy: their memory stays free until the
// job needs it.
std::set<uint32_t> IdleSlots(const JobRecord& job, const std::vector<ChunkRecord>& chunks) {
  std::set<uint32_t> idle;
  if (job.guaranteed[static_cast<int>(Tier::kHost)] == 0) return idle;
  uint64_t slots = 0;
  for (size_t i = 0; i < job.regions.size(); ++i) {
    slots += SizeOfSegment(job, Tier::kHost, i) / job.chunk_size;
  }
  for (uint32_t slot = 0; slot < slots; ++slot) idle.insert(slot);
  for (const ChunkRecord& chunk : chunks) {
    if (chunk.job == job.job && chunk.host.has_value()) idle.erase(chunk.host->slot);
  }
  return idle;
}

// Adopts all memory of the job, or, with an error, none.
absl::Status RestoreMemory(const JobRecord& job, const std::set<uint32_t>& idle, StoredFds* stored,
                           Mover* mover) {
  std::vector<RegionId> regions;
  std::vector<StoreId> stores;
  absl::Cleanup undo = [&] {
    for (const RegionId id : regions) mover->Disown(id);
    for (const StoreId id : stores) mover->Disown(id);
  };
  for (const RegionId id : job.regions) {
    MEMTIDE_ASSIGN_OR_RETURN(OwnedFd memory, Take(stored, RegionName(id)));
    // The slots of a job are numbered over all of its regions; the mover has offsets in one region.
    const uint32_t first = static_cast<uint32_t>(job.slots_per_region * regions.size());
    std::set<uint64_t> empty;
    for (auto slot = idle.lower_bound(first);
         slot != idle.end() && *slot < first + job.slots_per_region; ++slot) {
      empty.insert(job.chunk_size.count() * (*slot - first));
    }
    absl::optional<uint32_t> near_device;
    if (!job.shares[static_cast<int>(Tier::kDevice)].IsZero()) near_device = job.device;
    MEMTIDE_RETURN_IF_ERROR(mover->Adopt(id, SizeOfSegment(job, Tier::kHost, regions.size()),
                                         job.chunk_size, std::move(memory), std::move(empty),
                                         near_device));
    regions.push_back(id);
  }
  for (const StoreId id : job.stores) {
    MEMTIDE_ASSIGN_OR_RETURN(std::vector<OwnedFd> files, TakeFiles(stored, id));
    // A store without stripes in its record was made by a daemon that knew no other ones.
    const size_t index = stores.size();
    StripeCounts counts =
        index < job.store_stripes.size() ? job.store_stripes[index] : Stripes::Equal(files.size());
    MEMTIDE_RETURN_IF_ERROR(mover->Adopt(id, SizeOfSegment(job, Tier::kSsd, index),
                                         std::move(counts), std::move(files)));
    stores.push_back(id);
  }
  // All memory of the job is there, so nothing is to be undone.
  std::move(undo).Cancel();
  return absl::OkStatus();
}

void GiveUp(const JobRecord& job, std::vector<ChunkRecord>* chunks, Journal* journal) {
  Record ended;
  ended.ended = {job.job};
  const auto others = std::stable_partition(chunks->begin(), chunks->end(),
                                            [&](const ChunkRecord& c) { return c.job != job.job; });
  for (auto chunk = others; chunk != chunks->end(); ++chunk) {
    ended.freed.push_back(static_cast<uint32_t>(chunk->chunk.value()));
  }
  chunks->erase(others, chunks->end());
  // Without this record the next daemon would look for the memory of the job again.
  const absl::Status status = journal->Append(ended);
  if (!status.ok()) spdlog::warn("{}", std::string(status.message()));
}

// Adopts the named files of all stores of the job, or, with an error, none.
absl::Status AdoptStores(const JobRecord& job, Mover* mover) {
  std::vector<StoreId> adopted;
  absl::Cleanup undo = [&] {
    for (const StoreId id : adopted) mover->Disown(id);
  };
  for (size_t i = 0; i < job.stores.size(); ++i) {
    if (i >= job.store_stripes.size()) return absl::DataLossError("its stores have no stripes");
    MEMTIDE_RETURN_IF_ERROR(
        mover->AdoptNamed(job.stores[i], SizeOfSegment(job, Tier::kSsd, i), job.store_stripes[i]));
    adopted.push_back(job.stores[i]);
  }
  std::move(undo).Cancel();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> OpenJournal(PersistedState* persisted) {
  MEMTIDE_CHECK(!absl::IsFailedPrecondition(persisted->unreadable)) << persisted->unreadable;
  if (persisted->journal != nullptr) return std::move(persisted->journal);
  if (!absl::IsNotFound(persisted->unreadable)) {
    spdlog::warn("no job of the last daemon is restored: {}",
                 std::string(persisted->unreadable.message()));
    // systemd may hold several descriptors of one name, and this one is of no use to the next
    // daemon.
    RemoveStoredFd(kJournalName);
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Journal::Create());
  StoreFd(kJournalName, journal->fd());
  return journal;
}

Restore RestoreJobs(StoredFds stored, Journal* journal, Mover* mover) {
  const Restore left = journal->Contents();
  Restore taken;
  taken.chunk_records = left.chunk_records;
  std::set<std::string> unused;
  // A daemon that is killed between a record and RemoveStoredFd leaves descriptors that no job has.
  // systemd would hold their memory for ever. Descriptors that another version has stored under
  // other names stay.
  for (const auto& [name, fd] : stored) {
    if (IsMemoryName(name)) {
      unused.insert(name);
    } else {
      spdlog::warn(
          "descriptor {} in the store of the service manager is not of this version: it "
          "stays there",
          name);
    }
  }
  for (const JobRecord& job : left.job_records) {
    const absl::Status status =
        RestoreMemory(job, IdleSlots(job, left.chunk_records), &stored, mover);
    if (status.ok()) {
      // The mover has the job's memory from here on.
      taken.job_records.push_back(job);
      continue;
    }
    spdlog::warn("job \"{}\" is lost, with its step {}: {}", absl::CEscape(job.name),
                 job.committed_step, std::string(status.message()));
    GiveUp(job, &taken.chunk_records, journal);
  }
  for (const JobRecord& job : taken.job_records) {
    for (const RegionId id : job.regions) unused.erase(RegionName(id));
    for (const StoreId id : job.stores) {
      for (size_t i = 0; unused.erase(StoreFileName(id, i)) > 0; ++i) {
      }
    }
  }
  for (const std::string& name : unused) RemoveStoredFd(name);
  return taken;
}

void RestoreSavedJobs(const SavedJobs& saved, Disk* disk, Mover* mover, Restore* restore) {
  restore->last_job = saved.last_job;
  restore->last_segment = saved.last_store;
  std::set<JobId> with_records;
  // A file that has had a name and lost it can get none again (link(2)). So what a job with a
  // record has named keeps its name, although the last daemon ended before it had saved the
  // snapshot.
  std::set<StoreId> named;
  for (const JobRecord& job : restore->job_records) {
    with_records.insert(job.job);
    named.insert(job.stores.begin(), job.stores.end());
  }
  for (const SavedJob& each : saved.jobs) {
    const JobRecord& job = each.snapshot.job;
    named.insert(job.stores.begin(), job.stores.end());
    absl::Status status;
    if (with_records.count(job.job) == 0) status = AdoptStores(job, mover);
    if (status.ok()) {
      restore->snapshots.push_back(each.snapshot);
    } else {
      spdlog::error("durable job \"{}\" is not restored at its step {}, and its files stay: {}",
                    absl::CEscape(job.name), job.committed_step, std::string(status.message()));
    }
  }
  for (const absl::Status& why : saved.unreadable) {
    spdlog::error("a durable job is not restored, and its files stay: {}",
                  std::string(why.message()));
  }
  // The stores that an unreadable snapshot names are not known.
  if (!saved.unreadable.empty()) return;
  const absl::StatusOr<std::set<StoreId>> removed = disk->RemoveLeftSnapshots(named);
  if (!removed.ok()) {
    spdlog::warn("{}", std::string(removed.status().message()));
  } else if (!removed->empty()) {
    const auto append = [](std::string* out, StoreId store) {
      absl::StrAppend(out, store.value());
    };
    spdlog::warn("stores that no snapshot names are removed, as a crash has left them: {}",
                 absl::StrJoin(*removed, ", ", append));
  }
}

}  // namespace memtide
