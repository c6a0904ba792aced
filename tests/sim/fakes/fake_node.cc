#include "tests/sim/fakes/fake_node.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/content_sums.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

using Transfer = StartTransfer::Kind;

bool ReadsMemory(const StartTransfer& transfer) {
  return transfer.kind == Transfer::kHostToDevice || transfer.kind == Transfer::kDeviceToHost ||
         transfer.kind == Transfer::kHostToSsd;
}

bool WritesMemory(const StartTransfer& transfer) {
  return transfer.kind != Transfer::kHostToSsd && transfer.kind != Transfer::kVerifySsd;
}

bool ReadsSsd(const StartTransfer& transfer) {
  return transfer.kind == Transfer::kSsdToHost || transfer.kind == Transfer::kVerifySsd;
}

void FakeNode::Carry(const Effect& effect) {
  if (const auto* record = std::get_if<Record>(&effect)) Keep(*record);
  std::visit(
      [this](const auto& e) {
        using Kind = std::decay_t<decltype(e)>;
        if constexpr (!std::is_same_v<Kind, Reply> && !std::is_same_v<Kind, SendRegion> &&
                      !std::is_same_v<Kind, SendRegionGone> && !std::is_same_v<Kind, Revoke> &&
                      !std::is_same_v<Kind, SendLeaseBudget> &&
                      !std::is_same_v<Kind, MachineShort> && !std::is_same_v<Kind, Misprediction> &&
                      !std::is_same_v<Kind, LentUnderProcess> &&
                      !std::is_same_v<Kind, RegionsStayExposed> && !std::is_same_v<Kind, Record> &&
                      !std::is_same_v<Kind, JobLost> && !std::is_same_v<Kind, BadCopyFound> &&
                      !std::is_same_v<Kind, WritesWait> && !std::is_same_v<Kind, SaveSnapshot> &&
                      !std::is_same_v<Kind, DropSnapshot> && !std::is_same_v<Kind, TransfersFail>) {
          Begin(e);
        }
      },
      effect);
}

void FakeNode::Begin(const MakeRegion& effect) {
  if (!regions_.insert({effect.region, {effect.pool, effect.uid, effect.size}}).second) {
    verdict_.Broken(absl::StrCat("region ", effect.region.value(), " made twice"));
  }
  regions_[effect.region].memory = effect.memory;
  regions_[effect.region].persistent = effect.persistent;
  regions_[effect.region].read_only = effect.read_only;
  if (effect.size.IsZero() || effect.size > kMaxRegionSize ||
      !effect.size.IsMultipleOf(kChunkAlignment) || effect.pool.tier == Tier::kSsd ||
      (effect.pool.tier == Tier::kHost && effect.memory != MemoryKind::kSharedMemory)) {
    verdict_.Broken(absl::StrCat("no such region can be made: ", ToText(effect)));
  }
  if (effect.copy_of) CheckCopied(effect);
  Work work{Work::Kind::kMakeRegion};
  work.region = effect.region;
  work_.push_back(work);
}

void FakeNode::Begin(const DropRegion& effect) {
  const auto region = regions_.find(effect.region);
  if (region == regions_.end() || region->second.dropping) {
    return verdict_.Broken(absl::StrCat("dropped a region that is not there: ", ToText(effect)));
  }
  region->second.dropping = true;
  const bool changes = std::any_of(work_.begin(), work_.end(), [&](const Work& work) {
    return (work.kind == Work::Kind::kEmptySlot || work.kind == Work::Kind::kFillSlot) &&
           work.place.region == effect.region;
  });
  if (IsInTransfer(effect.region) || IsBeingCopied(effect.region) || changes) {
    verdict_.Broken(absl::StrCat("dropped region ", effect.region.value(), " under other work"));
  }
  Work work{Work::Kind::kDropRegion};
  work.region = effect.region;
  work_.push_back(work);
}

void FakeNode::Begin(const ReleaseSlot& effect) {
  CheckSlot(effect.place, effect.size, ToText(effect));
  if (!empty_.insert({KeyOf(effect.place), effect.size}).second) {
    verdict_.Broken(absl::StrCat(ToText(effect), ": it is empty"));
  }
  memory_[KeyOf(effect.place)] = NewPoison();
  Work work{Work::Kind::kEmptySlot};
  work.place = effect.place;
  work_.push_back(work);
}

void FakeNode::Begin(const PopulateSlot& effect) {
  CheckSlot(effect.place, effect.size, ToText(effect));
  const bool changes = std::any_of(work_.begin(), work_.end(), [&](const Work& work) {
    return (work.kind == Work::Kind::kEmptySlot || work.kind == Work::Kind::kFillSlot) &&
           KeyOf(work.place) == KeyOf(effect.place);
  });
  if (changes || !IsEmpty(effect.place)) {
    verdict_.Broken(absl::StrCat(ToText(effect), ": it is not empty, or not yet"));
  }
  Work work{Work::Kind::kFillSlot};
  work.place = effect.place;
  work_.push_back(work);
}

void FakeNode::Begin(const MakeStore& effect) {
  if (!stores_.insert({effect.store, {effect.size, false, false, effect.persistent}}).second ||
      effect.size.IsZero()) {
    verdict_.Broken(absl::StrCat("no such store can be made: ", ToText(effect)));
  }
  Work work{Work::Kind::kMakeStore};
  work.store = effect.store;
  work_.push_back(work);
}

void FakeNode::Begin(const DropStore& effect) {
  const auto store = stores_.find(effect.store);
  if (store == stores_.end() || store->second.dropping) {
    return verdict_.Broken(absl::StrCat("dropped a store that is not there: ", ToText(effect)));
  }
  store->second.dropping = true;
  for (const Work& work : work_) {
    if (work.kind == Work::Kind::kTransfer && work.transfer.store.store == effect.store &&
        (ReadsSsd(work.transfer) || work.transfer.kind == Transfer::kHostToSsd)) {
      verdict_.Broken(absl::StrCat("dropped store ", effect.store.value(), " under transfer ",
                                   work.transfer.transfer.value()));
    }
  }
  Work work{Work::Kind::kDropStore};
  work.store = effect.store;
  work_.push_back(work);
}

void FakeNode::Begin(const CloseSession& effect) {
  Work work{Work::Kind::kHangUp};
  work.session = effect.session;
  work_.push_back(work);
}

void FakeNode::Begin(const AwaitTransfer& effect) {
  for (const Work& work : work_) {
    if (work.kind != Work::Kind::kTransfer || work.transfer.transfer != effect.transfer) continue;
    if (!ReadsSsd(work.transfer) || work.transfer.awaited) {
      verdict_.Broken(absl::StrCat("no prefetch from SSD: ", ToText(work.transfer)));
    }
  }
}

void FakeNode::Begin(const StartTransfer& effect) {
  switch (effect.kind) {
    case Transfer::kHostToDevice:
      CheckMemory(effect, effect.from, Tier::kHost, "source");
      CheckMemory(effect, effect.to, Tier::kDevice, "target");
      break;
    case Transfer::kDeviceToHost:
    case Transfer::kCompareDeviceWithHost:
      CheckMemory(effect, effect.from, Tier::kDevice, "source");
      CheckMemory(effect, effect.to, Tier::kHost, "target");
      break;
    case Transfer::kSsdToHost:
      CheckStore(effect);
      CheckMemory(effect, effect.to, Tier::kHost, "target");
      break;
    case Transfer::kHostToSsd:
      CheckMemory(effect, effect.from, Tier::kHost, "source");
      CheckStore(effect);
      break;
    case Transfer::kVerifySsd:
      CheckStore(effect);
      break;
    case Transfer::kZero: {
      const auto region = regions_.find(effect.to.region);
      CheckMemory(effect, effect.to,
                  region == regions_.end() ? Tier::kHost : region->second.pool.tier, "target");
      break;
    }
  }
  CheckAlone(effect);
  if (!verdict_.ok()) return;
  Work work{Work::Kind::kTransfer};
  work.transfer = effect;
  work.source = SourceOf(effect);
  if (effect.kind == Transfer::kHostToSsd) work.before = OnDisk(effect);
  SetTarget(effect, NewPoison());
  work_.push_back(work);
}

void FakeNode::LeaveKernels(SessionId session, std::vector<MemoryPlace> written) {
  Work work{Work::Kind::kKernels};
  work.session = session;
  work.written = std::move(written);
  work_.push_back(std::move(work));
}

size_t FakeNode::transfers() const {
  return std::count_if(work_.begin(), work_.end(),
                       [](const Work& work) { return work.kind == Work::Kind::kTransfer; });
}

Bytes FakeNode::Held(Pool pool) const {
  Bytes held;
  // Where a region and its copy are both there, the copy counts from when it is made.
  const auto is_extra = [&](RegionId id) {
    const Region& region = regions_.at(id);
    if (region.copy_of && !region.made) return regions_.count(*region.copy_of) != 0;
    return std::any_of(regions_.begin(), regions_.end(), [&](const auto& other) {
      return other.second.copy_of == id && other.second.made;
    });
  };
  if (pool.tier == Tier::kSsd) {
    for (const auto& [id, store] : stores_) held += store.size;
  } else {
    for (const auto& [id, region] : regions_) {
      if (region.pool == pool && !is_extra(id)) held += region.size;
    }
  }
  if (pool.tier != Tier::kHost) return held;
  for (const auto& [slot, size] : empty_) {
    if (!is_extra(RegionId(slot.first))) held -= size;
  }
  for (const Work& work : work_) {
    const bool there = work.kind == Work::Kind::kEmptySlot || work.kind == Work::Kind::kFillSlot;
    if (there && !is_extra(work.place.region)) held += empty_.at(KeyOf(work.place));
  }
  return held;
}

Stamp FakeNode::Read(MemoryPlace place) const {
  const auto stamp = memory_.find(KeyOf(place));
  return stamp == memory_.end() ? kZeros : stamp->second;
}

void FakeNode::Write(MemoryPlace place, Stamp stamp) {
  MEMTIDE_CHECK(regions_.count(place.region) == 1) << place.region;
  memory_[KeyOf(place)] = stamp;
}

Stamp FakeNode::SourceOf(const StartTransfer& transfer) const {
  if (transfer.kind == Transfer::kZero) return kZeros;
  return ReadsSsd(transfer) ? OnDisk(transfer) : Read(transfer.from);
}

Stamp FakeNode::OnDisk(const StartTransfer& transfer) const {
  const auto stamp = disk_.find(SlotOf(transfer));
  return stamp == disk_.end() ? kPoison : stamp->second;
}

FakeNode::Key FakeNode::SlotOf(const StartTransfer& transfer) const {
  const Key key = KeyOf(transfer.store);
  if (transfer.kind != Transfer::kVerifySsd) return key;
  // A part of a slot, which has been written.
  const auto next = disk_.upper_bound(key);
  const bool written = next != disk_.begin() && std::prev(next)->first.first == key.first;
  return written ? std::prev(next)->first : key;
}

void FakeNode::SetTarget(const StartTransfer& transfer, Stamp stamp) {
  if (transfer.kind == Transfer::kHostToSsd) {
    disk_[KeyOf(transfer.store)] = stamp;
  } else if (WritesMemory(transfer)) {
    memory_[KeyOf(transfer.to)] = stamp;
  }
}

void FakeNode::CopyRegion(RegionId from, RegionId to) {
  for (Bytes at; at < regions_[from].size; at += kChunkAlignment) {
    const Key source = KeyOf(MemoryPlace{from, at}), target = KeyOf(MemoryPlace{to, at});
    const auto stamp = memory_.find(source);
    if (stamp != memory_.end()) memory_[target] = stamp->second;
    const auto empty = empty_.find(source);
    if (empty != empty_.end()) empty_[target] = empty->second;
  }
  probes_.Hit(Probe::kRegionReplaced);
}

bool FakeNode::MakePending(const Work& drop) const {
  return std::any_of(work_.begin(), work_.end(), [&](const Work& work) {
    return (drop.kind == Work::Kind::kDropRegion && work.kind == Work::Kind::kMakeRegion &&
            work.region == drop.region) ||
           (drop.kind == Work::Kind::kDropStore && work.kind == Work::Kind::kMakeStore &&
            work.store == drop.store);
  });
}

Event FakeNode::Complete(size_t index, absl::Status status, InjectedFault injected) {
  MEMTIDE_CHECK(index < work_.size()) << index;
  while (MakePending(work_[index])) index = (index + 1) % work_.size();
  const Work work = work_[index];
  work_.erase(work_.begin() + static_cast<std::ptrdiff_t>(index));
  switch (work.kind) {
    case Work::Kind::kMakeRegion:
      if (status.ok()) {
        Region& region = regions_[work.region];
        region.made = true;
        if (region.copy_of) CopyRegion(*region.copy_of, work.region);
      } else {
        probes_.Hit(Probe::kRegionNotMade);
        if (!regions_[work.region].dropping) regions_.erase(work.region);
      }
      return RegionMade{work.region, std::move(status)};
    case Work::Kind::kDropRegion: {
      regions_.erase(work.region);
      const auto first = memory_.lower_bound({work.region.value(), 0});
      memory_.erase(first, memory_.lower_bound({work.region.value() + 1, 0}));
      empty_.erase(empty_.lower_bound({work.region.value(), 0}),
                   empty_.lower_bound({work.region.value() + 1, 0}));
      return RegionDropped{work.region};
    }
    case Work::Kind::kMakeStore:
      if (status.ok()) {
        stores_[work.store].made = true;
      } else {
        probes_.Hit(Probe::kStoreNotMade);
        if (!stores_[work.store].dropping) stores_.erase(work.store);
      }
      return StoreMade{work.store, std::move(status)};
    case Work::Kind::kDropStore: {
      stores_.erase(work.store);
      const auto first = disk_.lower_bound({work.store.value(), 0});
      disk_.erase(first, disk_.lower_bound({work.store.value() + 1, 0}));
      return StoreDropped{work.store};
    }
    case Work::Kind::kTransfer:
      return FinishTransfer(work, std::move(status), injected);
    case Work::Kind::kHangUp:
      return ClientGone{work.session};
    case Work::Kind::kStep:
      return FinishStep(work, std::move(status), injected);
    case Work::Kind::kKernels:
      for (const MemoryPlace place : work.written) {
        // The driver keeps memory that a client has mapped, also when the daemon has dropped it.
        if (regions_.count(place.region) != 0) Write(place, NewPoison());
      }
      return ClientQuiet{work.session};
    case Work::Kind::kEmptySlot:
      probes_.Hit(Probe::kSlotEmptied);
      return SlotReleased{work.place};
    case Work::Kind::kFillSlot:
      probes_.Hit(status.ok() ? Probe::kSlotFilled : Probe::kSlotNotFilled);
      if (status.ok()) {
        empty_.erase(KeyOf(work.place));
        memory_[KeyOf(work.place)] = kZeros;
      }
      return SlotPopulated{work.place, std::move(status)};
  }
  return Tick{};
}

Event FakeNode::FinishTransfer(const Work& work, absl::Status status, InjectedFault injected) {
  const StartTransfer& transfer = work.transfer;
  const bool to_disk = transfer.kind == Transfer::kHostToSsd;
  if (!status.ok()) {
    probes_.Hit(Probe::kTransferFailed);
    if (to_disk) failed_writes_.insert(KeyOf(transfer.store));
    if (injected == InjectedFault::kHideFailure) status = absl::OkStatus();
    return TransferDone{transfer.transfer, std::move(status)};
  }
  Stamp moved = SourceOf(transfer) == work.source ? work.source : NewPoison();
  TransferDone done{transfer.transfer, absl::OkStatus()};
  if (transfer.make_sums) done.sums.assign(SumsOfSize(transfer.size), moved);
  if (lies_ != nullptr && to_disk) moved = StoredStamp(work, moved);
  if (lies_ != nullptr && ReadsSsd(transfer)) moved = LoadedStamp(transfer, moved, &done);
  if (injected == InjectedFault::kKeepOldContent) moved = work.before;
  if (injected != InjectedFault::kLoseTransfer) SetTarget(transfer, moved);
  if (to_disk && failed_writes_.erase(KeyOf(transfer.store)) != 0) {
    probes_.Hit(Probe::kDiskWriteFailedThenDone);
  }
  return done;
}

}  // namespace memtide::sim
