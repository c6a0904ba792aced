// The Mover carries out transfers and steps.
#include <memory>
#include <string>

#include "daemon/mover/mover.h"
#include "daemon/mover/testing/mover_fixture.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

class MoverTransferTest : public MoverFixture {};

TEST_F(MoverTransferTest, AChunkGoesDownToTheDiskAndUpToTheDevice) {
  MakeAll();
  Mapping host(*mover_, kHost), device(*mover_, kDevice);
  device.Fill(3, 'c', kSlot);
  EXPECT_EQ(Move(Kind::kDeviceToHost, 1, 3), absl::OkStatus());
  EXPECT_TRUE(host.Holds(1, 'c', kSlot));
  EXPECT_TRUE(host.Holds(0, '\0', kSlot));
  EXPECT_EQ(Move(Kind::kHostToSsd, 1, 5), absl::OkStatus());
  host.Fill(1, '#', kSlot);
  EXPECT_EQ(Move(Kind::kSsdToHost, 2, 5), absl::OkStatus());
  EXPECT_TRUE(host.Holds(2, 'c', kSlot));
  EXPECT_EQ(Move(Kind::kHostToDevice, 2, 7), absl::OkStatus());
  EXPECT_TRUE(device.Holds(7, 'c', kSlot));
}

TEST_F(MoverTransferTest, CopiesAreComparedAndKept) {
  MakeAll();
  Mapping host(*mover_, kHost), device(*mover_, kDevice);
  host.Fill(1, 'a', kSlot);
  device.Fill(2, 'a', kSlot);
  EXPECT_EQ(Move(Kind::kCompareDeviceWithHost, 1, 2), absl::OkStatus());
  device.Fill(3, 'b', kSlot);
  const absl::Status differ = Move(Kind::kCompareDeviceWithHost, 1, 3);
  EXPECT_EQ(differ.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(differ.message().find("at byte 0"), absl::string_view::npos) << differ;
  EXPECT_TRUE(host.Holds(1, 'a', kSlot));
  EXPECT_TRUE(device.Holds(3, 'b', kSlot));
}

TEST_F(MoverTransferTest, StepsCopyInHostMemory) {
  MakeAll();
  Mapping host(*mover_, kHost);
  const uint64_t half = kSlot.count() / 2;
  const CopyWork work{{{{1, 0}, {2, half}, half}, {{0, half}, {2, 0}, half}}};
  StartStep step{StepId(7), {}, kSlot, std::make_shared<const CopyWork>(work)};
  for (const int slot : {0, 3, 5}) step.chunks.push_back({kHost, kSlot * slot});
  host.Fill(0, '?', kSlot);
  host.Fill(3, '?', kSlot);
  mover_->Start(step);
  EXPECT_EQ(inbox_.Await("step 7"), absl::OkStatus());
  EXPECT_TRUE(host.Holds(5, '?', kSlot));
  EXPECT_TRUE(host.Holds(4, '\0', kSlot));
}

TEST_F(MoverTransferTest, ZeroesSlotsOfEitherTier) {
  MakeAll();
  Mapping host(*mover_, kHost), device(*mover_, kDevice);
  for (const int slot : {0, 1, 2}) {
    host.Fill(slot, 'x', kSlot);
    device.Fill(slot, 'x', kSlot);
  }
  EXPECT_EQ(inbox_.Await(BeginZero(kHost, 1)), absl::OkStatus());
  EXPECT_EQ(inbox_.Await(BeginZero(kDevice, 1)), absl::OkStatus());
  for (const Mapping* mapping : {&host, &device}) {
    EXPECT_TRUE(mapping->Holds(0, 'x', kSlot));
    EXPECT_TRUE(mapping->Holds(1, '\0', kSlot));
    EXPECT_TRUE(mapping->Holds(2, 'x', kSlot));
  }
}

TEST_F(MoverTransferTest, AFailureIsTheStatusOfItsTransferAndOfNoOther) {
  MakeAll();
  const absl::Status fault = absl::DataLossError("injected");
  device_.Fail(1, fault);
  EXPECT_EQ(Move(Kind::kHostToDevice, 0, 0), fault);
  EXPECT_EQ(Move(Kind::kHostToDevice, 0, 0), absl::OkStatus());
  device_.Fail(3, fault);
  EXPECT_EQ(Move(Kind::kDeviceToHost, 0, 0), fault);
  device_.Fail(4, fault);
  EXPECT_EQ(inbox_.Await(BeginZero(kDevice, 0)), fault);
  disk_->FailTransfer(0, fault);
  EXPECT_EQ(Move(Kind::kHostToSsd, 0, 0), fault);
  disk_->TearTransfer(1, fault);
  EXPECT_EQ(Move(Kind::kSsdToHost, 0, 0), fault);
  EXPECT_EQ(Move(Kind::kSsdToHost, 0, 0), absl::OkStatus());
}

TEST_F(MoverTransferTest, ADirectionDoesNotWaitForTheOtherNorForTheDisk) {
  MakeAll();
  device_.Hold(1);
  const std::string held = Begin(Kind::kHostToDevice, 0, 0);
  device_.AwaitHeld(1);
  EXPECT_EQ(Move(Kind::kDeviceToHost, 1, 1), absl::OkStatus());
  EXPECT_EQ(Move(Kind::kHostToSsd, 2, 2), absl::OkStatus());
  mover_->Start(MakeRegion{RegionId(3), {Tier::kHost}, 0, kSlot, kSlot});
  EXPECT_EQ(inbox_.Await("region 3"), absl::OkStatus());
  device_.Release();
  EXPECT_EQ(inbox_.Await(held), absl::OkStatus());
}

TEST_F(MoverTransferTest, ADeviceDoesNotWaitForTheCopiesOfAnother) {
  EmulatedDevice emulated{EmulatedDeviceOptions{}};
  FaultyDevice other(&emulated);
  mover_ = std::make_unique<Mover>(std::vector<Device*>{&device_, &other}, disk_.get(),
                                   [this](Event event) { inbox_.Post(std::move(event)); });
  MakeAll();
  constexpr RegionId kOther{3};
  mover_->Start(MakeRegion{kOther, {Tier::kDevice, 1}, 0, kSlot * kSlots, kSlot});
  ASSERT_EQ(inbox_.Await("region 3"), absl::OkStatus());
  device_.Hold(1);
  const std::string held = Begin(Kind::kHostToDevice, 0, 0);
  device_.AwaitHeld(1);
  const auto move = [&](Kind kind, MemoryPlace from, MemoryPlace to) {
    StartTransfer transfer;
    transfer.transfer = TransferId(next_++);
    transfer.kind = kind;
    transfer.size = kSlot;
    transfer.from = from;
    transfer.to = to;
    mover_->Start(transfer);
    return inbox_.Await("transfer " + std::to_string(transfer.transfer.value()));
  };
  {
    Mapping host(*mover_, kHost), device(*mover_, kOther);
    host.Fill(1, 'x', kSlot);
    EXPECT_EQ(move(Kind::kHostToDevice, {kHost, kSlot}, {kOther, kSlot * 2}), absl::OkStatus());
    EXPECT_TRUE(device.Holds(2, 'x', kSlot));
    EXPECT_EQ(move(Kind::kZero, {}, {kHost, kSlot}), absl::OkStatus());
    EXPECT_EQ(move(Kind::kDeviceToHost, {kOther, kSlot * 2}, {kHost, kSlot}), absl::OkStatus());
    EXPECT_TRUE(host.Holds(1, 'x', kSlot));
  }
  device_.Release();
  EXPECT_EQ(inbox_.Await(held), absl::OkStatus());
  mover_.reset();
}

TEST_F(MoverTransferTest, ATransferOutsideItsRegionIsABrokenInvariant) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  MakeAll();
  EXPECT_DEATH(Begin(Kind::kHostToDevice, kSlots, 0), "region 1");
  EXPECT_DEATH(BeginZero(RegionId(77), 0), "region 77");
}

// One is on its way while the other waits in the device's stream.
TEST_F(MoverTransferTest, ADeviceThatTakesTwoCopiesAtOnceGetsTwo) {
  FaultyDevice two(&device_, /*copies_in_flight=*/2);
  mover_ = std::make_unique<Mover>(std::vector<Device*>{&two}, disk_.get(),
                                   [this](Event event) { inbox_.Post(std::move(event)); });
  MakeAll();
  for (const Kind kind : {Kind::kHostToDevice, Kind::kDeviceToHost}) {
    const uint64_t first = kind == Kind::kHostToDevice ? 1 : 3;
    two.Hold(first);
    two.Hold(first + 1);
    const std::string a = Begin(kind, 0, 0), b = Begin(kind, 1, 1);
    two.AwaitHeld(first);
    two.AwaitHeld(first + 1);
    two.Release();
    EXPECT_EQ(inbox_.Await(a), absl::OkStatus());
    EXPECT_EQ(inbox_.Await(b), absl::OkStatus());
  }
  mover_.reset();
}

TEST_F(MoverTransferTest, ACheckReadsALargeChunkInPieces) {
  constexpr Bytes kLarge = MiB(20);
  mover_->Start(MakeRegion{kHost, {Tier::kHost}, 0, kLarge, kLarge});
  mover_->Start(MakeRegion{kDevice, {Tier::kDevice}, 0, kLarge, kLarge});
  ASSERT_EQ(inbox_.Await("region 1"), absl::OkStatus());
  ASSERT_EQ(inbox_.Await("region 2"), absl::OkStatus());
  const auto check = [&] {
    StartTransfer effect;
    effect.kind = Kind::kCompareDeviceWithHost;
    effect.size = kLarge;
    effect.from = {kDevice, Bytes(0)};
    effect.to = {kHost, Bytes(0)};
    effect.transfer = TransferId(next_++);
    mover_->Start(effect);
    return inbox_.Await("transfer " + std::to_string(effect.transfer.value()));
  };
  Mapping device(*mover_, kDevice);
  for (const uint64_t at : {MiB(8).count() - 1, MiB(8).count(), kLarge.count() - 1}) {
    device.data()[at] = 'x';
    const absl::Status differ = check();
    EXPECT_EQ(differ.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(differ.message().find("at byte " + std::to_string(at)), absl::string_view::npos)
        << differ;
    device.data()[at] = '\0';
  }
  // The allocation was one call, and the checks read 1, 2 and 3 pieces.
  const absl::Status fault = absl::InternalError("injected");
  device_.Fail(1 + 1 + 2 + 3 + 2, fault);
  EXPECT_EQ(check(), fault) << "in its third piece";
  EXPECT_EQ(check(), absl::OkStatus());
}

}  // namespace
}  // namespace memtide
