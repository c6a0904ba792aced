// The check of clean drops: finds writes to chunks that a client has leased for reading only, on a
// device that cannot catch them (decision 21).
#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

bool Residency::IsChosenForCheck(ChunkIndex index, Tier tier) {
  Chunk& chunk = core_.chunks[index];
  Job& job = *chunk.job;
  if (core_.options.clean_drops_per_check == 0 || tier != Tier::kDevice || chunk.checked ||
      job.device_memory == MemoryKind::kSharedMemory) {
    return false;
  }
  // A session that waits to write what is common cannot have the content beside a comparison.
  if (chunk.common() != nullptr && job.waiting.NextNaming(index, 0) != nullptr) return false;
  // A copy that was written back came from the device itself.
  if (chunk.wrote_back || !chunk.valid_at(Tier::kDevice) || !chunk.valid_at(Tier::kHost)) {
    return false;
  }
  // The first one is compared, too: a program that writes unseen mostly does so from the beginning.
  return job.clean_drops++ % core_.options.clean_drops_per_check == 0;
}

void Residency::StartCheck(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  StartTransfer start;
  start.kind = StartTransfer::Kind::kCompareDeviceWithHost;
  start.size = chunk.job->chunk_size;
  start.from = PlaceOf(chunk, Tier::kDevice);
  start.to = PlaceOf(chunk, Tier::kHost);
  chunk.checked = true;
  Begin(index, Tier::kDevice, Tier::kHost, std::move(start));
}

void Residency::CheckDone(ChunkIndex index, const Flight& flight, const absl::Status& status) {
  const Chunk& chunk = core_.chunks[index];
  // A session that leased the chunk for writing meanwhile may differ.
  if (absl::IsDataLoss(status) && flight.version == chunk.version) {
    const absl::Status why = absl::DataLossError(absl::StrCat(
        "chunk ", core_.IdOf(index).value(),
        " was written on the GPU, but leased only for reading: ", status.message(),
        ". An operation writes to parameters, gradients or optimizer state that "
        "declares no write, or a kernel past torch's dispatcher does. ",
        LastMomentsOf(chunk), "MEMTIDE_PROTECT=1 ends the program at the kernel that does it"));
    core_.work.Send(WrittenUnseen{chunk.job->id, why});
  } else if (!status.ok() && !absl::IsDataLoss(status)) {
    // The copies could not be compared: the drop goes on, as most do without a check.
    NoteFailure(index, status);
  }
  chunk.live() ? core_.ScheduleChunk(index) : ForgetAfterTransfer(index);
}

// A program that writes one chunk unseen has mostly written others, too. Each keeps the content of
// its last announced write, so that --resume starts from the last commit, and not from a mixture.
void Residency::DropUnannounced(const Job& job) {
  for (const ChunkIndex index : job.members.chunks()) {
    Chunk& chunk = core_.chunks[index];
    const bool idle = chunk.live() && !chunk.pinned() && !chunk.copies().flight;
    if (!idle || !chunk.valid_at(Tier::kDevice) || IsOnlyCopy(chunk, Tier::kDevice)) continue;
    chunk.wrote_back = chunk.checked = false;
    DropCopy(index, Tier::kDevice);
  }
}

}  // namespace memtide
