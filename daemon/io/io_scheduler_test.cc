#include "daemon/io/io_scheduler.h"

#include <cerrno>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon/io/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::HasSubstr;
using Outcome = IoScheduler::Outcome;

constexpr DiskTransfer::Direction kRead = DiskTransfer::Direction::kRead;
constexpr DiskTransfer::Direction kWrite = DiskTransfer::Direction::kWrite;

// Plays the disk: takes pieces and decides how they end. Memory is only counted with, never used.
class IoSchedulerTest : public testing::Test {
 protected:
  // `drives`: of each directory.
  explicit IoSchedulerTest(std::vector<size_t> drives = {0}, StripeCounts counts = {}) {
    std::vector<StoreDirectory> directories;
    for (size_t i = 0; i < drives.size(); ++i) {
      scratch_.push_back(std::make_unique<ScratchDirectory>());
      directories.push_back(*StoreDirectory::Claim(scratch_.back()->path()));
    }
    stores_ = std::make_shared<StoreTable>(std::move(directories), std::move(drives));
    if (!counts.empty()) stores_->StripeFromNowOn(counts, std::vector<double>(counts.size()));
    EXPECT_TRUE(stores_->Make(StoreId(1), MiB(128)).ok());
    scheduler_ = std::make_unique<IoScheduler>(stores_, IoSchedulerOptions());
  }

  // The transfer's status will be in results_[name].
  void Add(int name, DiskTransfer::Direction direction, Bytes offset, Bytes size,
           JobId job = JobId(0), bool awaited = false) {
    Transfer transfer;
    transfer.request = {direction, StoreId(1),   offset,
                        size,      Memory(name), TransferId(static_cast<uint64_t>(name)),
                        job,       awaited};
    transfer.done = [this, name](absl::Status status) {
      EXPECT_TRUE(results_.emplace(name, status).second) << name << " ended twice";
    };
    transfer.store = stores_->Find(StoreId(1));
    scheduler_->Add(std::move(transfer));
  }
  // Each transfer has a range of addresses of its own.
  static char* Memory(int name) {
    return reinterpret_cast<char*>((uintptr_t{1} << 40) + name * GiB(1).count());
  }

  std::vector<Piece*> TakeAll() {
    std::vector<Piece*> pieces;
    while (Piece* piece = scheduler_->Next()) pieces.push_back(piece);
    return pieces;
  }
  Outcome Advance(Piece* piece, ssize_t result) {
    absl::optional<Completion> ended;
    const Outcome outcome = scheduler_->Advance(piece, result, &ended);
    if (ended.has_value()) ended->done(ended->status);
    return outcome;
  }
  void Finish(Piece* piece) { EXPECT_EQ(Advance(piece, piece->size.count()), Outcome::kEnded); }
  void FinishEverything() {
    for (auto pieces = TakeAll(); !pieces.empty(); pieces = TakeAll()) {
      for (Piece* piece : pieces) Finish(piece);
    }
  }

  std::vector<std::unique_ptr<ScratchDirectory>> scratch_;
  std::shared_ptr<StoreTable> stores_;
  std::unique_ptr<IoScheduler> scheduler_;
  std::map<int, absl::Status> results_;
};

TEST_F(IoSchedulerTest, BoundsWhatIsInFlightByDirection) {
  Add(1, kWrite, Bytes(0), MiB(64));
  Add(2, kRead, MiB(64), MiB(64));
  std::map<DiskTransfer::Direction, Bytes> in_flight;
  for (const Piece* piece : TakeAll()) {
    in_flight[piece->transfer().request.direction] += piece->size;
  }
  EXPECT_EQ(in_flight[kRead], MiB(32));
  EXPECT_EQ(in_flight[kWrite], MiB(32));
}

TEST_F(IoSchedulerTest, AFullLaneIsFilledAgainOnceHalfHasArrived) {
  Add(1, kRead, Bytes(0), MiB(128));
  const std::vector<Piece*> pieces = TakeAll();
  ASSERT_EQ(pieces.size(), 4u);
  Finish(pieces[0]);
  EXPECT_EQ(scheduler_->Next(), nullptr);
  Finish(pieces[1]);
  EXPECT_EQ(TakeAll().size(), 2u);
}

TEST_F(IoSchedulerTest, TheFirstTransferIsDoneFirst) {
  Add(1, kWrite, Bytes(0), MiB(16));
  Add(2, kWrite, MiB(16), MiB(4));
  std::vector<Piece*> pieces = TakeAll();
  while (results_.empty()) {
    ASSERT_FALSE(pieces.empty());
    Finish(pieces.front());
    pieces.erase(pieces.begin());
    for (Piece* piece : TakeAll()) pieces.push_back(piece);
  }
  EXPECT_EQ(results_.begin()->first, 1);
}

// The transfers of the pieces that start, in their order, each once for the pieces in a row.
class IoSchedulerOrderTest : public IoSchedulerTest {
 protected:
  using IoSchedulerTest::IoSchedulerTest;

  std::vector<int> Order() {
    std::vector<int> order;
    std::vector<Piece*> flying = TakeAll();
    while (!flying.empty()) {
      for (Piece* piece : flying) {
        const int name = static_cast<int>(piece->transfer().request.id.value());
        if (order.empty() || order.back() != name) order.push_back(name);
        Finish(piece);
      }
      flying = TakeAll();
    }
    return order;
  }
};

TEST_F(IoSchedulerOrderTest, ADriveServesOneTransferAtATime) {
  for (int name = 1; name <= 4; ++name) Add(name, kRead, MiB(24 * name), MiB(24), JobId(name % 2));
  EXPECT_THAT(Order(), testing::ElementsAre(2, 1, 4, 3));
}

TEST_F(IoSchedulerOrderTest, WhatACallWaitsForPrecedesTheRestOfAPrefetch) {
  Add(1, kRead, Bytes(0), MiB(64), JobId(1));
  Add(2, kRead, MiB(64), MiB(8), JobId(1));
  Add(3, kRead, MiB(72), MiB(8), JobId(2), /*awaited=*/true);
  Piece* const first = scheduler_->Next();
  EXPECT_EQ(first->transfer().request.id, TransferId(3));
  Add(4, kRead, MiB(80), MiB(8), JobId(2), /*awaited=*/true);
  EXPECT_EQ(scheduler_->Next()->transfer().request.id, TransferId(4));
  EXPECT_THAT(Order(), testing::ElementsAre(1, 2));
}

TEST_F(IoSchedulerOrderTest, APrefetchForWhichACallBeginsToWaitIsNextFromThenOn) {
  Add(1, kRead, Bytes(0), MiB(64), JobId(1));
  Add(2, kRead, MiB(64), MiB(24), JobId(1));
  Add(3, kRead, MiB(88), MiB(8), JobId(2));
  Piece* const first = scheduler_->Next();
  EXPECT_EQ(first->transfer().request.id, TransferId(1));
  scheduler_->Expedite(TransferId(2));
  scheduler_->Expedite(TransferId(2));
  scheduler_->Expedite(TransferId(99));
  EXPECT_THAT(Order(), testing::ElementsAre(2, 1, 3));
  Finish(first);
  EXPECT_EQ(results_.size(), 3u);
}

TEST_F(IoSchedulerOrderTest, JobsShareADriveByBytesWhateverTheSizeOfTheirTransfers) {
  for (int i = 0; i < 4; ++i) Add(10 + i, kRead, Bytes(0), MiB(32), JobId(1));
  for (int i = 0; i < 16; ++i) Add(20 + i, kRead, Bytes(0), MiB(8), JobId(2));
  std::map<JobId, Bytes> served;
  for (int i = 0; i < 24; ++i) {
    Piece* const piece = scheduler_->Next();
    served[piece->transfer().request.job] += piece->size;
    Finish(piece);
    const Bytes less = std::min(served[JobId(1)], served[JobId(2)]);
    EXPECT_LE(std::max(served[JobId(1)], served[JobId(2)]) - less, MiB(32));
  }
}

TEST_F(IoSchedulerOrderTest, AJobThatWasIdleIsServedNextButNotForWhatItMissed) {
  for (int i = 0; i < 8; ++i) Add(10 + i, kRead, Bytes(0), MiB(8), JobId(1));
  for (int i = 0; i < 4; ++i) Finish(scheduler_->Next());
  for (int i = 0; i < 4; ++i) Add(20 + i, kRead, Bytes(0), MiB(8), JobId(2));
  EXPECT_THAT(Order(), testing::ElementsAre(20, 14, 21, 15, 22, 16, 23, 17));
}

class SharedDriveIoSchedulerTest : public IoSchedulerOrderTest {
 protected:
  SharedDriveIoSchedulerTest() : IoSchedulerOrderTest({0, 0}) {}
};

TEST_F(SharedDriveIoSchedulerTest, DirectoriesOfOneDriveShareItsQueue) {
  Add(1, kRead, Bytes(0), MiB(64));
  Add(2, kRead, MiB(64), MiB(64));
  Bytes in_flight;
  for (Piece* piece : TakeAll()) {
    in_flight += piece->size;
    EXPECT_EQ(piece->transfer().request.id, TransferId(1));
    Finish(piece);
  }
  EXPECT_EQ(in_flight, MiB(32));
  EXPECT_THAT(Order(), testing::ElementsAre(1, 2));
}

TEST_F(IoSchedulerTest, ASmallTransferIsCutSmallOnlyWhenNoOtherWaits) {
  Add(1, kRead, Bytes(0), MiB(4));
  Add(2, kRead, MiB(4), MiB(4));
  std::vector<Bytes> sizes;
  for (const Piece* piece : TakeAll()) sizes.push_back(piece->size);
  EXPECT_THAT(sizes, testing::ElementsAre(MiB(4), MiB(1), MiB(1), MiB(1), MiB(1)));
}

TEST_F(IoSchedulerTest, TinyTransfersCannotOutnumberThePieces) {
  for (int name = 0; name < 100; ++name) Add(name, kRead, KiB(4 * name), KiB(4));
  EXPECT_LE(TakeAll().size(), scheduler_->capacity());
}

TEST_F(IoSchedulerTest, AShortCompletionGoesOnWhereItEnded) {
  Add(1, kRead, MiB(4), KiB(64));
  Piece* piece = scheduler_->Next();
  ASSERT_NE(piece, nullptr);
  EXPECT_EQ(Advance(piece, KiB(16).count()), Outcome::kResubmit);
  EXPECT_EQ(piece->file_offset, MiB(4) + KiB(16));
  EXPECT_EQ(piece->memory, Memory(1) + KiB(16).count());
  EXPECT_EQ(piece->size, KiB(48));
  // Not a whole block: the block is moved again.
  EXPECT_EQ(Advance(piece, KiB(8).count() + 512), Outcome::kResubmit);
  EXPECT_EQ(piece->size, KiB(40));
  Finish(piece);
  EXPECT_EQ(results_[1], absl::OkStatus());
}

TEST_F(IoSchedulerTest, AgainMeansAgainButNotForEver) {
  Add(1, kWrite, Bytes(0), KiB(64));
  Piece* piece = scheduler_->Next();
  EXPECT_EQ(Advance(piece, -EINTR), Outcome::kResubmit);
  int attempts = 1;
  while (Advance(piece, -EAGAIN) == Outcome::kResubmit) ASSERT_LT(++attempts, 100'000);
  EXPECT_EQ(results_[1].code(), absl::StatusCode::kInternal);
  EXPECT_THAT(results_[1].message(), HasSubstr("EAGAIN"));
}

TEST_F(IoSchedulerTest, AFailureEndsItsTransferOnceAndFreesTheLane) {
  Add(1, kWrite, Bytes(0), MiB(64));
  Add(2, kWrite, MiB(64), MiB(8));
  const std::vector<Piece*> pieces = TakeAll();
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(Advance(pieces[0], -ENOSPC), Outcome::kEnded);
  EXPECT_TRUE(results_.empty()) << "the other pieces still use the memory";
  for (size_t i = 1; i < pieces.size(); ++i) Finish(pieces[i]);
  EXPECT_EQ(results_[1].code(), absl::StatusCode::kResourceExhausted) << results_[1];
  EXPECT_THAT(results_[1].message(), HasSubstr(scratch_[0]->path()));
  FinishEverything();
  EXPECT_EQ(results_[2], absl::OkStatus());
  EXPECT_TRUE(scheduler_->idle());
}

TEST_F(IoSchedulerTest, ErrorsSayWhatTheyMean) {
  const std::map<int, absl::StatusCode> reads = {{EIO, absl::StatusCode::kDataLoss},
                                                 {0, absl::StatusCode::kDataLoss},
                                                 {EINVAL, absl::StatusCode::kInternal}};
  const std::map<int, absl::StatusCode> writes = {{ENOSPC, absl::StatusCode::kResourceExhausted},
                                                  {EDQUOT, absl::StatusCode::kResourceExhausted},
                                                  {0, absl::StatusCode::kInternal},
                                                  {EIO, absl::StatusCode::kInternal}};
  int name = 0;
  for (const auto& [error, code] : reads) {
    Add(++name, kRead, Bytes(0), KiB(4));
    Advance(scheduler_->Next(), -error);
    EXPECT_EQ(results_[name].code(), code) << results_[name];
  }
  for (const auto& [error, code] : writes) {
    Add(++name, kWrite, Bytes(0), KiB(4));
    Advance(scheduler_->Next(), -error);
    EXPECT_EQ(results_[name].code(), code) << results_[name];
  }
}

class StripedIoSchedulerTest : public IoSchedulerTest {
 protected:
  StripedIoSchedulerTest() : IoSchedulerTest({0, 1, 2}, {3, 1, 2}) {}
};

TEST_F(StripedIoSchedulerTest, ALargeTransferKeepsEveryDirectoryBusy) {
  Add(1, kRead, Bytes(0), MiB(96));
  std::map<int, Bytes> in_flight;
  for (const Piece* piece : TakeAll()) in_flight[piece->fd] += piece->size;
  ASSERT_EQ(in_flight.size(), 3u);
  const std::vector<int> files = stores_->Files(StoreId(1));
  // The whole of the smaller parts, and as much as a lane takes of the largest.
  EXPECT_EQ(in_flight[files[0]], MiB(32));
  EXPECT_EQ(in_flight[files[1]], MiB(16));
  EXPECT_EQ(in_flight[files[2]], MiB(32));
}

// Random transfers and endings from a seed: every byte of every transfer is moved exactly once, to
// where it belongs, whatever the order of completions.
TEST_F(StripedIoSchedulerTest, EveryByteIsMovedOnceWhateverTheOrder) {
  std::minstd_rand random(11);
  const std::shared_ptr<const Store> store = stores_->Find(StoreId(1));
  constexpr int kTransfers = 200;
  Bytes total, moved;
  std::map<char*, char*> ranges;  // Begin and end, of memory.
  std::vector<Piece*> flying;
  for (int added = 0; added < kTransfers || !scheduler_->idle();) {
    if (added < kTransfers && random() % 4 == 0) {
      const Bytes size = KiB(4) * (1 + random() % 8192);
      const Bytes offset = KiB(4) * (random() % (MiB(96) / KiB(4)));
      Add(added++, random() % 2 == 0 ? kRead : kWrite, offset, size);
      total += size;
    }
    for (Piece* piece : TakeAll()) {
      const DiskTransfer& request = piece->transfer().request;
      const Bytes place = request.offset + Bytes(piece->memory - request.memory);
      const size_t directory = store->stripes->DirectoryOf(place);
      EXPECT_EQ(piece->fd, store->files[directory].get());
      EXPECT_EQ(piece->file_offset, store->stripes->FileOffset(place));
      EXPECT_LE(piece->memory + piece->size.count(), request.memory + request.size.count());
      moved += piece->size;
      char* const end = piece->memory + piece->size.count();
      const auto range = ranges.emplace(piece->memory, end).first;
      EXPECT_TRUE(range == ranges.begin() || std::prev(range)->second <= piece->memory);
      EXPECT_TRUE(std::next(range) == ranges.end() || end <= std::next(range)->first);
      flying.push_back(piece);
    }
    if (flying.empty()) continue;
    std::swap(flying[random() % flying.size()], flying.back());
    Finish(flying.back());
    flying.pop_back();
  }
  EXPECT_EQ(moved, total);
  EXPECT_EQ(results_.size(), static_cast<size_t>(kTransfers));
  for (const auto& [name, status] : results_) EXPECT_EQ(status, absl::OkStatus()) << name;
}

}  // namespace
}  // namespace memtide
