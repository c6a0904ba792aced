// The memory of regions and stores: how it is made and dropped, and kept by the service manager.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"
#include "daemon/device/streaming_copy.h"
#include "daemon/io/fd_store.h"
#include "daemon/mover/mover.h"

namespace memtide {

void Mover::Announce(const Region& region, Bytes offset) {
  char* const slot = region.host->data() + offset.count();
  if (disk_ != nullptr) disk_->AddBuffer(slot, region.slot);
  for (Device* const device : devices_) device->AddHostMemory(slot, region.slot);
}

void Mover::Withdraw(const Region& region, Bytes offset) {
  char* const slot = region.host->data() + offset.count();
  for (Device* const device : devices_) device->RemoveHostMemory(slot);
  if (disk_ != nullptr) disk_->RemoveBuffer(slot);
}

void Mover::Share(const Region& region) {
  const SharedMemory& host = *region.host;
  for (Device* const device : devices_) {
    device->ShareHostMemory(host.data(), host.size(), host.fd());
  }
}

void Mover::AnnounceAll(const Region& region) {
  Share(region);
  for (Bytes offset; offset < region.size(); offset += region.slot) {
    // Each slot is registered by itself, because the balloon releases single slots, and pinned
    // pages would stay (decision 17).
    if (region.empty.count(offset.count()) == 0) Announce(region, offset);
  }
}

absl::StatusOr<std::shared_ptr<Region>> Mover::MakeOnDevice(const MakeRegion& effect,
                                                            const std::string& name) {
  const Pool& pool = effect.pool;
  if (pool.device >= devices_.size()) {
    return absl::FailedPreconditionError(absl::StrCat("this node has no ", PoolName(pool)));
  }
  auto region = std::make_shared<Region>();
  MEMTIDE_ASSIGN_OR_RETURN(region->device,
                           devices_[pool.device]->Allocate(name, effect.size, effect.memory));
  region->device_number = pool.device;
  return region;
}

// A slot without memory has none in the copy either.
void Mover::CopySlot(const Region& from, Bytes offset, Region* to) {
  MEMTIDE_CHECK(from.size() == to->size() && from.slot == to->slot);
  if (from.empty.count(offset.count()) == 0) {
    return StreamCopy(to->host->data() + offset.count(), from.host->data() + offset.count(),
                      from.slot);
  }
  to->empty.insert(offset.count());
  // If the kernel refuses, only the memory of this slot stays in use.
  to->host->Empty(offset, from.slot).IgnoreError();
}

struct Mover::Making {
  MakeRegion effect;
  SharedMemory::Maker memory;
  std::shared_ptr<Region> region;
  Bytes announced;  // Bytes of the region that devices and disk know.
};

bool Mover::MakeNext(Making& making) {
  const MakeRegion& effect = making.effect;
  Region& region = *making.region;
  if (!region.host.has_value()) {
    if (!making.memory.Populate(WorkQueue::kPiece)) return false;
    absl::StatusOr<SharedMemory> memory = making.memory.Take();
    if (!memory.ok()) {
      post_(RegionMade{effect.region, memory.status()});
      return true;
    }
    region.host = *std::move(memory);
    Share(region);
  }
  const Bytes end = std::min(making.announced + WorkQueue::kPiece, region.size());
  for (; making.announced < end; making.announced += region.slot) {
    if (effect.copy_of.has_value())
      CopySlot(*regions_.Find(*effect.copy_of), making.announced, &region);
    if (region.empty.count(making.announced.count()) == 0) Announce(region, making.announced);
  }
  if (making.announced < region.size()) return false;
  RegionIsMade(effect, std::move(making.region));
  return true;
}

void Mover::RegionIsMade(const MakeRegion& effect, std::shared_ptr<Region> region) {
  const auto add = [this, id = effect.region, region] {
    // regions_ knows the region before the engine does, because the engine may export it at once.
    regions_.Add(id, region);
    post_(RegionMade{id, absl::OkStatus()});
  };
  if (!effect.persistent) return add();
  // systemd has the descriptor before the engine learns of the region, so no record of the journal
  // names memory that is not kept (decision 14). It may take seconds, in which other jobs get
  // memory.
  keeping_.Push(effect.job, WorkQueue::kLeastCost, [id = effect.region, region, add] {
    StoreFd(RegionName(id), region->host->fd());
    add();
  });
}

void Mover::Dispose(std::shared_ptr<Region> region) {
  if (!region->host.has_value()) return;
  for (Bytes offset; offset < region->size(); offset += region->slot) {
    if (region->empty.count(offset.count()) == 0) Withdraw(*region, offset);
  }
  for (Device* const device : devices_) device->UnshareHostMemory(region->host->data());
}

// A client may still hold the region's descriptor. Without the hole it would hold the pages too,
// which are charged to the daemon and which the ledger lends to others from here on.
void Mover::Drop(RegionId id) {
  const std::shared_ptr<Region> region = regions_.Remove(id);
  Dispose(region);
  // Where the kernel refuses, the pages are free when the last holder closes the descriptor.
  if (region->host.has_value()) region->host->EmptyAll().IgnoreError();
}

void Mover::Start(const MakeRegion& effect) {
  const Pool& pool = effect.pool;
  MEMTIDE_CHECK(pool.tier != Tier::kSsd);
  // /proc/PID/maps shows the name, and with it whose memory a process has mapped.
  const std::string name = absl::StrCat("memtide-", std::string(TierName(pool.tier)), "-",
                                        effect.region.value(), "-uid", effect.uid);
  if (pool.tier == Tier::kDevice) {
    return memory_.Push(effect.job, effect.size, [this, effect, name] {
      absl::StatusOr<std::shared_ptr<Region>> region = MakeOnDevice(effect, name);
      if (region.ok()) return RegionIsMade(effect, *std::move(region));
      post_(RegionMade{effect.region, region.status()});
    });
  }
  MEMTIDE_CHECK(!effect.slot.IsZero() && effect.size.IsMultipleOf(effect.slot)) << effect.slot;
  auto region = std::make_shared<Region>();
  region->host_node = HostNodeOf(effect.near_device);
  region->slot = effect.slot;
  region->read_only = effect.read_only;
  const absl::optional<int> node = host_placements_[region->host_node].node;
  const auto making = std::make_shared<Making>(
      Making{effect, SharedMemory::Maker(name, effect.size, node), std::move(region), Bytes()});
  memory_.PushPieces(effect.job, std::min(effect.size, WorkQueue::kPiece),
                     [this, making] { return MakeNext(*making); });
}

void Mover::Start(const DropRegion& effect) {
  memory_.Push(effect.job, regions_.Find(effect.region)->size(), [this, effect] {
    Drop(effect.region);
    if (!HasFdStore()) return post_(RegionDropped{effect.region});
    keeping_.Push(effect.job, WorkQueue::kLeastCost, [this, effect] {
      RemoveStoredFd(RegionName(effect.region));
      post_(RegionDropped{effect.region});
    });
  });
}

// Pinned pages cannot be freed, so the slot is withdrawn from disk and device first.
void Mover::Start(const ReleaseSlot& effect) {
  memory_.Push(effect.job, effect.size, [this, effect] {
    // The machine lacks memory: what clients hold against the books goes first.
    for (const std::shared_ptr<Region>& each : regions_.All()) each->EmptyTouched();
    const std::shared_ptr<Region> region = regions_.Find(effect.place.region);
    Withdraw(*region, effect.place.offset);
    region->empty.insert(effect.place.offset.count());
    // If the kernel refuses, only the memory of this slot stays in use.
    region->host->Empty(effect.place.offset, effect.size).IgnoreError();
    post_(SlotReleased{effect.place});
  });
}

struct Mover::Filling {
  PopulateSlot effect;
  Bytes filled;
};

bool Mover::FillNext(Filling& filling) {
  const auto& [place, size, job] = filling.effect;
  const std::shared_ptr<Region> region = regions_.Find(place.region);
  const Bytes piece = std::min(WorkQueue::kPiece, size - filling.filled);
  region->filling.insert(place.offset.count());
  // Fill takes the pages now: a first write on a machine without memory would kill the daemon.
  absl::Status status = region->host->Fill(place.offset + filling.filled, piece);
  filling.filled += piece;
  if (status.ok() && filling.filled < size) return false;
  region->filling.erase(place.offset.count());
  if (status.ok()) {
    region->empty.erase(place.offset.count());
    Announce(*region, place.offset);
  } else {
    region->host->Empty(place.offset, size).IgnoreError();  // Some pieces were filled.
  }
  post_(SlotPopulated{place, std::move(status)});
  return true;
}

void Mover::Start(const PopulateSlot& effect) {
  const auto filling = std::make_shared<Filling>(Filling{effect, Bytes()});
  memory_.PushPieces(effect.job, std::min(effect.size, WorkQueue::kPiece),
                     [this, filling] { return FillNext(*filling); });
}

void Mover::Start(const MakeStore& effect) {
  stores_.Push(effect.job, effect.size, [this, effect] {
    if (disk_ == nullptr) {
      return post_(StoreMade{effect.store, absl::FailedPreconditionError("this node has no disk")});
    }
    const absl::Status status = disk_->MakeStore(effect.store, effect.size);
    if (!status.ok()) return post_(StoreMade{effect.store, status});
    const StripeCounts stripes = disk_->StripesOf(effect.store);
    if (!effect.persistent) return post_(StoreMade{effect.store, status, stripes});
    keeping_.Push(effect.job, WorkQueue::kLeastCost, [this, effect, stripes] {
      const std::vector<int> files = disk_->Files(effect.store);
      for (size_t i = 0; i < files.size(); ++i) {
        StoreFd(StoreFileName(effect.store, i), files[i]);
      }
      post_(StoreMade{effect.store, absl::OkStatus(), stripes});
    });
  });
}

void Mover::Start(const DropStore& effect) {
  MEMTIDE_CHECK(disk_ != nullptr) << "store " << effect.store;
  stores_.Push(effect.job, WorkQueue::kPiece, [this, effect] {
    const size_t files = disk_->Files(effect.store).size();
    disk_->DropStore(effect.store);
    if (!HasFdStore()) return post_(StoreDropped{effect.store});
    keeping_.Push(effect.job, WorkQueue::kLeastCost, [this, effect, files] {
      // systemd's copies of the descriptors would keep the blocks of the files.
      for (size_t i = 0; i < files; ++i) RemoveStoredFd(StoreFileName(effect.store, i));
      post_(StoreDropped{effect.store});
    });
  });
}

// The job's stores are made and dropped in the same queue, and so not meanwhile.
void Mover::SaveSnapshot(JobId job, std::vector<StoreId> stores,
                         std::function<std::string()> encode) {
  stores_.Push(job, WorkQueue::kPiece,
               [this, job, stores = std::move(stores), encode = std::move(encode)] {
                 post_(SnapshotSaved{job, disk_->SaveSnapshot(job, stores, encode())});
               });
}

void Mover::Start(const DropSnapshot& effect) {
  stores_.Push(effect.job, WorkQueue::kLeastCost, [this, effect] {
    const absl::Status removed = disk_->RemoveSnapshot(effect.job, effect.stores);
    if (!removed.ok()) spdlog::error("{}", std::string(removed.message()));
  });
}

absl::Status Mover::AdoptNamed(StoreId store, Bytes size, StripeCounts counts) {
  if (disk_ == nullptr) return absl::FailedPreconditionError("this node has no SSD directory");
  MEMTIDE_RETURN_IF_ERROR(disk_->AdoptNamedStore(store, size, std::move(counts)));
  const std::vector<int> files = disk_->Files(store);
  for (size_t i = 0; HasFdStore() && i < files.size(); ++i) {
    StoreFd(StoreFileName(store, i), files[i]);
  }
  return absl::OkStatus();
}

}  // namespace memtide
