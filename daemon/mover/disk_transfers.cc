#include "daemon/mover/disk_transfers.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/content_sums.h"

namespace memtide {
namespace {

DiskTransfer ToDiskTransfer(const StartTransfer& effect, DiskTransfer::Direction direction,
                            char* memory) {
  DiskTransfer transfer;
  transfer.direction = direction;
  transfer.store = effect.store.store;
  transfer.offset = effect.store.offset;
  transfer.size = effect.size;
  transfer.memory = memory;
  transfer.id = effect.transfer;
  transfer.job = effect.job;
  transfer.awaited = effect.awaited;
  return transfer;
}

// DATA_LOSS if the bytes are not those that were written.
absl::Status CheckSums(const StartTransfer& effect, const char* bytes) {
  const absl::optional<size_t> wrong = FirstWrongPiece({bytes, effect.size.count()}, effect.sums);
  if (!wrong.has_value()) return absl::OkStatus();
  const Bytes offset = effect.store.offset + kSummedPiece * *wrong;
  return absl::DataLossError(
      absl::StrCat("the SSD returned other bytes than were written, in the MiB at offset ",
                   offset.count(), " of store ", effect.store.store.value()));
}

}  // namespace

DiskTransfers::DiskTransfers(Disk* disk, const std::vector<int>& cpus,
                             std::function<void(Event)> post)
    : disk_(disk),
      post_(std::move(post)),
      sums_("memtide-sums", {std::max<size_t>(1, disk->Directories().size()), 0, cpus}) {}

DiskTransfers::~DiskTransfers() {
  MutexLock lock(&mutex_);
  // The disk outlives this object, so its `done` callbacks must have run by the end.
  while (transfers_ > 0) idle_.Wait(&mutex_);
}

void DiskTransfers::Start(const StartTransfer& effect, std::shared_ptr<char> memory) {
  if (effect.kind == StartTransfer::Kind::kVerifySsd) {
    // Scrubs are few and small, so that a buffer for each costs less than one that is kept.
    memory.reset(
        static_cast<char*>(std::aligned_alloc(kDiskAlignment.count(), effect.size.count())),
        std::free);
    if (memory == nullptr) {
      post_(TransferDone{effect.transfer, absl::ResourceExhaustedError(absl::StrCat(
                                              "no memory for ", FormatBytes(effect.size)))});
      return;
    }
  }
  {
    MutexLock lock(&mutex_);
    ++transfers_;
  }
  const bool write = effect.kind == StartTransfer::Kind::kHostToSsd;
  write ? Write(effect, std::move(memory)) : Read(effect, std::move(memory));
}

void DiskTransfers::End(TransferDone done) {
  post_(std::move(done));
  MutexLock lock(&mutex_);
  // The transfer counts until after `post_`, as the destructor may go on once there is none left.
  if (--transfers_ == 0) idle_.Signal();
}

void DiskTransfers::Write(const StartTransfer& effect, std::shared_ptr<char> memory) {
  const auto start =
      [this, transfer = ToDiskTransfer(effect, DiskTransfer::Direction::kWrite, memory.get())](
          std::shared_ptr<char> memory, ContentSums sums) {
        disk_->Start(transfer, [this, id = transfer.id, memory = std::move(memory),
                                sums = std::move(sums)](absl::Status status) mutable {
          memory.reset();
          End({id, std::move(status), std::move(sums)});
        });
      };
  if (!effect.make_sums) return start(std::move(memory), {});
  // The sums come before the write, so that they are of the bytes in memory, whatever the drive
  // does.
  sums_.Push(effect.job, effect.size,
             [start, size = effect.size, memory = std::move(memory)]() mutable {
               ContentSums sums = SumsOf({memory.get(), size.count()});
               start(std::move(memory), std::move(sums));
             });
}

void DiskTransfers::Read(const StartTransfer& effect, std::shared_ptr<char> memory) {
  const DiskTransfer transfer =
      ToDiskTransfer(effect, DiskTransfer::Direction::kRead, memory.get());
  disk_->Start(transfer, [this, effect, memory = std::move(memory)](absl::Status status) mutable {
    if (!status.ok() || effect.sums.empty()) {
      memory.reset();
      return End({effect.transfer, std::move(status)});
    }
    const JobId job = effect.job;
    const Bytes size = effect.size;
    sums_.Push(job, size, [this, effect = std::move(effect), memory = std::move(memory)]() mutable {
      TransferDone done{effect.transfer, CheckSums(effect, memory.get())};
      done.wrong_bytes = !done.status.ok();
      memory.reset();
      End(std::move(done));
    });
  });
}

}  // namespace memtide
