// The fake node's half that outlives the daemon: steps, records, and what a restart leaves.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/fakes/fake_node.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

size_t ReadsOf(const StartStep& step) {
  size_t reads = step.chunks.size();
  if (step.contents != nullptr) {
    for (const ContentWork::Pair& copy : step.contents->copies) {
      reads = std::min<size_t>(reads, copy.second);
    }
    return reads;
  }
  for (const CopyWork::Copy& copy : step.work->copies) {
    reads = std::min<size_t>(reads, copy.to.chunk);
  }
  return reads;
}

uint64_t NumberOf(const CopyWork& work) { return work.copies.front().bytes; }

Stamp StepResult(const std::vector<Stamp>& read, uint64_t number, size_t output) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  };
  mix(number);
  mix(output);
  for (const Stamp stamp : read) mix(stamp);
  return hash & ~(Stamp{3} << 62);
}

void FakeNode::Begin(const StartStep& effect) {
  if ((effect.work == nullptr) == (effect.contents == nullptr)) {
    return verdict_.Broken(absl::StrCat(ToText(Effect(effect)), ": nothing to compute"));
  }
  Work work{Work::Kind::kStep};
  work.step = effect;
  const size_t reads = ReadsOf(effect);
  for (size_t at = 0; at < effect.chunks.size(); ++at) {
    CheckStepped(effect.chunks[at], effect.size, ToText(Effect(effect)));
    if (at < reads) work.read.push_back(Read(effect.chunks[at]));
  }
  if (!verdict_.ok()) return;
  for (size_t at = reads; at < effect.chunks.size(); ++at) Write(effect.chunks[at], NewPoison());
  work_.push_back(std::move(work));
}

Event FakeNode::FinishStep(const Work& work, absl::Status status, InjectedFault injected) {
  const StartStep& step = work.step;
  const size_t reads = work.read.size();
  bool same = true;
  for (size_t at = 0; at < reads; ++at) same = same && Read(step.chunks[at]) == work.read[at];
  if (step.contents != nullptr) return FinishContents(work, std::move(status), same);
  for (size_t at = reads; status.ok() && at < step.chunks.size(); ++at) {
    if (injected == InjectedFault::kLoseStep) continue;
    Write(step.chunks[at],
          same ? StepResult(work.read, NumberOf(*step.work), at - reads) : NewPoison());
  }
  for (const CopyWork::Copy& copy : step.work->copies) {
    // Steps of the simulation copy less: such a copy only says which chunk is written.
    if (!status.ok() || !same || copy.bytes != step.size.count()) continue;
    Write(step.chunks[copy.to.chunk], work.read[copy.from.chunk]);
  }
  if (!status.ok() && injected == InjectedFault::kHideFailure) status = absl::OkStatus();
  return StepDone{step.step, std::move(status)};
}

Event FakeNode::FinishContents(const Work& work, absl::Status status, bool same) {
  StepDone done{work.step.step, std::move(status)};
  if (!done.status.ok()) return done;
  const ContentWork& contents = *work.step.contents;
  for (const uint32_t chunk : contents.hashes) {
    done.contents.digests.push_back({1, work.read[chunk] / stamps_of_digest_});
  }
  for (const ContentWork::Pair& pair : contents.comparisons) {
    done.contents.are_equal.push_back(work.read[pair.first] == work.read[pair.second]);
  }
  for (const ContentWork::Pair& pair : contents.copies) {
    Write(work.step.chunks[pair.second], same ? work.read[pair.first] : NewPoison());
  }
  return done;
}

void FakeNode::Keep(const Record& record) {
  for (const JobId job : record.ended) job_records_.erase(job);
  for (const JobRecord& job : record.jobs) job_records_[job.job] = job;
  for (const uint32_t place : record.freed) chunk_records_.erase(place);
  for (const ChunkRecord& chunk : record.chunks) {
    chunk_records_[static_cast<uint32_t>(chunk.chunk.value())] = chunk;
  }
}

// Checks that what a record names is there, and empties the slots of an elastic share that hold
// nothing, as the next daemon does.
void FakeNode::KeepMemory(const JobRecord& job) {
  const std::string missing = absl::StrCat("the record of job ", job.job.value(), " names ");
  for (const RegionId id : job.regions) {
    const auto region = regions_.find(id);
    if (region == regions_.end() || !region->second.made || region->second.dropping ||
        !region->second.persistent || region->second.uid != job.uid) {
      return verdict_.Broken(absl::StrCat(missing, "region ", id.value(), ", which is not there"));
    }
  }
  for (const StoreId id : job.stores) {
    const auto store = stores_.find(id);
    if (store == stores_.end() || !store->second.made || store->second.dropping ||
        !store->second.persistent) {
      return verdict_.Broken(absl::StrCat(missing, "store ", id.value(), ", which is not there"));
    }
  }
  std::set<uint32_t> used;
  for (const auto& [place, chunk] : chunk_records_) {
    if (chunk.job == job.job && chunk.host) used.insert(chunk.host->slot);
  }
  const bool elastic = job.guaranteed[static_cast<size_t>(Tier::kHost)] != 0;
  uint32_t slot = 0;
  for (const RegionId id : job.regions) {
    for (Bytes at; at < regions_[id].size; at += job.chunk_size, ++slot) {
      const Key key = KeyOf(MemoryPlace{id, at});
      if (!elastic || used.count(slot) != 0) {
        empty_.erase(key);
      } else {
        empty_[key] = job.chunk_size;
        memory_[key] = NewPoison();
      }
    }
  }
}

Restore FakeNode::Restart(Random* random) {
  for (const Work& work : std::exchange(work_, {})) {
    // Poison lies where a transfer or a step was going to.
    if (work.kind == Work::Kind::kTransfer && random->Percent(50)) {
      FinishTransfer(work, absl::OkStatus(), InjectedFault::kNone);
    }
    if (work.kind == Work::Kind::kStep) probes_.Hit(Probe::kRestartInStep);
  }
  // Nor does the daemon's death end what clients compute.
  for (const auto& [part, held] : parts_) {
    probes_.Hit(Probe::kRestartInPart);
    if (random->Percent(50)) ComputePart(part);
  }
  parts_.clear();
  Restore restore;
  std::set<RegionId> regions;
  std::set<StoreId> stores;
  for (const auto& [id, job] : job_records_) {
    KeepMemory(job);
    restore.job_records.push_back(job);
    regions.insert(job.regions.begin(), job.regions.end());
    stores.insert(job.stores.begin(), job.stores.end());
  }
  for (const auto& [place, chunk] : chunk_records_) restore.chunk_records.push_back(chunk);
  for (auto region = regions_.begin(); region != regions_.end();) {
    region = regions.count(region->first) != 0 ? std::next(region) : regions_.erase(region);
  }
  for (auto store = stores_.begin(); store != stores_.end();) {
    store = stores.count(store->first) != 0 ? std::next(store) : stores_.erase(store);
  }
  const auto erase = [](auto* things, const auto& there) {
    for (auto it = things->begin(); it != things->end();) {
      it = there(it->first) ? std::next(it) : things->erase(it);
    }
  };
  const auto in_memory = [&](Key key) { return regions.count(RegionId(key.first)) != 0; };
  erase(&memory_, in_memory);
  erase(&empty_, in_memory);
  erase(&disk_, [&](Key key) { return stores.count(StoreId(key.first)) != 0; });
  failed_writes_.clear();
  return restore;
}

}  // namespace memtide::sim
