#include "daemon/recovery/persisted_state.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace memtide {
namespace {

constexpr uint64_t kStatBlock = 512;  // The unit of st_blocks on every file system.

// Slots that an elastic job has after its restoration: of host slots only those with a copy,
// because the others are released (decision 18).
uint64_t SlotsOf(const JobRecord& job, Tier tier, uint64_t host_copies) {
  if (tier == Tier::kHost) return host_copies;
  uint64_t slots = 0;
  for (size_t i = 0; i < job.stores.size(); ++i)
    slots += SizeOfSegment(job, tier, i) / job.chunk_size;
  return slots;
}

}  // namespace

PersistedState TakePersistedState() {
  PersistedState persisted;
  persisted.unreadable = absl::NotFoundError("no journal was left");
  if (!HasFdStore()) return persisted;
  persisted.memory = TakeStoredFds();
  const auto found = persisted.memory.find(kJournalName);
  if (found == persisted.memory.end()) return persisted;
  absl::StatusOr<std::unique_ptr<Journal>> journal = Journal::Open(std::move(found->second));
  // Only memory of jobs stays in `memory`: Measure() takes anything there as a reason to start.
  persisted.memory.erase(found);
  persisted.unreadable = journal.status();
  if (journal.ok()) persisted.journal = *std::move(journal);
  return persisted;
}

void SetLeastPools(const Restore& restore, PersistedMemory* measured) {
  std::map<JobId, uint64_t> host_copies;
  for (const ChunkRecord& chunk : restore.chunk_records) {
    // A host copy takes its slot again; other host slots come back empty.
    host_copies[chunk.job] += chunk.host.has_value();
  }
  std::array<Bytes, kTiers> fixed, used, claimed;
  std::vector<Bytes> devices;
  for (const JobRecord& job : restore.job_records) {
    // Device shares are never elastic.
    const Bytes device_share = job.shares[static_cast<int>(Tier::kDevice)];
    if (!device_share.IsZero()) {
      devices.resize(std::max<size_t>(devices.size(), job.device + 1));
      devices[job.device] += device_share;
    }
    for (const Tier tier : {Tier::kHost, Tier::kSsd}) {
      const int i = static_cast<int>(tier);
      if (job.guaranteed[i] == 0) {
        fixed[i] += job.shares[i];
        continue;
      }
      // The engine gives a few slots to a job that uses none, so that it can begin.
      const uint64_t slots = SlotsOf(job, tier, host_copies[job.job]);
      used[i] += job.chunk_size * std::max<uint64_t>(slots, std::min(job.guaranteed[i], kMinSlots));
      claimed[i] += job.chunk_size * job.guaranteed[i];
    }
  }
  // The engine restores a fixed share beside all guaranteed slots, an elastic one beside those in
  // use.
  const auto least = [&](Tier tier) {
    const int i = static_cast<int>(tier);
    return fixed[i] + std::max(used[i], fixed[i].IsZero() ? Bytes(0) : claimed[i]);
  };
  measured->device_pools = std::move(devices);
  measured->host_pool = least(Tier::kHost);
  measured->ssd_pool = least(Tier::kSsd);
}

PersistedMemory Measure(const PersistedState& persisted) {
  PersistedMemory measured;
  measured.any = !persisted.memory.empty();
  for (const auto& [name, fd] : persisted.memory) {
    struct stat status;
    struct statfs file_system;
    // Memory that cannot be measured does not count as free. The pools are then a little smaller.
    if (fstat(fd.get(), &status) != 0 || fstatfs(fd.get(), &file_system) != 0) continue;
    // st_size would also count the slots that the balloon emptied.
    const Bytes size = Bytes(static_cast<uint64_t>(status.st_blocks)) * kStatBlock;
    if (!absl::StartsWith(name, kRegionPrefix)) {
      measured.blocks[status.st_dev] += size;
    } else if (file_system.f_type != HUGETLBFS_MAGIC) {
      measured.memory += size;  // Reserved huge pages were never counted as available.
    }
  }
  Restore jobs;
  if (persisted.journal != nullptr) jobs = persisted.journal->Contents();
  std::set<JobId> with_records;
  for (const JobRecord& job : jobs.job_records) with_records.insert(job.job);
  for (const SavedJob& saved : persisted.saved.jobs) {
    if (with_records.count(saved.snapshot.job.job) > 0) continue;
    jobs.job_records.push_back(saved.snapshot.job);
    for (const auto& [drive, blocks] : saved.blocks) measured.blocks[drive] += blocks;
  }
  SetLeastPools(jobs, &measured);
  return measured;
}

}  // namespace memtide
