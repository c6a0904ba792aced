// The fake node's half that tells what no edge could carry out.
#include "absl/strings/str_cat.h"
#include "base/content_sums.h"
#include "tests/sim/fakes/fake_node.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

using Transfer = StartTransfer::Kind;

void FakeNode::CheckMemory(const StartTransfer& transfer, MemoryPlace place, Tier tier,
                           const char* end) {
  const auto region = regions_.find(place.region);
  const bool there = region != regions_.end() && region->second.made && !region->second.dropping;
  if (!there || region->second.pool.tier != tier) {
    return verdict_.Broken(absl::StrCat(ToText(transfer), ": its ", end, " is not ",
                                        std::string(TierName(tier)), " memory that is there"));
  }
  const absl::optional<Bytes> last = CheckedAdd(place.offset, transfer.size);
  if (transfer.size.IsZero() || !last || *last > region->second.size ||
      !place.offset.IsMultipleOf(transfer.size)) {
    verdict_.Broken(absl::StrCat(ToText(transfer), ": its ", end, " is no slot of the region"));
  }
  if (IsEmpty(place)) {
    verdict_.Broken(absl::StrCat(ToText(transfer), ": its ", end, " is empty"));
  }
  if (IsBeingCopied(place.region)) {
    verdict_.Broken(absl::StrCat(ToText(transfer), ": its ", end, " is being copied"));
  }
}

void FakeNode::CheckSlot(MemoryPlace place, Bytes size, const std::string& what) {
  const auto region = regions_.find(place.region);
  const absl::optional<Bytes> last = CheckedAdd(place.offset, size);
  if (region == regions_.end() || !region->second.made || region->second.dropping ||
      region->second.pool.tier != Tier::kHost || size.IsZero() || !last ||
      *last > region->second.size || !place.offset.IsMultipleOf(size)) {
    return verdict_.Broken(absl::StrCat(what, ": no slot of host memory"));
  }
  if (IsTarget(place) || IsSource(place) || IsBeingCopied(place.region)) {
    verdict_.Broken(absl::StrCat(what, ": a transfer uses it"));
  }
}

bool FakeNode::IsBeingCopied(RegionId region) const {
  return std::any_of(work_.begin(), work_.end(), [&](const Work& work) {
    return work.kind == Work::Kind::kMakeRegion && regions_.at(work.region).copy_of == region;
  });
}

void FakeNode::CheckCopied(const MakeRegion& effect) {
  const auto from = regions_.find(*effect.copy_of);
  if (from == regions_.end() || !from->second.made || from->second.dropping ||
      from->second.size != effect.size || from->second.uid != effect.uid ||
      from->second.persistent != effect.persistent || effect.pool.tier != Tier::kHost ||
      from->second.pool.tier != Tier::kHost || IsInTransfer(from->first)) {
    return verdict_.Broken(absl::StrCat(ToText(effect), ": there is nothing to copy"));
  }
  regions_[effect.region].copy_of = from->first;
}

void FakeNode::CheckStore(const StartTransfer& transfer) {
  const auto store = stores_.find(transfer.store.store);
  const absl::optional<Bytes> last = CheckedAdd(transfer.store.offset, transfer.size);
  if (store == stores_.end() || !store->second.made || store->second.dropping || !last ||
      *last > store->second.size || transfer.size.IsZero() ||
      !transfer.store.offset.IsMultipleOf(transfer.kind == Transfer::kVerifySsd ? kSummedPiece
                                                                                : transfer.size)) {
    verdict_.Broken(absl::StrCat(ToText(transfer), ": no such place of a store"));
  }
}

// No transfer may write what another one writes or reads.
void FakeNode::CheckAlone(const StartTransfer& transfer) {
  if (WritesMemory(transfer) && (IsTarget(transfer.to) || IsSource(transfer.to))) {
    verdict_.Broken(absl::StrCat(ToText(transfer), ": its target is in another transfer"));
  }
  if (ReadsMemory(transfer) && IsTarget(transfer.from)) {
    verdict_.Broken(absl::StrCat(ToText(transfer), ": its source is still being filled"));
  }
  for (const Work& work : work_) {
    if (work.kind != Work::Kind::kTransfer) continue;
    const bool reads = ReadsSsd(transfer);
    const bool writes = transfer.kind == Transfer::kHostToSsd;
    const bool other_writes = work.transfer.kind == Transfer::kHostToSsd;
    const bool other_uses = other_writes || ReadsSsd(work.transfer);
    if (other_uses && (writes || (reads && other_writes)) &&
        SlotOf(work.transfer) == SlotOf(transfer)) {
      verdict_.Broken(absl::StrCat(ToText(transfer), ": its place of the store is in transfer ",
                                   work.transfer.transfer.value()));
    }
    if (work.transfer.transfer == transfer.transfer) {
      verdict_.Broken(absl::StrCat("two transfers are called ", transfer.transfer.value()));
    }
  }
}

}  // namespace memtide::sim
