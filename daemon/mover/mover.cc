#include "daemon/mover/mover.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "daemon/device/nt_copy.h"
#include "daemon/io/kept_descriptors.h"
#include "daemon/mover/regions.h"
#include "daemon/mover/work_queue.h"

namespace memtide {
namespace {

// Behind whatever trains on the same cores.
constexpr int kStepNice = 5;

size_t StepThreads() { return std::max(1u, std::thread::hardware_concurrency() / 2); }

// A range of a region, kept alive while it is used.
struct Range {
  char* host() const { return region->host->data() + offset.count(); }

  std::shared_ptr<Region> region;
  Bytes offset;
};

}  // namespace

class Mover::State {
 public:
  State(Device* device, Disk* disk, std::function<void(Event)> post)
      : device_(device),
        disk_(disk),
        post_(std::move(post)),
        steps_("memtide-steps", {StepThreads(), kStepNice}) {}
  ~State();

  void Start(const MakeRegion& effect);
  void Start(const DropRegion& effect);
  void Start(const EmptySlot& effect);
  void Start(const FillSlot& effect);
  void Start(const MakeStore& effect);
  void Start(const DropStore& effect);
  void Start(const StartTransfer& effect);
  void Start(const StartStep& effect);
  absl::Status Adopt(RegionId id, Bytes size, Bytes slot, OwnedFd memory, std::set<uint64_t> empty);
  absl::Status Adopt(StoreId id, Bytes size, std::vector<OwnedFd> files);
  void Disown(RegionId id) { Dispose(regions_.Remove(id)); }
  void Disown(StoreId id) { disk_->DropStore(id); }

  const Regions& regions() const { return regions_; }

 private:
  Range At(const MemoryPlace& place, Bytes size, Tier tier) const;
  absl::StatusOr<std::shared_ptr<Region>> Make(const MakeRegion& effect);
  absl::Status Make(const MakeStore& effect);
  // Tells disk and device of host memory that they will use, slot by slot, or no longer will.
  void Announce(const Region& region, Bytes offset);
  void Withdraw(const Region& region, Bytes offset);
  void AnnounceAll(const Region& region);
  void Dispose(std::shared_ptr<Region> region);
  void CopyIn(const StartTransfer& effect);
  void CopyOut(const StartTransfer& effect);
  void Zero(const StartTransfer& effect);
  void UseDisk(const StartTransfer& effect, DiskTransfer::Direction direction);

  Device* const device_;
  Disk* const disk_;
  const std::function<void(Event)> post_;
  Regions regions_;

  Mutex mutex_;
  CondVar disk_idle_;
  uint64_t on_disk_ ABSL_GUARDED_BY(mutex_) = 0;  // Transfers.

  // Ended before everything above, and memory_, which gives the regions back, after the others.
  WorkQueue memory_{"memtide-memory"}, out_{"memtide-out"}, in_{"memtide-in"};
  WorkQueue steps_;
};

Mover::State::~State() {
  {
    MutexLock lock(&mutex_);
    while (on_disk_ > 0) disk_idle_.Wait(&mutex_);
  }
  memory_.Push([this] {
    for (auto& [id, region] : regions_.RemoveAll()) Dispose(std::move(region));
  });
}

Range Mover::State::At(const MemoryPlace& place, Bytes size, Tier tier) const {
  Range range{regions_.Find(place.region), place.offset};
  const absl::optional<Bytes> end = CheckedAdd(place.offset, size);
  MEMTIDE_CHECK(end.has_value() && *end <= range.region->size())
      << size << " at " << place.offset << " of region " << place.region;
  MEMTIDE_CHECK((tier == Tier::kDevice) == (range.region->device != nullptr))
      << "region " << place.region << " is not of the " << std::string(TierName(tier));
  return range;
}

absl::StatusOr<std::shared_ptr<Region>> Mover::State::Make(const MakeRegion& effect) {
  MEMTIDE_CHECK(effect.tier != Tier::kSsd) << "region " << effect.region;
  const std::string name = absl::StrCat("memtide-", std::string(TierName(effect.tier)), "-",
                                        effect.region.value(), "-uid", effect.uid);
  auto region = std::make_shared<Region>();
  if (effect.tier == Tier::kHost) {
    MEMTIDE_CHECK(!effect.slot.IsZero() && effect.size.IsMultipleOf(effect.slot)) << effect.slot;
    MEMTIDE_ASSIGN_OR_RETURN(region->host, SharedMemory::Create(name, effect.size));
    if (effect.kept) KeepDescriptor(RegionName(effect.region), region->host->fd());
    region->slot = effect.slot;
    AnnounceAll(*region);
  } else if (device_ != nullptr) {
    MEMTIDE_ASSIGN_OR_RETURN(region->device, device_->Allocate(name, effect.size, effect.memory));
  } else {
    return absl::FailedPreconditionError("this node has no device");
  }
  return region;
}

void Mover::State::Announce(const Region& region, Bytes offset) {
  char* const slot = region.host->data() + offset.count();
  if (disk_ != nullptr) disk_->AddBuffer(slot, region.slot);
  if (device_ != nullptr) device_->AddHostMemory(slot, region.slot);
}

void Mover::State::Withdraw(const Region& region, Bytes offset) {
  char* const slot = region.host->data() + offset.count();
  if (device_ != nullptr) device_->RemoveHostMemory(slot);
  if (disk_ != nullptr) disk_->RemoveBuffer(slot);
}

void Mover::State::AnnounceAll(const Region& region) {
  for (Bytes offset; offset < region.size(); offset += region.slot) {
    if (region.empty.count(offset.count()) == 0) Announce(region, offset);
  }
}

absl::Status Mover::State::Adopt(RegionId id, Bytes size, Bytes slot, OwnedFd memory,
                                 std::set<uint64_t> empty) {
  auto region = std::make_shared<Region>();
  MEMTIDE_ASSIGN_OR_RETURN(region->host, SharedMemory::Adopt(memory.Release(), size));
  region->slot = slot;
  for (const uint64_t offset : empty) region->host->Empty(Bytes(offset), slot).IgnoreError();
  region->empty = std::move(empty);
  AnnounceAll(*region);
  regions_.Add(id, std::move(region));
  return absl::OkStatus();
}

absl::Status Mover::State::Adopt(StoreId id, Bytes size, std::vector<OwnedFd> files) {
  if (disk_ == nullptr) return absl::FailedPreconditionError("this node has no disk");
  return disk_->AdoptStore(id, size, std::move(files));
}

absl::Status Mover::State::Make(const MakeStore& effect) {
  if (disk_ == nullptr) return absl::FailedPreconditionError("this node has no disk");
  MEMTIDE_RETURN_IF_ERROR(disk_->MakeStore(effect.store, effect.size));
  if (!effect.kept) return absl::OkStatus();
  const std::vector<int> files = disk_->Files(effect.store);
  for (size_t i = 0; i < files.size(); ++i) {
    KeepDescriptor(StoreFileName(effect.store, i), files[i]);
  }
  return absl::OkStatus();
}

void Mover::State::Dispose(std::shared_ptr<Region> region) {
  if (!region->host.has_value()) return;
  for (Bytes offset; offset < region->size(); offset += region->slot) {
    if (region->empty.count(offset.count()) == 0) Withdraw(*region, offset);
  }
}

void Mover::State::Start(const MakeRegion& effect) {
  memory_.Push([this, effect] {
    absl::StatusOr<std::shared_ptr<Region>> region = Make(effect);
    if (region.ok()) regions_.Add(effect.region, *std::move(region));
    post_(RegionMade{effect.region, region.status()});
  });
}

void Mover::State::Start(const DropRegion& effect) {
  memory_.Push([this, effect] {
    if (DescriptorsAreKept()) ForgetDescriptor(RegionName(effect.region));
    Dispose(regions_.Remove(effect.region));
    post_(RegionDropped{effect.region});
  });
}

// What is pinned would stay where it is: it is withdrawn first.
void Mover::State::Start(const EmptySlot& effect) {
  memory_.Push([this, effect] {
    const std::shared_ptr<Region> region = regions_.Find(effect.place.region);
    Withdraw(*region, effect.place.offset);
    region->empty.insert(effect.place.offset.count());
    // A refusal costs the machine this memory, and nobody else anything.
    region->host->Empty(effect.place.offset, effect.size).IgnoreError();
    post_(SlotEmptied{effect.place});
  });
}

void Mover::State::Start(const FillSlot& effect) {
  memory_.Push([this, effect] {
    const std::shared_ptr<Region> region = regions_.Find(effect.place.region);
    absl::Status status = region->host->Fill(effect.place.offset, effect.size);
    if (status.ok()) {
      region->empty.erase(effect.place.offset.count());
      Announce(*region, effect.place.offset);
    }
    post_(SlotFilled{effect.place, std::move(status)});
  });
}

void Mover::State::Start(const MakeStore& effect) {
  memory_.Push([this, effect] { post_(StoreMade{effect.store, Make(effect)}); });
}

void Mover::State::Start(const DropStore& effect) {
  MEMTIDE_CHECK(disk_ != nullptr) << "store " << effect.store;
  memory_.Push([this, effect] {
    if (DescriptorsAreKept()) {
      const size_t files = disk_->Files(effect.store).size();
      for (size_t i = 0; i < files; ++i) ForgetDescriptor(StoreFileName(effect.store, i));
    }
    disk_->DropStore(effect.store);
    post_(StoreDropped{effect.store});
  });
}

void Mover::State::Start(const StartTransfer& effect) {
  switch (effect.kind) {
    case StartTransfer::Kind::kHostToDevice:
      return CopyIn(effect);
    case StartTransfer::Kind::kDeviceToHost:
      return CopyOut(effect);
    case StartTransfer::Kind::kZero:
      return Zero(effect);
    case StartTransfer::Kind::kSsdToHost:
      return UseDisk(effect, DiskTransfer::Direction::kRead);
    case StartTransfer::Kind::kHostToSsd:
      return UseDisk(effect, DiskTransfer::Direction::kWrite);
  }
}

// The ranges are given up before each post: a region may be dropped, and must then be gone, as soon
// as its last transfer is known to be done.

void Mover::State::CopyIn(const StartTransfer& effect) {
  Range from = At(effect.from, effect.size, Tier::kHost);
  Range to = At(effect.to, effect.size, Tier::kDevice);
  in_.Push([this, effect, from = std::move(from), to = std::move(to)]() mutable {
    absl::Status status = device_->CopyIn(*to.region->device, to.offset, from.host(), effect.size);
    from = to = Range();
    post_(TransferDone{effect.transfer, std::move(status)});
  });
}

void Mover::State::CopyOut(const StartTransfer& effect) {
  Range from = At(effect.from, effect.size, Tier::kDevice);
  Range to = At(effect.to, effect.size, Tier::kHost);
  out_.Push([this, effect, from = std::move(from), to = std::move(to)]() mutable {
    absl::Status status =
        device_->CopyOut(*from.region->device, from.offset, to.host(), effect.size);
    from = to = Range();
    post_(TransferDone{effect.transfer, std::move(status)});
  });
}

void Mover::State::Zero(const StartTransfer& effect) {
  const bool on_device = regions_.Find(effect.to.region)->device != nullptr;
  Range to = At(effect.to, effect.size, on_device ? Tier::kDevice : Tier::kHost);
  in_.Push([this, effect, to = std::move(to)]() mutable {
    absl::Status status;
    if (to.region->device != nullptr) {
      status = device_->Zero(*to.region->device, to.offset, effect.size);
    } else {
      StreamZero(to.host(), effect.size);
    }
    to = Range();
    post_(TransferDone{effect.transfer, std::move(status)});
  });
}

void Mover::State::Start(const StartStep& effect) {
  std::vector<Range> ranges;
  ranges.reserve(effect.chunks.size());
  for (const MemoryPlace& place : effect.chunks) {
    ranges.push_back(At(place, effect.size, Tier::kHost));
  }
  steps_.Push([this, step = effect.step, work = effect.work, ranges = std::move(ranges)]() mutable {
    std::vector<char*> chunks;
    chunks.reserve(ranges.size());
    for (const Range& range : ranges) chunks.push_back(range.host());
    const uint64_t non_finite = optimizer::Run(*work, chunks);
    ranges.clear();
    post_(StepDone{step, absl::OkStatus(), non_finite});
  });
}

void Mover::State::UseDisk(const StartTransfer& effect, DiskTransfer::Direction direction) {
  MEMTIDE_CHECK(disk_ != nullptr) << "transfer " << effect.transfer;
  const bool read = direction == DiskTransfer::Direction::kRead;
  Range memory = At(read ? effect.to : effect.from, effect.size, Tier::kHost);
  DiskTransfer transfer;
  transfer.direction = direction;
  transfer.store = effect.store.store;
  transfer.offset = effect.store.offset;
  transfer.size = effect.size;
  transfer.memory = memory.host();
  {
    MutexLock lock(&mutex_);
    ++on_disk_;
  }
  disk_->Start(transfer, [this, id = effect.transfer,
                          memory = std::move(memory)](absl::Status status) mutable {
    memory = Range();
    post_(TransferDone{id, std::move(status)});
    MutexLock lock(&mutex_);
    if (--on_disk_ == 0) disk_idle_.Signal();
  });
}

Mover::Mover(Device* device, Disk* disk, std::function<void(Event)> post)
    : state_(std::make_unique<State>(device, disk, std::move(post))) {}

Mover::~Mover() = default;

void Mover::Start(const MakeRegion& effect) { state_->Start(effect); }
void Mover::Start(const DropRegion& effect) { state_->Start(effect); }
void Mover::Start(const EmptySlot& effect) { state_->Start(effect); }
void Mover::Start(const FillSlot& effect) { state_->Start(effect); }
void Mover::Start(const MakeStore& effect) { state_->Start(effect); }
void Mover::Start(const DropStore& effect) { state_->Start(effect); }
void Mover::Start(const StartTransfer& effect) { state_->Start(effect); }
void Mover::Start(const StartStep& effect) { state_->Start(effect); }

absl::Status Mover::Adopt(RegionId region, Bytes size, Bytes slot, OwnedFd memory,
                          std::set<uint64_t> empty) {
  return state_->Adopt(region, size, slot, std::move(memory), std::move(empty));
}
absl::Status Mover::Adopt(StoreId store, Bytes size, std::vector<OwnedFd> files) {
  return state_->Adopt(store, size, std::move(files));
}
void Mover::Disown(RegionId region) { state_->Disown(region); }
void Mover::Disown(StoreId store) { state_->Disown(store); }

absl::StatusOr<MemoryExport> Mover::Export(RegionId region) const {
  return state_->regions().Export(region);
}

}  // namespace memtide
