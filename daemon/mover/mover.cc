#include "daemon/mover/mover.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/content_work.h"
#include "base/numa.h"
#include "base/status_macros.h"
#include "daemon/device/streaming_copy.h"
#include "daemon/io/fd_store.h"

namespace memtide {
namespace {

// Threads that read and write the pool run where its memory is.
WorkQueue::Options CopyThreads(const Device& device) {
  return {device.copies_in_flight(), 0, device.placement().cpus};
}

HashSecret NewSecret() {
  absl::StatusOr<HashSecret> secret = HashSecret::Random();
  MEMTIDE_CHECK(secret.ok()) << secret.status();
  return *std::move(secret);
}

}  // namespace

Mover::Link::Link(Device* device)
    : device(device),
      check(device),
      checks("memtide-checks", {1, kStepNice, device->placement().cpus}),
      out("memtide-out", CopyThreads(*device)),
      in("memtide-in", CopyThreads(*device)) {}

Mover::Mover(const std::vector<Device*>& devices, Disk* disk, std::function<void(Event)> post)
    : devices_(devices),
      disk_(disk),
      host_placements_(HostPlacementsOf(devices)),
      hash_secret_(NewSecret()),
      post_(std::move(post)),
      memory_("memtide-memory", {1, 0, host_placements_.front().cpus}) {
  if (disk != nullptr) {
    disk_transfers_ =
        std::make_unique<DiskTransfers>(disk, host_placements_.front().cpus, post_);
  }
  for (const NumaPlacement& placement : host_placements_) {
    host_nodes_.push_back(std::make_unique<HostNode>(placement, host_placements_.size()));
  }
  for (Device* const device : devices) links_.push_back(std::make_unique<Link>(device));
}

Mover::~Mover() {
  disk_transfers_.reset();
  memory_.Push([this] {
    // Region::empty belongs to the memory thread.
    for (auto& [id, region] : regions_.RemoveAll()) Dispose(std::move(region));
  });
}

Mover::Range Mover::At(const MemoryPlace& place, Bytes size, Tier tier) const {
  Range range{regions_.Find(place.region), place.offset};
  const absl::optional<Bytes> end = CheckedAdd(place.offset, size);
  // A place outside its region would let a transfer overwrite other memory, another job's included.
  MEMTIDE_CHECK(end.has_value() && *end <= range.region->size())
      << size << " at " << place.offset << " of region " << place.region;
  MEMTIDE_CHECK((tier == Tier::kDevice) == (range.region->device != nullptr))
      << "region " << place.region << " is not of the " << std::string(TierName(tier));
  return range;
}

size_t Mover::HostNodeOf(absl::optional<uint32_t> device) const {
  if (!device || *device >= devices_.size()) return 0;
  return HostNodeNear(*devices_[*device], host_placements_);
}

absl::StatusOr<std::shared_ptr<Region>> Mover::Make(const MakeRegion& effect) {
  const Pool& pool = effect.pool;
  MEMTIDE_CHECK(pool.tier != Tier::kSsd);
  // /proc/PID/maps shows the name, and with it whose memory a process has mapped.
  const std::string name = absl::StrCat("memtide-", std::string(TierName(pool.tier)), "-",
                                        effect.region.value(), "-uid", effect.uid);
  auto region = std::make_shared<Region>();
  if (pool.tier == Tier::kHost) {
    MEMTIDE_CHECK(!effect.slot.IsZero() && effect.size.IsMultipleOf(effect.slot)) << effect.slot;
    region->host_node = HostNodeOf(effect.near_device);
    const absl::optional<int> node = host_placements_[region->host_node].node;
    MEMTIDE_ASSIGN_OR_RETURN(region->host, SharedMemory::Create(name, effect.size, node));
    // systemd has the descriptor before the engine learns of the region, so no record of the
    // journal names memory that is not kept (decision 14).
    if (effect.persistent) StoreFd(RegionName(effect.region), region->host->fd());
    region->slot = effect.slot;
    region->read_only = effect.read_only;
    AnnounceAll(*region);
  } else if (pool.device < devices_.size()) {
    MEMTIDE_ASSIGN_OR_RETURN(region->device,
                             devices_[pool.device]->Allocate(name, effect.size, effect.memory));
    region->device_number = pool.device;
  } else {
    return absl::FailedPreconditionError(absl::StrCat("this node has no ", PoolName(pool)));
  }
  return region;
}

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

void Mover::AnnounceAll(const Region& region) {
  const SharedMemory& host = *region.host;
  for (Device* const device : devices_) {
    device->ShareHostMemory(host.data(), host.size(), host.fd());
  }
  for (Bytes offset; offset < region.size(); offset += region.slot) {
    // Each slot is registered by itself, because the balloon releases single slots, and pinned
    // pages would stay (decision 17).
    if (region.empty.count(offset.count()) == 0) Announce(region, offset);
  }
}

absl::Status Mover::Adopt(RegionId id, Bytes size, Bytes slot, OwnedFd memory,
                          std::set<uint64_t> empty, absl::optional<uint32_t> near_device) {
  auto region = std::make_shared<Region>();
  region->host_node = HostNodeOf(near_device);
  const absl::optional<int> node = host_placements_[region->host_node].node;
  MEMTIDE_ASSIGN_OR_RETURN(region->host, SharedMemory::Adopt(memory.Release(), size, node));
  region->slot = slot;
  // A restored job has what its chunks use, and grows again by need (decision 18).
  for (const uint64_t offset : empty) region->host->Empty(Bytes(offset), slot).IgnoreError();
  region->empty = std::move(empty);
  AnnounceAll(*region);
  regions_.Add(id, std::move(region));
  return absl::OkStatus();
}

absl::Status Mover::Adopt(StoreId id, Bytes size, StripeCounts counts, std::vector<OwnedFd> files) {
  if (disk_ == nullptr) return absl::FailedPreconditionError("this node has no disk");
  return disk_->AdoptStore(id, size, std::move(counts), std::move(files));
}

StripeCounts Mover::StripesOf(StoreId id) const {
  return disk_ == nullptr ? StripeCounts() : disk_->StripesOf(id);
}

absl::Status Mover::Make(const MakeStore& effect) {
  if (disk_ == nullptr) return absl::FailedPreconditionError("this node has no disk");
  MEMTIDE_RETURN_IF_ERROR(disk_->MakeStore(effect.store, effect.size));
  if (!effect.persistent) return absl::OkStatus();
  const std::vector<int> files = disk_->Files(effect.store);
  for (size_t i = 0; i < files.size(); ++i) {
    StoreFd(StoreFileName(effect.store, i), files[i]);
  }
  return absl::OkStatus();
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
  memory_.Push([this, effect] {
    absl::StatusOr<std::shared_ptr<Region>> region = Make(effect);
    // regions_ knows the region before the engine does, because the engine may export it at once.
    if (region.ok()) regions_.Add(effect.region, *region);
    post_(RegionMade{effect.region, region.status()});
  });
}

void Mover::Start(const DropRegion& effect) {
  memory_.Push([this, effect] {
    if (HasFdStore()) RemoveStoredFd(RegionName(effect.region));
    Drop(effect.region);
    post_(RegionDropped{effect.region});
  });
}

// Pinned pages cannot be freed, so the slot is withdrawn from disk and device first.
void Mover::Start(const ReleaseSlot& effect) {
  memory_.Push([this, effect] {
    const std::shared_ptr<Region> region = regions_.Find(effect.place.region);
    Withdraw(*region, effect.place.offset);
    region->empty.insert(effect.place.offset.count());
    // If the kernel refuses, only the memory of this slot stays in use.
    region->host->Empty(effect.place.offset, effect.size).IgnoreError();
    post_(SlotReleased{effect.place});
  });
}

void Mover::Start(const PopulateSlot& effect) {
  memory_.Push([this, effect] {
    const std::shared_ptr<Region> region = regions_.Find(effect.place.region);
    // Fill takes the pages now: a first write on a machine without memory would kill the daemon.
    absl::Status status = region->host->Fill(effect.place.offset, effect.size);
    if (status.ok()) {
      region->empty.erase(effect.place.offset.count());
      Announce(*region, effect.place.offset);
    }
    post_(SlotPopulated{effect.place, std::move(status)});
  });
}

void Mover::Start(const MakeStore& effect) {
  memory_.Push([this, effect] { post_(StoreMade{effect.store, Make(effect)}); });
}

void Mover::Start(const DropStore& effect) {
  MEMTIDE_CHECK(disk_ != nullptr) << "store " << effect.store;
  memory_.Push([this, effect] {
    if (HasFdStore()) {
      // systemd's copies of the descriptors would keep the blocks of the files.
      const size_t files = disk_->Files(effect.store).size();
      for (size_t i = 0; i < files; ++i) RemoveStoredFd(StoreFileName(effect.store, i));
    }
    disk_->DropStore(effect.store);
    post_(StoreDropped{effect.store});
  });
}

void Mover::Start(const StartTransfer& effect) {
  switch (effect.kind) {
    case StartTransfer::Kind::kHostToDevice:
      return CopyIn(effect);
    case StartTransfer::Kind::kDeviceToHost:
      return CopyOut(effect);
    case StartTransfer::Kind::kZero:
      return Zero(effect);
    case StartTransfer::Kind::kCompareDeviceWithHost:
      return Compare(effect);
    case StartTransfer::Kind::kSsdToHost:
    case StartTransfer::Kind::kHostToSsd:
    case StartTransfer::Kind::kVerifySsd:
      return UseDisk(effect);
  }
}

// Each Range is released before `post`: the engine may drop a region as soon as it knows that the
// last transfer is done, and the region's memory must be freed then.

void Mover::CopyIn(const StartTransfer& effect) {
  Range from = At(effect.from, effect.size, Tier::kHost);
  Range to = At(effect.to, effect.size, Tier::kDevice);
  Link& link = LinkOf(to);
  link.in.Push([this, &link, effect, from = std::move(from), to = std::move(to)]() mutable {
    absl::Status status =
        link.device->CopyIn(*to.region->device, to.offset, from.host(), effect.size);
    from = to = Range();
    post_(TransferDone{effect.transfer, std::move(status)});
  });
}

void Mover::CopyOut(const StartTransfer& effect) {
  Range from = At(effect.from, effect.size, Tier::kDevice);
  Range to = At(effect.to, effect.size, Tier::kHost);
  Link& link = LinkOf(from);
  link.out.Push([this, &link, effect, from = std::move(from), to = std::move(to)]() mutable {
    absl::Status status =
        link.device->CopyOut(*from.region->device, from.offset, to.host(), effect.size);
    from = to = Range();
    post_(TransferDone{effect.transfer, std::move(status)});
  });
}

void Mover::Zero(const StartTransfer& effect) {
  if (regions_.Find(effect.to.region)->device != nullptr) return ZeroOnDevice(effect);
  Range to = At(effect.to, effect.size, Tier::kHost);
  WorkQueue& zeroes = host_nodes_[to.region->host_node]->zeroes;
  zeroes.Push([this, effect, to = std::move(to)]() mutable {
    // StreamZero bypasses the caches, which hold what the training processes compute with.
    StreamZero(to.host(), effect.size);
    to = Range();
    post_(TransferDone{effect.transfer, absl::OkStatus()});
  });
}

void Mover::ZeroOnDevice(const StartTransfer& effect) {
  Range to = At(effect.to, effect.size, Tier::kDevice);
  Link& link = LinkOf(to);
  link.in.Push([this, &link, effect, to = std::move(to)]() mutable {
    absl::Status status = link.device->Zero(*to.region->device, to.offset, effect.size);
    to = Range();
    post_(TransferDone{effect.transfer, std::move(status)});
  });
}

// The thread of the checks copies and compares, so that no other copy waits for a comparison.
void Mover::Compare(const StartTransfer& effect) {
  Range device = At(effect.from, effect.size, Tier::kDevice);
  Range host = At(effect.to, effect.size, Tier::kHost);
  Link& link = LinkOf(device);
  link.checks.Push([this, &link, effect, device = std::move(device),
                    host = std::move(host)]() mutable {
    absl::Status status =
        link.check.FindDifference(*device.region->device, device.offset, host.host(), effect.size);
    device = host = Range();
    post_(TransferDone{effect.transfer, std::move(status)});
  });
}

void Mover::Start(const StartStep& effect) {
  std::vector<Range> ranges;
  ranges.reserve(effect.chunks.size());
  for (const MemoryPlace& place : effect.chunks) {
    ranges.push_back(At(place, effect.size, Tier::kHost));
  }
  // All chunks are of one user, and most of one job. Work without chunks is done anywhere.
  const size_t host_node = ranges.empty() ? 0 : ranges.front().region->host_node;
  host_nodes_[host_node]->steps.Push([this, effect, ranges = std::move(ranges)]() mutable {
    std::vector<char*> chunks;
    chunks.reserve(ranges.size());
    for (const Range& range : ranges) chunks.push_back(range.host());
    // The engine starts only valid work, and arithmetic on it cannot fail.
    StepDone done{effect.step, absl::OkStatus()};
    if (effect.work != nullptr) {
      done.non_finite_gradients = optimizer::Run(*effect.work, chunks);
    } else {
      done.contents = Run(*effect.contents, chunks, effect.size, hash_secret_);
    }
    ranges.clear();
    post_(std::move(done));
  });
}

void Mover::UseDisk(const StartTransfer& effect) {
  MEMTIDE_CHECK(disk_transfers_ != nullptr) << "transfer " << effect.transfer;
  std::shared_ptr<char> memory;
  if (effect.kind != StartTransfer::Kind::kVerifySsd) {
    const bool read = effect.kind == StartTransfer::Kind::kSsdToHost;
    memory = At(read ? effect.to : effect.from, effect.size, Tier::kHost).shared_host();
  }
  disk_transfers_->Start(effect, std::move(memory));
}

void Mover::Start(const AwaitTransfer& effect) {
  MEMTIDE_CHECK(disk_ != nullptr) << "transfer " << effect.transfer;
  disk_->Expedite(effect.transfer);
}

void Mover::Disown(RegionId region) { Drop(region); }

void Mover::Disown(StoreId store) { disk_->DropStore(store); }

absl::StatusOr<MemoryExport> Mover::Export(RegionId region) const {
  return regions_.Export(region);
}

}  // namespace memtide
