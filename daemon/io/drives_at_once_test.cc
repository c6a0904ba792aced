// How much of several drives' speed one store has, counted in virtual time: fake drives move the
// pieces of an IoScheduler at given speeds, one after the other.
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "daemon/io/io_scheduler.h"
#include "daemon/io/stripes_by_speed.h"
#include "daemon/io/testing/scratch_directory.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr StoreId kStore(1);

class FakeDrives {
 public:
  // Speeds in bytes per second. `counts`: stripes of each cycle.
  FakeDrives(std::vector<double> speeds, const StripeCounts& counts, Bytes store)
      : size_(store), drives_(speeds.size()) {
    std::vector<StoreDirectory> directories;
    std::vector<size_t> numbers;
    for (size_t i = 0; i < speeds.size(); ++i) {
      drives_[i].speed = speeds[i];
      scratch_.push_back(std::make_unique<ScratchDirectory>());
      directories.push_back(*StoreDirectory::Claim(scratch_.back()->path()));
      numbers.push_back(i);
    }
    stores_ = std::make_shared<StoreTable>(std::move(directories), std::move(numbers));
    stores_->StripeFromNowOn(counts, speeds);
    EXPECT_TRUE(stores_->Make(kStore, size_).ok());
    scheduler_ = std::make_unique<IoScheduler>(stores_, IoSchedulerOptions());
  }

  // Bytes per second of `rounds` passes over the store by several ranks, which together have
  // `at_once` chunks in flight.
  double Read(Bytes chunk, int at_once, int rounds) {
    const Bytes all = size_ * static_cast<uint64_t>(rounds);
    for (int i = 0; i < at_once; ++i) ReadNext(chunk);
    for (Bytes moved; moved < all;) {
      StartPieces();
      moved += FinishPiece([&] {
        if (next_ < all) ReadNext(chunk);
      });
    }
    EXPECT_TRUE(scheduler_->idle());
    return static_cast<double>(all.count()) / now_;
  }

 private:
  struct Drive {
    double speed = 0;
    double free_at = 0;                             // Seconds.
    std::vector<std::pair<double, Piece*>> pieces;  // With the times when they end, in order.
  };

  void ReadNext(Bytes chunk) {
    Transfer transfer;
    transfer.request.store = kStore;
    transfer.request.offset = Bytes(next_.count() % size_.count());
    transfer.request.size = chunk;
    // Memory is only counted with.
    transfer.request.memory = reinterpret_cast<char*>(uintptr_t{1} << 40);
    transfer.request.job = JobId(1 + next_ / chunk % 2);
    transfer.done = [](absl::Status status) { EXPECT_EQ(status, absl::OkStatus()); };
    transfer.store = stores_->Find(kStore);
    next_ += chunk;
    scheduler_->Add(std::move(transfer));
  }

  void StartPieces() {
    while (Piece* piece = scheduler_->Next()) {
      Drive& drive = drives_[piece->lane / 2];
      drive.free_at =
          std::max(drive.free_at, now_) + static_cast<double>(piece->size.count()) / drive.speed;
      drive.pieces.emplace_back(drive.free_at, piece);
    }
  }

  // Ends the piece whose time comes first. Returns its size.
  template <typename Ended>
  Bytes FinishPiece(const Ended& transfer_ended) {
    Drive* first = nullptr;
    for (Drive& drive : drives_) {
      if (drive.pieces.empty()) continue;
      if (first == nullptr || drive.pieces[0].first < first->pieces[0].first) first = &drive;
    }
    Piece* const piece = first->pieces[0].second;
    const Bytes size = piece->size;
    now_ = first->pieces[0].first;
    first->pieces.erase(first->pieces.begin());
    absl::optional<Completion> ended;
    scheduler_->Advance(piece, static_cast<ssize_t>(size.count()), &ended);
    if (ended.has_value()) {
      ended->done(ended->status);
      transfer_ended();
    }
    return size;
  }

  const Bytes size_;
  std::vector<std::unique_ptr<ScratchDirectory>> scratch_;
  std::shared_ptr<StoreTable> stores_;
  std::unique_ptr<IoScheduler> scheduler_;
  std::vector<Drive> drives_;
  double now_ = 0;  // Seconds.
  Bytes next_;
};

double TotalOf(const std::vector<double>& speeds) {
  double sum = 0;
  for (const double speed : speeds) sum += speed;
  return sum;
}

// The part of the sum of all speeds that a store has.
double Part(const std::vector<double>& speeds, const StripeCounts& counts, Bytes chunk) {
  FakeDrives drives(speeds, counts, MiB(1024));
  return drives.Read(chunk, /*at_once=*/8, /*rounds=*/8) / TotalOf(speeds);
}

StripeCounts StripesOf(const std::vector<double>& speeds) {
  std::vector<StripedDirectory> directories;
  for (size_t i = 0; i < speeds.size(); ++i) directories.push_back({i, speeds[i]});
  return StripesBySpeed(directories);
}

TEST(DrivesAtOnceTest, UnequalDrivesReachNearlyTheSumOfTheirSpeeds) {
  const std::vector<std::vector<double>> drives = {
      {3e9, 1e9}, {1e9, 10e9}, {1e9, 1e9}, {7e9, 5e9, 2e9}, {6.9e9, 1.37e9, 3.3e9, 3.2e9}};
  for (const std::vector<double>& speeds : drives) {
    for (const Bytes chunk : {MiB(16), MiB(64)}) {
      const double part = Part(speeds, StripesOf(speeds), chunk);
      EXPECT_GE(part, 0.95) << testing::PrintToString(speeds) << " " << chunk;
      EXPECT_LE(part, 1.0001);
    }
  }
}

// Stripes have weights because with equal ones the slowest drive holds the others back.
TEST(DrivesAtOnceTest, EqualStripesHaveTheSlowestDriveForEach) {
  EXPECT_NEAR(Part({3e9, 1e9}, {1, 1}, MiB(64)), 0.5, 0.02);
  EXPECT_NEAR(Part({10e9, 1e9}, {1, 1}, MiB(64)), 2.0 / 11, 0.02);
}

}  // namespace
}  // namespace memtide
