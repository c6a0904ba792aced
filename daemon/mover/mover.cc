#include "daemon/mover/mover.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/content_work.h"
#include "base/numa.h"
#include "base/status_macros.h"
#include "daemon/device/streaming_copy.h"

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
      keeping_("memtide-keeping", {1, 0, {}, /*drops_rest=*/true}),
      memory_("memtide-memory", {1, 0, host_placements_.front().cpus}),
      stores_("memtide-stores") {
  if (disk != nullptr) {
    disk_transfers_ = std::make_unique<DiskTransfers>(disk, host_placements_.front().cpus, post_);
  }
  for (const NumaPlacement& placement : host_placements_) {
    host_nodes_.push_back(std::make_unique<HostNode>(placement, host_placements_.size()));
  }
  for (Device* const device : devices) links_.push_back(std::make_unique<Link>(device));
}

Mover::~Mover() {
  disk_transfers_.reset();
  // Nothing uses the regions any more when they are disposed of.
  links_.clear();
  host_nodes_.clear();
  for (WorkQueue* const queue : {&memory_, &stores_, &keeping_}) queue->Finish();
  for (auto& [id, region] : regions_.RemoveAll()) Dispose(std::move(region));
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
  link.in.Push(effect.job, effect.size,
               [this, &link, effect, from = std::move(from), to = std::move(to)]() mutable {
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
  link.out.Push(effect.job, effect.size,
                [this, &link, effect, from = std::move(from), to = std::move(to)]() mutable {
                  absl::Status status = link.device->CopyOut(*from.region->device, from.offset,
                                                             to.host(), effect.size);
                  from = to = Range();
                  post_(TransferDone{effect.transfer, std::move(status)});
                });
}

void Mover::Zero(const StartTransfer& effect) {
  if (regions_.Find(effect.to.region)->device != nullptr) return ZeroOnDevice(effect);
  Range to = At(effect.to, effect.size, Tier::kHost);
  WorkQueue& zeroes = host_nodes_[to.region->host_node]->zeroes;
  zeroes.Push(effect.job, effect.size, [this, effect, to = std::move(to)]() mutable {
    // StreamZero bypasses the caches, which hold what the training processes compute with.
    StreamZero(to.host(), effect.size);
    to = Range();
    post_(TransferDone{effect.transfer, absl::OkStatus()});
  });
}

void Mover::ZeroOnDevice(const StartTransfer& effect) {
  Range to = At(effect.to, effect.size, Tier::kDevice);
  Link& link = LinkOf(to);
  link.in.Push(effect.job, effect.size, [this, &link, effect, to = std::move(to)]() mutable {
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
  link.checks.Push(
      effect.job, effect.size,
      [this, &link, effect, device = std::move(device), host = std::move(host)]() mutable {
        absl::Status status = link.check.FindDifference(*device.region->device, device.offset,
                                                        host.host(), effect.size);
        device = host = Range();
        post_(TransferDone{effect.transfer, std::move(status)});
      });
}

struct Mover::Stepping {
  StartStep effect;
  std::vector<Range> ranges;
  std::vector<char*> chunks;  // Their addresses.
  CopyProgress progress;
  ContentProgress contents;
};

// The engine starts only valid work, which cannot fail.
bool Mover::StepNext(Stepping& step) {
  const StartStep& effect = step.effect;
  const bool done =
      effect.work != nullptr
          ? RunSome(*effect.work, step.chunks, WorkQueue::kPiece.count(), &step.progress)
          : RunNext(*effect.contents, step.chunks, effect.size, hash_secret_, &step.contents);
  if (!done) return false;
  step.ranges.clear();
  post_(StepDone{effect.step, absl::OkStatus(), std::move(step.contents.result)});
  return true;
}

void Mover::Start(const StartStep& effect) {
  const auto step = std::make_shared<Stepping>();
  step->effect = effect;
  for (const MemoryPlace& place : effect.chunks) {
    step->ranges.push_back(At(place, effect.size, Tier::kHost));
    step->chunks.push_back(step->ranges.back().host());
  }
  // All chunks are of one user, and most of one job. Work without chunks is done anywhere.
  const size_t host_node = step->ranges.empty() ? 0 : step->ranges.front().region->host_node;
  // Work on contents is cut into chunks.
  const Bytes cost = effect.work == nullptr
                         ? effect.size
                         : std::min(Bytes(BytesWritten(*effect.work)), WorkQueue::kPiece);
  host_nodes_[host_node]->steps.PushPieces(effect.job, cost,
                                           [this, step] { return StepNext(*step); });
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
