// The fake node's half about parts that clients compute, and which slots anything uses.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/sim/fakes/fake_node.h"

namespace memtide::sim {
namespace {

std::string Name(PartKey part) {
  return absl::StrCat("part ", part.second, " of session ", part.first.value());
}

}  // namespace

void FakeNode::CheckStepped(MemoryPlace place, Bytes size, const std::string& what) {
  const auto region = regions_.find(place.region);
  const absl::optional<Bytes> last = CheckedAdd(place.offset, size);
  if (region == regions_.end() || !region->second.made || region->second.dropping ||
      region->second.pool.tier != Tier::kHost || !last || *last > region->second.size ||
      !place.offset.IsMultipleOf(size) || IsEmpty(place)) {
    return verdict_.Broken(absl::StrCat(what, ": no slot of host memory"));
  }
  // A write-back may read what the step overwrites, as under a lease: its copy is stale.
  if (IsTarget(place)) verdict_.Broken(absl::StrCat(what, ": other work uses a place"));
}

void FakeNode::BeginPart(PartKey part, std::vector<MemoryPlace> places, size_t reads, Bytes size,
                         uint64_t number) {
  MEMTIDE_CHECK(reads <= places.size()) << Name(part);
  HeldPart held;
  for (size_t at = 0; at < places.size(); ++at) {
    CheckStepped(places[at], size, Name(part));
    if (!verdict_.ok()) return;
    if (at >= reads) Write(places[at], NewPoison());
    held.holds.push_back(Read(places[at]));
  }
  held.places = std::move(places);
  held.reads = reads;
  held.number = number;
  MEMTIDE_CHECK(parts_.emplace(part, std::move(held)).second) << Name(part);
}

void FakeNode::ComputePart(PartKey part) {
  const auto found = parts_.find(part);
  if (found == parts_.end()) return;
  HeldPart& held = found->second;
  const std::vector<Stamp> read(held.holds.begin(),
                                held.holds.begin() + static_cast<std::ptrdiff_t>(held.reads));
  for (size_t at = held.reads; at < held.places.size(); ++at) {
    held.holds[at] = StepResult(read, held.number, at - held.reads);
    Write(held.places[at], held.holds[at]);
  }
}

void FakeNode::EndPart(PartKey part) { MEMTIDE_CHECK(parts_.erase(part) == 1) << Name(part); }

void FakeNode::CheckParts() {
  for (const auto& [part, held] : parts_) {
    for (size_t at = 0; at < held.places.size(); ++at) {
      if (Read(held.places[at]) == held.holds[at]) continue;
      return verdict_.Broken(
          absl::StrCat("place ", at, " of ", Name(part), " changed while the client computes"));
    }
  }
}

bool FakeNode::IsTarget(MemoryPlace place) const {
  const auto is_it = [&](MemoryPlace to) { return KeyOf(to) == KeyOf(place); };
  for (const auto& [part, held] : parts_) {
    const auto first = held.places.begin() + static_cast<std::ptrdiff_t>(held.reads);
    if (std::any_of(first, held.places.end(), is_it)) return true;
  }
  return std::any_of(work_.begin(), work_.end(), [&](const Work& work) {
    if (work.kind == Work::Kind::kStep) {
      return std::any_of(work.step.chunks.begin() + static_cast<std::ptrdiff_t>(work.read.size()),
                         work.step.chunks.end(), is_it);
    }
    return work.kind == Work::Kind::kTransfer && WritesMemory(work.transfer) &&
           is_it(work.transfer.to);
  });
}

bool FakeNode::IsSource(MemoryPlace place) const {
  const auto is_it = [&](MemoryPlace from) { return KeyOf(from) == KeyOf(place); };
  for (const auto& [part, held] : parts_) {
    const auto last = held.places.begin() + static_cast<std::ptrdiff_t>(held.reads);
    if (std::any_of(held.places.begin(), last, is_it)) return true;
  }
  return std::any_of(work_.begin(), work_.end(), [&](const Work& work) {
    if (work.kind == Work::Kind::kStep) {
      return std::any_of(work.step.chunks.begin(),
                         work.step.chunks.begin() + static_cast<std::ptrdiff_t>(work.read.size()),
                         is_it);
    }
    return work.kind == Work::Kind::kTransfer && ReadsMemory(work.transfer) &&
           is_it(work.transfer.from);
  });
}

bool FakeNode::IsInTransfer(RegionId region) const {
  const auto is_in = [&](MemoryPlace place) { return place.region == region; };
  for (const auto& [part, held] : parts_) {
    if (std::any_of(held.places.begin(), held.places.end(), is_in)) return true;
  }
  return std::any_of(work_.begin(), work_.end(), [&](const Work& work) {
    if (work.kind == Work::Kind::kStep) {
      return std::any_of(work.step.chunks.begin(), work.step.chunks.end(), is_in);
    }
    return work.kind == Work::Kind::kTransfer &&
           ((ReadsMemory(work.transfer) && is_in(work.transfer.from)) ||
            (WritesMemory(work.transfer) && is_in(work.transfer.to)));
  });
}

}  // namespace memtide::sim
