#include "tests/sim/fakes/fault_injector.h"

#include <utility>

namespace memtide::sim {
namespace {

constexpr const char* kNames[kFaults] = {
    "none",
    "a reply is lost",
    "a reply is sent twice",
    "success is reported as an error",
    "an error is reported as success",
    "a lease names another slot",
    "a lease names another chunk",
    "a lease permits more than asked",
    "a lease names an older version",
    "a transfer is reported and never done",
    "a failed transfer is reported as done",
    "a transfer is never started",
    "a transfer goes to another slot",
    "a transfer comes from another slot",
    "a region goes to another session",
    "a region is never sent",
    "a region is dropped early",
    "a region is never dropped",
    "a session is closed for nothing",
    "a client's death goes unheard",
    "a pool is miscounted",
    "a chunk id is given twice",
    "a region is never asked back",
    "a region is dropped before it was returned",
    "a slot is emptied that is leased",
    "a step is never started",
    "a step is reported and never done",
    "a step reads another slot",
    "the last committed step is miscounted",
    "a record is lost",
    "a record calls a torn chunk whole",
    "a record names another slot",
    "a region is made on another device",
    "a step is started twice",
    "a step writes to what it reads",
    "a step reads in another order",
    "a failed step is reported as done",
    "a commit is answered and never done",
    "a record has an older step",
    "a record has another manifest",
    "a record lacks a chunk",
    "a record does not say that a chunk was freed",
    "a record calls a copy valid that is not",
    "a chunk is missing at a restart",
    "a write goes to another place of the disk",
    "a read comes from another place of the disk",
    "a write is forgotten by the disk",
    "a store is never dropped",
    "a store is dropped early",
    "a client computes from another slot",
    "a client computes into another slot",
    "the end of a part goes unheard",
};

// Another slot of the same region or store, if it has one.
template <typename Place>
bool Shift(Place* place, Bytes step, Bytes region_size) {
  if (step.IsZero() || step + step > region_size) return false;
  place->offset = place->offset + step + step > region_size ? place->offset - place->offset
                                                            : place->offset + step;
  return true;
}

}  // namespace

const char* FaultName(Fault fault) { return kNames[static_cast<size_t>(fault)]; }

InjectedFault FaultInjector::OnComplete(const Work& work) {
  const bool is_step = work.kind == Work::Kind::kStep;
  const bool writes_disk =
      work.kind == Work::Kind::kTransfer && work.transfer.kind == StartTransfer::Kind::kHostToSsd;
  if (fault_ == Fault::kTransferLost && Strikes()) return InjectedFault::kLoseTransfer;
  if (fault_ == Fault::kDiskWriteForgotten && writes_disk && Strikes()) {
    return InjectedFault::kKeepOldContent;
  }
  if (fault_ == Fault::kStepLost && Strikes()) return InjectedFault::kLoseStep;
  if (fault_ == Fault::kTransferFailureHidden && !is_step && Strikes()) {
    return InjectedFault::kHideFailure;
  }
  // Few steps fail, so all of these failures are hidden.
  if (fault_ == Fault::kStepFailureHidden && is_step) return InjectedFault::kHideFailure;
  return InjectedFault::kNone;
}

bool FaultInjector::Withhold(const Event& event, std::vector<Effect>* effects) {
  if (std::holds_alternative<ClientGone>(event)) {
    return fault_ == Fault::kClientDeathUnheard && Strikes();
  }
  const auto* const commit = std::get_if<CommitCall>(&event);
  const auto* const part = std::get_if<EndPartCall>(&event);
  const bool withholds = (fault_ == Fault::kCommitNotDone && commit != nullptr && Strikes()) ||
                         (fault_ == Fault::kPartEndUnheard && part != nullptr && Strikes());
  if (!withholds) return false;
  effects->push_back(Reply{commit != nullptr ? commit->call : part->call, absl::OkStatus(), {}});
  return true;
}

void FaultInjector::Spoil(Restore* restore) {
  if (fault_ != Fault::kRestoredWithoutChunk || restore->chunk_records.empty() || !Strikes())
    return;
  restore->chunk_records.pop_back();
}

bool FaultInjector::Removes(const Effect& effect) {
  const auto is = [&](Fault fault, bool of_this_kind) {
    return fault_ == fault && of_this_kind && Strikes();
  };
  return is(Fault::kReplyLost, std::holds_alternative<Reply>(effect)) ||
         is(Fault::kTransferNeverStarted, std::holds_alternative<StartTransfer>(effect)) ||
         is(Fault::kRegionNotSent, std::holds_alternative<SendRegion>(effect)) ||
         is(Fault::kRegionGoneUnsaid, std::holds_alternative<SendRegionGone>(effect)) ||
         is(Fault::kStepNeverStarted, std::holds_alternative<StartStep>(effect)) ||
         is(Fault::kRecordLost, std::holds_alternative<Record>(effect)) ||
         is(Fault::kRegionNeverDropped, std::holds_alternative<DropRegion>(effect)) ||
         is(Fault::kStoreNeverDropped, std::holds_alternative<DropStore>(effect));
}

void FaultInjector::Spoil(std::vector<Effect>* effects, const FakeNode& node) {
  std::vector<Effect> spoilt;
  for (Effect& effect : *effects) {
    if (Removes(effect)) continue;
    std::vector<Effect> more;
    SpoilOne(&effect, node, &more);
    spoilt.push_back(std::move(effect));
    for (Effect& added : more) spoilt.push_back(std::move(added));
  }
  *effects = std::move(spoilt);
}

void FaultInjector::SpoilOne(Effect* effect, const FakeNode& node, std::vector<Effect>* more) {
  if (auto* reply = std::get_if<Reply>(effect)) {
    if (SpoilReply(reply, more) && fault_ == Fault::kReplyTwice) more->push_back(*effect);
  } else if (auto* transfer = std::get_if<StartTransfer>(effect)) {
    SpoilTransfer(transfer, node, more);
  } else if (auto* record = std::get_if<Record>(effect)) {
    SpoilRecord(record);
  } else if (auto* step = std::get_if<StartStep>(effect)) {
    SpoilStep(step, more);
  } else if (auto* make = std::get_if<MakeRegion>(effect)) {
    const bool on_device = make->pool.tier == Tier::kDevice;
    if (fault_ == Fault::kRegionOnOtherDevice && on_device && Strikes()) ++make->pool.device;
  } else if (auto* gone = std::get_if<SendRegionGone>(effect)) {
    if (fault_ == Fault::kRegionDroppedUnreturned && Strikes()) {
      more->push_back(DropRegion{gone->region});
    }
  } else if (auto* send = std::get_if<SendRegion>(effect)) {
    sessions_.push_back(send->session);
    if (fault_ == Fault::kRegionToOtherSession && Strikes()) send->session = sessions_.front();
    if (fault_ == Fault::kRegionDroppedEarly && Strikes()) {
      more->push_back(DropRegion{send->region});
    }
    if (fault_ == Fault::kSessionClosedForNothing && Strikes()) {
      more->push_back(CloseSession{send->session, absl::UnavailableError("planted")});
    }
  }
}

void FaultInjector::SpoilStep(StartStep* step, std::vector<Effect>* more) {
  switch (fault_) {
    case Fault::kStepTwice:
      if (Strikes()) more->push_back(*step);
      break;
    case Fault::kStepFromOtherSlot:
      if (Strikes()) step->chunks[0] = step->chunks.back();
      break;
    case Fault::kStepInOtherSlot:
      if (Strikes()) step->chunks.back() = step->chunks[0];
      break;
    case Fault::kStepReadsInOtherOrder:
      if (ReadsOf(*step) >= 2 && Strikes()) std::swap(step->chunks[0], step->chunks[1]);
      break;
    default:
      break;
  }
}

// Returns whether the fault injector strikes here.
bool FaultInjector::SpoilReply(Reply* reply, std::vector<Effect>* more) {
  auto* fetched = std::get_if<FetchReply>(&reply->value);
  auto* allocated = std::get_if<AllocateReply>(&reply->value);
  auto* opened = std::get_if<OpenReply>(&reply->value);
  auto* inspected = std::get_if<InspectReply>(&reply->value);
  auto* part = std::get_if<PartReply>(&reply->value);
  switch (fault_) {
    case Fault::kSlotEmptiedInUse:
      if (fetched == nullptr || fetched->leases.back().tier != Tier::kHost || !Strikes()) {
        return false;
      }
      more->push_back(ReleaseSlot{fetched->leases.back().place, MiB(2)});
      return true;
    case Fault::kReplyTwice:
      return Strikes();
    case Fault::kReplyWithError:
      if (!reply->status.ok() || !Strikes()) return false;
      *reply = Reply{reply->call, absl::UnknownError("planted"), std::monostate()};
      return true;
    case Fault::kReplyOkInstead:
      if (reply->status.ok() || !Strikes()) return false;
      reply->status = absl::OkStatus();
      return true;
    case Fault::kLeaseInOtherSlot:
    case Fault::kLeaseOfOtherChunk:
    case Fault::kLeaseStronger:
    case Fault::kLeaseOlderVersion:
      if (fetched == nullptr || !Strikes()) return false;
      SpoilLease(&fetched->leases.back());
      return true;
    case Fault::kPartFromOtherSlot:
    case Fault::kPartInOtherSlot:
      if (part == nullptr || !Strikes()) return false;
      if (fault_ == Fault::kPartFromOtherSlot) part->places.front() = part->places.back();
      if (fault_ == Fault::kPartInOtherSlot) part->places.back() = part->places.front();
      return true;
    case Fault::kPublishedStepMiscounted:
      if (opened == nullptr || opened->committed_step == 0 || !Strikes()) return false;
      --opened->committed_step;
      return true;
    case Fault::kPoolMiscounted:
      if (inspected == nullptr || inspected->pools.empty() || !Strikes()) return false;
      inspected->pools.back().reserved += Bytes(1);
      return true;
    case Fault::kChunkIdAgain:
      if (allocated == nullptr) return false;
      if (!chunks_.empty() && Strikes()) allocated->chunks.back() = chunks_.back();
      chunks_.push_back(allocated->chunks.front());
      return true;
    default:
      return false;
  }
}

void FaultInjector::SpoilRecord(Record* record) {
  for (JobRecord& job : record->jobs) {
    if (job.committed_step == 0) continue;
    if (fault_ == Fault::kRecordOfOlderStep && Strikes()) --job.committed_step;
    if (fault_ == Fault::kRecordOfOtherManifest && Strikes()) job.manifest += '?';
  }
  const bool lacks = fault_ == Fault::kRecordWithoutChunk && !record->chunks.empty();
  if (lacks && Strikes()) record->chunks.pop_back();
  if (fault_ == Fault::kRecordKeepsFreedChunk && Strikes()) record->freed.clear();
  for (ChunkRecord& chunk : record->chunks) {
    if (fault_ == Fault::kRecordHidesTorn && chunk.torn && Strikes()) {
      chunk.torn = false;
      if (chunk.ssd) chunk.ssd->valid = true;
      if (chunk.host) chunk.host->valid = true;
    }
    if (fault_ == Fault::kRecordCallsStaleCopyValid && chunk.ssd && !chunk.ssd->valid &&
        !chunk.torn && Strikes()) {
      chunk.ssd->valid = true;
      chunk.host.reset();
    }
    if (fault_ == Fault::kRecordCopyInOtherSlot && chunk.host && chunk.host->valid && Strikes()) {
      chunk.host->slot ^= 1;
    }
  }
}

void FaultInjector::SpoilLease(Lease* lease) {
  switch (fault_) {
    case Fault::kLeaseInOtherSlot:
      lease->place.offset = lease->place.offset.IsZero() ? MiB(2) : lease->place.offset - MiB(2);
      break;
    case Fault::kLeaseOfOtherChunk:
      lease->chunk = ChunkId(lease->chunk.value() ^ 1);
      break;
    case Fault::kLeaseStronger:
      lease->access = lease->access == Access::kRead ? Access::kWrite : Access::kRead;
      break;
    default:
      lease->version = Version(lease->version.value() - 1);
      break;
  }
}

void FaultInjector::SpoilTransfer(StartTransfer* transfer, const FakeNode& node,
                                  std::vector<Effect>* more) {
  const bool writes_disk = transfer->kind == StartTransfer::Kind::kHostToSsd;
  const bool reads_disk = transfer->kind == StartTransfer::Kind::kSsdToHost;
  const auto store = node.stores().find(transfer->store.store);
  if ((writes_disk || reads_disk) && store != node.stores().end()) {
    const Fault misdirected =
        writes_disk ? Fault::kDiskWriteMisdirected : Fault::kDiskReadMisdirected;
    if (fault_ == misdirected && Strikes()) {
      Shift(&transfer->store, transfer->size, store->second.size);
    }
    if (fault_ == Fault::kStoreDroppedEarly && Strikes()) {
      more->push_back(DropStore{transfer->store.store});
    }
  }
  const auto size_of = [&node](MemoryPlace place) {
    const auto region = node.regions().find(place.region);
    return region == node.regions().end() ? Bytes() : region->second.size;
  };
  if (fault_ == Fault::kTransferToOtherSlot && WritesMemory(*transfer) && Strikes()) {
    Shift(&transfer->to, transfer->size, size_of(transfer->to));
  } else if (fault_ == Fault::kTransferFromOtherSlot && ReadsMemory(*transfer) && Strikes()) {
    Shift(&transfer->from, transfer->size, size_of(transfer->from));
  }
}

}  // namespace memtide::sim
