// DiskTransfers and its sums, on a disk that lies.
#include "daemon/mover/disk_transfers.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <variant>
#include <vector>

#include "base/content_sums.h"
#include "base/mutex.h"
#include "daemon/io/open_disk.h"
#include "daemon/io/testing/faulty_disk.h"
#include "daemon/io/testing/scratch_directory.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using Kind = StartTransfer::Kind;
using Lie = FaultyDisk::Lie;

constexpr Bytes kSize = KiB(2 * 1024 + 4);  // The last sum is of less than a MiB.

class DiskTransfersTest : public testing::Test {
 protected:
  DiskTransfersTest() {
    DiskOptions options;
    options.directories = {directory_.path()};
    real_ = *OpenDisk(options);
    disk_ = std::make_unique<FaultyDisk>(real_.get());
    EXPECT_EQ(disk_->MakeStore(StoreId(1), kSize * 4), absl::OkStatus());
    transfers_ =
        std::make_unique<DiskTransfers>(disk_.get(), std::vector<int>(), [this](Event event) {
          MutexLock lock(&mutex_);
          done_.push_back(std::get<TransferDone>(event));
          changed_.SignalAll();
        });
    for (std::shared_ptr<char>* const memory : {&written_, &read_}) {
      memory->reset(static_cast<char*>(std::aligned_alloc(4096, kSize.count())), std::free);
    }
    for (size_t i = 0; i < kSize.count(); ++i) written_.get()[i] = static_cast<char>(i * i >> 7);
    std::memset(read_.get(), 0, kSize.count());
  }

  // `sums`: for a read, those that are expected.
  TransferDone Run(Kind kind, int slot, ContentSums sums = {}) {
    StartTransfer effect;
    effect.kind = kind;
    effect.store = {StoreId(1), kSize * slot};
    effect.size = kSize;
    effect.make_sums = kind == Kind::kHostToSsd;
    effect.sums = std::move(sums);
    transfers_->Start(effect, kind == Kind::kHostToSsd ? written_ : read_);
    MutexLock lock(&mutex_);
    while (done_.empty()) changed_.Wait(&mutex_);
    const TransferDone done = done_.back();
    done_.clear();
    return done;
  }
  bool IsReadAsWritten() const {
    return std::memcmp(written_.get(), read_.get(), kSize.count()) == 0;
  }

  ScratchDirectory directory_;
  std::unique_ptr<Disk> real_;
  std::unique_ptr<FaultyDisk> disk_;
  std::shared_ptr<char> written_, read_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<TransferDone> done_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<DiskTransfers> transfers_;
};

TEST_F(DiskTransfersTest, WhatIsWrittenHasItsSumsAndIsReadWithThem) {
  const TransferDone written = Run(Kind::kHostToSsd, 1);
  ASSERT_EQ(written.status, absl::OkStatus());
  EXPECT_EQ(written.sums, SumsOf({written_.get(), kSize.count()}));
  EXPECT_EQ(Run(Kind::kVerifySsd, 1, written.sums).status, absl::OkStatus());
  EXPECT_FALSE(IsReadAsWritten()) << "to verify changes no memory";
  EXPECT_EQ(Run(Kind::kSsdToHost, 1, written.sums).status, absl::OkStatus());
  EXPECT_TRUE(IsReadAsWritten());
}

TEST_F(DiskTransfersTest, NothingIsSummedUnlessItIsAskedFor) {
  StartTransfer effect;
  effect.kind = Kind::kHostToSsd;
  effect.store = {StoreId(1), Bytes(0)};
  effect.size = kSize;
  transfers_->Start(effect, written_);
  MutexLock lock(&mutex_);
  while (done_.empty()) changed_.Wait(&mutex_);
  EXPECT_EQ(done_[0].status, absl::OkStatus());
  EXPECT_TRUE(done_[0].sums.empty());
}

TEST_F(DiskTransfersTest, AWriteThatTheDiskLiedAboutIsFoundByEveryRead) {
  for (const Lie lie : {Lie::kFlip, Lie::kMisdirect, Lie::kForget, Lie::kTear}) {
    SCOPED_TRACE(static_cast<int>(lie));
    // Every lie has content of its own, so that what is forgotten was not there before.
    written_.get()[kSize.count() - 1] = static_cast<char>(lie);
    written_.get()[0] = static_cast<char>(lie);
    const uint64_t first = 3 * static_cast<uint64_t>(lie);
    disk_->LieAbout(first, lie);
    const TransferDone written = Run(Kind::kHostToSsd, 0);
    EXPECT_EQ(written.status, absl::OkStatus()) << "the disk says that all is well";
    for (const Kind kind : {Kind::kVerifySsd, Kind::kSsdToHost}) {
      const TransferDone read = Run(kind, 0, written.sums);
      EXPECT_EQ(read.status.code(), absl::StatusCode::kDataLoss);
      EXPECT_TRUE(read.wrong_bytes);
      EXPECT_NE(read.status.message().find("of store 1"), absl::string_view::npos) << read.status;
    }
  }
}

TEST_F(DiskTransfersTest, AReadThatTheDiskLiedAboutIsFoundAndTheNextOneIsRight) {
  for (const Lie lie : {Lie::kFlip, Lie::kMisdirect, Lie::kForget, Lie::kTear}) {
    SCOPED_TRACE(static_cast<int>(lie));
    const uint64_t first = 3 * static_cast<uint64_t>(lie);
    disk_->LieAbout(first + 1, lie);
    const TransferDone written = Run(Kind::kHostToSsd, 0);
    std::memset(read_.get(), 0, kSize.count());
    EXPECT_TRUE(Run(Kind::kSsdToHost, 0, written.sums).wrong_bytes);
    EXPECT_EQ(Run(Kind::kSsdToHost, 0, written.sums).status, absl::OkStatus());
    EXPECT_TRUE(IsReadAsWritten());
  }
}

TEST_F(DiskTransfersTest, AFailureIsNoMatterOfSums) {
  const TransferDone written = Run(Kind::kHostToSsd, 0);
  disk_->FailTransfer(1, absl::DataLossError("injected"));
  const TransferDone read = Run(Kind::kSsdToHost, 0, written.sums);
  EXPECT_EQ(read.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(read.wrong_bytes);
}

}  // namespace
}  // namespace memtide
